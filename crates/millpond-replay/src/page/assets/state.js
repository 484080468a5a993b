// What the reader is looking at. Views read it and are told what changed.

// One policy far above the others would press them flat: then the picture starts without it.
function startRange(meta) {
  const peaks = meta.runs.map((run) => run.peak).sort((a, b) => b - a);
  const shown = Math.max(meta.runs[meta.inUse]?.peak ?? 0, meta.runs[meta.best]?.peak ?? 0, 1);
  return peaks[0] > 1.6 * shown ? 'zero' : 'all';
}

class State extends Watched {
  constructor(meta) {
    super();
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

  derive(changed) {
    if (['hover', 'pinned', 'focus'].some((key) => changed.has(key))) changed.add('moment');
    if (['from', 'to', 'axis'].some((key) => changed.has(key))) changed.add('window');
  }

  // The last event.
  get end() {
    return Math.max(this.meta.events - 1, 1);
  }

  // The shortest window that is looked at.
  get least() {
    return Math.min(8, this.end);
  }

  look(from, to) {
    const { end } = this;
    const span = Math.min(Math.max(to - from, this.least), end);
    const start = Math.min(Math.max(from, 0), end - span);
    this.set({ from: start, to: start + span });
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
