// Prints with what a page opens: the policies that have a line, the chosen one, the moment and the window.
// Run by the test `a_page_opens_at_the_peak_or_the_failure_with_the_relevant_policies`: node opens.js <page>

const fs = require('fs');
const path = require('path');

const html = fs.readFileSync(process.argv[2], 'utf8');
const meta = JSON.parse(html.match(/id="meta">([\s\S]*?)<\/script>/)[1]);
globalThis.requestAnimationFrame = () => 0;

const source = ['../../web/series.js', '../../web/view_state.js', '../../web/axis.js', '../assets/state.js']
  .map((name) => fs.readFileSync(path.join(__dirname, name), 'utf8'))
  .join('\n');
const { State } = new Function(`${source}\nreturn { State };`)();

const state = new State(meta);
const lines = () => meta.runs.filter((_, index) => state.isShown(index)).map((run) => run.name);
const opens = { lines: lines(), focus: meta.runs[state.focus].name, moment: state.moment, name: state.momentName, window: [state.from, state.to] };
state.toggleAll();
const all = lines();
state.toggleAll();
console.log(JSON.stringify({ ...opens, all, again: lines() }));
