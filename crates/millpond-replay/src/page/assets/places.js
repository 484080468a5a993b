// What one policy did, decoded on demand: the mirror of places.rs.

const UNSERVED = -1;
const LIKELY = 4;

// Up to a multiple, or to a power of two if that is 0.
function rounded(bytes, multiple) {
  if (multiple > 0) return Math.ceil(bytes / multiple) * multiple;
  let power = 1;
  while (power < bytes) power *= 2;
  return power;
}

class Places {
  constructor(story, index) {
    this.story = story;
    this.index = index;
    this.run = story.meta.runs[index];
    this.end = this.run.stopped ?? story.events;
  }

  // The reserved curve; cheap unless it was written relative to the allocated one.
  reserved() {
    this.reservedPromise ??= this.decodeReserved();
    return this.reservedPromise;
  }

  allocated() {
    this.allocatedPromise ??= this.decodeAllocated();
    return this.allocatedPromise;
  }

  addresses() {
    this.addressPromise ??= this.decodeAddresses();
    return this.addressPromise;
  }

  parts() {
    this.partsPromise ??= sections(`curve-${this.index}`);
    return this.partsPromise;
  }

  async decodeReserved() {
    const [, head, changes, spans] = await this.parts();
    this.decodeSegments(new Reader(spans));
    const reader = new Reader(changes);
    const events = [];
    const values = [];
    let event = 0;
    let bytes = 0;
    while (reader.more) {
      events.push((event += reader.next()));
      values.push((bytes += reader.signed()));
    }
    if (head[0] === 0) {
      this.reservedCurve = new Steps(Uint32Array.from(events), Float64Array.from(values), this.end);
    } else {
      const allocated = (await this.allocated()).values;
      const sum = new Float64Array(allocated.length);
      for (let i = 0, k = -1; i < sum.length; i++) {
        while (k + 1 < events.length && events[k + 1] <= i) k++;
        sum[i] = allocated[i] + (k < 0 ? 0 : values[k]);
      }
      this.reservedCurve = new Dense(sum, this.end);
    }
    return this.reservedCurve;
  }

  async decodeAllocated() {
    const { story } = this;
    const slack = await this.decodeSlack();
    const values = story.curve((serial) => (slack[serial] < 0 ? 0 : story.requested[serial] + slack[serial]));
    this.allocatedCurve = new Dense(values, this.end);
    return this.allocatedCurve;
  }

  // Bytes of rounding by allocation; UNSERVED where the policy did not get so far.
  async decodeSlack() {
    if (this.slack) return this.slack;
    const { story } = this;
    const [codes, head] = await this.parts();
    const reader = new Reader(codes);
    const header = new Reader(head);
    header.next();
    const multiple = header.next();
    const slack = new Float64Array(story.allocations);
    const ofSize = new Map();
    for (let i = 0; i < slack.length; i++) {
      const code = reader.next();
      if (code === 1) {
        slack[i] = UNSERVED;
      } else if (code === 0) {
        slack[i] = ofSize.get(story.requested[i]) ?? rounded(story.requested[i], multiple) - story.requested[i];
        ofSize.set(story.requested[i], slack[i]);
      } else {
        slack[i] = code - 2;
        ofSize.set(story.requested[i], slack[i]);
      }
    }
    this.slack = slack;
    return slack;
  }

  decodeSegments(reader) {
    const spans = [];
    let address = 0;
    while (reader.more) {
      address += reader.signed();
      const bytes = reader.next();
      const from = reader.next();
      spans.push({ address, bytes, from, to: from + reader.next() });
    }
    this.segments = spans;
  }

  async decodeAddresses() {
    const { story } = this;
    const slack = await this.decodeSlack();
    await this.reserved();
    const [head, choices, written] = await sections(`address-${this.index}`);
    await breathe();
    const header = new Reader(head);
    const base = header.next();
    const granule = header.next();
    const reader = new Reader(written);
    const address = new Float64Array(story.allocations).fill(UNSERVED);
    const ofSize = new Map();
    const ofKey = new Map();
    const wide = 2 ** 26;
    const sizeIds = new Map();
    const sizeId = (bytes) => {
      let id = sizeIds.get(bytes);
      if (id === undefined) sizeIds.set(bytes, (id = sizeIds.size));
      return id;
    };
    let freed;
    let end;
    let at = 0;
    const keeps = (serial) => slack[serial] !== UNSERVED && story.area(serial) >= story.meta.threshold;
    const place = (serial) => {
      if (!keeps(serial)) return;
      const block = story.requested[serial] + slack[serial];
      const key = story.tag[serial] * wide + sizeId(story.requested[serial]);
      const stack = ofSize.get(block);
      const choice = choices[at++];
      let found;
      if (choice === 0) {
        found = ofKey.get(key);
      } else if (choice === 1) {
        found = stack[stack.length - 1];
      } else if (choice === 2) {
        found = freed;
      } else if (choice === 3) {
        found = end;
      } else {
        const code = reader.next();
        found = code % 2 === 1 ? base + ((code - 1) / 2) * granule : (end ?? base) + unzigzag(code / 2) * granule;
      }
      address[serial] = found;
      if (stack) {
        const index = stack.lastIndexOf(found);
        if (index >= 0) stack.splice(index, 1);
      }
      ofKey.set(key, found);
      end = found + block;
    };
    for (let i = 0; i < story.meta.older.length; i++) place(i);
    for (let event = 0; event < story.events; event++) {
      const serial = story.subject[event];
      if (serial < 0) continue;
      if (story.actions[event] === ALLOC) {
        if (story.birth[serial] === event) place(serial);
      } else if (story.gone[serial] === event && address[serial] !== UNSERVED) {
        const block = story.requested[serial] + slack[serial];
        let stack = ofSize.get(block);
        if (!stack) ofSize.set(block, (stack = []));
        stack.push(address[serial]);
        if (stack.length > 64) stack.shift();
        freed = address[serial];
      }
    }
    this.address = address;
    this.compact();
    return address;
  }

  // Squeezes out what was never reserved: `spot` is each block's place on one gapless axis.
  compact() {
    const { story, address, slack } = this;
    let ranges = this.segments.map((span) => [span.address, span.address + span.bytes]);
    for (let i = 0; i < address.length; i++) {
      // Blocks outside every known segment still need a place.
      if (address[i] !== UNSERVED && (this.segments.length === 0 || this.run.segmentsCut)) {
        ranges.push([address[i], address[i] + story.requested[i] + slack[i]]);
      }
    }
    ranges.sort((a, b) => a[0] - b[0]);
    const starts = [];
    const ends = [];
    for (const [from, to] of ranges) {
      const last = ends.length - 1;
      if (last >= 0 && from <= ends[last]) ends[last] = Math.max(ends[last], to);
      else {
        starts.push(from);
        ends.push(to);
      }
    }
    ranges = null;
    const offsets = new Float64Array(starts.length + 1);
    for (let i = 0; i < starts.length; i++) offsets[i + 1] = offsets[i] + ends[i] - starts[i];
    this.starts = Float64Array.from(starts);
    this.offsets = offsets;
    this.extent = offsets[starts.length] || 1;
    this.spot = new Float64Array(address.length).fill(UNSERVED);
    for (let i = 0; i < address.length; i++) if (address[i] !== UNSERVED) this.spot[i] = this.spotOf(address[i]);
    for (const span of this.segments) span.spot = this.spotOf(span.address);
  }

  // What is reserved after `event`, in address order. Pages mapped one by one read as one range where
  // blocks lie across their borders; segments that the policy keeps apart stay apart.
  held(event) {
    const spans = this.segments.filter((span) => span.from <= event && event < span.to);
    spans.sort((a, b) => a.spot - b.spot);
    const { found } = this.alive(event);
    const ranges = [];
    let i = 0;
    for (const { spot, bytes, address } of spans) {
      const last = ranges[ranges.length - 1];
      while (i < found.length && this.spot[found[i]] + this.blockBytes(found[i]) <= spot) i++;
      const across = i < found.length && this.spot[found[i]] < spot;
      if (last && last.end === address && (across || last.joined)) {
        last.bytes += bytes;
        last.end += bytes;
        last.joined = true;
      } else {
        ranges.push({ spot, bytes, end: address + bytes, joined: false });
      }
    }
    return ranges;
  }

  spotOf(address) {
    const index = lastAtMost(this.starts, address);
    return index < 0 ? 0 : this.offsets[index] + address - this.starts[index];
  }

  // Bytes of blocks that the program has freed and that wait for a stream after `event`.
  waiting(event) {
    const { story, slack } = this;
    return story.alive(event).reduce((sum, i) => (story.death[i] <= event && slack[i] !== UNSERVED ? sum + this.blockBytes(i) : sum), 0);
  }

  blockBytes(serial) {
    return this.story.requested[serial] + this.slack[serial];
  }

  // Serial numbers of the blocks in place after `event`, in address order; what is not drawn one by
  // one is summed into `rest`.
  alive(event) {
    if (this.lastAlive?.event === event) return this.lastAlive;
    const { story, spot, slack } = this;
    const found = [];
    const rest = { blocks: 0, bytes: 0 };
    for (const i of story.alive(event)) {
      if (slack[i] === UNSERVED) continue;
      if (spot[i] === UNSERVED) {
        rest.blocks++;
        rest.bytes += this.blockBytes(i);
      } else {
        found.push(i);
      }
    }
    found.sort((a, b) => spot[a] - spot[b]);
    this.lastAlive = { event, found, rest };
    return this.lastAlive;
  }
}
