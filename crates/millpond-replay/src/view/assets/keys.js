// The switches and keys of the viewer.

function controls(look) {
  for (const [way, label] of Object.entries(WAY_NAMES)) {
    byId('ways').append(h('button', { type: 'button', 'data-way': way, onclick: () => look.set({ way, lit: null }) }, label));
  }
  const shows = Object.keys(look.shows);
  switches(look, {
    'axis-time': () => look.turn('time'),
    'axis-event': () => look.turn('event'),
    'scale-shared': () => look.set({ shared: true }),
    'scale-own': () => look.set({ shared: false }),
    ...Object.fromEntries(shows.map((name) => [`shows-${name}`, () => look.set({ shows: { ...look.shows, [name]: !look.shows[name] } })])),
  }, () => {
    const { table, ready } = look.recording;
    for (const button of byId('ways').children) press(button, button.dataset.way === look.way);
    for (const name of shows) {
      press(byId(`shows-${name}`), look.shows[name]);
      if (name !== 'notes') byId(`shows-${name}`).hidden = ready && table[name].length === 0;
    }
    byId('axis').hidden = look.recordings.length > 1 || !ready || look.recording.glance.by_rows;
    press(byId('scale-shared'), look.shared);
    press(byId('scale-own'), !look.shared);
    byId('scale').hidden = look.recordings.length < 2;
  });
}

function keys(look, telling, swapTheme) {
  // The blocks that can be seen in the timeline, one after the other.
  const walk = (by) => {
    const seen = timelines[look.focus]?.visible ?? [];
    if (seen.length === 0) return;
    const at = seen.findIndex((piece) => piece.block === look.block);
    look.set({ block: seen[(at + by + seen.length) % seen.length].block });
  };
  keyboard(look, swapTheme, {
    ',': () => telling.step(-1),
    '.': () => telling.step(1),
    j: () => walk(1),
    k: () => walk(-1),
    g: () => look.set({ way: next(Object.keys(WAY_NAMES), look.way), lit: null }),
    r: () => byId('shows-reserved').click(),
    u: () => byId('shows-unexplained').click(),
    v: () => byId('what-if').focus(),
    m: () => byId('shows-notes').click(),
    s: () => look.set({ tree: next(['stack', 'tag'], look.tree) }),
    t: () => !byId('axis').hidden && look.turn(next(['time', 'event'], look.axis)),
    y: () => look.set({ shared: !look.shared }),
    w: () => look.set({ sums: next(Object.keys(SUMS), look.sums) }),
    ...Object.fromEntries(look.recordings.map((_, i) => [i + 1, () => look.set({ focus: i, block: null, lit: null })])),
  });
}
