// What the reader of a report is looking at.

class State extends ViewState {
  constructor(meta) {
    super();
    this.meta = meta;
    this.focus = (meta.opensAt === null ? null : meta.inUse) ?? meta.best ?? meta.inUse ?? 0;
    this.hidden = new Set(meta.runs.keys());
    for (const index of this.main) this.hidden.delete(index);
    this.series = { allocated: false, requested: true };
    this.axis = 'event';
    this.range = 'zero';
    this.grouping = 'module';
    // A failure early in the run has the picture to itself.
    this.to = meta.opensAt === null ? this.end : Math.min(Math.max(meta.opensAt * 1.25, this.least), this.end);
  }

  // The policies with a line from the start: the one in use, and the recommended one or else `millpond`.
  get main() {
    const { inUse, best, runs } = this.meta;
    const other = best ?? runs.findIndex((run) => run.name === 'millpond');
    return [inUse, other].filter((index) => runs[index] !== undefined);
  }

  // Whether a policy has a line. The chosen one always has.
  isShown(index) {
    return index === this.focus || !this.hidden.has(index);
  }

  get showsAll() {
    return this.hidden.size === 0;
  }

  // Shows the lines of all policies, or those from the start.
  toggleAll() {
    const all = this.showsAll;
    this.hidden = new Set(all ? this.meta.runs.keys() : []);
    if (all) for (const index of this.main) this.hidden.delete(index);
    this.touch('hidden');
  }

  // The moment every view shows: under the cursor, else pinned, else the one that tells most.
  get moment() {
    return this.hover ?? this.pinned ?? this.telling;
  }

  // The event at which the recorded program ran out of memory, or else the peak.
  get chief() {
    return this.meta.opensAt ?? this.meta.peakEvent;
  }

  // That event; for a policy that stopped before or at it, its last whole moment.
  get telling() {
    return this.cut ? Math.max(this.meta.runs[this.focus].stopped - 1, 0) : this.chief;
  }

  // Whether the chosen policy ran out of memory before or at that event.
  get cut() {
    const stopped = this.meta.runs[this.focus]?.stopped ?? null;
    return stopped !== null && stopped <= this.chief;
  }

  // The moment in words.
  get momentName() {
    if (this.hover !== null) return 'under the pointer';
    if (this.pinned !== null) return 'at the pinned event';
    if (this.cut) return 'before memory ran out';
    return this.meta.opensAt === null ? 'at the peak of requested bytes' : 'when memory ran out';
  }

  // The last event.
  get end() {
    return Math.max(this.meta.events - 1, 1);
  }

  // The shortest window that is looked at.
  get least() {
    return Math.min(8, this.end);
  }

  // The event at a place of the window.
  momentAt(place) {
    return Math.min(Math.max(Math.floor(place + 1e-6), 0), this.meta.events - 1);
  }

  togglePin(event) {
    this.set({ pinned: this.pinned === event ? null : event });
  }

  // Moves the pinned moment by events.
  step(events) {
    this.pin(Math.min(Math.max(this.moment + events, 0), this.meta.events - 1));
  }
}

// The axis of a report: the window is one of events, and time is what was recorded at them.
class EventAxis extends Axis {
  constructor(state) {
    super(state);
    this.times = null;
  }

  get timed() {
    return super.timed && this.times !== null;
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
}
