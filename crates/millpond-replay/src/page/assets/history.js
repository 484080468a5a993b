// Where the chosen policy put each block, and for how long.

class History extends Plane {
  constructor(state, axis, data) {
    super(state, axis, byId('history'));
    this.data = data;
  }

  isReady(context) {
    if (this.data.shown) return true;
    drawNotice(context, this.data.failed ?? 'Placing the blocks …', this.scale.left);
    return false;
  }

  get extent() {
    return this.data.shown.extent;
  }

  placeOf(serial) {
    const { story, shown } = this.data;
    if (shown.spot[serial] === UNSERVED) return null;
    return { from: story.birth[serial], to: story.gone[serial], spot: shown.spot[serial], bytes: shown.blockBytes(serial) };
  }

  render(width, height) {
    const { story, shown: places } = this.data;
    const grouping = this.data.grouping();
    const { from, to, lit } = this.state;
    const left = this.scale.left;
    const toX = this.axis.timed
      ? (event) => this.scale.x(event) - left
      : (event) => ((event - from) / (to - from)) * this.scale.span;
    const toY = height / places.extent;
    const held = new Float32Array(width * height);
    const paint = new Float32Array(width * height * 4);
    const [looks, dimmed] = bandLooks();

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
      const inks = lit !== null && group !== lit ? dimmed : looks;
      const x0 = toX(birth[i]);
      const x1 = toX(gone[i]);
      const y0 = spot[i] * toY;
      const y1 = y0 + requested[i] * toY;
      fill(paint, width, height, x0, x1, y0, y1, inks[grouping.band[group]]);
      if (slack[i] * toY > 0.05) fill(paint, width, height, x0, x1, y1, y1 + slack[i] * toY, inks[WASTE]);
    };
    for (const i of story.alive(first)) draw(i);
    for (let i = lastAtMost(birth, first) + 1; i < spot.length && birth[i] <= to; i++) draw(i);
    if (places.end < to) this.erase(width, height, paint, held, Math.max(Math.ceil(toX(places.end)), 0));
    this.compose(width, height, paint, held);
  }

  // Nothing is known after a policy ran out of memory.
  erase(width, height, paint, held, x) {
    for (let row = 0; row < height && x < width; row++) {
      held.fill(0, row * width + x, (row + 1) * width);
      paint.fill(0, (row * width + x) * 4, (row + 1) * width * 4);
    }
  }

  blockAt(event, spot) {
    const places = this.data.shown;
    if (!places) return null;
    const { found } = places.alive(this.state.momentAt(event));
    return found.find((i) => places.spot[i] <= spot && spot < places.spot[i] + places.blockBytes(i)) ?? null;
  }

  describe(block, x, y) {
    showTip(this.tip, this.data, block, x, y, this.canvas.clientWidth);
  }

  choose(event) {
    this.state.togglePin(event);
  }
}
