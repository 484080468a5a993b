// A list of groups with bars, the largest first. A click on one lights it everywhere.

class Rows {
  constructor(list, pick) {
    this.list = list;
    this.pick = pick;
    this.rows = [];
  }

  // Each item has a key, a name, bytes, blocks and a band.
  show(items, total, inFull, lit) {
    const widest = Math.max(...items.map((item) => item.bytes), 1);
    while (this.rows.length < items.length) this.rows.push(this.row());
    this.rows.forEach((row, i) => {
      const item = items[i];
      row.element.hidden = item === undefined;
      if (item === undefined) return;
      row.key = item.key;
      const isLit = lit !== null && lit === item.key;
      row.element.classList.toggle('lit', isLit);
      row.element.classList.toggle('dim', lit !== null && !isLit);
      row.button.setAttribute('aria-pressed', String(isLit));
      row.name.textContent = item.name;
      row.button.title = item.name;
      row.size.textContent = inFull ? exact(item.bytes) : human(item.bytes);
      row.share.textContent = percent(item.bytes, total);
      row.blocks.textContent = plural(item.blocks, 'block');
      row.bar.style.width = `${(100 * item.bytes) / widest}%`;
      row.bar.className = LOOKS[item.band];
    });
  }

  row() {
    const row = { name: h('span', { class: 'name' }), size: h('span', { class: 'size' }), share: h('span', { class: 'share' }), blocks: h('span', { class: 'blocks' }), bar: h('i') };
    row.button = h('button', { type: 'button', onclick: () => this.pick(row.key) },
      row.name, row.size, h('span', { class: 'track' }, row.bar), row.blocks, row.share);
    row.element = h('li', {}, row.button);
    this.list.append(row.element);
    return row;
  }
}
