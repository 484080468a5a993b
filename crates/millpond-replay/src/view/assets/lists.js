// Who holds memory at the moment, and what the window comes to: its peak, what it keeps, what it gave back at once.

const LISTED = 12;
const LISTED_SUMS = 8;
const WAY_NAMES = { tag: 'Tag', site: 'Site', pool: 'Pool', stream: 'Stream', thread: 'Thread', kind: 'Kind' };
const SUMS = {
  held: ['Peak', 'Allocated at the peak of this window'],
  kept: ['Kept', 'Allocated in this window and still held at its end: leaks, unless they are meant to stay'],
  temporary: ['Temporary', 'Freed as the next thing that their thread did with memory'],
  allocated: ['Allocated', 'All allocations of this window'],
};

// Rows for a list, with the band of each group.
function listed(recording, way, rows) {
  const lens = recording.lensNow(way);
  return rows.map((row) => ({ key: row.group, name: row.name || '(no name)', bytes: row.bytes, blocks: row.blocks, band: lens?.bandOfGroup[row.group] ?? REST }));
}

// All that a list leaves out, so that it always adds up.
function restText({ rest, others }, exactly) {
  const size = exactly ? exact : human;
  const parts = [];
  if (rest.groups > 0) parts.push(`${plural(rest.groups, 'other group')}: ${size(rest.bytes)} in ${plural(rest.blocks, 'block')}`);
  if (others > 0) parts.push(`blocks that are not listed one by one: ${size(others)}`);
  return parts.join('; ');
}

// The list beside the timeline.
class Holders {
  constructor(look) {
    this.look = look;
    const light = (group) => look.set({ lit: look.lit === group ? null : group });
    this.rows = new Rows(byId('holders'), light);
    this.legend = new Legend(byId('legend'), light);
    look.listen(() => this.show(), 'moment', 'way', 'data', 'theme', 'lit', 'exact', 'replays', 'shows', 'scale');
    // Who holds the peak of a window follows when it rests.
    look.listen(atRest(90, () => this.show()), 'window');
  }

  show() {
    const { look } = this;
    const { recording } = look;
    if (!recording.ready) return;
    const events = recording.moment(look);
    const atPeak = look.moment === null;
    const sums = atPeak ? recording.part(look).held : held(recording.table, events);
    byId('holders-title').textContent = `Held ${look.momentName}`;
    const told = sums.groups(look.way, LISTED);
    const total = sums.total + sums.others;
    this.rows.show(listed(recording, look.way, told.rows), total, look.exact, look.lit);
    byId('holders-rest').textContent = restText(told, look.exact);
    const { table } = recording;
    const size = look.exact ? exact : human;
    const time = events > 0 ? table.time[Math.min(events, table.events) - 1] : 0;
    const at = (samples) => (samples.length === 0 ? null : look.axis === 'time' && look.moment !== null ? samples.byTime.at(look.moment) : samples.byEvent.at(events));
    const beside = { reserved: at(table.reserved), parked: at(table.parked), unexplained: at(table.unexplained) };
    this.showLegend(events, beside);
    const facts = [
      [capital(look.momentName), moment(look.axis === 'time' && !atPeak ? look.moment : time)],
      ['allocated', `${size(total)} in ${plural(sums.count, 'block')}`],
      ['requested', size(sums.requested)],
      ['reserved', beside.reserved, size],
      ['waiting for a stream', beside.parked, size],
      ['unexplained', beside.unexplained, size],
      ...look.replays.map((policy) => [`under ${policy}`, recording.replays.get(policy) instanceof Replay ? at(recording.replays.get(policy)) : null, size]),
    ].filter(([, value]) => value !== null);
    byId('moment').replaceChildren(...facts.map(([name, value, how], i) => (i === 0 ? h('b', {}, `${name}: ${value}`) : h('span', {}, h('small', {}, `${name} `), how ? how(value) : value))));
    byId('moment').append(h('small', { class: 'hint' }, look.pinned !== null && look.hover === null ? 'Esc releases the pin' : ''));
  }

  // All that the timeline draws, with its bytes after so many events.
  showLegend(events, { reserved, parked, unexplained }) {
    const { look } = this;
    const lens = look.recording.lensNow(look.way);
    if (!lens) return;
    const stack = lens.after(events, new Float64Array(LINES));
    const items = lens.bands.map((group, band) => ({ look: LOOKS[band], name: lens.names[group] || '(no name)', bytes: stack[band], key: group }));
    const add = (isDrawn, look, name, bytes) => isDrawn && items.push({ look, name, bytes });
    add(lens.more > 0, LOOKS[REST], plural(lens.more, 'other group'), stack[REST]);
    add(look.recording.table.others !== null, LOOKS[SMALL], 'small blocks, listed as one sum', stack[SMALL]);
    const { glance } = look.recording;
    if (glance.state_only) {
      add(true, LOOKS[UNUSED], 'reserved and free', glance.states.reduce((sum, { total }) => sum + total.free_bytes, 0));
    } else {
      add(look.shows.parked && parked !== null, LOOKS[WAITING], 'freed, waiting for a stream', parked);
      add(look.shows.reserved && reserved !== null, 'reserved', 'reserved', reserved);
      add(look.shows.unexplained && unexplained !== null, LOOKS[WASTE], 'unexplained', unexplained);
    }
    this.legend.show(items, look.exact, look.lit);
  }
}

// The sums of the window, as a list and as a tree.
class WindowSums {
  constructor(look, flame) {
    Object.assign(this, { look, flame });
    this.rows = new Rows(byId('sums'), (group) => look.set({ lit: look.lit === group ? null : group }));
    for (const [name, [label, title]] of Object.entries(SUMS)) {
      byId('sums-switch').append(h('button', { type: 'button', title, 'data-sums': name, onclick: () => look.set({ sums: name }) }, label, h('small', {})));
    }
    for (const name of ['stack', 'tag']) byId(`tree-${name}`).addEventListener('click', () => look.set({ tree: name }));
    look.listen((changed) => this.show(changed), 'way', 'theme', 'lit', 'exact', 'sums', 'tree', 'data', 'stacks', 'focus');
    // Sums follow when the window rests.
    look.listen(atRest(120, () => this.show(new Set(['window']))), 'window');
  }

  show(changed) {
    const { look } = this;
    const { recording } = look;
    if (!recording.ready) return;
    const part = recording.part(look);
    const sums = part[look.sums];
    for (const button of byId('sums-switch').children) {
      const name = button.dataset.sums;
      press(button, name === look.sums);
      button.querySelector('small').textContent = human(part[name].total);
    }
    const size = look.exact ? exact : human;
    byId('sums-title').textContent = look.isWhole ? 'The whole recording' : `${this.place(look.from)} to ${this.place(look.to)}`;
    const others = part.otherBirths > 0 && look.sums !== 'held' ? ` ${count(part.otherBirths)} blocks that were born here are not listed one by one, and not counted.` : '';
    byId('sums-note').textContent = `${SUMS[look.sums][1]}: ${size(sums.total)} in ${plural(sums.count, 'block')}.${others}`;
    const told = sums.groups(look.way, LISTED_SUMS);
    this.rows.show(listed(recording, look.way, told.rows), sums.total + sums.others, look.exact, look.lit);
    byId('sums-rest').textContent = restText(told, look.exact);
    if (['window', 'sums', 'tree', 'data', 'stacks', 'focus', 'theme'].some((key) => changed.has(key))) this.showTree(recording, sums);
    showFigures(look, part);
  }

  showTree(recording, sums) {
    const { look } = this;
    const stacks = recording.stacks ?? new Stacks(null);
    recording.hasStacks ??= recording.stacks ? hasStacks(recording.table, stacks) : undefined;
    const way = recording.hasStacks === false ? 'tag' : look.tree;
    for (const name of ['stack', 'tag']) {
      press(byId(`tree-${name}`), name === way);
      byId(`tree-${name}`).disabled = name === 'stack' && recording.hasStacks === false;
    }
    byId('tree-note').textContent = [
      recording.stacks === null ? 'Names of functions are still being looked up.' : '',
      recording.hasStacks === false ? 'No stacks were recorded: the tree is of tags.' : '',
      sums.others > 0 ? `${human(sums.others)} in blocks that are not listed one by one are not in it.` : '',
      stacks.more > 0 ? `${count(stacks.more)} stacks are left out: they are too many.` : '',
    ].filter(Boolean).join(' ');
    this.flame.show(treeOf(sums, stacks, way));
  }

  place(place) {
    return this.look.axis === 'time' ? moment(place) : `event ${count(Math.round(place))}`;
  }
}

// The figures above: what the window comes to.
function showFigures(look, part) {
  const { recording } = look;
  const { table } = recording;
  const size = look.exact ? exact : human;
  const time = part.peak.events > 0 ? table.time[part.peak.events - 1] : 0;
  const rounding = part.held.total - part.held.requested;
  const rounded = rounding > 0 ? `the other ${percent(rounding, part.held.total)} are rounding` : 'no rounding';
  const figures = [
    ['Allocated at peak', size(part.peak.bytes), `at ${moment(time)}`],
    ['Requested at peak', size(part.held.requested), `at ${moment(time)}; ${rounded}`],
  ];
  if (table.reserved.length > 0) {
    const most = reservedMost(part);
    figures.push(['Reserved at peak', size(most.bytes), `at ${moment(most.time)}; ${(most.bytes / Math.max(part.peak.bytes, 1)).toFixed(3)} × allocated at peak`]);
  }
  if (recording.glance.state_only) {
    // Without a history only the moment of the snapshot is known.
    const sum = (key) => recording.glance.states.reduce((all, { total }) => all + total[key], 0);
    figures.splice(0, figures.length,
      ['Allocated', size(part.peak.bytes), `in ${count(sum('blocks'))} blocks`],
      ['Requested', size(part.held.requested), rounded],
      ['Reserved', size(sum('reserved_bytes')), `in ${count(sum('segments'))} segments`],
    );
    figures.push(
      ['Free in segments', size(sum('free_bytes')), `in ${count(sum('holes'))} holes`],
      ['empty_cache() gives back', size(sum('returnable_bytes')), percent(sum('returnable_bytes'), sum('reserved_bytes'))],
    );
  } else figures.push(
    ['Allocated in total', size(part.allocated.total), `${count(part.allocated.count)} allocations`],
    ['Kept at the end', size(part.kept.total), `${count(part.kept.count)} blocks from this window`],
    ['Freed at once', size(part.temporary.total), `${count(part.temporary.count)} blocks`],
  );
  byId('figures').replaceChildren(...figures.map(([name, value, note]) => h('div', {}, h('dt', {}, h('span', {}, name)), h('dd', {}, value, h('small', {}, note)))));
}

// The most that was reserved in a part, and when it was reached.
function reservedMost({ table, first, end }) {
  const { reserved } = table;
  const curve = reserved.byEvent;
  curve.extremes(first, end);
  const values = reserved.values.trimmed();
  let at = Math.max(lastAtMost(reserved.events.trimmed(), first), 0);
  while (at < values.length - 1 && values[at] < curve.hi) at++;
  return { bytes: Math.max(curve.hi, 0), time: Math.max(reserved.times.values[at], first > 0 ? table.time[first - 1] : 0) };
}
