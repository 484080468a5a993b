// The bytes of policies over events, in one picture.

class Plot extends Curves {
  constructor(state, axis, data) {
    super(state, axis, byId('plot'));
    this.data = data;
    this.gestures();
    state.listen(() => this.repaint(), 'hidden', 'series', 'range');
  }

  // The curves that are on, furthest back first.
  curves() {
    const { state, data } = this;
    const { focus } = state;
    const curves = [];
    data.reserved.forEach((curve, index) => {
      if (curve && state.isShown(index)) curves.push({ kind: 'reserved', index, curve, focused: index === focus });
    });
    const allocated = data.allocated[focus];
    if (state.series.allocated && allocated) curves.push({ kind: 'allocated', index: focus, curve: allocated, focused: true });
    return curves.sort((a, b) => a.focused - b.focused);
  }

  range(curves) {
    const { state, data } = this;
    if (!data.story) {
      const { scale, requested } = state.meta.glance;
      const peaks = state.meta.runs.filter((_, index) => state.isShown(index)).map((run) => run.peak);
      const highest = (Math.max(...requested, 0) / 4095) * scale;
      return [0, Math.max(...peaks, highest, 1) * 1.06];
    }
    const first = Math.floor(state.from);
    const last = Math.min(Math.ceil(state.to), state.meta.events - 1);
    let lo = Infinity;
    let hi = 0;
    const take = (curve) => {
      const stop = Math.min(last, (curve.end ?? Infinity) - 1);
      if (stop < first) return;
      curve.extremes(first, stop);
      lo = Math.min(lo, curve.lo);
      hi = Math.max(hi, curve.hi);
    };
    if (state.series.requested) take(data.story.requestedCurve);
    for (const { curve } of curves) take(curve);
    if (!(hi > 0)) hi = 1;
    if (lo > hi) lo = 0;
    if (state.range !== 'fit') return [0, hi * 1.06];
    const margin = Math.max((hi - lo) * 0.08, 512);
    return [Math.max(lo - margin, 0), hi + margin];
  }

  render(pen, width, height) {
    const { state, data, scale } = this;
    const curves = this.curves();
    const [lo, hi] = this.range(curves);
    const floor = height - FOOT;
    const y = (bytes) => floor - ((bytes - lo) / (hi - lo)) * (floor - HEAD);
    this.y = y;
    byteLines(pen, scale, y, lo, hi, height / 64);
    axisMarks(pen, this.axis, scale, height - 8);
    if (lo > 0) {
      pen.textAlign = 'left';
      pen.fillText(`axis starts at ${human(lo)}`, scale.left + 4, floor - 6);
    }
    this.clipped(pen, floor, () => {
      if (!data.story) this.drawGlance(pen, y);
      else {
        if (state.series.requested) this.drawArea(pen, data.story.requestedCurve, y, floor);
        for (const item of curves) this.drawLine(pen, item, y);
      }
      this.drawDevice(pen, y, lo, hi);
    });
  }

  // Before the columns are decoded: the curves as the writer summed them up.
  drawGlance(pen, y) {
    const { meta } = this.state;
    const { scale, requested, reserved, buckets } = meta.glance;
    const x = (bucket) => this.scale.x((bucket / buckets) * meta.events);
    const value = (step) => (step / 4095) * scale;
    pen.fillStyle = ink.water;
    pen.beginPath();
    pen.moveTo(x(0), y(0));
    for (let i = 0; i < buckets; i++) pen.lineTo(x(i + 0.5), y(value(requested[2 * i + 1] ?? 0)));
    pen.lineTo(x(buckets), y(0));
    pen.fill();
    reserved.forEach((steps, index) => {
      if (!this.state.isShown(index)) return;
      pen.beginPath();
      for (let i = 0; i < steps.length / 2; i++) {
        pen.lineTo(x(i + 0.25), y(value(steps[2 * i])));
        pen.lineTo(x(i + 0.75), y(value(steps[2 * i + 1])));
      }
      this.stroke(pen, index, index === this.state.focus, 'reserved');
    });
  }

  // Calls `visit(x, first, min, max, last)` for each device column, or each event when those are few.
  columns(curve, visit) {
    const { scale, state, surface } = this;
    const end = Math.min(curve.end ?? Infinity, state.meta.events);
    const first = Math.max(Math.floor(state.from), 0);
    const last = Math.min(Math.ceil(state.to), end - 1);
    if (last - first < scale.span * surface.ratio) {
      for (let event = first; event <= last; event++) {
        const value = curve.at(event);
        visit(scale.x(event), value, value, value, value);
        visit(scale.x(event + 1), value, value, value, value);
      }
      return;
    }
    const pixels = Math.round(scale.span * surface.ratio);
    let begin = first;
    for (let i = 0; i < pixels && begin <= last; i++) {
      const x = scale.left + ((i + 1) / pixels) * scale.span;
      const stop = Math.min(Math.max(Math.ceil(scale.at(x)) - 1, begin), last);
      curve.extremes(begin, stop);
      visit(x - 0.5 / surface.ratio, curve.at(begin), curve.lo, curve.hi, curve.at(stop));
      // In time a column may hold no event: the value stays.
      begin = Math.ceil(scale.at(x)) > begin ? stop + 1 : begin;
    }
  }

  drawArea(pen, curve, y, floor) {
    const path = new Path2D();
    const edge = new Path2D();
    let started = false;
    let x = 0;
    this.columns(curve, (at, first, min, max) => {
      if (!started) path.moveTo(at, floor);
      path.lineTo(at, y(max));
      if (started) edge.lineTo(at, y(max));
      else edge.moveTo(at, y(max));
      started = true;
      x = at;
    });
    path.lineTo(x, floor);
    path.closePath();
    pen.fillStyle = ink.water;
    pen.fill(path);
    pen.strokeStyle = ink['water-line'];
    pen.lineWidth = 1;
    pen.stroke(edge);
  }

  drawLine(pen, { kind, index, curve, focused }, y) {
    pen.beginPath();
    this.columns(curve, (x, first, min, max, last) => {
      pen.lineTo(x, y(first));
      if (min !== max) {
        pen.lineTo(x, y(min));
        pen.lineTo(x, y(max));
        pen.lineTo(x, y(last));
      }
    });
    this.stroke(pen, index, focused, kind);
    const stopped = this.state.meta.runs[index].stopped;
    if (kind === 'reserved' && stopped !== null && stopped >= this.state.from && stopped <= this.state.to) {
      this.drawStop(pen, this.scale.x(stopped), y(curve.at(Math.max(stopped - 1, 0))), index);
    }
  }

  stroke(pen, index, focused, kind) {
    pen.lineJoin = 'round';
    pen.strokeStyle = policyInk(index);
    pen.globalAlpha = focused ? 1 : 0.75;
    pen.lineWidth = focused ? 2 : 1.25;
    if (kind === 'allocated') {
      pen.lineWidth = 1.25;
      pen.setLineDash([3, 3]);
    }
    pen.stroke();
    pen.setLineDash([]);
    pen.globalAlpha = 1;
  }

  // A cross where a policy ran out of memory.
  drawStop(pen, x, y, index) {
    pen.lineCap = 'round';
    for (const [colour, width] of [[ink.panel, 6], [policyInk(index), 2.5]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.beginPath();
      pen.moveTo(x - 5, y - 5);
      pen.lineTo(x + 5, y + 5);
      pen.moveTo(x + 5, y - 5);
      pen.lineTo(x - 5, y + 5);
      pen.stroke();
    }
    pen.lineCap = 'butt';
  }

  drawDevice(pen, y, lo, hi) {
    const device = this.state.meta.device;
    if (device === null || device < lo || device > hi) return;
    const at = Math.round(y(device)) + 0.5;
    pen.strokeStyle = ink.mark;
    pen.setLineDash([6, 4]);
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(this.scale.left, at);
    pen.lineTo(this.scale.left + this.scale.span, at);
    pen.stroke();
    pen.setLineDash([]);
    pen.fillStyle = ink.mark;
    pen.textAlign = 'right';
    pen.font = `11px ${ink.font}`;
    pen.fillText(`device ${human(device)}`, this.scale.left + this.scale.span - 4, at - 5);
  }

  drawMoment(context, floor) {
    const { state, data, scale } = this;
    const event = state.moment;
    if (!data.story || !state.inWindow(event)) return;
    const x = scale.x(event);
    crosshair(context, x, HEAD - 6, floor, state);
    for (const { index, curve, focused, kind } of this.curves()) {
      if (event >= curve.end) continue;
      dot(context, x, this.y(curve.at(event)), policyInk(index), focused && kind === 'reserved' ? 4 : 2.5);
    }
    if (state.series.requested) dot(context, x, this.y(data.story.requestedCurve.at(event)), ink['water-line'], 3);
  }

  gestures() {
    const { state } = this;
    const eventAt = (x) => (this.data.story ? state.momentAt(this.scale.at(x)) : null);
    brushable(this, {
      hover: (x) => state.set({ hover: this.inside(x) ? eventAt(x) : null }),
      click: (x) => this.data.story && state.togglePin(eventAt(x)),
      leave: () => state.set({ hover: null }),
    });
  }
}
