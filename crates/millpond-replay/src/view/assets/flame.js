// A tree of sums as nested bars, the whole above: as wide as their bytes.

const FLAME_ROW = 20;
const MOST_ROWS = 28;

class Flame {
  constructor(look) {
    this.look = look;
    this.canvas = byId('flame');
    this.tip = this.canvas.parentElement.querySelector('.tip');
    this.surface = new Surface(this.canvas, (context, width) => this.draw(context, width));
    this.chosen = null;
    this.gestures();
  }

  // Shows another tree, with the same part of it in view if it is there.
  show(root) {
    const path = this.pathOf(this.chosen);
    this.root = root;
    this.chosen = path.reduce((node, name) => node?.children.get(name), root) ?? root;
    this.fit();
  }

  pathOf(node) {
    const path = [];
    for (let at = node; at?.parent; at = at.parent) path.unshift(at.name);
    return path;
  }

  choose(node) {
    this.chosen = node;
    this.fit();
  }

  // As many rows as the tree has below what is chosen.
  fit() {
    const depth = (node, left) => (left === 0 ? 0 : Math.max(0, ...[...node.children.values()].map((child) => depth(child, left - 1))) + 1);
    const above = this.pathOf(this.chosen).length;
    const rows = Math.min(above + depth(this.chosen, MOST_ROWS), MOST_ROWS);
    this.canvas.style.height = `${Math.max(rows, 3) * FLAME_ROW + 2}px`;
    byId('flame-out').hidden = this.chosen === this.root;
    this.surface.resize();
  }

  draw(context, width) {
    this.bars = [];
    if (!this.root) return;
    let row = 0;
    const above = [];
    for (let at = this.chosen.parent; at; at = at.parent) above.unshift(at);
    for (const node of above) this.bar(context, node, 0, width, row++, true);
    this.place(context, this.chosen, 0, width, row);
  }

  place(context, node, x, width, row) {
    if (row >= MOST_ROWS) return;
    this.bar(context, node, x, width, row, false);
    const children = [...node.children.values()].sort((a, b) => b.bytes - a.bytes);
    let at = x;
    for (const child of children) {
      const wide = node.bytes > 0 ? (child.bytes / node.bytes) * width : 0;
      if (wide < 1) break;
      this.place(context, child, at, wide, row + 1);
      at += wide;
    }
  }

  bar(context, node, x, width, row, above) {
    const y = row * FLAME_ROW;
    const colour = rgb(node.depth === 0 ? ink.rest : ink.tag[hash(node.name) % ink.tag.length]);
    context.fillStyle = `rgb(${above ? faded(colour) : mixed(colour, 0.55)})`;
    context.fillRect(x, y, Math.max(width - 1, 0.5), FLAME_ROW - 1);
    this.bars.push({ node, x, width, y });
    if (this.over === node) {
      context.strokeStyle = ink.ink;
      context.lineWidth = 1.5;
      context.strokeRect(x + 1, y + 1, Math.max(width - 3, 1), FLAME_ROW - 3);
    }
    if (width < 34) return;
    context.save();
    context.beginPath();
    context.rect(x, y, width - 4, FLAME_ROW);
    context.clip();
    context.font = `12px ${ink.font}`;
    context.textAlign = 'left';
    context.textBaseline = 'middle';
    context.fillStyle = ink.ink;
    context.fillText(`${node.name}  ${human(node.bytes)}`, x + 6, y + FLAME_ROW / 2);
    context.restore();
  }

  at(x, y) {
    return this.bars?.find((bar) => y >= bar.y && y < bar.y + FLAME_ROW && x >= bar.x && x < bar.x + bar.width)?.node ?? null;
  }

  hover(node, x, y) {
    if (this.over !== node) {
      this.over = node;
      this.surface.paint();
    }
    if (!node) {
      hideTip(this.tip);
      return;
    }
    this.tip.replaceChildren(
      h('b', {}, node.name),
      h('span', {}, `${human(node.bytes)}, ${percent(node.bytes, this.root.bytes)} of all`),
      h('span', {}, plural(node.blocks, 'block')),
    );
    placeTip(this.tip, x, y, this.canvas.clientWidth);
  }

  gestures() {
    const { canvas } = this;
    canvas.addEventListener('pointermove', (pointer) => this.hover(this.at(pointer.offsetX, pointer.offsetY), pointer.offsetX, pointer.offsetY));
    canvas.addEventListener('pointerleave', () => this.hover(null));
    canvas.addEventListener('click', (pointer) => {
      const node = this.at(pointer.offsetX, pointer.offsetY);
      if (node) this.choose(node);
    });
    canvas.addEventListener('blur', () => this.hover(null));
    // Arrows go from bar to bar, Enter looks closer, Backspace steps back.
    canvas.addEventListener('keydown', (key) => {
      const at = this.over ?? this.chosen;
      if (!at) return;
      const brothers = at.parent ? [...at.parent.children.values()].sort((a, b) => b.bytes - a.bytes) : [at];
      const beside = (step) => brothers[brothers.indexOf(at) + step];
      const next = {
        ArrowDown: () => [...at.children.values()].sort((a, b) => b.bytes - a.bytes)[0],
        ArrowUp: () => at.parent,
        ArrowRight: () => beside(1),
        ArrowLeft: () => beside(-1),
      }[key.key];
      if (next) {
        const node = next();
        const bar = this.bars.find((bar) => bar.node === node);
        if (bar) this.hover(node, Math.max(bar.x, 0), bar.y);
      } else if (key.key === 'Enter') this.choose(at);
      else if (key.key === 'Backspace') this.choose(this.chosen.parent ?? this.chosen);
      else return;
      key.preventDefault();
      key.stopPropagation();
    });
    byId('flame-out').addEventListener('click', () => this.choose(this.root));
  }
}

// The same colour for the same name, everywhere and always.
function hash(text) {
  let value = 0;
  for (let i = 0; i < text.length; i++) value = (value * 31 + text.charCodeAt(i)) >>> 0;
  return value;
}
