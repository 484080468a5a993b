// What the reader is looking at. Pictures and lists read it, and are told what changed: once a frame, however many changes that holds.

class ViewState {
  constructor() {
    this.focus = 0;
    this.from = 0;
    this.to = 1;
    this.hover = null;
    this.pinned = null;
    // The block under the pointer, and the one that was chosen.
    this.under = null;
    this.block = null;
    // The group that is shown in full colour while the others step back.
    this.lit = null;
    this.exact = false;
    this.listeners = [];
    this.changed = new Set();
  }

  set(values) {
    for (const [key, value] of Object.entries(values)) {
      if (this[key] === value) continue;
      this[key] = value;
      this.changed.add(key);
    }
    if (this.changed.size > 0) this.touch();
  }

  touch(...keys) {
    for (const key of keys) this.changed.add(key);
    this.frame ??= requestAnimationFrame(() => this.tell());
  }

  tell() {
    const { changed } = this;
    this.changed = new Set();
    this.frame = null;
    if (['hover', 'pinned', 'focus'].some((key) => changed.has(key))) changed.add('moment');
    if (['from', 'to', 'axis'].some((key) => changed.has(key))) changed.add('window');
    for (const listener of this.listeners) listener(changed);
  }

  // Calls `listener` after every change, or after changes of these keys.
  listen(listener, ...keys) {
    this.listeners.push(keys.length === 0 ? listener : (changed) => {
      if (keys.some((key) => changed.has(key))) listener(changed);
    });
  }

  look(from, to) {
    const { end } = this;
    const span = Math.min(Math.max(to - from, this.least), end);
    const start = Math.min(Math.max(from, 0), end - span);
    this.set({ from: start, to: start + span });
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.look(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  pan(part) {
    const step = (this.to - this.from) * part;
    this.look(this.from + step, this.to + step);
  }

  get isWhole() {
    return this.from <= 0 && this.to >= this.end;
  }

  inWindow(place) {
    return place !== null && place >= this.from && place <= this.to;
  }

  // Pins a place, and brings it into view.
  pin(place) {
    this.set({ pinned: place, hover: null });
    const half = (this.to - this.from) / 2;
    if (!this.inWindow(place)) this.look(place - half, place + half);
  }
}

// A function that calls `act` once it was not called for so many milliseconds.
function atRest(wait, act) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...values), wait);
  };
}
