// What the reader is looking at. Views read it and are told what changed.

// One policy far above the others would press them flat: then the picture starts without it.
function startRange(meta) {
  const peaks = meta.runs.map((run) => run.peak).sort((a, b) => b - a);
  const shown = Math.max(meta.runs[meta.inUse]?.peak ?? 0, meta.runs[meta.best]?.peak ?? 0, 1);
  return peaks[0] > 1.6 * shown ? 'zero' : 'all';
}

class State {
  constructor(meta) {
    this.meta = meta;
    this.focus = meta.best ?? meta.inUse ?? 0;
    this.hidden = new Set();
    this.series = { reserved: 'all', allocated: 'focus', requested: true };
    this.from = 0;
    this.to = Math.max(meta.events - 1, 1);
    this.hover = null;
    this.pinned = null;
    this.axis = 'event';
    this.range = startRange(meta);
    this.exact = false;
    this.grouping = 'module';
    this.lit = null;
    this.block = null;
    this.listeners = [];
    this.changed = new Set();
  }

  // The moment every view shows: under the cursor, else pinned, else the one that tells most.
  get moment() {
    return this.hover ?? this.pinned ?? this.telling;
  }

  // The peak; for a policy that stopped before it, its last whole moment.
  get telling() {
    return this.cut ? Math.max(this.meta.runs[this.focus].stopped - 1, 0) : this.meta.peakEvent;
  }

  // Whether the chosen policy ran out of memory before the peak.
  get cut() {
    const stopped = this.meta.runs[this.focus]?.stopped ?? null;
    return stopped !== null && stopped <= this.meta.peakEvent;
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

  // Views redraw once a frame, however many changes it held.
  tell() {
    const changed = this.changed;
    this.changed = new Set();
    this.frame = null;
    if (['hover', 'pinned', 'focus'].some((key) => changed.has(key))) changed.add('moment');
    if (['from', 'to', 'axis'].some((key) => changed.has(key))) changed.add('window');
    for (const listener of this.listeners) listener(changed);
  }

  listen(listener) {
    this.listeners.push(listener);
  }

  look(from, to) {
    const end = Math.max(this.meta.events - 1, 1);
    const span = Math.min(Math.max(to - from, Math.min(8, end)), end);
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

  // Moves the pinned moment by events, bringing it into view.
  step(events) {
    const event = Math.min(Math.max(this.moment + events, 0), this.meta.events - 1);
    this.set({ pinned: event, hover: null });
    if (event < this.from || event > this.to) {
      const half = (this.to - this.from) / 2;
      this.look(event - half, event + half);
    }
  }
}
