// Decodes a page as its script does and prints sums that the test compares with the truth.
// Run by the test `the_script_decodes_the_page_exactly`: node decode.js <page>

const fs = require('fs');
const path = require('path');

const html = fs.readFileSync(process.argv[2], 'utf8');
const elements = new Map();
for (const [, id, text] of html.matchAll(/<script type="[^"]*" id="([^"]*)">([\s\S]*?)<\/script>/g)) {
  elements.set(id, { textContent: text });
}
globalThis.document = { getElementById: (id) => elements.get(id) ?? null };

const source = ['../../web/bytes.js', '../../web/units.js', '../../web/series.js', '../assets/story.js', '../assets/places.js']
  .map((name) => fs.readFileSync(path.join(__dirname, name), 'utf8'))
  .join('\n');
const { Story, Places } = new Function(`${source}\nreturn { Story, Places };`)();

// Sums are exact in doubles as long as both sides add in the same order.
function sum(length, value) {
  let total = 0;
  for (let i = 0; i < length; i++) total += value(i) * ((i % 97) + 1);
  return total;
}

(async () => {
  const meta = JSON.parse(elements.get('meta').textContent);
  const story = await Story.read(meta);
  await story.readTimes();
  const sums = [
    sum(story.events, (i) => story.requestedCurve.at(i)),
    sum(story.events, (i) => story.times[i]),
    sum(story.allocations, (i) => story.tagText(i).length),
  ];
  for (const index of meta.runs.keys()) {
    const places = new Places(story, index);
    const reserved = await places.reserved();
    const allocated = await places.allocated();
    const address = await places.addresses();
    sums.push(sum(places.end, (i) => reserved.at(i)));
    sums.push(sum(places.end, (i) => allocated.at(i)));
    sums.push(sum(story.allocations, (i) => address[i]));
  }
  // Extremes over a range are those of its values.
  const curve = story.requestedCurve;
  for (let from = 0; from < story.events; from += 37) {
    const to = Math.min(story.events - 1, from + ((from * 7) % 611));
    let lo = Infinity;
    let hi = -Infinity;
    for (let i = from; i <= to; i++) {
      lo = Math.min(lo, curve.at(i));
      hi = Math.max(hi, curve.at(i));
    }
    curve.extremes(from, to);
    if (curve.lo !== lo || curve.hi !== hi) throw new Error(`extremes of ${from}..=${to}`);
  }
  console.log(JSON.stringify(sums));
})();
