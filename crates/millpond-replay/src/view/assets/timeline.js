// Bytes over time of one recording, stacked by group, with what pools have taken behind them and what happened beside them.

// Blocks at least so high are drawn and found one by one.
const VISIBLE = 3;
// As many of them at most.
const MOST_VISIBLE = 400;

class Timeline extends Curves {
  constructor(look, axis, recording, canvas) {
    super(look, axis, canvas);
    Object.assign(this, { look, recording });
    this.tip = canvas.parentElement.querySelector('.tip');
    // Blocks one by one wait until the window rests.
    const settle = atRest(90, () => {
      this.rests = true;
      this.repaint();
    });
    const move = () => {
      this.rests = false;
      settle();
    };
    this.gestures();
    look.listen(() => this.repaint(), 'way', 'shows', 'lit', 'scale', 'shared', 'told', 'replays');
    look.listen(() => this.surface.paint(), 'under', 'block');
    look.listen(move, 'window', 'data', 'way');
    move();
  }

  get lens() {
    return this.recording.lensNow(this.look.way);
  }

  // The stacks of all columns. They have no bands until the table is loaded.
  measure(span) {
    const { recording, look } = this;
    const key = [look.from, look.to, look.axis, look.way, span, this.lens !== null, recording.glance !== null].join();
    if (this.measured?.key === key) return this.measured;
    const columns = Math.max(Math.round(span), 1);
    this.measured = { key, columns, ...(this.lens ? this.fromTable(columns) : this.fromGlance(columns)) };
    return this.measured;
  }

  fromTable(columns) {
    const { recording, look, lens } = this;
    const edges = new Float64Array(columns + 1);
    for (let i = 0; i <= columns; i++) {
      const place = look.from + ((look.to - look.from) * i) / columns;
      edges[i] = i === columns ? recording.upTo(place, look.axis) : recording.before(place, look.axis);
    }
    const found = lens.columns(lens.snapped(edges));
    // Beyond its end nothing is known of a recording.
    const past = Math.ceil(((recording.extent(look.axis) - look.from) / (look.to - look.from)) * columns);
    if (past < columns) {
      found.stacks.fill(0, Math.max(past, 0) * LINES);
      found.totals.fill(0, Math.max(past, 0));
    }
    return { ...found, exact: true };
  }

  // The most bytes in each column, from the overview.
  fromGlance(columns) {
    const { recording, look } = this;
    const { glance } = recording;
    const totals = new Float64Array(columns);
    if (glance && look.axis === 'time') {
      const column = (i) => (look.from + ((look.to - look.from) * i) / columns - recording.offset) / glance.column;
      for (let i = 0; i < columns; i++) {
        const a = Math.floor(column(i));
        const b = Math.max(Math.ceil(column(i + 1)), a + 1);
        for (let at = a; at < b; at++) totals[i] = Math.max(totals[i], glance.most[at] ?? 0);
      }
    }
    return { totals, exact: false };
  }

  // The most of a figure in each column; none where nothing tells.
  figure(samples, columns) {
    if (!samples || samples.length === 0) return null;
    const { look } = this;
    const curve = look.axis === 'time' ? samples.byTime : samples.byEvent;
    const values = new Float64Array(columns);
    const past = Math.ceil(((this.recording.extent(look.axis) - look.from) / (look.to - look.from)) * columns);
    for (let i = 0; i < Math.min(columns, past); i++) {
      curve.extremes(look.from + ((look.to - look.from) * i) / columns, look.from + ((look.to - look.from) * (i + 1)) / columns);
      values[i] = curve.hi;
    }
    return values;
  }

  // What is beside the stacks.
  beside(columns) {
    const { recording, look } = this;
    const { table, glance } = recording;
    const key = [look.from, look.to, look.axis, columns, recording.ready].join();
    if (this.besides?.key === key) return this.besides;
    const of = (samples) => (recording.ready ? this.figure(samples, columns) : null);
    this.besides = { key, reserved: of(table.reserved), unexplained: of(table.unexplained), parked: of(table.parked) };
    if (!recording.ready && glance?.reserved && look.axis === 'time') {
      const all = glance.reserved;
      this.besides.reserved = Float64Array.from({ length: columns }, (_, i) => all[Math.min(Math.floor((look.from + ((look.to - look.from) * i) / columns - recording.offset) / glance.column), all.length - 1)] ?? 0);
    }
    return this.besides;
  }

  // What other policies reserve in each column, up to where they could not go on.
  replayed(columns) {
    const { recording, look } = this;
    const key = [look.from, look.to, look.axis, columns, look.replays.map((policy) => `${policy} ${recording.replays.get(policy)?.length ?? 0}`)].join();
    if (this.replays?.key === key) return this.replays.lines;
    const lines = [];
    for (const policy of look.replays) {
      const replay = recording.replays.get(policy);
      if (!(replay instanceof Replay)) continue;
      const values = this.figure(replay, columns);
      const last = ((replay.stop(look.axis) - look.from) / (look.to - look.from)) * columns;
      if (values) lines.push({ policy, values: values.subarray(0, Math.max(Math.min(Math.ceil(last), columns), 0)) });
    }
    this.replays = { key, lines };
    return lines;
  }

  // The highest that the picture has to show.
  highest(span) {
    const { totals, columns } = this.measure(span);
    const { reserved, unexplained, parked } = this.beside(columns);
    const { shows } = this.look;
    let most = 0;
    for (let i = 0; i < columns; i++) {
      const held = totals[i] + (shows.parked && parked ? parked[i] : 0);
      const base = Math.max(held, shows.reserved && reserved ? reserved[i] : 0);
      most = Math.max(most, base + (shows.unexplained && unexplained ? unexplained[i] : 0));
    }
    for (const { values } of this.replayed(columns)) for (const value of values) most = Math.max(most, value);
    return most;
  }

  render(pen, width, height) {
    const begun = performance.now();
    const { scale, look } = this;
    const floor = height - FOOT;
    const scaled = look.shared ? timelines : [this];
    const top = Math.max(...scaled.map((timeline) => timeline.highest(scale.span)), 1) * 1.06;
    this.floor = floor;
    this.y = (bytes) => floor - (bytes / top) * (floor - HEAD);
    this.perPixel = top / (floor - HEAD);
    byteLines(pen, scale, this.y, 0, top, height / 64);
    axisMarks(pen, this.axis, scale, height - 8);
    const measured = this.measure(scale.span);
    const beside = this.beside(measured.columns);
    this.clipped(pen, floor, () => {
      // Nothing is known of a recording before it began and after its end.
      const begin = scale.x(look.axis === 'time' ? this.recording.offset : 0);
      pen.beginPath();
      pen.rect(begin, 0, scale.x(this.recording.extent(look.axis)) - begin + 1, floor + 1);
      pen.clip();
      if (look.shows.reserved && beside.reserved) this.drawReserved(pen, beside.reserved, floor);
      if (measured.exact) this.drawStack(pen, measured);
      else this.drawTotal(pen, measured);
      this.drawBeside(pen, measured, beside);
      this.drawReplayed(pen, measured.columns);
      this.visible = null;
      if (this.rests && measured.exact) this.outline(pen, measured);
    });
    if (look.shows.notes) this.drawNotes(pen, floor);
    frameTimes.note(performance.now() - begun);
  }

  drawReserved(pen, reserved, floor) {
    const path = this.outlineOf(reserved);
    const area = new Path2D(path);
    area.lineTo(this.scale.left + this.scale.span, floor);
    area.lineTo(this.scale.left, floor);
    pen.fillStyle = ink.void;
    pen.fill(area);
    pen.strokeStyle = ink.muted;
    pen.lineWidth = 1.25;
    pen.stroke(path);
  }

  // Lines above all, with an edge in the colour of the ground, so that they are seen on any band.
  drawReplayed(pen, columns) {
    pen.save();
    pen.lineJoin = 'round';
    for (const { policy, values } of this.replayed(columns)) {
      const path = this.outlineOf(values, columns);
      pen.strokeStyle = ink.panel;
      pen.lineWidth = 4;
      pen.stroke(path);
      pen.strokeStyle = replayInk(policy);
      pen.lineWidth = 2;
      pen.stroke(path);
    }
    pen.restore();
  }

  // A line along the tops of columns, with corners.
  outlineOf(values, columns = values.length) {
    const { scale } = this;
    const path = new Path2D();
    const wide = scale.span / columns;
    for (let i = 0; i < values.length; i++) {
      const y = this.y(values[i]);
      path.lineTo(scale.left + i * wide, y);
      path.lineTo(scale.left + (i + 1) * wide, y);
    }
    return path;
  }

  // Draws the sum of all groups until the blocks are loaded.
  drawTotal(pen, { totals }) {
    pen.fillStyle = ink.water;
    pen.fill(areaOf(this.scale.left, this.scale.span, this.floor, totals, this.y));
  }

  drawStack(pen, { stacks, columns }) {
    const { scale, look, lens } = this;
    const below = new Float64Array(columns);
    const wide = scale.span / columns;
    const [looks, dimmed] = bandLooks();
    for (let band = 0; band < LINES; band++) {
      let any = false;
      pen.beginPath();
      for (let i = 0; i < columns; i++) {
        const bytes = stacks[i * LINES + band];
        if (bytes <= 0) continue;
        any = true;
        const low = this.y(below[i]);
        below[i] += bytes;
        const high = this.y(below[i]);
        pen.rect(scale.left + i * wide, high, wide + 0.3, Math.max(low - high, 0.4));
      }
      if (!any) continue;
      const isLit = look.lit === null || lens.bandOfGroup[look.lit] === band;
      pen.fillStyle = lookFill(pen, (isLit ? looks : dimmed)[band]);
      pen.fill();
    }
  }

  drawBeside(pen, { totals, columns }, { reserved, unexplained, parked }) {
    const { look, scale } = this;
    const wide = scale.span / columns;
    const base = Float64Array.from(totals);
    if (look.shows.parked && parked) {
      this.drawBand(pen, base, parked, wide, ink.mark);
      parked.forEach((bytes, i) => (base[i] += bytes));
    }
    if (look.shows.unexplained && unexplained) {
      if (look.shows.reserved && reserved) reserved.forEach((bytes, i) => (base[i] = Math.max(base[i], bytes)));
      this.drawBand(pen, base, unexplained, wide, ink.waste);
    }
  }

  drawBand(pen, base, values, wide, colour) {
    const { scale } = this;
    pen.beginPath();
    for (let i = 0; i < values.length; i++) {
      if (values[i] <= 0) continue;
      const high = this.y(base[i] + values[i]);
      pen.rect(scale.left + i * wide, high, wide + 0.3, Math.max(this.y(base[i]) - high, 0.4));
    }
    pen.save();
    pen.clip();
    hatch(pen, scale.left, HEAD, scale.span, this.floor - HEAD, colour);
    pen.restore();
  }

  // What happened: steps below, marks, refusals and losses above.
  drawNotes(pen, floor) {
    const { recording, look, scale } = this;
    const { table, glance, told } = recording;
    const place = (note) => (look.axis === 'time' ? note.time : note.event);
    const inside = (at) => at >= look.from && at <= look.to;
    const steps = (told?.steps?.steps ?? []).filter((step) => look.axis === 'time' && inside(step[1]));
    pen.strokeStyle = ink.faint;
    pen.lineWidth = 1;
    if (steps.length > 0 && steps.length < scale.span / 4) {
      pen.beginPath();
      for (const step of steps) {
        const x = Math.round(scale.x(step[1])) + 0.5;
        pen.moveTo(x, floor);
        pen.lineTo(x, floor + 6);
      }
      pen.stroke();
    }
    const lost = recording.ready ? null : (glance?.lost ?? []).map(([time, value]) => ({ what: 'lost', time: time + recording.offset, value }));
    const notes = (lost ?? table.notes).filter((note) => note.what !== 'step' && inside(place(note)));
    let last = -Infinity;
    for (const note of notes) {
      const x = Math.round(scale.x(place(note))) + 0.5;
      const grave = note.what !== 'mark';
      if (!grave && x - last < 3) continue;
      if (!grave) last = x;
      pen.strokeStyle = pen.fillStyle = grave ? ink.mark : ink['water-line'];
      pen.globalAlpha = grave ? 0.9 : 0.5;
      pen.beginPath();
      pen.moveTo(x, HEAD);
      pen.lineTo(x, floor);
      pen.setLineDash(note.what === 'lost' ? [2, 3] : []);
      if (grave || notes.length < scale.span / 12) pen.stroke();
      pen.setLineDash([]);
      pen.globalAlpha = 1;
      pen.beginPath();
      pen.moveTo(x - 4, HEAD - 8);
      pen.lineTo(x + 4, HEAD - 8);
      pen.lineTo(x, HEAD - 1);
      pen.fill();
    }
  }

  // Blocks that are high enough, at the bottom of their bands in the order of their births: where each is in each column.
  outline(pen, { stacks, columns, moments }) {
    const { recording, lens } = this;
    const { table } = recording;
    const [first, end] = recording.range(this.look);
    const least = VISIBLE * this.perPixel;
    const found = [];
    const born = table.bornBefore(end);
    for (let block = 0; block < born; block++) {
      if (table.bytes[block] < least || table.death[block] < first) continue;
      if (found.length >= MOST_VISIBLE) return;
      found.push(block);
    }
    const band = (block) => lens.bandOf[table.origin[block]];
    found.sort((a, b) => band(a) - band(b) || a - b);
    this.visible = found.map((block) => ({ block, from: -1, low: [], high: [] }));
    for (let i = 0; i < columns; i++) {
      const events = moments[i];
      let line = -1;
      let at = 0;
      for (const piece of this.visible) {
        const of = band(piece.block);
        while (line < of) at = this.bottom(stacks, i, ++line);
        if (table.birth[piece.block] >= events || table.death[piece.block] < events) continue;
        if (piece.from < 0) piece.from = i;
        piece.low[i - piece.from] = at;
        at += table.bytes[piece.block];
        piece.high[i - piece.from] = at;
      }
    }
    this.visible = this.visible.filter((piece) => piece.from >= 0);
    pen.strokeStyle = ink.panel;
    pen.globalAlpha = 0.6;
    pen.lineWidth = 1;
    for (const piece of this.visible) pen.stroke(this.shape(piece));
    pen.globalAlpha = 1;
  }

  // Where a band begins in a column.
  bottom(stacks, column, line) {
    let at = 0;
    for (let below = 0; below < line; below++) at += stacks[column * LINES + below];
    return at;
  }

  shape(piece) {
    if (piece.path) return piece.path;
    const { scale } = this;
    const wide = scale.span / this.measured.columns;
    const x = (i) => scale.left + (piece.from + i) * wide;
    const path = new Path2D();
    const length = piece.high.length;
    path.moveTo(x(0), this.y(piece.low[0]));
    for (let i = 0; i < length; i++) {
      if (piece.high[i] === undefined) continue;
      path.lineTo(x(i), this.y(piece.high[i]));
      path.lineTo(x(i + 1), this.y(piece.high[i]));
    }
    for (let i = length - 1; i >= 0; i--) {
      if (piece.low[i] === undefined) continue;
      path.lineTo(x(i + 1), this.y(piece.low[i]));
      path.lineTo(x(i), this.y(piece.low[i]));
    }
    path.closePath();
    return (piece.path = path);
  }

  drawBlocks(context) {
    const { look } = this;
    if (look.recording !== this.recording) return;
    for (const [block, fill] of [[look.block, 0.12], [look.under, 0.28]]) {
      const piece = block === null ? null : this.visible?.find((piece) => piece.block === block);
      if (!piece) continue;
      context.fillStyle = context.strokeStyle = ink.ink;
      context.globalAlpha = fill;
      context.fill(this.shape(piece));
      context.globalAlpha = 1;
      context.lineWidth = 1.5;
      context.stroke(this.shape(piece));
    }
  }

  drawMoment(context, floor) {
    const { look, scale, recording } = this;
    this.drawBlocks(context);
    if (!recording.ready) return;
    const place = look.moment ?? recording.placeOf(Math.max(recording.moment(look) - 1, 0), look.axis);
    if (look.inWindow(place)) crosshair(context, scale.x(place), HEAD - 6, floor, look);
  }

  // What is under a point: a block where there is one that can be seen, and the group in any case.
  pick(x, y) {
    const measured = this.measured;
    if (!measured?.exact || !this.lens) return null;
    const column = Math.floor(((x - this.scale.left) / this.scale.span) * measured.columns);
    if (column < 0 || column >= measured.columns) return null;
    const bytes = ((this.floor - y) * this.perPixel);
    let at = 0;
    let group = null;
    for (let line = 0; line < LINES && group === null; line++) {
      at += measured.stacks[column * LINES + line];
      if (bytes >= 0 && bytes < at) group = line < REST ? this.lens.names[this.lens.bands[line]] : line === REST ? `${count(this.lens.more)} other groups` : 'small blocks, listed as one sum';
    }
    const hit = this.visible?.find((piece) => {
      const i = column - piece.from;
      return i >= 0 && piece.low[i] !== undefined && piece.low[i] <= bytes && bytes < piece.high[i];
    });
    return { block: hit?.block ?? null, group };
  }

  gestures() {
    const { canvas, look, recording } = this;
    brushable(this, {
      hover: (x, y) => {
        const found = this.inside(x) ? this.pick(x, y) : null;
        look.set({ focus: recording.index, hover: this.inside(x) && recording.ready ? this.scale.at(x) : null, under: found?.block ?? null });
        if (!found || found.group === null) hideTip(this.tip);
        else {
          fillTip(this.tip, recording, found);
          placeTip(this.tip, x, y, canvas.clientWidth);
        }
      },
      click: (x, y) => {
        const found = this.pick(x, y);
        if (!recording.ready || !this.inside(x)) return;
        look.set({ focus: recording.index, pinned: this.scale.at(x), block: found?.block ?? look.block });
      },
      leave: () => {
        hideTip(this.tip);
        look.set({ hover: null, under: null });
      },
    });
  }
}

// Of all recordings on the page.
const timelines = [];

// How long pictures took to draw, for those who measure.
const frameTimes = {
  all: [],
  note(time) {
    this.all.push(time);
    if (this.all.length > 1000) this.all.shift();
  },
};
