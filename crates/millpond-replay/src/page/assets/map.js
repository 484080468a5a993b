// The address map at the moment: all that is reserved, laid out in lanes like lines of text.
// One scale for the whole run, so blocks stay put while the moment moves.

const LANE = 20;
const GAP = 7;
const FRINGE = 64;

class AddressMap {
  constructor(state, data) {
    Object.assign(this, { state, data });
    this.canvas = byId('map');
    this.tip = byId('map-tip');
    this.strip = document.createElement('canvas');
    this.blocks = [];
    this.surface = new Surface(this.canvas, (context, width, height) => this.draw(context, width, height));
    this.gestures();
    state.listen(() => this.surface.paint(), 'moment', 'focus', 'data', 'theme', 'grouping', 'lit', 'under');
  }

  layout(places, width, height) {
    this.lanes = Math.max(Math.floor((height + GAP) / (LANE + GAP)), 1);
    this.wide = width - FRINGE;
    this.perLane = places.extent / this.lanes;
    this.perPixel = this.perLane / this.wide;
  }

  draw(context, width, height) {
    const places = this.data.shown;
    if (!places) {
      drawNotice(context, this.data.failed ?? 'Placing the blocks …', FRINGE);
      return;
    }
    this.layout(places, width, height);
    const event = this.state.moment;
    if (event >= places.end) {
      drawNotice(context, `${places.run.name} ran out of memory at event ${count(places.end)}; after it there is nothing to show.`, FRINGE);
      this.blocks = [];
      return;
    }
    const { found } = places.alive(event);
    this.blocks = found;
    const spans = places.held(event);
    this.drawStrips(context, places, spans);
    this.drawSegments(context, spans);
    this.drawWaste(context, places);
    this.drawLabels(context, height);
    if (this.state.under !== null) this.outline(context, places, this.state.under);
  }

  // One row of pixels a lane, coverage added up, then stretched to the lane's height.
  drawStrips(context, places, spans) {
    const { story } = this.data;
    const grouping = this.data.grouping();
    const ratio = this.surface.ratio;
    const pixels = Math.round(this.wide * ratio);
    const total = pixels * this.lanes;
    const scale = total / places.extent;
    const held = new Float32Array(total);
    const paint = new Float32Array(total * 4);
    const [looks, dimmed] = bandLooks();
    for (const span of spans) cover(total, 1, span.spot * scale, (span.spot + span.bytes) * scale, 0, 1, (at, part) => { held[at] += part; });
    for (const i of this.blocks) {
      const group = grouping.ofTag[story.tag[i]];
      const waiting = story.death[i] <= this.state.moment;
      const inks = this.state.lit !== null && group !== this.state.lit ? dimmed : looks;
      const x = places.spot[i] * scale;
      fill(paint, total, 1, x, x + story.requested[i] * scale, 0, 1, inks[waiting ? WAITING : grouping.band[group]]);
      if (places.slack[i] > 0) fill(paint, total, 1, x + story.requested[i] * scale, x + places.blockBytes(i) * scale, 0, 1, looks[WASTE]);
    }
    compose(this.strip, pixels, this.lanes, paint, held, (lane) => lane);
    context.imageSmoothingEnabled = false;
    for (let lane = 0; lane < this.lanes; lane++) {
      context.drawImage(this.strip, 0, lane, pixels, 1, FRINGE, lane * (LANE + GAP), this.wide, LANE);
    }
  }

  // Calls `visit(x, y, width)` for each lane that a range touches.
  pieces(spot, bytes, visit) {
    let from = spot;
    const end = spot + bytes;
    while (from < end) {
      const lane = Math.min(Math.floor(from / this.perLane), this.lanes - 1);
      const stop = lane === this.lanes - 1 ? end : Math.min(end, (lane + 1) * this.perLane);
      visit(FRINGE + (from - lane * this.perLane) / this.perPixel, lane * (LANE + GAP), (stop - from) / this.perPixel);
      if (stop <= from) break;
      from = stop;
    }
  }

  // An edge below each segment, with a gap where the next begins.
  drawSegments(context, spans) {
    context.strokeStyle = ink.muted;
    context.lineWidth = 1;
    context.beginPath();
    for (const span of spans) {
      this.pieces(span.spot, span.bytes, (x, y, width) => {
        const trim = width > 4 ? 1 : 0;
        context.moveTo(x + trim, y + LANE + 1.5);
        context.lineTo(x + Math.max(width - trim, 0.5), y + LANE + 1.5);
      });
    }
    context.stroke();
  }

  drawWaste(context, places) {
    const { story } = this.data;
    for (const i of this.blocks) {
      if (places.slack[i] / this.perPixel < 3) continue;
      this.pieces(places.spot[i] + story.requested[i], places.slack[i], (x, y, width) => hatch(context, x, y, width, LANE, ink.muted));
    }
    context.strokeStyle = ink.panel;
    context.lineWidth = 1;
    context.beginPath();
    for (const i of this.blocks) {
      if (places.blockBytes(i) / this.perPixel < 5) continue;
      const lane = Math.min(Math.floor(places.spot[i] / this.perLane), this.lanes - 1);
      const x = FRINGE + (places.spot[i] - lane * this.perLane) / this.perPixel;
      context.moveTo(x, lane * (LANE + GAP));
      context.lineTo(x, lane * (LANE + GAP) + LANE);
    }
    context.stroke();
  }

  drawLabels(context) {
    context.font = `11px ${ink.font}`;
    context.fillStyle = ink.muted;
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    for (let lane = 0; lane < this.lanes; lane += 2) {
      const at = lane * this.perLane;
      context.fillText(lane === 0 ? '0' : shortBytes(at, this.perLane), FRINGE - 8, lane * (LANE + GAP) + LANE / 2);
    }
  }

  outline(context, places, serial) {
    const { story } = this.data;
    const event = this.state.moment;
    if (places.spot[serial] === UNSERVED || story.birth[serial] > event || story.gone[serial] <= event) return;
    context.strokeStyle = ink.ink;
    context.lineWidth = 2;
    this.pieces(places.spot[serial], places.blockBytes(serial), (x, y, width) => context.strokeRect(x - 1, y - 1, Math.max(width, 2) + 2, LANE + 2));
  }

  pick(x, y) {
    const places = this.data.shown;
    const lane = Math.floor(y / (LANE + GAP));
    if (!places || x < FRINGE || lane >= this.lanes || y - lane * (LANE + GAP) > LANE) return null;
    const from = lane * this.perLane + (x - FRINGE) * this.perPixel;
    // The largest block under the pixel: the one a person means.
    let best = null;
    for (const i of this.blocks) {
      if (places.spot[i] >= from + this.perPixel) break;
      if (places.spot[i] + places.blockBytes(i) <= from) continue;
      if (best === null || places.blockBytes(i) > places.blockBytes(best)) best = i;
    }
    return best;
  }

  gestures() {
    const { canvas, state } = this;
    canvas.addEventListener('pointermove', ({ offsetX: x, offsetY: y }) => {
      const under = this.pick(x, y);
      state.set({ under });
      if (under === null) hideTip(this.tip);
      else showTip(this.tip, this.data, under, x, y, canvas.clientWidth);
    });
    canvas.addEventListener('pointerleave', () => {
      state.set({ under: null });
      hideTip(this.tip);
    });
    canvas.addEventListener('keydown', (key) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[key.key];
      if (step === undefined || this.blocks.length === 0) return;
      key.preventDefault();
      key.stopPropagation();
      const at = this.blocks.indexOf(state.under);
      const next = at < 0 ? 0 : Math.min(Math.max(at + step, 0), this.blocks.length - 1);
      const block = this.blocks[next];
      state.set({ under: block });
      const places = this.data.shown;
      this.pieces(places.spot[block], 1, (x, y) => showTip(this.tip, this.data, block, x, y + LANE, canvas.clientWidth));
    });
    canvas.addEventListener('blur', () => hideTip(this.tip));
  }
}
