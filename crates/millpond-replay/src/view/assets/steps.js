// Steps beside each other: the peak of each, of all recordings, and what differs between any two.

class StepByStep {
  constructor(look) {
    this.look = look;
    this.canvas = byId('step-peaks');
    this.tip = this.canvas.parentElement.querySelector('.tip');
    // Which two are compared: a recording and the place of a step in its list.
    this.ends = null;
    this.over = null;
    this.surface = new Surface(this.canvas, (context, width, height) => this.draw(context, width, height));
    this.gestures();
    for (const name of ['a', 'b']) {
      byId(`step-${name}`).addEventListener('change', (change) => this.choose(name, Number(change.target.value)));
      byId(`step-${name}-of`).addEventListener('change', (change) => this.turn(name, Number(change.target.value)));
      byId(`step-${name}-show`).addEventListener('click', () => this.goTo(name));
    }
    look.listen(() => this.show(), 'told', 'data', 'way', 'exact', 'theme');
  }

  steps(index) {
    return this.look.recordings[index]?.told?.steps?.steps ?? [];
  }

  // Recordings that have steps and can be asked.
  get known() {
    return this.look.recordings.filter((recording) => recording.ready && this.steps(recording.index).length > 0);
  }

  // At first: the second step, as the first warms up, and the last; or the same step of the first recording and the last.
  begin() {
    const { known } = this;
    const [first, last] = [known[0].index, known[known.length - 1].index];
    const most = (index) => this.steps(index).length - 1;
    if (first === last) return { a: { of: first, at: Math.min(1, most(first)) }, b: { of: last, at: most(last) } };
    const at = Math.min(most(first), most(last));
    return { a: { of: first, at }, b: { of: last, at } };
  }

  show() {
    const { known, look } = this;
    const few = known.length === 0 || (known.length === 1 && this.steps(known[0].index).length < 2);
    byId('by-step').hidden = few;
    if (few) return;
    // What comes in later may be the other one of a pair.
    if (!this.chosen) this.ends = this.begin();
    for (const name of ['a', 'b']) {
      const { of, at } = this.ends[name];
      const [number] = this.steps(of)[at];
      byId(`step-${name}`).value = String(number);
      const list = byId(`step-${name}-of`);
      list.replaceChildren(...known.map((recording) => h('option', { value: String(recording.index), selected: recording.index === of }, recording.name)));
      list.value = String(of);
      list.hidden = known.length < 2;
    }
    const more = known.reduce((sum, recording) => sum + recording.told.steps.more, 0);
    const legend = known.length > 1 ? known.map((recording) => h('span', {}, h('i', { class: `swatch policy-${recording.index}` }), ` ${recording.name}`)) : [];
    byId('by-step-note').replaceChildren(`the peak of each step${more > 0 ? `; ${count(more)} more are not shown` : ''}`, ...legend);
    this.surface.paint();
    const ends = [this.ends.a, this.ends.b];
    const titles = ends.map(({ of, at }) => `step ${count(this.steps(of)[at][0])}${known.length > 1 ? ` of ${look.recordings[of].name}` : ''}`);
    showDifferences('step', titles, ends.map(({ of, at }) => this.part(of, at).held), look);
  }

  part(of, at) {
    const recording = this.look.recordings[of];
    const [, from, to] = this.steps(of)[at];
    return new Part(recording.table, recording.lensNow('kind'), recording.before(from, 'time'), recording.upTo(to, 'time'));
  }

  // A step by its number: the nearest that there is.
  choose(name, number) {
    const steps = this.steps(this.ends[name].of);
    const distance = (at) => Math.abs(steps[at][0] - number);
    const nearest = steps.reduce((best, _, at) => (distance(at) < distance(best) ? at : best), 0);
    this.put(name, this.ends[name].of, Number.isFinite(number) ? nearest : this.ends[name].at);
  }

  // The same step of another recording.
  turn(name, of) {
    this.put(name, of, Math.min(this.ends[name].at, this.steps(of).length - 1));
  }

  put(name, of, at) {
    this.chosen = true;
    this.ends = { ...this.ends, [name]: { of, at } };
    this.show();
  }

  goTo(name) {
    const { look } = this;
    const { of, at } = this.ends[name];
    const [, from, to] = this.steps(of)[at];
    look.set({ focus: of, block: null, pinned: null, hover: null });
    if (look.axis === 'time') look.look(from, to);
    else look.look(look.recording.before(from, 'time'), look.recording.upTo(to, 'time'));
    byId('timelines').scrollIntoView({ block: 'center', behavior: 'smooth' });
  }

  draw(context, width, height) {
    const { known } = this;
    if (known.length === 0 || !this.ends) return;
    const floor = height - FOOT;
    const span = width - MARGIN.left - MARGIN.right;
    const all = Math.max(...known.map((recording) => this.steps(recording.index).length));
    const top = Math.max(...known.flatMap((recording) => this.steps(recording.index).map((step) => step[3])), 1) * 1.08;
    this.scale = {
      left: MARGIN.left,
      span,
      x: (at) => MARGIN.left + ((at + 0.5) / all) * span,
      at: (x) => Math.round(((x - MARGIN.left) / span) * all - 0.5),
      y: (bytes) => floor - (bytes / top) * (floor - HEAD),
    };
    this.drawGrid(context, width, height, top, all);
    for (const recording of known) this.drawLine(context, recording, known.length);
    for (const name of ['a', 'b']) this.drawEnd(context, name, floor);
  }

  drawGrid(context, width, height, top, all) {
    const { scale } = this;
    byteLines(context, scale, scale.y, 0, top, height / 48);
    axisText(context, 'center', 'alphabetic');
    const stride = Math.max(niceStep(all / Math.max(width / 90, 2), 10), 1);
    const longest = this.steps(this.known.reduce((a, b) => (this.steps(b.index).length > this.steps(a.index).length ? b : a)).index);
    for (let at = 0; at < all; at += stride) context.fillText(count(longest[at][0]), scale.x(at), height - 8);
  }

  drawLine(context, recording, lines) {
    const { scale } = this;
    const steps = this.steps(recording.index);
    context.strokeStyle = context.fillStyle = lines > 1 ? policyInk(recording.index) : ink['water-line'];
    context.lineWidth = 1.5;
    context.beginPath();
    steps.forEach((step, at) => context.lineTo(scale.x(at), scale.y(step[3])));
    context.stroke();
    if (steps.length > 200) return;
    for (let at = 0; at < steps.length; at++) {
      context.beginPath();
      context.arc(scale.x(at), scale.y(steps[at][3]), 2.5, 0, 2 * Math.PI);
      context.fill();
    }
  }

  drawEnd(context, name, floor) {
    const { scale } = this;
    const { of, at } = this.ends[name];
    const [x, y] = [scale.x(at), scale.y(this.steps(of)[at][3])];
    context.strokeStyle = ink.muted;
    context.lineWidth = 1;
    context.setLineDash([2, 3]);
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, y);
    context.lineTo(Math.round(x) + 0.5, floor);
    context.stroke();
    context.setLineDash([]);
    dot(context, x, y, ink.ink, 4.5);
    context.fillStyle = ink.ink;
    context.font = `600 12px ${ink.font}`;
    // At one step they stand side by side.
    const apart = this.ends.a.at === this.ends.b.at ? { a: -7, b: 7 }[name] : 0;
    context.textAlign = 'center';
    context.fillText(name.toUpperCase(), x + apart, y - 9);
  }

  gestures() {
    const { canvas } = this;
    const at = (x) => Math.min(Math.max(this.scale?.at(x) ?? 0, 0), Math.max(...this.known.map((recording) => this.steps(recording.index).length), 1) - 1);
    // Of several lines the one that is nearest.
    const nearest = (x, y) => {
      const place = at(x);
      const reach = this.known.filter((recording) => this.steps(recording.index)[place]);
      const away = (recording) => Math.abs(this.scale.y(this.steps(recording.index)[place][3]) - y);
      const found = reach.sort((a, b) => away(a) - away(b))[0];
      return found ? { of: found.index, at: place } : null;
    };
    canvas.addEventListener('pointermove', (pointer) => {
      if (!this.scale) return;
      const place = at(pointer.offsetX);
      const size = this.look.exact ? exact : human;
      const lines = this.known.filter((recording) => this.steps(recording.index)[place]);
      this.tip.replaceChildren(...lines.map((recording) => {
        const [number, , , peak] = this.steps(recording.index)[place];
        return h('span', {}, `step ${count(number)}${this.known.length > 1 ? ` of ${recording.name}` : ''}: ${size(peak)}`);
      }));
      placeTip(this.tip, pointer.offsetX, pointer.offsetY, canvas.clientWidth);
    });
    canvas.addEventListener('pointerleave', () => hideTip(this.tip));
    canvas.addEventListener('click', (pointer) => {
      const found = this.scale && nearest(pointer.offsetX, pointer.offsetY);
      if (found) this.put(pointer.shiftKey ? 'a' : 'b', found.of, found.at);
    });
    canvas.addEventListener('keydown', (key) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[key.key];
      if (by !== undefined) {
        const name = key.shiftKey ? 'a' : 'b';
        const { of, at: now } = this.ends[name];
        this.put(name, of, Math.min(Math.max(now + by, 0), this.steps(of).length - 1));
      } else if (key.key === 'Enter') this.goTo('b');
      else return;
      key.preventDefault();
      key.stopPropagation();
    });
  }
}
