// Address against time, for the window: where each block lies and for how long, and what lies free between them.

// Blocks that are drawn at most, the largest.
const MOST_DRAWN = 200_000;

class Addresses extends Plane {
  constructor(look, axis) {
    super(look, axis, byId('addresses'));
    this.look = look;
    this.extent = 1;
    look.listen(() => this.showFullness(), 'window', 'moment', 'under', 'block', 'data');
  }

  isReady() {
    const { recording } = this.look;
    if (!recording.ready) return false;
    byId('addresses-panel').hidden = !recording.table.hasAddresses;
    return recording.table.hasAddresses;
  }

  // Whether everything belongs to one moment, so that time is not an axis.
  get isStill() {
    return this.look.recording.glance.state_only;
  }

  // The blocks of the window, or the largest of them where there are too many: by classes of sizes, because to sort millions takes
  // seconds.
  largest(table, first, end) {
    const { death, address, bytes } = table;
    const born = table.bornBefore(end);
    const counts = new Uint32Array(64 * 8);
    const isThere = (block) => death[block] >= first && address[block] > 0;
    let all = 0;
    for (let block = 0; block < born; block++) {
      if (!isThere(block)) continue;
      counts[sizeClass(bytes[block])]++;
      all++;
    }
    let least = counts.length;
    let room = MOST_DRAWN;
    while (least > 0 && room > 0) room -= counts[--least];
    // Of the smallest class as many as there is room for.
    let some = counts[least] + Math.min(room, 0);
    const found = [];
    for (let block = 0; block < born; block++) {
      if (!isThere(block)) continue;
      const of = sizeClass(bytes[block]);
      if (of > least || (of === least && some-- > 0)) found.push(block);
    }
    this.left = all - found.length;
    return found;
  }

  // The blocks of the window and where they are drawn: ranges that no block of the window touches take no room.
  lay() {
    this.segments = [];
    if (this.look.recording.glance.state_only) return this.layState();
    const { look } = this;
    const { table } = look.recording;
    const [first, end] = look.recording.range(look);
    const found = this.largest(table, first, end);
    found.sort((a, b) => table.address[a] - table.address[b]);
    this.blocks = found;
    this.spots = new Float64Array(found.length);
    const gaps = [];
    let top = -1;
    let covered = 0;
    for (const block of found) {
      const address = table.address[block];
      if (top >= 0 && address > top) gaps.push(address - top);
      covered += Math.max(address + table.bytes[block] - Math.max(address, top), 0);
      top = Math.max(top, address + table.bytes[block]);
    }
    const most = Math.max(covered / 20, 1);
    const shown = most / 4;
    let spot = 0;
    let at = table.address[found[0]] ?? 0;
    top = at;
    this.gone = 0;
    found.forEach((block, i) => {
      const address = table.address[block];
      if (address - top > most) {
        this.gone++;
        spot += top - at + shown;
        at = address;
      }
      this.spots[i] = spot + address - at;
      top = Math.max(top, address + table.bytes[block]);
    });
    this.extent = Math.max(spot + top - at, 1);
  }

  // The segments of a state without a history, one above the other, with their blocks.
  layState() {
    const { recording } = this.look;
    const { table } = recording;
    const found = this.largest(table, 0, LIVES).sort((a, b) => table.address[a] - table.address[b]);
    this.segments = recording.glance.states.flatMap((state) => state.segments).sort((a, b) => a.address - b.address);
    const all = this.segments.reduce((sum, segment) => sum + segment.reserved_bytes, 0);
    const gap = all / 10 / Math.max(this.segments.length, 100);
    let spot = 0;
    for (const segment of this.segments) {
      segment.spot = spot;
      spot += segment.reserved_bytes + gap;
    }
    this.blocks = [];
    const spots = [];
    let i = 0;
    for (const block of found) {
      const address = table.address[block];
      while (i + 1 < this.segments.length && this.segments[i + 1].address <= address) i++;
      const segment = this.segments[i];
      if (!segment || address < segment.address || address >= segment.address + segment.reserved_bytes) continue;
      this.blocks.push(block);
      spots.push(segment.spot + address - segment.address);
    }
    this.spots = Float64Array.from(spots);
    this.gone = 0;
    this.extent = Math.max(spot, 1);
  }

  render(width, height) {
    this.lay();
    const { look } = this;
    const { recording } = look;
    const { table } = recording;
    const lens = recording.lensNow(look.way);
    const toX = (event) => this.scale.x(recording.placeOf(event, look.axis)) - this.scale.left;
    const toY = height / this.extent;
    const paint = new Float32Array(width * height * 4);
    const [looks, dimmed] = bandLooks();
    for (const { spot, reserved_bytes: bytes } of this.segments) {
      // Blocks are drawn over the segment, so only its holes are filled.
      let at = spot;
      const hole = (to) => fill(paint, width, height, 0, width, at * toY, to * toY, looks[UNUSED]);
      for (let i = this.firstFrom(spot); i < this.spots.length && this.spots[i] < spot + bytes; i++) {
        if (this.spots[i] > at) hole(this.spots[i]);
        at = Math.max(at, this.spots[i] + table.bytes[this.blocks[i]]);
      }
      if (at < spot + bytes) hole(spot + bytes);
    }
    this.blocks.forEach((block, i) => {
      const band = lens ? lens.bandOf[table.origin[block]] : REST;
      const isLit = look.lit === null || !lens || lens.groupOf[table.origin[block]] === look.lit;
      const x1 = table.death[block] === LIVES || this.segments.length > 0 ? width : toX(table.death[block]);
      const y = this.spots[i] * toY;
      const x0 = this.segments.length > 0 ? 0 : toX(table.birth[block]);
      fill(paint, width, height, x0, x1, y, y + table.bytes[block] * toY, (isLit ? looks : dimmed)[band]);
    });
    this.compose(width, height, paint);
    byId('addresses-note').textContent = [
      this.left > 0 ? `${count(this.left)} smaller blocks are not drawn.` : '',
      this.segments.length > 0 ? `${count(this.segments.length)} segments, one above the other; the pale parts are free.` : '',
      this.gone > 0 ? `${count(this.gone)} ranges of addresses that no block of this window touches are cut short.` : '',
    ].filter(Boolean).join(' ');
  }

  // The index of the first block at or above a place.
  firstFrom(spot) {
    let low = 0;
    let high = this.spots.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.spots[middle] < spot) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The figures of a state without a history.
  showState(states) {
    const size = this.look.exact ? exact : human;
    const sum = (key) => states.reduce((all, { total }) => all + total[key], 0);
    byId('fullness-title').textContent = 'How full the segments are';
    showFacts(byId('fullness'), [
      ['segments', size(sum('reserved_bytes')), count(sum('segments'))],
      ['blocks', size(sum('block_bytes')), count(sum('blocks'))],
      ['waiting for streams', size(sum('waiting_bytes')), ''],
      ['free', size(sum('free_bytes')), percent(sum('free_bytes'), sum('reserved_bytes'))],
      ['largest hole', size(Math.max(...states.map(({ total }) => total.largest_hole_bytes))), `of ${count(sum('holes'))}`],
      ['empty_cache() gives back', size(sum('returnable_bytes')), ''],
      ['largest request from the cache', size(Math.max(...states.map((state) => state.largest_cached_request_bytes))), ''],
    ]);
  }

  // What lies free between the blocks of the moment: of the addresses of this window, and of the largest range.
  showFullness() {
    const { look } = this;
    const { recording } = look;
    if (!recording.ready || !recording.table.hasAddresses || !this.blocks) return;
    if (recording.glance.state_only) return this.showState(recording.glance.states);
    const { table } = recording;
    const events = recording.moment(look);
    const size = look.exact ? exact : human;
    const lives = (block) => table.birth[block] < events && table.death[block] >= events;
    const pieces = this.blocks.map((block, i) => [this.spots[i], table.bytes[block]]).filter((_, i) => lives(this.blocks[i]));
    const held = pieces.reduce((sum, [, bytes]) => sum + bytes, 0);
    const holes = holesOf([[0, this.extent]], pieces);
    byId('fullness-title').textContent = look.moment === null ? 'How full it is at the peak of this window' : 'How full it is at this moment';
    // Where not all blocks are drawn, what lies between these is not all free.
    const free = [size(holes.free), percent(holes.free, held + holes.free)];
    showFacts(byId('fullness'), this.left > 0 ? [
      ['blocks drawn', size(held), count(pieces.length)],
      ['free or not drawn', ...free],
    ] : [
      ['blocks', size(held), count(pieces.length)],
      ['between them', ...free],
      ['largest hole', size(holes.largest), `of ${count(holes.count)}`],
    ]);
  }

  placeOf(block) {
    const i = this.blocks.indexOf(block);
    if (i < 0) return null;
    const { recording, axis } = this.look;
    const { table } = recording;
    if (this.segments.length > 0) return { from: -Infinity, to: Infinity, spot: this.spots[i], bytes: table.bytes[block] };
    const place = (event) => (event === LIVES ? Infinity : recording.placeOf(event, axis));
    return { from: place(table.birth[block]), to: place(table.death[block]), spot: this.spots[i], bytes: table.bytes[block] };
  }

  // The largest block under a point.
  blockAt(place, spot, around) {
    const { recording, axis } = this.look;
    if (!this.blocks || !recording.ready) return null;
    const { table } = recording;
    const events = this.segments.length > 0 ? LIVES : recording.upTo(place, axis);
    let best = null;
    this.blocks.forEach((block, i) => {
      const from = this.spots[i];
      if (from > spot + around || from + table.bytes[block] < spot) return;
      if (table.birth[block] >= events || table.death[block] < events) return;
      if (best === null || table.bytes[block] > table.bytes[best]) best = block;
    });
    return best;
  }

  describe(block, x, y) {
    fillTip(this.tip, this.look.recording, { block, group: null });
    placeTip(this.tip, x, y, this.canvas.clientWidth);
  }

  choose(place, block) {
    this.look.set({ pinned: place, block: block ?? this.look.block });
  }
}

// Eight classes between a power of two and the next.
function sizeClass(bytes) {
  return Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) * 8), 511);
}
