// The result table: sorts by any column; a row chooses its policy.

const SCALE = { b: 1, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40, ns: 1e-9, 'µs': 1e-6, us: 1e-6, ms: 1e-3, s: 1, min: 60 };

// What a formatted cell is worth when sorted; text that holds no number stays text.
function worth(text) {
  const match = /^[×x]?\s*(-?[\d,]*\.?\d+)\s*([a-zµ]+)?/i.exec(text.trim());
  if (!match) return text.trim().toLowerCase();
  return Number(match[1].replaceAll(',', '')) * (SCALE[(match[2] ?? '').toLowerCase()] ?? 1);
}

class Table {
  constructor(state) {
    this.state = state;
    this.table = byId('results');
    this.body = this.table.tBodies[0];
    [...this.table.tHead.rows[0].cells].forEach((head, column) => {
      const button = h('button', { type: 'button', onclick: () => this.sort(head, column) }, head.textContent);
      head.replaceChildren(button);
    });
    for (const row of this.body.rows) {
      const index = Number(row.dataset.run);
      if (!(index >= 0)) continue;
      const name = row.cells[0];
      const button = h('button', { type: 'button', class: 'pick' }, name.textContent);
      name.replaceChildren(h('i', { class: `swatch policy-${index % 12}` }), button);
      row.addEventListener('click', () => state.set({ focus: index }));
    }
    new ResizeObserver(() => this.hint()).observe(this.table.parentElement);
    state.listen(() => this.show());
    this.show();
  }

  show() {
    for (const row of this.body.rows) row.classList.toggle('focus', Number(row.dataset.run) === this.state.focus);
  }

  // Says so where not all columns are in sight.
  hint() {
    const { scrollWidth, clientWidth } = this.table.parentElement;
    const wide = scrollWidth > clientWidth;
    this.table.classList.toggle('wide', wide);
    byId('results-more').hidden = !wide;
  }

  sort(head, column) {
    const descending = head.getAttribute('aria-sort') === 'ascending';
    for (const other of this.table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', descending ? 'descending' : 'ascending');
    const sign = descending ? -1 : 1;
    const rows = [...this.body.rows].map((row) => ({ row, value: worth(row.cells[column].textContent) }));
    rows.sort((a, b) => {
      if (typeof a.value !== typeof b.value) return typeof a.value === 'number' ? -1 : 1;
      return sign * (a.value < b.value ? -1 : a.value > b.value ? 1 : 0);
    });
    this.body.append(...rows.map(({ row }) => row));
  }
}
