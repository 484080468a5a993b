// The horizontal axis, shared by every picture: events, or recorded time.

const MARGIN = { left: 64, right: 12 };

class Axis {
  constructor(state) {
    this.state = state;
    this.times = null;
  }

  get timed() {
    return this.state.axis === 'time' && this.times !== null;
  }

  place(event) {
    if (!this.timed) return event;
    const last = this.times.length - 1;
    const low = Math.min(Math.max(Math.floor(event), 0), last);
    const high = Math.min(low + 1, last);
    return this.times[low] + (this.times[high] - this.times[low]) * (event - low);
  }

  event(place) {
    if (!this.timed) return place;
    const low = Math.max(lastAtMost(this.times, place), 0);
    const gap = (this.times[low + 1] ?? this.times[low]) - this.times[low];
    return gap > 0 ? low + Math.min((place - this.times[low]) / gap, 1) : low;
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
      const text = this.timed ? clockTick(value, step) : compactCount(value, step);
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
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  return step;
}
