// Address against events: where the chosen policy put each block, and for how long.
//
// Blocks never overlap in this plane, so each adds exactly the part of a pixel that it covers; the
// picture is the true average of what lies under a pixel, however many blocks that are.

class History {
  constructor(state, axis, data) {
    Object.assign(this, { state, axis, data });
    this.canvas = byId('history');
    this.tip = byId('history-tip');
    this.image = document.createElement('canvas');
    this.surface = new Surface(this.canvas, (context, width, height) => this.draw(context, width, height));
    this.gestures();
    state.listen((changed) => {
      if (['focus', 'data', 'theme', 'grouping', 'lit'].some((key) => changed.has(key))) this.stale = true;
      if (changed.has('window')) this.moved();
      if (this.stale || changed.has('window') || changed.has('moment') || changed.has('block')) this.surface.paint();
    });
  }

  // While the window moves the old picture is stretched to it; the true one follows at rest.
  moved() {
    clearTimeout(this.rest);
    this.rest = setTimeout(() => {
      this.stale = true;
      this.surface.paint();
    }, 70);
  }

  draw(context, width, height) {
    const places = this.data.shown;
    this.scale = this.axis.scale(width);
    const { left, span } = this.scale;
    const bottom = height - 22;
    context.font = `11px ${ink.font}`;
    if (!places) {
      context.fillStyle = ink.muted;
      context.font = `13px ${ink.font}`;
      context.fillText(this.data.failed ?? 'Placing the blocks …', left, 20);
      return;
    }
    const key = `${width}x${height}`;
    if (this.stale !== false || this.key !== key) {
      this.key = key;
      this.stale = false;
      this.render(places, Math.round(span), Math.round(bottom));
    }
    context.imageSmoothingEnabled = false;
    const { from, to } = this.rendered;
    if (from === this.state.from && to === this.state.to) {
      context.drawImage(this.image, left, 0, span, bottom);
    } else {
      context.save();
      context.beginPath();
      context.rect(left, 0, span, bottom);
      context.clip();
      context.drawImage(this.image, this.scale.x(from), 0, this.scale.x(to) - this.scale.x(from), bottom);
      context.restore();
    }
    byteMarks(context, this.scale, bottom, places.extent);
    axisMarks(context, this.axis, this.scale, height - 6);
    this.drawBlock(context, places, bottom);
    const event = this.state.moment;
    if (event >= this.state.from && event <= this.state.to) crosshair(context, this.scale.x(event), 7, bottom, this.state);
  }

  drawBlock(context, places, bottom) {
    const serial = this.state.block;
    if (serial === null || places.spot[serial] === UNSERVED) return;
    const { story } = this.data;
    const x0 = Math.max(this.scale.x(story.birth[serial]), this.scale.left);
    const x1 = Math.min(this.scale.x(story.gone[serial]), this.scale.left + this.scale.span);
    const y1 = bottom - (places.spot[serial] / places.extent) * bottom;
    const y0 = bottom - ((places.spot[serial] + places.blockBytes(serial)) / places.extent) * bottom;
    context.strokeStyle = ink.ink;
    context.lineWidth = 1.5;
    context.strokeRect(x0 - 0.5, y0 - 0.5, Math.max(x1 - x0, 1) + 1, Math.max(y1 - y0, 1) + 1);
  }

  render(places, width, height) {
    const { story } = this.data;
    const grouping = this.data.grouping();
    const { from, to } = this.state;
    const lit = this.state.lit;
    const left = this.scale.left;
    const toX = this.axis.timed
      ? (event) => this.scale.x(event) - left
      : (event) => ((event - from) / (to - from)) * this.scale.span;
    const toY = height / places.extent;
    const held = new Float32Array(width * height);
    const paint = new Float32Array(width * height * 4);
    const palette = [...ink.tag, ink.rest, ink.waste].map(rgb);
    const dimmed = palette.map(faded);
    const REST = 8;
    const WASTE = 9;

    for (const span of places.segments) {
      if (span.from >= to || span.to <= from) continue;
      cover(width, height, toX(Math.max(span.from, from)), toX(Math.min(span.to, to)), span.spot * toY, (span.spot + span.bytes) * toY,
        (pixel, part) => { held[pixel] += part; });
    }
    const { birth, gone, tag, requested } = story;
    const { spot, slack } = places;
    // What lived when the window begins, then what was born in it.
    const first = Math.floor(from);
    const draw = (i) => {
      if (spot[i] === UNSERVED) return;
      const group = grouping.ofTag[tag[i]];
      let colour = grouping.colour[group];
      if (colour < 0) colour = REST;
      const inks = lit !== null && group !== lit ? dimmed : palette;
      const x0 = toX(birth[i]);
      const x1 = toX(gone[i]);
      const y0 = spot[i] * toY;
      const y1 = y0 + requested[i] * toY;
      fill(paint, width, height, x0, x1, y0, y1, inks[colour]);
      if (slack[i] * toY > 0.05) fill(paint, width, height, x0, x1, y1, y1 + slack[i] * toY, inks[WASTE]);
    };
    for (const i of story.alive(first)) draw(i);
    for (let i = lastAtMost(birth, first) + 1; i < spot.length && birth[i] <= to; i++) draw(i);
    this.compose(places, held, paint, width, height);
  }

  compose(places, held, paint, width, height) {
    this.rendered = { from: this.state.from, to: this.state.to };
    this.image.width = width;
    this.image.height = height;
    const pen = this.image.getContext('2d');
    const picture = pen.createImageData(width, height);
    const pixels = picture.data;
    const [vr, vg, vb] = rgb(ink.void);
    const [fr, fg, fb] = rgb(ink.free);
    const stop = places.end < this.state.to ? this.scale.x(places.end) - this.scale.left : Infinity;
    for (let y = 0; y < height; y++) {
      // Addresses grow upwards.
      const row = (height - 1 - y) * width;
      for (let x = 0; x < width; x++) {
        const from = row + x;
        const to = (y * width + x) * 4;
        const part = x >= stop ? 0 : Math.min(held[from], 1);
        const alpha = x >= stop ? 0 : Math.min(paint[from * 4 + 3], 1);
        const scale = alpha > 0 ? alpha / paint[from * 4 + 3] : 0;
        pixels[to] = (vr + (fr - vr) * part) * (1 - alpha) + paint[from * 4] * scale;
        pixels[to + 1] = (vg + (fg - vg) * part) * (1 - alpha) + paint[from * 4 + 1] * scale;
        pixels[to + 2] = (vb + (fb - vb) * part) * (1 - alpha) + paint[from * 4 + 2] * scale;
        pixels[to + 3] = 255;
      }
    }
    pen.putImageData(picture, 0, 0);
  }

  // The block at a point of the picture.
  pick(x, y) {
    const places = this.data.shown;
    if (!places) return null;
    const event = Math.floor(this.scale.at(x));
    const bottom = this.surface.height - 22;
    const spot = ((bottom - y) / bottom) * places.extent;
    const { found } = places.alive(Math.min(Math.max(event, 0), this.state.meta.events - 1));
    return found.find((i) => places.spot[i] <= spot && spot < places.spot[i] + places.blockBytes(i)) ?? null;
  }

  gestures() {
    const { canvas, state } = this;
    const eventAt = (x) => Math.min(Math.max(Math.floor(this.scale.at(x)), 0), state.meta.events - 1);
    canvas.addEventListener('pointermove', (pointer) => {
      const box = canvas.getBoundingClientRect();
      const x = pointer.clientX - box.left;
      const y = pointer.clientY - box.top;
      if (!this.data.shown || x < this.scale.left || x > this.scale.left + this.scale.span) {
        state.set({ hover: null, block: null });
        hideTip(this.tip);
        return;
      }
      const block = this.pick(x, y);
      state.set({ hover: eventAt(x), block });
      if (block === null) hideTip(this.tip);
      else showTip(this.tip, this.data, block, x, y, box);
    });
    canvas.addEventListener('pointerleave', () => {
      state.set({ hover: null, block: null });
      hideTip(this.tip);
    });
    canvas.addEventListener('click', (pointer) => {
      const event = eventAt(pointer.clientX - canvas.getBoundingClientRect().left);
      state.set({ pinned: state.pinned === event ? null : event });
    });
    canvas.addEventListener('dblclick', () => state.look(0, state.meta.events - 1));
    wheelZoom(canvas, state, (x) => this.scale.at(x));
  }
}
