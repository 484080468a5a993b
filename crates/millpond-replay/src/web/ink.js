// Colours come from the style sheet, so that light, dark and print need no second list here.

const probe = document.createElement('i');
const NAMES = ['ground', 'panel', 'ink', 'muted', 'faint', 'rule', 'water', 'water-line', 'free', 'void', 'waste', 'mark', 'rest'];
let ink = {};

function readInk() {
  probe.hidden = true;
  document.body.append(probe);
  const resolve = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  ink = Object.fromEntries(NAMES.map((name) => [name, resolve(name)]));
  ink.policy = Array.from({ length: 12 }, (_, i) => resolve(`policy-${i}`));
  ink.tag = Array.from({ length: HUES }, (_, i) => resolve(`tag-${i}`));
  ink.font = getComputedStyle(document.body).fontFamily;
  probe.remove();
}

const parsed = new Map();

function rgb(text) {
  if (!parsed.has(text)) {
    const [r, g, b] = text.match(/[\d.]+/g).map(Number);
    parsed.set(text, text.startsWith('color(') ? [r * 255, g * 255, b * 255] : [r, g, b]);
  }
  return parsed.get(text);
}

// Mixes a share of a colour with the colour of the panel.
function mixed(colour, part) {
  const panel = rgb(ink.panel);
  return colour.map((value, i) => part * value + (1 - part) * panel[i]);
}

// Dims a colour.
function faded(colour) {
  return mixed(colour, 0.28);
}

function policyInk(index) {
  return ink.policy[index % ink.policy.length];
}

// A canvas that keeps its pixels true to the screen; `draw(context, width, height)` is in CSS pixels.
class Surface {
  constructor(canvas, draw) {
    this.canvas = canvas;
    this.draw = draw;
    this.context = canvas.getContext('2d');
    this.ratio = this.width = this.height = 1;
    // Tells of the first size too, in time for the first frame.
    new ResizeObserver(() => this.resize()).observe(canvas);
  }

  resize() {
    const box = this.canvas.getBoundingClientRect();
    this.ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.width = Math.max(Math.round(box.width), 1);
    this.height = Math.max(Math.round(box.height), 1);
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
    this.paint();
  }

  paint() {
    // One that has no place on the page yet, or is hidden, is drawn when it has one.
    if (this.width < 2 || this.height < 2) return;
    this.context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    this.context.clearRect(0, 0, this.width, this.height);
    this.draw(this.context, this.width, this.height);
  }
}

// Thin stripes over what is set: bytes lost to rounding.
function hatch(context, x, y, width, height, colour) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = x - height; at < x + width; at += 4) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}
