// The whole run, small, with the window on it.
class Minimap {
  constructor(state, axis, data) {
    Object.assign(this, { state, axis, data });
    this.canvas = byId('minimap');
    this.surface = new Surface(this.canvas, (context, width, height) => this.draw(context, width, height));
    this.gestures();
    state.listen((changed) => {
      if (['window', 'focus', 'data', 'theme', 'moment'].some((key) => changed.has(key))) this.surface.paint();
    });
  }

  // Always by event: an overview that keeps its shape.
  x(event) {
    const span = this.surface.width - MARGIN.left - MARGIN.right;
    return MARGIN.left + (event / Math.max(this.state.meta.events - 1, 1)) * span;
  }

  event(x) {
    const span = this.surface.width - MARGIN.left - MARGIN.right;
    return ((x - MARGIN.left) / span) * (this.state.meta.events - 1);
  }

  draw(context, width, height) {
    const { state } = this;
    const { buckets, requested, reserved } = state.meta.glance;
    const span = width - MARGIN.left - MARGIN.right;
    const bottom = height - 3;
    const top = Math.max(...requested, ...(reserved[state.focus] ?? []), 1);
    const y = (value) => bottom - (value / top) * (bottom - 3);
    const x = (bucket) => MARGIN.left + (bucket / buckets) * span;
    context.beginPath();
    context.moveTo(x(0), bottom);
    for (let i = 0; i < buckets; i++) context.lineTo(x(i + 0.5), y(requested[2 * i + 1]));
    context.lineTo(x(buckets), bottom);
    context.fillStyle = ink.water;
    context.fill();
    const steps = reserved[state.focus] ?? [];
    context.beginPath();
    for (let i = 0; i < steps.length / 2; i++) context.lineTo(x(i + 0.5), y(steps[2 * i + 1]));
    context.strokeStyle = policyInk(state.focus);
    context.lineWidth = 1.25;
    context.stroke();
    const a = this.x(state.from);
    const b = Math.max(this.x(state.to), a + 3);
    context.fillStyle = ink.panel;
    context.globalAlpha = 0.72;
    context.fillRect(MARGIN.left, 0, a - MARGIN.left, height);
    context.fillRect(b, 0, MARGIN.left + span - b, height);
    context.globalAlpha = 1;
    context.strokeStyle = ink.faint;
    context.lineWidth = 1;
    context.strokeRect(Math.round(a) + 0.5, 0.5, Math.round(b - a) - 1, height - 1);
    context.fillStyle = ink.muted;
    for (const edge of [a, b]) {
      context.beginPath();
      context.roundRect(edge - 2.5, height / 2 - 8, 5, 16, 2.5);
      context.fill();
    }
    const moment = this.x(state.moment);
    context.strokeStyle = ink.ink;
    context.globalAlpha = 0.6;
    context.beginPath();
    context.moveTo(moment, 0);
    context.lineTo(moment, height);
    context.stroke();
    context.globalAlpha = 1;
  }

  gestures() {
    const { canvas, state } = this;
    const local = (pointer) => pointer.clientX - canvas.getBoundingClientRect().left;
    let grip = null;
    canvas.addEventListener('pointerdown', (pointer) => {
      const x = local(pointer);
      const a = this.x(state.from);
      const b = this.x(state.to);
      const at = this.event(x);
      canvas.setPointerCapture(pointer.pointerId);
      if (Math.abs(x - a) < 8) grip = { kind: 'from' };
      else if (Math.abs(x - b) < 8) grip = { kind: 'to' };
      else if (x > a && x < b && b - a < this.surface.width - 100) grip = { kind: 'move', at };
      else grip = { kind: 'brush', at };
    });
    canvas.addEventListener('pointermove', (pointer) => {
      const x = local(pointer);
      const at = this.event(x);
      if (!grip) {
        const edge = Math.min(Math.abs(x - this.x(state.from)), Math.abs(x - this.x(state.to))) < 8;
        canvas.style.cursor = edge ? 'ew-resize' : 'crosshair';
      } else if (grip.kind === 'from') state.look(Math.min(at, state.to - 8), state.to);
      else if (grip.kind === 'to') state.look(state.from, Math.max(at, state.from + 8));
      else if (grip.kind === 'brush') {
        if (Math.abs(at - grip.at) * canvas.clientWidth > state.meta.events * 4) state.look(Math.min(at, grip.at), Math.max(at, grip.at));
      } else {
        const shift = at - grip.at;
        state.look(state.from + shift, state.to + shift);
        grip.at = at;
      }
    });
    canvas.addEventListener('pointerup', () => (grip = null));
    canvas.addEventListener('dblclick', () => state.look(0, state.meta.events - 1));
    wheelZoom(canvas, state, (x) => this.event(x));
  }
}
