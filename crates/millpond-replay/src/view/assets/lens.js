// Bytes over time, stacked by group. What it takes to draw follows the pixels, not the events: for every 128 events it is known what
// lived before them, and how the stack was made when it was highest among them.

const CHUNK = 128;
// The bands of groups, of the other groups, and of blocks that are not listed one by one.
const LINES = SMALL + 1;
// Events between two breaths.
const BREATH = 1 << 20;

class Lens {
  constructor(table, way) {
    this.table = table;
    this.way = way;
    this.names = table.names[way];
  }

  // Two walks over all events: which groups hold most at any time, and what each chunk is like.
  async make(pause = breathe) {
    const { table } = this;
    const groupOf = new Uint32Array(table.originCount);
    for (let origin = 0; origin < groupOf.length; origin++) groupOf[origin] = table.group(origin, this.way);
    this.groupOf = groupOf;
    await this.rank(pause);
    this.bandOf = groupOf.map((group) => this.bandOfGroup[group]);
    await this.cut(pause);
    return this;
  }

  async rank(pause) {
    const { who, bytes, origin, time, events } = this.table;
    const now = new Float64Array(this.names.length);
    const most = new Float64Array(this.names.length);
    const blocks = new Uint32Array(this.names.length);
    const since = new Float64Array(this.names.length);
    const area = new Float64Array(this.names.length);
    for (let event = 0; event < events; event++) {
      const block = who[event];
      const group = this.groupOf[origin[block >= 0 ? block : ~block]];
      area[group] += now[group] * (time[event] - since[group]);
      since[group] = time[event];
      if (block >= 0) {
        now[group] += bytes[block];
        blocks[group]++;
        if (now[group] > most[group]) most[group] = now[group];
      } else {
        now[group] -= bytes[~block];
      }
      if (event % BREATH === BREATH - 1) await pause();
    }
    const ranked = [...most.keys()].filter((group) => blocks[group] > 0);
    ranked.sort((a, b) => most[b] - most[a] || (this.names[a] < this.names[b] ? -1 : 1));
    for (const group of ranked) area[group] += now[group] * ((time[events - 1] ?? 0) - since[group]);
    // What is always there is drawn below what comes and goes.
    this.bands = ranked.slice(0, BANDS).sort((a, b) => area[b] - area[a]);
    this.more = Math.max(ranked.length - BANDS, 0);
    this.bandOfGroup = new Uint8Array(this.names.length).fill(REST);
    this.bands.forEach((group, band) => (this.bandOfGroup[group] = band));
  }

  async cut(pause) {
    const { events } = this.table;
    const chunks = Math.ceil(events / CHUNK);
    this.before = new Float64Array((chunks + 1) * LINES);
    this.high = new Float64Array(chunks * LINES);
    this.highest = new Float64Array(chunks);
    this.highEvent = new Uint32Array(chunks);
    const now = new Float64Array(LINES);
    let total = 0;
    for (let chunk = 0; chunk < chunks; chunk++) {
      this.before.set(now, chunk * LINES);
      let highest = -Infinity;
      const end = Math.min((chunk + 1) * CHUNK, events);
      for (let event = chunk * CHUNK; event < end; event++) {
        total += this.change(event, now);
        if (total > highest) {
          highest = total;
          this.high.set(now, chunk * LINES);
          this.highEvent[chunk] = event;
        }
      }
      this.highest[chunk] = highest;
      if (chunk % (BREATH / CHUNK) === BREATH / CHUNK - 1) await pause();
    }
    this.before.set(now, chunks * LINES);
  }

  // Makes the change of an event to a stack, and answers by how much all of it changes.
  change(event, now) {
    const { who, bytes, origin, others } = this.table;
    const block = who[event];
    let by = block >= 0 ? bytes[block] : -bytes[~block];
    now[this.bandOf[origin[block >= 0 ? block : ~block]]] += by;
    if (others) {
      by += others[event] - now[SMALL];
      now[SMALL] = others[event];
    }
    return by;
  }

  // The stack after so many events, into `now`.
  after(events, now) {
    const chunk = Math.floor(events / CHUNK);
    now.set(this.before.subarray(chunk * LINES, (chunk + 1) * LINES));
    for (let event = chunk * CHUNK; event < events; event++) this.change(event, now);
    return now;
  }

  // Moves edges of columns to chunks, so that wide columns are drawn without a look at single events. An edge moves by at most an eighth
  // of the columns at its sides.
  snapped(edges) {
    const isWide = (column) => edges[column + 1] - edges[column] >= 4 * CHUNK;
    return edges.map((edge, i) => (isWide(i - 1) && isWide(i) ? Math.round(edge / CHUNK) * CHUNK : edge));
  }

  // For columns between `edges`, numbers of events in order: the stack when it was highest in each, what was there before included, and
  // how many events were before that moment.
  columns(edges) {
    const count = edges.length - 1;
    const stacks = new Float64Array(Math.max(count, 0) * LINES);
    const totals = new Float64Array(Math.max(count, 0));
    const moments = new Uint32Array(Math.max(count, 0));
    const now = this.after(edges[0], new Float64Array(LINES));
    let total = sum(now);
    for (let column = 0; column < count; column++) {
      const at = column * LINES;
      let most = total;
      stacks.set(now, at);
      let event = edges[column];
      moments[column] = event;
      const end = edges[column + 1];
      while (event < end) {
        if (event % CHUNK === 0 && event + CHUNK <= end) {
          const chunk = event / CHUNK;
          if (this.highest[chunk] > most) {
            most = this.highest[chunk];
            moments[column] = this.highEvent[chunk] + 1;
            stacks.set(this.high.subarray(chunk * LINES, (chunk + 1) * LINES), at);
          }
          event += CHUNK;
          if (event >= end || event + CHUNK > end) {
            now.set(this.before.subarray((chunk + 1) * LINES, (chunk + 2) * LINES));
            total = sum(now);
          }
          continue;
        }
        total += this.change(event, now);
        event++;
        if (total > most) {
          most = total;
          moments[column] = event;
          stacks.set(now, at);
        }
      }
      totals[column] = most;
    }
    return { stacks, totals, moments };
  }

  // When most lives after `first` events up to and with event `end - 1`: how many events are before that moment, and its bytes. What
  // lives when the window begins counts.
  peak(first, end) {
    const { totals, moments } = this.columns([first, end]);
    return { events: moments[0], bytes: totals[0] };
  }
}

function sum(now) {
  let total = 0;
  for (let line = 0; line < LINES; line++) total += now[line];
  return total;
}
