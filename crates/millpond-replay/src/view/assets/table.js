// Every block of a recording, in columns: births and ends in order, and what each block is. The format is that of blocks.rs.
//
// Blocks are numbered in the order of their births, so those born in a window are a range of numbers, and every question about a
// window is a loop over typed arrays.

const LIVES = 0xffffffff;
const WAYS = ['tag', 'site', 'pool', 'stream', 'thread', 'kind'];
const FATES = { lives: 0, freed: 1, atOnce: 2, vanished: 3 };

// A typed array that grows.
class Grown {
  constructor(Type, room = 1024) {
    this.values = new Type(room);
    this.length = 0;
  }

  // Makes room for so many more; what is written there counts once `length` is set.
  room(more) {
    const needed = this.length + more;
    if (needed <= this.values.length) return this.values;
    const grown = new this.values.constructor(Math.max(needed, Math.ceil(this.values.length * 1.6)));
    grown.set(this.values.subarray(0, this.length));
    this.values = grown;
    return grown;
  }

  push(value) {
    this.room(1)[this.length++] = value;
  }

  trimmed() {
    return this.values.subarray(0, this.length);
  }
}

// A figure where it changes: after so many events, at a time.
class Samples {
  constructor(offset) {
    this.offset = offset;
    this.events = new Grown(Float64Array, 16);
    this.times = new Grown(Float64Array, 16);
    this.values = new Grown(Float64Array, 16);
  }

  get length() {
    return this.values.length;
  }

  take(bytes, firstEvent) {
    const reader = new Reader(bytes);
    while (reader.more) {
      this.events.push(firstEvent + reader.next());
      this.times.push(this.offset + reader.next());
      this.values.push(reader.next());
    }
  }

  // Curves by event and by time, which answer for any range.
  finish() {
    const end = Infinity;
    this.byEvent = new Steps(this.events.trimmed(), this.values.trimmed(), end);
    this.byTime = new Steps(this.times.trimmed(), this.values.trimmed(), end);
  }
}

class Table {
  // With room for so many blocks at once: more can come. `offset` is added to all times.
  constructor(blocks = 1024, offset = 0) {
    this.offset = offset;
    this.time = new Grown(Float64Array, 2 * blocks);
    // A block's number for its birth, its complement for its end.
    this.who = new Grown(Int32Array, 2 * blocks);
    this.birth = new Grown(Uint32Array, blocks);
    this.death = new Grown(Uint32Array, blocks);
    this.fate = new Grown(Uint8Array, blocks);
    // Whether the recording has the block's allocation, and not only a keyframe.
    this.own = new Grown(Uint8Array, blocks);
    this.bytes = new Grown(Float64Array, blocks);
    this.slack = new Grown(Float64Array, blocks);
    this.address = new Grown(Float64Array, blocks);
    this.origin = new Grown(Uint32Array, blocks);
    // Nanoseconds by which blocks are older than their birth in the table.
    this.age = new Map();
    // What many blocks share: five numbers, and a group for each way to group.
    this.origins = new Grown(Uint32Array);
    this.names = Object.fromEntries(WAYS.map((way) => [way, []]));
    this.tags = new Map();
    this.notes = [];
    // The sum of blocks that are not listed one by one, after each event; and how many were born before it.
    this.others = null;
    this.otherBirths = null;
    this.reserved = new Samples(offset);
    this.unexplained = new Samples(offset);
    this.parked = new Samples(offset);
    this.end = null;
    this.now = { time: offset, address: 0, rest: 0, births: 0 };
  }

  get events() {
    return this.who.length;
  }

  get blocks() {
    return this.birth.length;
  }

  // The property that names the holders of memory: the function that allocated if there are stacks and no tags.
  get usual() {
    const hasTags = [...this.tags.values()].some((text) => text !== '');
    const hasStacks = this.names.site.some((name) => name !== '(no stack recorded)');
    return hasStacks && !hasTags ? 'site' : 'tag';
  }

  // Takes in a part: its sections, as they are in the file.
  take(sections) {
    const head = JSON.parse(new TextDecoder().decode(sections[0]));
    const firstEvent = this.events;
    const firstBlock = this.blocks;
    this.takeEvents(sections[1], sections[2], head.events);
    this.takeBlocks(sections.slice(3, 7), head.blocks);
    const origins = new Reader(sections[7]);
    while (origins.more) this.origins.push(origins.next());
    const older = new Reader(sections[8]);
    while (older.more) {
      const block = firstBlock + older.next();
      const told = older.next();
      const age = Math.floor(told / 2);
      if (age > 0) this.age.set(block, age);
      if (told % 2 === 1) this.own.values[block] = 0;
    }
    if (sections[9].length > 0) this.takeOthers(sections[9], firstEvent, head.events);
    this.reserved.take(sections[10], firstEvent);
    this.unexplained.take(sections[11], firstEvent);
    this.parked.take(sections[12], firstEvent);
    for (const way of WAYS) for (const name of head.names[way]) this.names[way].push(name);
    for (const [number, text] of head.tags) this.tags.set(number, text);
    for (const [what, event, time, value, text] of head.notes) this.notes.push({ what, event, time: this.offset + time, value, text });
    if (head.end) this.finish(head.end);
  }

  takeEvents(who, times, events) {
    const whos = new Reader(who);
    const deltas = new Reader(times);
    const time = this.time.room(events);
    const target = this.who.room(events);
    let at = this.who.length;
    let born = this.blocks;
    const birth = this.birth.room(events);
    const death = this.death.room(events);
    const fate = this.fate.room(events);
    const own = this.own.room(events);
    let now = this.now.time;
    for (let i = 0; i < events; i++, at++) {
      now += deltas.next();
      time[at] = now;
      const told = whos.next();
      if (told === 0) {
        target[at] = born;
        birth[born] = at;
        death[born] = LIVES;
        fate[born] = FATES.lives;
        own[born] = 1;
        born++;
      } else {
        const back = Math.floor((told - 1) / 3);
        const block = born - 1 - back;
        target[at] = ~block;
        death[block] = at;
        fate[block] = 1 + ((told - 1) % 3);
      }
    }
    this.now.time = now;
    this.time.length = this.who.length = at;
    this.birth.length = this.death.length = this.fate.length = this.own.length = born;
  }

  takeBlocks([sizes, slacks, addresses, origins], blocks) {
    const [size, waste, place, from] = [sizes, slacks, addresses, origins].map((bytes) => new Reader(bytes));
    const bytes = this.bytes.room(blocks);
    const slack = this.slack.room(blocks);
    const address = this.address.room(blocks);
    const origin = this.origin.room(blocks);
    let at = this.bytes.length;
    for (const end = at + blocks; at < end; at++) {
      bytes[at] = size.next();
      slack[at] = waste.signed();
      this.now.address += place.signed();
      address[at] = this.now.address;
      origin[at] = from.next();
    }
    this.bytes.length = this.slack.length = this.address.length = this.origin.length = at;
  }

  takeOthers(bytes, firstEvent, events) {
    this.others ??= new Grown(Float64Array);
    this.otherBirths ??= new Grown(Float64Array);
    const reader = new Reader(bytes);
    for (let i = 0; i < events; i++) {
      this.now.rest += reader.signed();
      this.now.births += reader.next();
      this.others.push(this.now.rest);
      this.otherBirths.push(this.now.births);
    }
  }

  finish(end) {
    this.end = { ...end, end: this.offset + end.end };
    for (const samples of [this.reserved, this.unexplained, this.parked]) samples.finish();
    for (const name of ['time', 'who', 'birth', 'death', 'fate', 'own', 'bytes', 'slack', 'address', 'origin', 'origins', 'others', 'otherBirths']) {
      if (this[name]) this[name] = this[name].trimmed();
    }
    // The last event has what was left in the end.
    if (this.others?.length > 0) this.others[this.others.length - 1] = end.othersBytes;
    this.originCount = this.origins.length / (5 + WAYS.length);
    this.hasAddresses = this.address.some((address) => address > 0);
  }

  // What an origin is: numbers of pool, stream, thread, tag and stack.
  origin5(origin) {
    const at = origin * (5 + WAYS.length);
    const [pool, stream, thread, tag, stack] = this.origins.subarray(at, at + 5);
    return { pool, stream, thread, tag, stack };
  }

  // The group of an origin, by number.
  group(origin, way) {
    return this.origins[origin * (5 + WAYS.length) + 5 + WAYS.indexOf(way)];
  }

  name(block, way) {
    return this.names[way][this.group(this.origin[block], way)] ?? '';
  }

  // When a block was allocated, in nanoseconds.
  since(block) {
    return this.time[this.birth[block]] - (this.age.get(block) ?? 0);
  }

  // How many events are before a time; with `orAt`, those at it are counted too.
  eventsBefore(time, orAt = false) {
    return countBelow(this.time, time, orAt);
  }

  // How many blocks are born before an event.
  bornBefore(event) {
    return countBelow(this.birth, event);
  }

  // Calls `visit` with every block that lives after so many events, in the order of births.
  alive(events, visit) {
    const { death } = this;
    const born = this.bornBefore(events);
    for (let block = 0; block < born; block++) if (death[block] >= events) visit(block);
  }
}
