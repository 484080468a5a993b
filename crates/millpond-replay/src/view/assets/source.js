// Where a recording comes from: elements of this page, or the server that served it.

// Blocks that room is made for at once.
const MOST_AT_ONCE = 8_000_000;

const meta = JSON.parse(byId('meta').textContent);

class Embedded {
  constructor(index) {
    this.index = index;
  }

  async json(name) {
    const element = byId(`${name}-${this.index}`);
    if (element.type === 'application/json') return JSON.parse(element.textContent);
    const [bytes] = await sections(element.id);
    return JSON.parse(new TextDecoder().decode(bytes));
  }

  async parts(take) {
    const element = byId(`blocks-${this.index}`);
    const text = element.textContent;
    element.textContent = '';
    for (let at = 0; at < text.length;) {
      const end = text.indexOf('\n', at);
      const line = text.slice(at, end < 0 ? text.length : end).trim();
      at = end < 0 ? text.length : end + 1;
      if (line === '') continue;
      take(await Promise.all(sectionsOf(fromBase64(line)).map(inflate)));
      await breathe();
    }
  }
}

class Served {
  constructor(index) {
    this.index = index;
  }

  async ask(name) {
    const answer = await fetch(`${this.index}/${name}`, { cache: 'no-store' });
    if (!answer.ok) throw new Error((await answer.text()).trim() || `the server says ${answer.status}`);
    return answer;
  }

  async json(name) {
    return (await this.ask(name)).json();
  }

  async parts(take) {
    const reader = (await this.ask('blocks')).body.getReader();
    let held = new Uint8Array(0);
    let breath = performance.now();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      held = held.length === 0 ? value : joined(held, value);
      // A part is behind its length, and its sections are behind theirs.
      for (;;) {
        if (held.length < 4) break;
        const length = new DataView(held.buffer, held.byteOffset, 4).getUint32(0, true);
        if (held.length < 4 + length) break;
        take(sectionsOf(held.subarray(4, 4 + length)));
        held = held.subarray(4 + length);
        // Between two frames at the latest the page may answer.
        if (performance.now() - breath < 12) continue;
        await breathe();
        breath = performance.now();
      }
    }
    if (held.length > 0) throw new Error('the server stopped in the middle of the recording');
  }
}

function joined(a, b) {
  const both = new Uint8Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}

// A recording as it comes in.
class Recording {
  constructor(name, index) {
    this.name = name;
    this.index = index;
    this.source = meta.served ? new Served(index) : new Embedded(index);
    // Where it begins on the axis of time. All its times are shifted by this when they are read, but not those of the overview.
    this.offset = meta.offsets?.[index] ?? 0;
    this.glance = null;
    this.table = new Table();
    this.lenses = new Map();
    this.stacks = null;
    this.told = null;
    // What the program needs; null while that is not known.
    this.answers = null;
    // Lines of other policies, by name.
    this.replays = new Map();
    this.failed = null;
  }

  // Whether blocks can be asked about.
  get ready() {
    return this.table.end !== null && this.base !== undefined;
  }

  async load(changed) {
    this.glance = await this.source.json('glance');
    changed('glance');
    await breathe();
    // Blocks of keyframes may come beside those that were allocated; a part makes room for all its events.
    this.table = new Table(Math.min(this.glance.allocations, MOST_AT_ONCE) + 70_000, this.offset);
    await this.source.parts((sections) => {
      this.table.take(sections);
      changed('progress');
    });
    if (!this.table.end) throw new Error('the table of blocks has no end');
    this.base = await this.lens('kind');
    changed('data');
  }

  async loadAnswers(changed) {
    this.answers = await this.source.json('answer');
    changed('answers');
  }

  async loadMore(changed) {
    this.stacks = new Stacks(await this.source.json('stacks'));
    changed('stacks');
    const told = await this.source.json('told');
    const shifted = (time) => time + this.offset;
    for (const finding of told.findings) finding.when = finding.when?.map(shifted);
    for (const step of told.steps?.steps ?? []) step.splice(1, 2, ...step.slice(1, 3).map(shifted));
    this.told = told;
    changed('told');
  }

  // The lens of a way to group, made when it is first asked for.
  lens(way) {
    if (!this.lenses.has(way)) {
      const lens = new Lens(this.table, way);
      this.lenses.set(way, lens.make().then((made) => {
        lens.made = true;
        return made;
      }));
      this.lenses.get(way).lens = lens;
    }
    return this.lenses.get(way);
  }

  // The same if it is made already.
  lensNow(way) {
    const { lens } = this.lenses.get(way) ?? {};
    return lens?.made ? lens : null;
  }
}
