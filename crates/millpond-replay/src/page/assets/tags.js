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

// Which group each tag belongs to under one grouping, and each group's colour.
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
    this.colour = this.colours(story);
  }

  // The groups that cover most of the picture get a colour of their own; modules take their phase's.
  colours(story) {
    const byPhase = this.kind === 'module' && new Set(this.phases).size <= 8;
    const keys = byPhase ? this.phases : this.names;
    const weight = new Map();
    for (let i = 0; i < story.allocations; i++) {
      const key = keys[this.ofTag[story.tag[i]]];
      weight.set(key, (weight.get(key) ?? 0) + story.area(i));
    }
    const ranked = [...weight].sort((a, b) => b[1] - a[1]).map(([key]) => key);
    this.legend = ranked.slice(0, 8);
    this.more = ranked.length > 8;
    const place = new Map(this.legend.map((key, i) => [key, i]));
    return keys.map((key) => place.get(key) ?? -1);
  }

  ink(group) {
    const colour = this.colour[group];
    return colour < 0 ? ink.rest : ink.tag[colour];
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

  sums(event) {
    const { story } = this.data;
    const grouping = this.data.grouping();
    const bytes = new Float64Array(grouping.names.length);
    const blocks = new Uint32Array(grouping.names.length);
    for (const i of story.alive(event)) {
      if (story.death[i] <= event) continue;
      const group = grouping.ofTag[story.tag[i]];
      bytes[group] += story.requested[i];
      blocks[group]++;
    }
    const groups = [...bytes.keys()].filter((group) => blocks[group] > 0);
    groups.sort((a, b) => bytes[b] - bytes[a]);
    return { groups, bytes, blocks };
  }

  show() {
    const { state, data } = this;
    for (const button of this.buttons.children) {
      button.setAttribute('aria-pressed', String(button.dataset.kind === state.grouping));
    }
    if (!data.story) return;
    const grouping = data.grouping();
    const { groups, bytes, blocks } = this.sums(state.moment);
    const total = data.story.requestedCurve.at(state.moment);
    const shown = groups.slice(0, groups.length > 13 ? 12 : 13);
    this.title.textContent = state.hover === null && state.pinned === null && !state.cut && state.meta.opensAt === null ? 'Who holds the peak' : 'Who holds memory here';
    const item = (group) => ({
      key: group,
      name: grouping.names[group],
      bytes: bytes[group],
      blocks: blocks[group],
      colour: grouping.ink(group),
    });
    this.rows.show(shown.map(item), total, state.exact, state.lit);
    const others = groups.slice(shown.length);
    const sum = others.reduce((all, group) => all + bytes[group], 0);
    byId('tag-rest').textContent = others.length > 0 ? `${count(others.length)} smaller groups hold ${human(sum)} together` : '';
  }
}
