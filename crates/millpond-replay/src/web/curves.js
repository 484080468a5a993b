// A picture of bytes over the run: what is drawn once, and above it what follows the pointer.

// Above and below the curves.
const HEAD = 18;
const FOOT = 26;

class Curves {
  constructor(state, axis, canvas) {
    Object.assign(this, { state, axis, canvas });
    this.back = document.createElement('canvas');
    this.surface = new Surface(canvas, (context, width, height) => this.draw(context, width, height));
    state.listen(() => this.repaint(), 'window', 'focus', 'data', 'theme', 'glance');
    state.listen(() => this.surface.paint(), 'moment', 'brush');
  }

  repaint() {
    this.stale = true;
    this.surface.paint();
  }

  draw(context, width, height) {
    this.scale = this.axis.scale(width);
    const key = `${width}x${height}x${this.surface.ratio}`;
    if (this.stale !== false || this.key !== key) {
      this.key = key;
      this.stale = false;
      this.back.width = this.canvas.width;
      this.back.height = this.canvas.height;
      const pen = this.back.getContext('2d');
      pen.setTransform(this.surface.ratio, 0, 0, this.surface.ratio, 0, 0);
      this.render(pen, width, height);
    }
    context.drawImage(this.back, 0, 0, width, height);
    this.drawMoment(context, height - FOOT);
    drawBrush(context, this.brush, HEAD, height - FOOT);
  }

  inside(x) {
    return x >= this.scale.left && x <= this.scale.left + this.scale.span;
  }

  // Runs `draw` with a pen that cannot leave the place of the curves.
  clipped(pen, floor, draw) {
    pen.save();
    pen.beginPath();
    pen.rect(this.scale.left, 0, this.scale.span + 1, floor + 1);
    pen.clip();
    draw();
    pen.restore();
  }
}
