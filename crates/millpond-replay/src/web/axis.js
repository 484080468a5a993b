// The horizontal axis, shared by every picture: events, or recorded time.

const MARGIN = { left: 64, right: 12 };

// Places on the axis are events, or times in so many parts of a microsecond.
class Axis {
  constructor(state, perMicrosecond = 1) {
    Object.assign(this, { state, perMicrosecond });
  }

  get timed() {
    return this.state.axis === 'time';
  }

  // The place of what the window is measured in, and the reverse.
  place(event) {
    return event;
  }

  event(place) {
    return place;
  }

  // A scale between the current window and the pixels of a picture `width` wide.
  scale(width) {
    const { from, to } = this.state;
    const left = MARGIN.left;
    const span = width - MARGIN.left - MARGIN.right;
    const a = this.place(from);
    const b = Math.max(this.place(to), a + 1e-9);
    const axis = this;
    return {
      left,
      span,
      x: (event) => left + ((axis.place(event) - a) / (b - a)) * span,
      at: (x) => axis.event(a + ((x - left) / span) * (b - a)),
    };
  }

  ticks(width) {
    const { from, to } = this.state;
    const a = this.place(from);
    const b = this.place(to);
    const step = niceStep((b - a) / Math.max(width / 130, 2), 10);
    const ticks = [];
    for (let value = Math.ceil(a / step) * step; value <= b; value += step) {
      const text = this.timed ? clockTick(value / this.perMicrosecond, step / this.perMicrosecond) : compactCount(value, step);
      ticks.push({ event: this.event(value), text });
    }
    return ticks;
  }
}

function clockTick(us, step) {
  const seconds = us / 1e6;
  if (step >= 1e6) return seconds >= 600 ? `${Math.floor(seconds / 60)}:${String(Math.round(seconds % 60)).padStart(2, '0')}` : `${seconds.toFixed(0)} s`;
  const digits = Math.min(Math.ceil(-Math.log10(step / 1e6)), 9);
  return `${seconds.toFixed(digits)} s`;
}

function compactCount(value, step) {
  if (step < 1) return value.toFixed(1);
  return step >= 1000 && value >= 1e4 ? `${count(Math.round(value / 100) / 10)}k` : count(Math.round(value));
}

// 1, 2 or 5 times a power of ten; for bytes, powers of two read better.
function niceStep(rough, base) {
  if (base === 2) return 2 ** Math.round(Math.log2(rough));
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-9)));
  return [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
}
