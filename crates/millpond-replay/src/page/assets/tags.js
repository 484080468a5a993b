// Tags and the groups they fall into.
//
// A tag reads "phase;module path;operator;innermost frames", the frames innermost first with "<"
// between them. Others have frames only.

const GROUPINGS = {
  phase: 'Phase',
  module: 'Module',
  operator: 'Operator',
  frame: 'Frame',
};

// Which group each tag belongs to under one grouping, and each group's band.
class Grouping {
  constructor(story, kind) {
    const parts = story.tags.map((tag, index) => tagParts(tag, story.sites[index]));
    const index = new Map();
    this.kind = kind;
    this.names = [];
    this.phases = [];
    this.ofTag = new Uint32Array(parts.length);
    parts.forEach((part, tag) => {
      const name = part[kind];
      if (!index.has(name)) {
        index.set(name, this.names.length);
        this.names.push(name);
        this.phases.push(part.phase);
      }
      this.ofTag[tag] = index.get(name);
    });
    this.band = this.bands(story);
  }

  // The groups that cover most of the picture get a band of their own; modules take their phase's.
  bands(story) {
    const byPhase = this.kind === 'module' && new Set(this.phases).size <= BANDS;
    const keys = byPhase ? this.phases : this.names;
    const weight = new Map();
    for (let i = 0; i < story.allocations; i++) {
      const key = keys[this.ofTag[story.tag[i]]];
      weight.set(key, (weight.get(key) ?? 0) + story.area(i));
    }
    const ranked = [...weight].sort((a, b) => b[1] - a[1]).map(([key]) => key);
    this.legend = ranked.slice(0, BANDS);
    this.more = ranked.length - this.legend.length;
    const place = new Map(this.legend.map((key, i) => [key, i]));
    return keys.map((key) => place.get(key) ?? REST);
  }

  // What the program holds after an event, by group.
  sums(story, event) {
    if (this.last?.event === event) return this.last;
    const bytes = new Float64Array(this.names.length);
    const blocks = new Uint32Array(this.names.length);
    for (const i of story.alive(event)) {
      if (story.death[i] <= event) continue;
      const group = this.ofTag[story.tag[i]];
      bytes[group] += story.requested[i];
      blocks[group]++;
    }
    this.last = { event, bytes, blocks };
    return this.last;
  }
}

// The list of what is held at the moment, largest first.
class TagList {
  constructor(state, data) {
    Object.assign(this, { state, data });
    this.rows = new Rows(byId('tag-list'), (group) => state.set({ lit: state.lit === group ? null : group }));
    this.title = byId('tag-title');
    this.buttons = byId('tag-groupings');
    for (const [kind, label] of Object.entries(GROUPINGS)) {
      this.buttons.append(h('button', { type: 'button', 'data-kind': kind, onclick: () => state.set({ grouping: kind, lit: null }) }, label));
    }
    state.listen(() => this.show(), 'moment', 'grouping', 'data', 'theme', 'lit', 'exact');
  }

  show() {
    const { state, data } = this;
    for (const button of this.buttons.children) {
      button.setAttribute('aria-pressed', String(button.dataset.kind === state.grouping));
    }
    if (!data.story) return;
    const grouping = data.grouping();
    const { bytes, blocks } = grouping.sums(data.story, state.moment);
    const groups = [...bytes.keys()].filter((group) => blocks[group] > 0);
    groups.sort((a, b) => bytes[b] - bytes[a]);
    const total = data.story.requestedCurve.at(state.moment);
    const shown = groups.slice(0, groups.length > 13 ? 12 : 13);
    this.title.textContent = `Held ${state.momentName}`;
    const item = (group) => ({
      key: group,
      name: grouping.names[group],
      bytes: bytes[group],
      blocks: blocks[group],
      band: grouping.band[group],
    });
    this.rows.show(shown.map(item), total, state.exact, state.lit);
    const others = groups.slice(shown.length);
    const sum = others.reduce((all, group) => all + bytes[group], 0);
    byId('tag-rest').textContent = others.length > 0 ? `${count(others.length)} smaller groups hold ${human(sum)} together` : '';
  }
}
