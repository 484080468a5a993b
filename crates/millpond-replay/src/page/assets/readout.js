// The column of readings beside the pictures: every policy's bytes at the moment, and the moment.

class Readout {
  constructor(state, axis, data) {
    Object.assign(this, { state, axis, data });
    this.body = byId('policies');
    this.legend = new Legend(byId('colours'));
    this.rows = state.meta.runs.map((run, index) => this.row(run, index));
    state.listen((changed) => {
      this.show();
      if (['focus', 'moment', 'data', 'grouping', 'theme', 'lit'].some((key) => changed.has(key))) this.showFacts();
    });
  }

  row(run, index) {
    const { state } = this;
    const meta = state.meta;
    const key = index < 10 ? String((index + 1) % 10) : '';
    const eye = h('button', {
      type: 'button', class: 'eye', title: `Show or hide the line of ${run.name}`, 'aria-label': `Show ${run.name}`,
      onclick: (click) => {
        click.stopPropagation();
        if (!state.hidden.delete(index)) state.hidden.add(index);
        state.touch('hidden');
      },
    }, h('i', { class: `swatch policy-${index % 12}` }));
    const name = h('button', { type: 'button', class: 'pick', title: [run.name, run.fidelity].filter(Boolean).join(': ') }, run.name);
    const marks = [];
    if (index === meta.best) marks.push(h('em', { class: 'best' }, 'recommended'));
    if (index === meta.inUse) marks.push(h('em', {}, 'yours'));
    if (run.stopped !== null) marks.push(h('em', { class: 'oom', title: `Ran out of memory at event ${count(run.stopped)}` }, 'OOM'));
    const row = { eye, name, reserved: h('td'), allocated: h('td'), index };
    row.element = h('tr', { onclick: () => state.set({ focus: index }) },
      h('th', { scope: 'row' }, h('div', { class: 'who' }, eye, name, ...marks)), row.reserved, row.allocated, h('td', { class: 'key' }, key ? h('kbd', {}, key) : ''));
    this.body.append(row.element);
    return row;
  }

  show() {
    const { state, data } = this;
    const { meta } = state;
    const event = state.moment;
    const show = state.exact ? count : human;
    this.body.parentElement.classList.toggle('bytes', state.exact);
    byId('readout-at').textContent = capital(state.momentName);
    if (data.story) byId('requested-now').textContent = show(data.story.requestedCurve.at(event));
    for (const row of this.rows) {
      const reserved = data.reserved[row.index];
      const allocated = data.allocated[row.index];
      const past = reserved && event >= reserved.end;
      row.element.classList.toggle('focus', row.index === state.focus);
      row.element.classList.toggle('off', !state.isShown(row.index));
      row.eye.setAttribute('aria-pressed', String(state.isShown(row.index)));
      row.name.setAttribute('aria-pressed', String(row.index === state.focus));
      row.reserved.textContent = past ? 'stopped' : reserved ? show(reserved.at(event)) : show(meta.runs[row.index].peak);
      row.allocated.textContent = past ? '' : allocated ? show(allocated.at(event)) : '';
    }
    this.showMoment(event);
  }

  showMoment(event) {
    const { data, axis, state } = this;
    const { story } = data;
    if (!story) return;
    const serial = story.subject[event];
    const action = ACTIONS[story.actions[event]] ?? 'event';
    const bytes = serial < 0 ? story.otherBytes.get(event) : story.requested[serial];
    byId('moment-event').textContent = `event ${count(event)}`;
    byId('moment-time').textContent = axis.times ? clock(axis.times[event]) : '';
    byId('moment-action').textContent = action;
    byId('moment-action').dataset.action = action;
    byId('moment-bytes').textContent = bytes === undefined ? '' : exact(bytes);
    byId('moment-tag').textContent = serial < 0 ? '' : story.shortTag(serial) || 'no tag';
    const reserved = data.reserved[state.focus];
    const allocated = data.allocated[state.focus];
    const values = [['requested', story.requestedCurve.at(event)]];
    if (allocated && event < allocated.end) values.push(['allocated', allocated.at(event)]);
    if (reserved && event < reserved.end) values.push([`reserved by ${state.meta.runs[state.focus].name}`, reserved.at(event)]);
    byId('moment-exact').replaceChildren(...values.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, exact(value)))));
    byId('moment-state').textContent = state.pinned !== null && state.hover === null ? 'Esc releases the pin' : '';
  }

  // What the chosen policy looks like at the moment.
  showFacts() {
    const { state, data } = this;
    const run = state.meta.runs[state.focus];
    byId('focus-name').textContent = run.name;
    byId('focus-name-2').textContent = run.name;
    byId('focus-swatch').className = `swatch policy-${state.focus % 12}`;
    byId('fidelity').textContent = run.fidelity;
    const places = data.shown;
    if (!places) return;
    const event = state.moment;
    const facts = [];
    if (event < places.end) {
      const reserved = places.reservedCurve.at(event);
      const allocated = places.allocatedCurve.at(event);
      const requested = data.story.requestedCurve.at(event);
      const { found, rest } = places.alive(event);
      const holes = holesOf(places.held(event).map(({ spot, bytes }) => [spot, bytes]), found.map((i) => [places.spot[i], places.blockBytes(i)]));
      const waiting = places.waiting(event);
      const free = Math.max(reserved - allocated - waiting, 0);
      const rounding = Math.max(allocated - requested, 0);
      facts.push(['reserved', human(reserved), 'taken from the device']);
      facts.push(['free in it', human(free), percent(free, reserved)]);
      if (rest.blocks === 0) facts.push(['largest hole', human(holes.largest), `of ${plural(holes.count, 'hole')}`]);
      facts.push(['rounding', human(rounding), percent(rounding, allocated)]);
      this.showLegend(rounding, waiting, free);
      byId('map-rest').textContent = rest.blocks > 0
        ? `Rest: ${count(rest.blocks)} smaller blocks of ${human(rest.bytes)} together are counted but not drawn one by one, to keep this file small.` : '';
    }
    byId('map-at').textContent = state.momentName;
    byId('fullness-title').textContent = `How full it is ${state.momentName}`;
    showFacts(byId('facts'), facts);
  }

  // The bands of the address pictures, with their bytes at the moment.
  showLegend(rounding, waiting, free) {
    const { state, data } = this;
    const grouping = data.grouping();
    const { bytes } = grouping.sums(data.story, state.moment);
    const ofBand = new Float64Array(BANDS + 1);
    bytes.forEach((sum, group) => (ofBand[grouping.band[group]] += sum));
    const items = grouping.legend.map((name, band) => ({ look: LOOKS[band], name, bytes: ofBand[band] }));
    if (grouping.more > 0) items.push({ look: LOOKS[REST], name: plural(grouping.more, 'other'), bytes: ofBand[REST] });
    items.push({ look: LOOKS[WASTE], name: 'rounding', bytes: rounding });
    if (waiting > 0) items.push({ look: LOOKS[WAITING], name: 'freed, waiting for a stream', bytes: waiting });
    items.push({ look: LOOKS[UNUSED], name: 'reserved and free', bytes: free });
    this.legend.show(items, state.exact);
  }
}
