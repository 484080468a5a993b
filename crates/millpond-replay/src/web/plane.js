// Addresses upwards, the run to the right: where blocks lie, and for how long. Blocks never overlap in this plane, so each adds exactly
// the part of a pixel that it covers; the picture is the true average of what lies under a pixel, however many blocks that are.

class Plane {
  constructor(state, axis, canvas) {
    Object.assign(this, { state, axis, canvas });
    this.tip = canvas.parentElement.querySelector('.tip');
    this.image = document.createElement('canvas');
    this.surface = new Surface(canvas, (context, width, height) => this.draw(context, width, height));
    this.gestures();
    state.listen(() => this.surface.paint(), 'window', 'moment', 'under', 'block', 'data', 'brush');
    // While the window moves the old picture is stretched to it; the true one follows at rest.
    state.listen(atRest(80, () => {
      this.stale = true;
      this.surface.paint();
    }), 'window', 'data', 'theme', 'lit', 'focus', 'way', 'grouping');
  }

  draw(context, width, height) {
    const { state } = this;
    this.scale = this.axis.scale(width);
    const { left, span } = this.scale;
    const bottom = height - 22;
    if (!this.isReady(context) || span < 50 || height < 50) return;
    const key = `${width}x${height}`;
    if (this.stale !== false || this.key !== key) {
      this.key = key;
      this.stale = false;
      this.render(Math.round(span), Math.round(bottom));
      this.rendered = { from: state.from, to: state.to };
    }
    context.imageSmoothingEnabled = false;
    context.save();
    context.beginPath();
    context.rect(left, 0, span, bottom);
    context.clip();
    const { from, to } = this.rendered;
    context.drawImage(this.image, this.scale.x(from), 0, this.scale.x(to) - this.scale.x(from), bottom);
    for (const block of [state.block, state.under]) if (block !== null) this.frame(context, block, bottom);
    context.restore();
    byteMarks(context, this.scale, bottom, this.extent);
    if (!this.isStill) axisMarks(context, this.axis, this.scale, height - 6);
    if (state.inWindow(state.moment)) crosshair(context, this.scale.x(state.moment), 7, bottom, state);
    drawBrush(context, this.brush, 0, bottom);
  }

  // An edge around a block.
  frame(context, block, bottom) {
    const place = this.placeOf(block);
    if (!place) return;
    const { left, span } = this.scale;
    const y = (spot) => bottom - (spot / this.extent) * bottom;
    const x0 = Math.max(this.scale.x(place.from), left);
    const x1 = Math.min(this.scale.x(place.to), left + span);
    const y0 = y(place.spot + place.bytes);
    context.strokeStyle = ink.ink;
    context.lineWidth = 1.5;
    context.strokeRect(x0 - 0.5, y0 - 0.5, Math.max(x1 - x0, 1) + 1, Math.max(y(place.spot) - y0, 1) + 1);
  }

  // Puts coverage into the picture; addresses grow upwards.
  compose(width, height, paint, held) {
    compose(this.image, width, height, paint, held, (y) => height - 1 - y);
  }

  // The block at a point of the picture.
  pick(x, y) {
    const bottom = this.surface.height - 22;
    return this.blockAt(this.scale.at(x), ((bottom - y) / bottom) * this.extent, this.extent / bottom);
  }

  gestures() {
    const inside = (x) => x >= this.scale.left && x <= this.scale.left + this.scale.span;
    const leave = () => {
      hideTip(this.tip);
      this.state.set({ hover: null, under: null });
    };
    brushable(this, {
      hover: (x, y) => {
        if (!inside(x)) {
          leave();
          return;
        }
        const block = this.pick(x, y);
        this.state.set({ hover: this.state.momentAt(this.scale.at(x)), under: block });
        if (block === null) hideTip(this.tip);
        else this.describe(block, x, y);
      },
      click: (x, y) => {
        if (inside(x)) this.choose(this.state.momentAt(this.scale.at(x)), this.pick(x, y));
      },
      leave,
    });
  }
}
