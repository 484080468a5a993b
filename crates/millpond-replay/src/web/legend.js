// The legend of a picture: each look with its name and its bytes at the moment.

class Legend {
  constructor(list, pick) {
    Object.assign(this, { list, pick, entries: [] });
  }

  // Each item has a look, a name and bytes, and a key if it can be lit.
  show(items, inFull, lit = null) {
    while (this.entries.length < items.length) this.entries.push(this.entry());
    this.entries.forEach((entry, i) => {
      const item = items[i];
      entry.element.hidden = item === undefined;
      if (item === undefined) return;
      const isLit = lit !== null && lit === item.key;
      entry.key = item.key;
      entry.element.classList.toggle('dim', lit !== null && !isLit);
      entry.button.disabled = item.key === undefined;
      entry.button.setAttribute('aria-pressed', String(isLit));
      entry.button.title = item.name;
      entry.swatch.className = `swatch ${item.look}`;
      entry.name.textContent = item.name;
      entry.size.textContent = item.bytes === null ? '' : inFull ? exact(item.bytes) : human(item.bytes);
    });
  }

  entry() {
    const entry = { swatch: h('i'), name: h('span', { class: 'name' }), size: h('span', { class: 'size' }) };
    entry.button = h('button', { type: 'button', onclick: () => this.pick(entry.key) }, entry.swatch, entry.name, entry.size);
    entry.element = h('li', {}, entry.button);
    this.list.append(entry.element);
    return entry;
  }
}
