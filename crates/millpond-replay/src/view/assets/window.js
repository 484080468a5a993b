// What a part of a recording comes to. Everything is summed by origin first, and by group, stack or tag from that.

// Sums by origin.
class Sums {
  constructor(table) {
    this.table = table;
    this.bytes = new Float64Array(table.originCount);
    this.blocks = new Uint32Array(table.originCount);
    this.total = 0;
    this.requested = 0;
    this.count = 0;
    // Bytes of blocks that are not listed one by one.
    this.others = 0;
  }

  add(block) {
    const { origin, bytes, slack } = this.table;
    this.bytes[origin[block]] += bytes[block];
    this.blocks[origin[block]]++;
    this.total += bytes[block];
    this.requested += bytes[block] - slack[block];
    this.count++;
  }

  // The groups that hold most, and the others as one; largest first, and of equals by blocks and by name.
  groups(way, most = Infinity) {
    const { table } = this;
    const rows = new Map();
    for (let origin = 0; origin < this.bytes.length; origin++) {
      if (this.blocks[origin] === 0) continue;
      const group = table.group(origin, way);
      const row = rows.get(group) ?? { group, name: table.names[way][group] ?? '', bytes: 0, blocks: 0 };
      row.bytes += this.bytes[origin];
      row.blocks += this.blocks[origin];
      rows.set(group, row);
    }
    const all = [...rows.values()].sort((a, b) => b.bytes - a.bytes || b.blocks - a.blocks || (a.name < b.name ? -1 : 1));
    const rest = { groups: 0, bytes: 0, blocks: 0 };
    for (const row of all.slice(most)) {
      rest.groups++;
      rest.bytes += row.bytes;
      rest.blocks += row.blocks;
    }
    return { rows: all.slice(0, most), rest, others: this.others };
  }
}

// What lives after so many events.
function held(table, events) {
  const sums = new Sums(table);
  table.alive(events, (block) => sums.add(block));
  if (table.others && events > 0) sums.others = table.others[events - 1];
  return sums;
}

// Of the blocks born from event `first` to event `end`: those that `keeps` says.
function born(table, first, end, keeps) {
  const sums = new Sums(table);
  const stop = table.bornBefore(end);
  for (let block = table.bornBefore(first); block < stop; block++) {
    if (table.own[block] === 1 && keeps(block)) sums.add(block);
  }
  return sums;
}

// A part of a recording, from one event to another: all that is asked of it, each when it is first asked for.
class Part {
  constructor(table, lens, first, end) {
    Object.assign(this, { table, lens, first, end, known: new Map() });
  }

  once(name, make) {
    if (!this.known.has(name)) this.known.set(name, make());
    return this.known.get(name);
  }

  get peak() {
    return this.once('peak', () => this.lens.peak(this.first, this.end));
  }

  // What is held when most is.
  get held() {
    return this.once('held', () => held(this.table, this.peak.events));
  }

  get last() {
    return this.once('last', () => held(this.table, this.end));
  }

  // Handed out in the part and still held at its end.
  get kept() {
    return this.once('kept', () => born(this.table, this.first, this.end, (block) => this.table.death[block] >= this.end));
  }

  // Freed before their thread allocated or freed anything else.
  get temporary() {
    const { death, fate } = this.table;
    return this.once('temporary', () => born(this.table, this.first, this.end, (block) => fate[block] === FATES.atOnce && death[block] < this.end));
  }

  get allocated() {
    return this.once('allocated', () => born(this.table, this.first, this.end, () => true));
  }

  // Blocks born in the part that are not listed one by one.
  get otherBirths() {
    const births = this.table.otherBirths;
    if (!births || this.end === 0) return 0;
    return births[this.end - 1] - (this.first > 0 ? births[this.first - 1] : 0);
  }
}
