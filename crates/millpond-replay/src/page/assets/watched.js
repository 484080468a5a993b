// Something that views read and are told about when it changes: once a frame, however many changes it held.

class Watched {
  constructor() {
    this.listeners = [];
    this.changed = new Set();
  }

  set(values) {
    for (const [key, value] of Object.entries(values)) {
      if (this[key] === value) continue;
      this[key] = value;
      this.changed.add(key);
    }
    if (this.changed.size > 0 && !this.frame) this.frame = requestAnimationFrame(() => this.tell());
  }

  touch(...keys) {
    for (const key of keys) this.changed.add(key);
    this.frame ??= requestAnimationFrame(() => this.tell());
  }

  tell() {
    const changed = this.changed;
    this.changed = new Set();
    this.frame = null;
    this.derive(changed);
    for (const listener of this.listeners) listener(changed);
  }

  // What else changes with what changed.
  derive() {}

  listen(listener) {
    this.listeners.push(listener);
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.look(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  pan(part) {
    const step = (this.to - this.from) * part;
    this.look(this.from + step, this.to + step);
  }
}
