// Numbers and names as people read them.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
const grouped = new Intl.NumberFormat('en-US');

function count(value) {
  return grouped.format(value);
}

function human(bytes) {
  const size = Math.abs(bytes);
  let unit = 0;
  while (unit < UNITS.length - 1 && size >= 1024 ** (unit + 1)) unit++;
  const value = bytes / 1024 ** unit;
  const digits = unit === 0 ? 0 : Math.abs(value) >= 100 ? 1 : 2;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

function exact(bytes) {
  return `${grouped.format(bytes)} B`;
}

function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? '' : 's'}`;
}

function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}

function percent(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : '–';
}

function clock(us) {
  const seconds = us / 1e6;
  if (seconds < 0.001) return `${us.toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(3)} ms`;
  if (seconds < 120) return `${seconds.toFixed(3)} s`;
  return `${Math.floor(seconds / 60)} min ${(seconds % 60).toFixed(1)} s`;
}

function hex(address) {
  return `0x${address.toString(16)}`;
}

// An element with text or children; never markup, whatever the strings hold.
function h(name, props = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(props)) {
    if (key === 'class') element.className = value;
    else if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, '');
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Fills a list of facts: each has a name, a value and perhaps a note.
function showFacts(list, facts) {
  const parts = ([name, value, note]) => [h('dt', {}, name), h('dd', {}, value), h('dd', { class: 'beside' }, note)];
  list.replaceChildren(...facts.flatMap((fact) => parts(fact).slice(0, fact.length)));
}

function byId(id) {
  return document.getElementById(id);
}
