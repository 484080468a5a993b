// A narrow picture of the whole run with the window on it, to move and to stretch. What it shows of the run is `drawRun`'s.

class Strip {
  constructor(state, canvas, keys) {
    this.state = state;
    this.canvas = canvas;
    this.surface = new Surface(canvas, (context, width, height) => this.draw(context, width, height));
    this.gestures();
    state.listen(() => this.surface.paint(), ...keys);
  }

  x(event) {
    const span = this.surface.width - MARGIN.left - MARGIN.right;
    return MARGIN.left + (event / this.state.end) * span;
  }

  event(x) {
    const span = this.surface.width - MARGIN.left - MARGIN.right;
    return ((x - MARGIN.left) / span) * this.state.end;
  }

  draw(context, width, height) {
    const { state } = this;
    const span = width - MARGIN.left - MARGIN.right;
    this.drawRun(context, span, height);
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
    if (state.moment === null) return;
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
      } else if (grip.kind === 'from') state.look(Math.min(at, state.to - state.least), state.to);
      else if (grip.kind === 'to') state.look(state.from, Math.max(at, state.from + state.least));
      else if (grip.kind === 'brush') {
        if (Math.abs(at - grip.at) * canvas.clientWidth > state.end * 4) state.look(Math.min(at, grip.at), Math.max(at, grip.at));
      } else {
        const shift = at - grip.at;
        state.look(state.from + shift, state.to + shift);
        grip.at = at;
      }
    });
    canvas.addEventListener('pointerup', () => (grip = null));
    canvas.addEventListener('dblclick', () => state.look(0, state.end));
    wheelZoom(canvas, state, (x) => this.event(x));
  }
}
