// Asks the page's engine about recordings, as its script does, and prints the answers for the test to compare with the truth.
// Run by the tests of `analysis::tests::engine`: node engine.js <file of questions>
//
// The questions are an array of { parts, windows, columns, chunk }: a path of parts as a server sends them, windows in nanoseconds,
// a number of columns, and how many events are taken together.

const fs = require('fs');
const path = require('path');

const assets = path.join(__dirname, '..', 'assets');
const shared = path.join(__dirname, '..', '..', 'web');
const read = (folder) => (name) => fs.readFileSync(path.join(folder, name), 'utf8');
const source = [...['bytes.js', 'series.js', 'names.js', 'bands.js'].map(read(shared)), ...['table.js', 'lens.js', 'window.js', 'tree.js'].map(read(assets))].join('\n');

function engine(chunk) {
  const text = source.replace('const CHUNK = 128;', `const CHUNK = ${chunk};`);
  if (chunk !== 128 && text === source) throw new Error('there is no chunk to change');
  return new Function(`${text}\nreturn { Table, Lens, Part, Stacks, sectionsOf, treeOf, held, LINES, BANDS, REST, SMALL, WAYS, FATES };`)();
}

function groups(sums, ways) {
  return Object.fromEntries(ways.map((way) => {
    const { rows, rest } = sums.groups(way);
    if (rest.groups !== 0) throw new Error('a rest where all were asked for');
    const short = sums.groups(way, 2);
    const all = short.rows.reduce((sum, row) => sum + row.bytes, short.rest.bytes);
    if (all !== sums.total) throw new Error(`${way}: rows and rest come to ${all}, not ${sums.total}`);
    return [way, Object.fromEntries(rows.map((row) => [row.name, [row.bytes, row.blocks]]))];
  }));
}

function told(sums, ways) {
  return { bytes: sums.total, requested: sums.requested, blocks: sums.count, others: sums.others, groups: groups(sums, ways) };
}

async function answer({ parts, windows, columns, chunk }) {
  const { Table, Lens, Part, Stacks, sectionsOf, treeOf, LINES, BANDS, REST, SMALL, WAYS } = engine(chunk);
  const table = new Table();
  const bytes = fs.readFileSync(parts);
  const all = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.length);
  for (const part of sectionsOf(all)) table.take(sectionsOf(part));
  if (!table.end) throw new Error('no end');
  // A table with an offset has the same events, and all of them are later.
  const later = new Table(1024, 77);
  for (const part of sectionsOf(all)) later.take(sectionsOf(part));
  const times = (of) => [of.end.end, ...of.time, ...of.notes.map((note) => note.time), ...of.reserved.times.trimmed()];
  const before = times(table);
  if (!times(later).every((time, i) => time === before[i] + 77)) throw new Error('an offset does not shift all times');
  const now = async () => {};
  const lens = await new Lens(table, 'tag').make(now);
  const found = windows.map(([from, to]) => {
    const part = new Part(table, lens, table.eventsBefore(from), table.eventsBefore(to, true));
    const tree = treeOf(part.held, new Stacks(null), 'tag');
    const leaves = [...tree.children.values()].reduce((sum, node) => sum + node.bytes, 0);
    if (leaves !== part.held.total) throw new Error('a tree that does not add up');
    return {
      peak: part.peak.bytes,
      held: told(part.held, WAYS),
      end: told(part.last, WAYS),
      kept: told(part.kept, WAYS),
      temporary: told(part.temporary, WAYS),
      allocated: told(part.allocated, WAYS),
    };
  });
  const span = table.end.end + 1;
  const edges = Float64Array.from({ length: columns + 1 }, (_, i) => (i === columns ? table.events : table.eventsBefore(Math.ceil((i * span) / columns))));
  const { stacks, totals, moments } = lens.columns(edges);
  // Where columns are snapped to chunks none is lost, and the highest stays.
  const moved = lens.snapped(edges);
  const snapped = lens.columns(moved).totals;
  const highest = Math.max(...totals);
  // Sums that a script cannot represent are rounded, and columns with other edges add in another order.
  const rounding = highest <= Number.MAX_SAFE_INTEGER ? 0 : 2 * (table.events + LINES) * Number.EPSILON * highest;
  if (Math.abs(Math.max(...snapped) - highest) > rounding) throw new Error('snapped columns lose the peak');
  // No edge moves by more than an eighth of the columns at its sides.
  moved.forEach((edge, i) => {
    for (const column of [i - 1, i]) if (Math.abs(edge - edges[i]) * 8 > edges[column + 1] - edges[column]) throw new Error(`edge ${i} moves too far`);
  });
  const line = (band) => Array.from(totals, (_, i) => stacks[i * LINES + band]);
  // What is known of each column's highest moment is what lives after as many events.
  const state = new Float64Array(LINES);
  moments.forEach((events, i) => {
    lens.after(events, state);
    for (let band = 0; band < LINES; band++) if (state[band] !== stacks[i * LINES + band]) throw new Error(`column ${i}, band ${band}, after ${events} events`);
  });
  // All bytes after each event, those of blocks that are not told one by one included.
  const afters = [];
  for (let events = 1; events <= table.events; events++) afters.push(lens.after(events, state).reduce((sum, bytes) => sum + bytes, 0));
  return {
    afters,
    end: table.end,
    hasAddresses: table.hasAddresses,
    usual: table.usual,
    windows: found,
    totals: Array.from(totals),
    bands: Object.fromEntries(lens.bands.map((group, band) => [lens.names[group], line(band)])),
    rest: line(REST),
    others: line(SMALL),
    bandLimit: BANDS,
    notes: table.notes.map((note) => note.what),
    reserved: Array.from(table.reserved.values.trimmed()),
    parked: Array.from(table.parked.values.trimmed()),
    addresses: Array.from(table.address),
    sizes: Array.from(table.bytes),
  };
}

(async () => {
  const questions = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
  const answers = [];
  for (const question of questions) answers.push(await answer(question));
  console.log(JSON.stringify(answers));
})();
