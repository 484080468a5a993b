// Switches above the pictures, and the keys.

function switches(look) {
  for (const [way, label] of Object.entries(WAY_NAMES)) {
    byId('ways').append(h('button', { type: 'button', 'data-way': way, onclick: () => look.set({ way, lit: null }) }, label));
  }
  for (const name of Object.keys(look.shows)) {
    byId(`shows-${name}`).addEventListener('click', () => look.set({ shows: { ...look.shows, [name]: !look.shows[name] } }));
  }
  const actions = {
    'axis-time': () => look.turn('time'),
    'axis-event': () => look.turn('event'),
    'scale-shared': () => look.set({ shared: true }),
    'scale-own': () => look.set({ shared: false }),
    'unit-human': () => look.set({ exact: false }),
    'unit-exact': () => look.set({ exact: true }),
    'zoom-out': () => look.look(0, look.end),
    'go-peak': () => look.set({ pinned: null, hover: null }),
  };
  for (const [id, act] of Object.entries(actions)) byId(id).addEventListener('click', act);
  const show = () => {
    const { table, ready } = look.recording;
    for (const button of byId('ways').children) press(button, button.dataset.way === look.way);
    for (const [name, on] of Object.entries(look.shows)) {
      press(byId(`shows-${name}`), on);
      if (name !== 'notes') byId(`shows-${name}`).hidden = ready && table[name].length === 0;
    }
    press(byId('axis-time'), look.axis === 'time');
    press(byId('axis-event'), look.axis === 'event');
    byId('axis').hidden = look.recordings.length > 1 || !ready || look.recording.glance.by_rows;
    press(byId('scale-shared'), look.shared);
    press(byId('scale-own'), !look.shared);
    byId('scale').hidden = look.recordings.length < 2;
    press(byId('unit-human'), !look.exact);
    press(byId('unit-exact'), look.exact);
    byId('zoom-out').hidden = look.isWhole;
    byId('go-peak').hidden = look.pinned === null;
  };
  look.listen(show);
  show();
}

function keyboard(look, telling, swapTheme) {
  const help = byId('help');
  const next = (values, value) => values[(values.indexOf(value) + 1) % values.length];
  const centre = () => (look.pinned !== null && look.pinned >= look.from && look.pinned <= look.to ? look.pinned : undefined);
  // The pinned moment by events: a step in time is one from change to change.
  const step = (by) => {
    const { recording } = look;
    if (!recording.ready) return;
    const now = recording.moment(look);
    const event = Math.min(Math.max(now - 1 + by, 0), Math.max(recording.table.events - 1, 0));
    const place = look.axis === 'time' ? recording.placeOf(event, 'time') : event + 1;
    look.set({ pinned: place, hover: null });
    if (place < look.from || place > look.to) look.look(place - (look.to - look.from) / 2, place + (look.to - look.from) / 2);
  };
  // The blocks that can be seen in the timeline, one after the other.
  const walk = (by) => {
    const seen = timelines[look.focus]?.visible ?? [];
    if (seen.length === 0) return;
    const at = seen.findIndex((piece) => piece.block === look.block);
    look.set({ block: seen[(at + by + seen.length) % seen.length].block });
  };
  const actions = {
    ArrowLeft: () => look.pan(-0.2),
    ArrowRight: () => look.pan(0.2),
    '+': () => look.zoom(0.6, centre()),
    '=': () => look.zoom(0.6, centre()),
    '-': () => look.zoom(1 / 0.6, centre()),
    '[': () => step(-1),
    ']': () => step(1),
    '{': () => step(-100),
    '}': () => step(100),
    ',': () => telling.step(-1),
    '.': () => telling.step(1),
    j: () => walk(1),
    k: () => walk(-1),
    b: () => look.set({ exact: !look.exact }),
    d: swapTheme,
    g: () => look.set({ way: next(Object.keys(WAY_NAMES), look.way), lit: null }),
    p: () => look.set({ pinned: null, hover: null }),
    r: () => byId('shows-reserved').click(),
    u: () => byId('shows-unexplained').click(),
    v: () => byId('what-if').focus(),
    m: () => byId('shows-notes').click(),
    s: () => look.set({ tree: next(['stack', 'tag'], look.tree) }),
    t: () => !byId('axis').hidden && look.turn(next(['time', 'event'], look.axis)),
    y: () => look.set({ shared: !look.shared }),
    w: () => look.set({ sums: next(Object.keys(SUMS), look.sums) }),
    Home: () => look.look(0, look.end),
    Escape: () => look.set({ pinned: null, hover: null, lit: null, block: null, under: null }),
    '?': () => (help.open ? help.close() : help.showModal()),
  };
  look.recordings.forEach((_, i) => (actions[i + 1] = () => look.set({ focus: i, block: null, lit: null })));
  document.addEventListener('keydown', (key) => {
    if (key.ctrlKey || key.metaKey || key.altKey) return;
    if (help.open && key.key !== '?') return;
    // What is typed into a field is its own.
    if (['INPUT', 'SELECT'].includes(document.activeElement?.tagName)) return;
    // Home and the arrows belong to the page unless a picture has the focus.
    const picture = document.activeElement?.tagName === 'CANVAS' || document.activeElement === document.body;
    if (['Home', 'ArrowLeft', 'ArrowRight'].includes(key.key) && !picture) return;
    const action = actions[key.key];
    if (!action) return;
    key.preventDefault();
    action();
  });
  byId('keys').addEventListener('click', () => help.showModal());
  help.addEventListener('click', (click) => {
    if (click.target === help || click.target.closest('[data-close]')) help.close();
  });
}
