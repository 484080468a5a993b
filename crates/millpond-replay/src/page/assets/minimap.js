// The whole run by event, small: an overview that keeps its shape.

class Minimap extends Strip {
  constructor(state) {
    super(state, byId('minimap'), ['window', 'focus', 'data', 'theme', 'moment']);
  }

  drawRun(context, span, height) {
    const { state } = this;
    const { buckets, requested, reserved } = state.meta.glance;
    const bottom = height - 3;
    const top = Math.max(...requested, ...(reserved[state.focus] ?? []), 1);
    const y = (value) => bottom - (value / top) * (bottom - 3);
    const highest = Array.from({ length: buckets }, (_, i) => requested[2 * i + 1] ?? 0);
    context.fillStyle = ink.water;
    context.fill(areaOf(MARGIN.left, span, bottom, highest, y));
    const x = (bucket) => MARGIN.left + (bucket / buckets) * span;
    const steps = reserved[state.focus] ?? [];
    context.beginPath();
    for (let i = 0; i < steps.length / 2; i++) context.lineTo(x(i + 0.5), y(steps[2 * i + 1]));
    context.strokeStyle = policyInk(state.focus);
    context.lineWidth = 1.25;
    context.stroke();
  }
}
