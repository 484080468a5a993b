// Several recordings: what each holds at the peak of the window, and what differs.

class Compare {
  constructor(look) {
    this.look = look;
    byId('compare').hidden = look.recordings.length < 2;
    look.listen(() => this.show(), 'way', 'data', 'exact', 'theme');
    look.listen(atRest(120, () => this.show()), 'window');
  }

  show() {
    const { look } = this;
    const { recordings } = look;
    if (recordings.length < 2 || !recordings.every((recording) => recording.ready)) return;
    const sums = recordings.map((recording) => recording.part(look).held);
    showDifferences('compare', recordings.map((recording) => recording.name), sums, look);
  }
}

// The table of what differs between several sums, each under its title; its elements begin with `id`.
function showDifferences(id, titles, sums, look) {
  const { way } = look;
  const size = look.exact ? exact : human;
  const rows = differences(sums, way);
  const change = (first, last) => (last === first ? '–' : `${last > first ? '+' : '−'}${size(Math.abs(last - first))}`);
  const line = (name, bytes, props = {}) => h('tr', props, h('th', { scope: 'row', title: name }, name), ...bytes.map((value) => h('td', {}, size(value))), h('td', {}, change(bytes[0], bytes[bytes.length - 1])));
  byId(`${id}-head`).replaceChildren(h('tr', {}, h('th', { scope: 'col' }, WAY_NAMES[way]), ...titles.map((title) => h('th', { scope: 'col' }, title)), h('th', { scope: 'col' }, 'change')));
  byId(`${id}-rows`).replaceChildren(
    line('all', sums.map((of) => of.total + of.others), { class: 'total' }),
    ...rows.slice(0, LISTED).map((row) => line(row.name || '(no name)', row.bytes)),
  );
  const rest = rows.slice(LISTED);
  const all = sums.map((_, i) => rest.reduce((sum, row) => sum + row.bytes[i], 0));
  byId(`${id}-rest`).textContent = rest.length > 0 ? `${count(rest.length)} other groups: ${all.map(size).join(', ')}` : '';
}

// Groups by name, with their bytes in each of several sums: what differs most between the first and the last is first.
function differences(sums, way) {
  const rows = new Map();
  sums.forEach((of, i) => {
    for (const { name, bytes } of of.groups(way).rows) {
      if (!rows.has(name)) rows.set(name, { name, bytes: sums.map(() => 0) });
      rows.get(name).bytes[i] += bytes;
    }
  });
  const change = ({ bytes }) => Math.abs(bytes[bytes.length - 1] - bytes[0]);
  return [...rows.values()].sort((a, b) => change(b) - change(a) || b.bytes[0] - a.bytes[0] || (a.name < b.name ? -1 : 1));
}
