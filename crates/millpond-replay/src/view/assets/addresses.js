// Address against time, for the window: where each block lies and for how long, and what lies free between them.

// Blocks that are drawn at most, the largest.
const MOST_DRAWN = 200_000;
// Blocks coloured like their groups, without one they are `REST`.
const PLAIN = 8;

class Addresses {
  constructor(look, axis) {
    Object.assign(this, { look, axis, state: look });
    this.canvas = byId('addresses');
    this.tip = this.canvas.parentElement.querySelector('.tip');
    this.image = document.createElement('canvas');
    this.surface = new Surface(this.canvas, (context, width, height) => this.draw(context, width, height));
    this.gestures();
    look.listen((changed) => {
      if (['window', 'data', 'theme', 'way', 'lit', 'focus'].some((key) => changed.has(key))) this.moved();
      if (['window', 'moment', 'under', 'block', 'data'].some((key) => changed.has(key))) {
        this.surface.paint();
        this.showFullness();
      }
    });
  }

  // While the window moves the old picture is stretched to it; the true one follows at rest.
  moved() {
    clearTimeout(this.rest);
    this.rest = setTimeout(() => {
      this.stale = true;
      this.surface.paint();
    }, 90);
  }

  draw(context, width, height) {
    const { look } = this;
    const { recording } = look;
    this.scale = this.axis.scale(width);
    const { left, span } = this.scale;
    const bottom = height - 22;
    if (!recording.ready) return;
    byId('addresses-panel').hidden = !recording.table.hasAddresses;
    if (!recording.table.hasAddresses || span < 50 || height < 50) return;
    const key = `${width}x${height}`;
    if (this.stale !== false || this.key !== key) {
      this.key = key;
      this.stale = false;
      this.render(Math.round(span), Math.round(bottom));
    }
    context.imageSmoothingEnabled = false;
    context.save();
    context.beginPath();
    context.rect(left, 0, span, bottom);
    context.clip();
    const { from, to } = this.rendered;
    context.drawImage(this.image, this.scale.x(from), 0, this.scale.x(to) - this.scale.x(from), bottom);
    for (const block of [look.block, look.under]) if (block !== null) this.frame(context, block, bottom);
    context.restore();
    byteMarks(context, this.scale, bottom, this.extent);
    axisMarks(context, this.axis, this.scale, height - 6);
    if (look.moment !== null && look.moment >= look.from && look.moment <= look.to) {
      crosshair(context, this.scale.x(look.moment), 7, bottom, look);
    }
  }

  // The blocks of the window, or the largest of them where there are too many: by classes of sizes, because to sort millions takes
  // seconds.
  largest(table, first, end) {
    const { death, address, bytes } = table;
    const born = table.bornBefore(end);
    const counts = new Uint32Array(64 * 8);
    const isThere = (block) => death[block] >= first && address[block] > 0;
    let all = 0;
    for (let block = 0; block < born; block++) {
      if (!isThere(block)) continue;
      counts[sizeClass(bytes[block])]++;
      all++;
    }
    let least = counts.length;
    let room = MOST_DRAWN;
    while (least > 0 && room > 0) room -= counts[--least];
    // Of the smallest class as many as there is room for.
    let some = counts[least] + Math.min(room, 0);
    const found = [];
    for (let block = 0; block < born; block++) {
      if (!isThere(block)) continue;
      const of = sizeClass(bytes[block]);
      if (of > least || (of === least && some-- > 0)) found.push(block);
    }
    this.left = all - found.length;
    return found;
  }

  // The blocks of the window and where they are drawn: ranges that no block of the window touches take no room.
  lay() {
    const { look } = this;
    const { table } = look.recording;
    const [first, end] = look.recording.range(look);
    const found = this.largest(table, first, end);
    found.sort((a, b) => table.address[a] - table.address[b]);
    this.blocks = found;
    this.spots = new Float64Array(found.length);
    const gaps = [];
    let top = -1;
    let covered = 0;
    for (const block of found) {
      const address = table.address[block];
      if (top >= 0 && address > top) gaps.push(address - top);
      covered += Math.max(address + table.bytes[block] - Math.max(address, top), 0);
      top = Math.max(top, address + table.bytes[block]);
    }
    const most = Math.max(covered / 20, 1);
    const shown = most / 4;
    let spot = 0;
    let at = table.address[found[0]] ?? 0;
    top = at;
    this.gone = 0;
    found.forEach((block, i) => {
      const address = table.address[block];
      if (address - top > most) {
        this.gone++;
        spot += top - at + shown;
        at = address;
      }
      this.spots[i] = spot + address - at;
      top = Math.max(top, address + table.bytes[block]);
    });
    this.extent = Math.max(spot + top - at, 1);
  }

  render(width, height) {
    this.lay();
    const { look } = this;
    const { recording } = look;
    const { table } = recording;
    const lens = recording.lensNow(look.way);
    const toX = (event) => this.scale.x(recording.placeOf(event, look.axis)) - this.scale.left;
    const toY = height / this.extent;
    const paint = new Float32Array(width * height * 4);
    const palette = [...ink.tag, ink.rest].map(rgb);
    const dimmed = palette.map(faded);
    this.blocks.forEach((block, i) => {
      const band = lens ? Math.min(lens.bandOf[table.origin[block]], PLAIN) : PLAIN;
      const isLit = look.lit === null || !lens || lens.groupOf[table.origin[block]] === look.lit;
      const x1 = table.death[block] === LIVES ? width : toX(table.death[block]);
      const y = this.spots[i] * toY;
      fill(paint, width, height, toX(table.birth[block]), x1, y, y + table.bytes[block] * toY, (isLit ? palette : dimmed)[band]);
    });
    this.compose(paint, width, height);
    this.rendered = { from: look.from, to: look.to };
    byId('addresses-note').textContent = [
      this.left > 0 ? `${count(this.left)} smaller blocks are not drawn.` : '',
      this.gone > 0 ? `${count(this.gone)} ranges of addresses that no block of this window touches are cut short.` : '',
    ].filter(Boolean).join(' ');
  }

  // What lies free between the blocks of the moment: of the addresses of this window, and of the largest range.
  showFullness() {
    const { look } = this;
    const { recording } = look;
    if (!recording.ready || !recording.table.hasAddresses || !this.blocks) return;
    const { table } = recording;
    const events = recording.moment(look);
    const size = look.exact ? exact : human;
    let held = 0;
    let blocks = 0;
    let top = -1;
    let free = 0;
    let largest = 0;
    let holes = 0;
    this.blocks.forEach((block, i) => {
      if (table.birth[block] >= events || table.death[block] < events) return;
      held += table.bytes[block];
      blocks++;
      const gap = top < 0 ? this.spots[i] : this.spots[i] - top;
      if (gap > 0) {
        free += gap;
        holes++;
        largest = Math.max(largest, gap);
      }
      top = Math.max(top, this.spots[i] + table.bytes[block]);
    });
    const after = this.extent - Math.max(top, 0);
    if (after > 0) {
      free += after;
      holes++;
      largest = Math.max(largest, after);
    }
    byId('fullness-title').textContent = look.moment === null ? 'How full it is at the peak' : 'How full it is here';
    // Where not all blocks are drawn, what lies between these is not all free.
    const facts = this.left > 0 ? [
      ['blocks drawn', size(held), count(blocks)],
      ['free or not drawn', size(free), percent(free, held + free)],
    ] : [
      ['blocks', size(held), count(blocks)],
      ['between them', size(free), percent(free, held + free)],
      ['largest hole', size(largest), `of ${count(holes)}`],
    ];
    byId('fullness').replaceChildren(...facts.flatMap(([name, value, note]) => [h('dt', {}, name), h('dd', {}, value), h('dd', { class: 'beside' }, note)]));
  }

  compose(paint, width, height) {
    this.image.width = width;
    this.image.height = height;
    const pen = this.image.getContext('2d');
    const picture = pen.createImageData(width, height);
    const ground = rgb(ink.void);
    for (let y = 0; y < height; y++) {
      // Addresses grow upwards.
      const row = (height - 1 - y) * width;
      for (let x = 0; x < width; x++) {
        const from = (row + x) * 4;
        const to = (y * width + x) * 4;
        const alpha = Math.min(paint[from + 3], 1);
        const scale = alpha > 0 ? alpha / paint[from + 3] : 0;
        for (let channel = 0; channel < 3; channel++) picture.data[to + channel] = ground[channel] * (1 - alpha) + paint[from + channel] * scale;
        picture.data[to + 3] = 255;
      }
    }
    pen.putImageData(picture, 0, 0);
  }

  frame(context, block, bottom) {
    const i = this.blocks.indexOf(block);
    if (i < 0) return;
    const { look } = this;
    const { table } = look.recording;
    const place = (event) => this.scale.x(look.recording.placeOf(event, look.axis));
    const x0 = Math.max(place(table.birth[block]), this.scale.left);
    const x1 = Math.min(table.death[block] === LIVES ? Infinity : place(table.death[block]), this.scale.left + this.scale.span);
    const y0 = bottom - ((this.spots[i] + table.bytes[block]) / this.extent) * bottom;
    const y1 = bottom - (this.spots[i] / this.extent) * bottom;
    context.strokeStyle = ink.ink;
    context.lineWidth = 1.5;
    context.strokeRect(x0 - 0.5, y0 - 0.5, Math.max(x1 - x0, 1) + 1, Math.max(y1 - y0, 1) + 1);
  }

  // The largest block under a point.
  pick(x, y) {
    const { look } = this;
    if (!this.blocks || !look.recording.ready) return null;
    const { table } = look.recording;
    const bottom = this.surface.height - 22;
    const per = this.extent / bottom;
    const spot = (bottom - y) * per;
    const place = this.scale.at(x);
    const events = look.recording.upTo(place, look.axis);
    let best = null;
    this.blocks.forEach((block, i) => {
      const from = this.spots[i];
      if (from > spot + per || from + table.bytes[block] < spot) return;
      if (table.birth[block] >= events || table.death[block] < events) return;
      if (best === null || table.bytes[block] > table.bytes[best]) best = block;
    });
    return best;
  }

  gestures() {
    const { canvas, look } = this;
    const inside = (x) => x >= this.scale.left && x <= this.scale.left + this.scale.span;
    brushable(this, {
      hover: (x, y) => {
        const block = inside(x) ? this.pick(x, y) : null;
        look.set({ hover: inside(x) ? this.scale.at(x) : null, under: block });
        if (block === null) hideTip(this.tip);
        else {
          fillTip(this.tip, look.recording, { block, group: null });
          placeTip(this.tip, x, y, canvas.clientWidth);
        }
      },
      click: (x, y) => {
        if (inside(x)) look.set({ pinned: this.scale.at(x), block: this.pick(x, y) ?? look.block });
      },
      leave: () => {
        hideTip(this.tip);
        look.set({ hover: null, under: null });
      },
    });
  }
}

// Eight classes between a power of two and the next.
function sizeClass(bytes) {
  return Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) * 8), 511);
}
