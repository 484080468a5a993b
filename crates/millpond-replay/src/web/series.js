// Curves over events that answer exactly at one event, and with exact extremes over any range.
// Extremes come from a pyramid of blocks of 16, so a redraw costs pixels, not events.

const FAN = 16;

class Dense {
  constructor(values, end = values.length) {
    this.values = values;
    this.end = end;
    this.levels = [];
    let lo = values;
    let hi = values;
    while (lo.length > FAN) {
      const length = Math.ceil(lo.length / FAN);
      const low = new Float64Array(length);
      const high = new Float64Array(length);
      for (let i = 0; i < length; i++) {
        let min = Infinity;
        let max = -Infinity;
        const stop = Math.min(lo.length, (i + 1) * FAN);
        for (let k = i * FAN; k < stop; k++) {
          if (lo[k] < min) min = lo[k];
          if (hi[k] > max) max = hi[k];
        }
        low[i] = min;
        high[i] = max;
      }
      this.levels.push([low, high]);
      lo = low;
      hi = high;
    }
    this.lo = 0;
    this.hi = 0;
  }

  at(event) {
    return this.values[event];
  }

  // Extremes over first..=last, into `lo` and `hi`.
  extremes(first, last) {
    let min = Infinity;
    let max = -Infinity;
    let lo = this.values;
    let hi = this.values;
    let a = first;
    let b = last + 1;
    for (let level = 0; ; level++) {
      const top = level >= this.levels.length;
      while (a < b && (top || a % FAN !== 0)) {
        if (lo[a] < min) min = lo[a];
        if (hi[a] > max) max = hi[a];
        a++;
      }
      while (b > a && (top || b % FAN !== 0)) {
        b--;
        if (lo[b] < min) min = lo[b];
        if (hi[b] > max) max = hi[b];
      }
      if (a >= b) break;
      a /= FAN;
      b /= FAN;
      [lo, hi] = this.levels[level];
    }
    this.lo = min;
    this.hi = max;
  }
}

// A curve known by its changes.
class Steps {
  constructor(events, values, end) {
    this.events = events;
    this.inner = new Dense(values);
    this.end = end;
    this.lo = 0;
    this.hi = 0;
  }

  at(event) {
    const index = lastAtMost(this.events, event);
    return index < 0 ? 0 : this.inner.values[index];
  }

  extremes(first, last) {
    const a = lastAtMost(this.events, first);
    const b = lastAtMost(this.events, last);
    if (b < 0) {
      this.lo = this.hi = 0;
      return;
    }
    this.inner.extremes(Math.max(a, 0), b);
    this.lo = a < 0 ? 0 : this.inner.lo;
    this.hi = this.inner.hi;
  }
}

// How many elements are below `value`; with `orAt`, those equal to it are counted too.
function countBelow(sorted, value, orAt = false) {
  let a = 0;
  let b = sorted.length;
  while (a < b) {
    const middle = (a + b) >>> 1;
    if (sorted[middle] < value || (orAt && sorted[middle] === value)) a = middle + 1;
    else b = middle;
  }
  return a;
}

// Index of the last element that is at most `value`; -1 where none is.
function lastAtMost(sorted, value) {
  return countBelow(sorted, value, true) - 1;
}
