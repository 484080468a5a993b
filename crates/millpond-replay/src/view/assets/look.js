// What the reader of recordings is looking at: which recording, which part of it, by what.
//
// A place on the axis is a time in nanoseconds, or a number of events. All recordings share the axis. Each begins at its offset:
// the time since the earliest one began if they are on one clock, otherwise 0.

class Look extends ViewState {
  constructor(recordings) {
    super();
    this.recordings = recordings;
    this.way = 'tag';
    this.axis = 'time';
    // Whether recordings that are compared have one scale.
    this.shared = true;
    this.shows = { reserved: true, unexplained: true, parked: true, notes: true };
    // Policies whose lines are drawn.
    this.replays = [];
    this.sums = 'held';
    this.tree = 'stack';
  }

  get recording() {
    return this.recordings[this.focus];
  }

  // The right end of the axis.
  get end() {
    return Math.max(...this.recordings.map((recording) => recording.extent(this.axis)), 1);
  }

  get least() {
    return Math.min(this.axis === 'time' ? 100 : 4, this.end);
  }

  // The moment that lists are about; none while it is the peak of the window.
  get moment() {
    return this.hover ?? this.pinned;
  }

  momentAt(place) {
    return place;
  }

  // The moment in words.
  get momentName() {
    if (this.recording.glance?.state_only) return 'in the snapshot';
    if (this.hover !== null) return 'under the pointer';
    if (this.pinned !== null) return this.pinned === this.refusal ? 'when memory ran out' : 'at the pinned moment';
    return this.isWhole ? 'at the peak' : 'at the peak of this window';
  }

  // Where the last request was refused.
  get refusal() {
    const last = this.recording.table.notes.findLast((note) => note.what === 'refused');
    return last && (this.axis === 'time' ? last.time : last.event);
  }

  // A recording that ran out of memory opens at that moment, unless the reader has chosen another.
  openOnRefusal() {
    if (this.pinned === null && this.refusal !== undefined) this.set({ pinned: this.refusal });
  }

  // Moves the pinned moment by events: a step in time is one from change to change.
  step(by) {
    const { recording } = this;
    if (!recording.ready) return;
    const event = Math.min(Math.max(recording.moment(this) - 1 + by, 0), Math.max(recording.table.events - 1, 0));
    this.pin(this.axis === 'time' ? recording.placeOf(event, 'time') : event + 1);
  }

  // The same part on the other axis.
  turn(axis) {
    if (axis === this.axis || !this.recording.ready) return;
    const { recording } = this;
    const whole = this.isWhole;
    const [first, last] = recording.range(this);
    this.axis = axis;
    this.changed.add('axis');
    const from = whole ? 0 : recording.placeOf(first, axis);
    const to = whole ? this.end : recording.placeOf(last, axis);
    this.set({ hover: null, pinned: null });
    this.look(from, to);
  }

  // Moves to a time, with so much around it that the surroundings are seen.
  goTo(from, to = from) {
    const { recording } = this;
    const place = (time) => (this.axis === 'time' || !recording.ready ? time : recording.table.eventsBefore(time));
    const [a, b] = [place(from), place(to)];
    const around = Math.max((b - a) * 0.25, b > a ? 0 : this.end / 100);
    this.look(a - around, b + around);
    this.set({ pinned: a === b ? a : null, hover: null });
  }
}

// Places on the axis of a recording.
Object.assign(Recording.prototype, {
  extent(axis) {
    if (axis === 'event') return this.ready ? Math.max(this.table.events, 1) : 1;
    return Math.max(this.offset + (this.glance?.to ?? 0), this.table.end?.end ?? 0, 1);
  },

  placeOf(event, axis) {
    if (axis === 'event') return event;
    const { table } = this;
    return event >= table.events ? this.extent(axis) : table.time[event];
  },

  // How many events are before a place, and how many with those at it.
  before(place, axis) {
    if (axis === 'event') return Math.min(Math.max(Math.floor(place), 0), this.table.events);
    return this.table.eventsBefore(place);
  },

  upTo(place, axis) {
    if (axis === 'event') return Math.min(Math.max(Math.ceil(place), 0), this.table.events);
    return this.table.eventsBefore(place, true);
  },

  // The events of a window: the first, and one past the last.
  range(look) {
    return [this.before(look.from, look.axis), this.upTo(look.to, look.axis)];
  },

  // What the window comes to; the same until it moves.
  part(look) {
    const [first, end] = this.range(look);
    if (this.known?.first !== first || this.known?.end !== end) this.known = new Part(this.table, this.lensNow('kind'), first, end);
    return this.known;
  },

  // How many events are before the moment that is looked at: the pointer's, the pinned one, or the peak of the window.
  moment(look) {
    return look.moment === null ? this.part(look).peak.events : this.upTo(look.moment, look.axis);
  },
});

// A time in nanoseconds as people read it: to the microsecond where that matters, as the axis has it.
function moment(time) {
  if (time === 0) return '0 s';
  if (time < 1000) return `${Math.round(time)} ns`;
  if (time < 1e9) return clock(time / 1000);
  const seconds = time / 1e9;
  return `${seconds.toFixed(seconds < 1e4 ? 3 : 1)} s`;
}

// A length of time.
function duration(time) {
  return time < 120e9 ? moment(time) : clock(time / 1000);
}
