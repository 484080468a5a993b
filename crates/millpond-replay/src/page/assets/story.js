// The recording, decoded: the mirror of story.rs.

const ACTIONS = [
  'alloc', 'free', 'free requested', 'free completed',
  'segment alloc', 'segment free', 'segment map', 'segment unmap', 'out of memory',
];
const ALLOC = 0;
const FREE = 1;
const FREE_REQUESTED = 2;
const FREE_COMPLETED = 3;
const KEYFRAME = 4096;

class Story {
  static async read(meta) {
    const [actions, subjects, others, tags, sizes, streams] = await sections('story');
    const story = new Story();
    story.meta = meta;
    story.events = meta.events;
    story.allocations = meta.allocations;
    story.actions = actions;
    story.decodeAllocations(new Reader(tags), new Reader(sizes), new Reader(streams));
    await breathe();
    story.decodeEvents(new Reader(subjects), new Reader(others));
    await breathe();
    story.requestedCurve = new Dense(story.curve((serial) => story.requested[serial]));
    const [names, sites] = await sections('tags');
    story.tags = JSON.parse(new TextDecoder().decode(names));
    story.sites = JSON.parse(new TextDecoder().decode(sites));
    return story;
  }

  // Tags and sizes follow what came after the same predecessors last time.
  decodeAllocations(tags, sizes, streams) {
    const n = this.allocations;
    this.tag = new Uint32Array(n);
    this.requested = new Float64Array(n);
    this.stream = new Uint16Array(n);
    const tagAfter = new Map();
    const sizeAfter = new Map();
    const sizeOfTag = new Map();
    const sizeIds = new Map([[0, 0]]);
    const wide = 2 ** 26;
    let last = 0;
    let before = 0;
    let size = 0;
    let sizeId = 0;
    for (let i = 0; i < n; i++) {
      const tagKey = before * wide + last;
      const tagCode = tags.next();
      const tag = tagCode === 0 ? tagAfter.get(tagKey) : tagCode - 1;
      tagAfter.set(tagKey, tag);
      before = last;
      last = tag;
      const sizeKey = tag * wide + sizeId;
      const sizeCode = sizes.next();
      size = sizeCode === 0 ? sizeAfter.get(sizeKey) : (sizeOfTag.get(tag) ?? 0) + unzigzag(sizeCode - 1);
      sizeAfter.set(sizeKey, size);
      sizeOfTag.set(tag, size);
      sizeId = sizeIds.get(size);
      if (sizeId === undefined) sizeIds.set(size, (sizeId = sizeIds.size));
      this.tag[i] = tag;
      this.requested[i] = size;
      this.stream[i] = streams.next();
    }
  }

  decodeEvents(subjects, others) {
    const n = this.allocations;
    this.subject = new Int32Array(this.events).fill(-1);
    this.otherBytes = new Map();
    this.birth = new Uint32Array(n);
    this.death = new Uint32Array(n).fill(this.events);
    this.gone = new Uint32Array(n).fill(this.events);
    const seen = new Uint8Array(n);
    for (let i = 0; i < this.meta.older.length; i++) {
      seen[i] = 1;
      if (this.meta.older[i]) this.death[i] = 0;
    }
    let newest = this.meta.older.length - 1;
    for (let event = 0; event < this.events; event++) {
      const code = subjects.next();
      if (code === 0) {
        this.otherBytes.set(event, others.next());
        continue;
      }
      const action = this.actions[event];
      const step = unzigzag(code - 1);
      const serial = action === ALLOC ? newest + step : newest - step;
      this.subject[event] = serial;
      if (action === ALLOC) {
        newest = Math.max(newest, serial);
        if (!seen[serial]) this.birth[serial] = event;
        seen[serial] = 1;
      } else if (action >= FREE && action <= FREE_COMPLETED) {
        if (this.death[serial] > event) this.death[serial] = event;
        if (action !== FREE_REQUESTED && this.gone[serial] > event) this.gone[serial] = event;
      }
    }
  }

  // Sum over the blocks in the program's hands, after every event.
  curve(bytesOf) {
    const values = new Float64Array(this.events);
    let now = 0;
    for (let i = 0; i < this.meta.older.length; i++) if (!this.meta.older[i]) now += bytesOf(i);
    for (let event = 0; event < this.events; event++) {
      const serial = this.subject[event];
      if (serial >= 0) {
        if (this.actions[event] === ALLOC) {
          if (this.birth[serial] === event) now += bytesOf(serial);
        } else if (this.death[serial] === event && !this.meta.older[serial]) {
          // The program no longer held an older block that was pending. Only its place ends here.
          now -= bytesOf(serial);
        }
      }
      values[event] = now;
    }
    return values;
  }

  // Serial numbers of the allocations in place after `event`, in no order. From the nearest keyframe
  // on only its events are walked, so a moving cursor costs the same in a long recording.
  alive(event) {
    this.keyframes ??= this.makeKeyframes();
    if (this.lastAlive?.event === event) return this.lastAlive.serials;
    const { birth, gone } = this;
    const frame = Math.floor(event / KEYFRAME);
    const serials = [];
    for (const serial of this.keyframes[frame]) if (gone[serial] > event) serials.push(serial);
    let serial = lastAtMost(birth, frame * KEYFRAME) + 1;
    for (; serial < this.allocations && birth[serial] <= event; serial++) if (gone[serial] > event) serials.push(serial);
    this.lastAlive = { event, serials };
    return serials;
  }

  // What is in place after every KEYFRAME events. Serial numbers grow with birth.
  makeKeyframes() {
    const { birth, gone } = this;
    const frames = [];
    let serials = [];
    let next = 0;
    for (let event = 0; event < this.events; event += KEYFRAME) {
      serials = serials.filter((serial) => gone[serial] > event);
      for (; next < this.allocations && birth[next] <= event; next++) if (gone[next] > event) serials.push(next);
      frames.push(Uint32Array.from(serials));
    }
    return frames;
  }

  async readTimes() {
    const parts = await sections('times');
    if (!parts) return;
    const reader = new Reader(parts[0]);
    const times = new Float64Array(this.events);
    let now = 0;
    for (let event = 0; event < this.events; event++) times[event] = now += reader.next();
    this.times = times;
  }

  tagText(serial) {
    return this.tags[this.tag[serial]] || '';
  }

  shortTag(serial) {
    return shortTag(this.tagText(serial), this.sites[this.tag[serial]]);
  }

  area(serial) {
    return this.requested[serial] * (this.gone[serial] - this.birth[serial]);
  }
}
