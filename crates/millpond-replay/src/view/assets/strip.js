// The whole of all recordings, small.
class WholeStrip extends Strip {
  constructor(look) {
    super(look, byId('strip'), ['window', 'focus', 'data', 'glance', 'theme', 'moment']);
  }

  drawRun(context, span, height) {
    const { recording } = this.state;
    const columns = Math.max(Math.round(span), 1);
    const totals = this.totals(recording, columns);
    if (!totals) return;
    const bottom = height - 3;
    const top = totals.reduce((most, value) => Math.max(most, value), 1);
    const y = (value) => bottom - (value / top) * (bottom - 3);
    const path = areaOf(MARGIN.left, span, bottom, totals, y);
    context.fillStyle = ink.water;
    context.fill(path);
    context.strokeStyle = ink['water-line'];
    context.lineWidth = 1;
    context.stroke(path);
  }

  totals(recording, columns) {
    const { state } = this;
    const key = [recording.index, state.axis, columns, recording.ready, state.end].join();
    if (this.key === key) return this.known;
    const lens = recording.lensNow('kind');
    const place = (i) => (state.end * i) / columns;
    if (lens) {
      const edges = Float64Array.from({ length: columns + 1 }, (_, i) => (i === columns ? recording.table.events : recording.before(place(i), state.axis)));
      this.known = lens.columns(edges).totals;
      // Beyond its end nothing is known of a recording.
      this.known.fill(0, Math.min(Math.ceil((recording.extent(state.axis) / state.end) * columns), columns));
    } else if (recording.glance && state.axis === 'time') {
      const { most, column } = recording.glance;
      this.known = Float64Array.from({ length: columns }, (_, i) => most[Math.floor((place(i) - recording.offset) / column)] ?? 0);
    } else {
      return null;
    }
    this.key = key;
    return this.known;
  }
}
