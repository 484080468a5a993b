// Switches above the pictures, and the keys.

const RANGES = ['all', 'zero', 'fit'];

function controls(state) {
  const actions = {
    'series-reserved': () => state.set({ series: { ...state.series, reserved: state.series.reserved === 'all' ? 'focus' : 'all' } }),
    'series-allocated': () => state.set({ series: { ...state.series, allocated: { focus: 'all', all: 'off', off: 'focus' }[state.series.allocated] } }),
    'series-requested': () => state.set({ series: { ...state.series, requested: !state.series.requested } }),
    'axis-event': () => state.set({ axis: 'event' }),
    'axis-time': () => state.set({ axis: 'time' }),
    'range-all': () => state.set({ range: 'all' }),
    'range-zero': () => state.set({ range: 'zero' }),
    'range-fit': () => state.set({ range: 'fit' }),
    'unit-human': () => state.set({ exact: false }),
    'unit-exact': () => state.set({ exact: true }),
    'zoom-out': () => state.look(0, state.meta.events - 1),
    'go-peak': () => state.set({ pinned: null, hover: null }),
  };
  for (const [id, act] of Object.entries(actions)) byId(id).addEventListener('click', act);
  const show = () => {
    press(byId('series-reserved'), state.series.reserved !== 'off');
    byId('series-reserved').querySelector('small').textContent = state.series.reserved === 'all' ? 'all' : 'chosen';
    press(byId('series-allocated'), state.series.allocated !== 'off');
    byId('series-allocated').querySelector('small').textContent = { all: 'all', focus: 'chosen', off: 'off' }[state.series.allocated];
    press(byId('series-requested'), state.series.requested);
    press(byId('axis-event'), state.axis === 'event');
    press(byId('axis-time'), state.axis === 'time');
    for (const range of RANGES) press(byId(`range-${range}`), state.range === range);
    press(byId('unit-human'), !state.exact);
    press(byId('unit-exact'), state.exact);
    const whole = state.from <= 0 && state.to >= state.meta.events - 1;
    byId('zoom-out').hidden = whole;
  };
  state.listen(show);
  show();
  byId('axis').hidden = !state.meta.timed;
}

function keys(state, swapTheme) {
  const help = byId('help');
  const toggle = (name, values) => values[(values.indexOf(state[name]) + 1) % values.length];
  const actions = {
    ArrowLeft: () => state.pan(-0.2),
    ArrowRight: () => state.pan(0.2),
    '+': () => state.zoom(0.6, centre()),
    '=': () => state.zoom(0.6, centre()),
    '-': () => state.zoom(1 / 0.6, centre()),
    '[': () => state.step(-1),
    ']': () => state.step(1),
    '{': () => state.step(-100),
    '}': () => state.step(100),
    a: () => byId('series-allocated').click(),
    b: () => state.set({ exact: !state.exact }),
    d: swapTheme,
    f: () => state.set({ range: toggle('range', RANGES) }),
    p: () => state.set({ pinned: null, hover: null }),
    r: () => byId('series-reserved').click(),
    t: () => state.meta.timed && state.set({ axis: toggle('axis', ['event', 'time']) }),
    g: () => state.set({ grouping: toggle('grouping', Object.keys(GROUPINGS)), lit: null }),
    0: () => state.meta.runs.length > 9 && state.set({ focus: 9 }),
    Home: () => state.look(0, state.meta.events - 1),
    Escape: () => state.set({ pinned: null, hover: null, lit: null, block: null }),
    '?': () => (help.open ? help.close() : help.showModal()),
  };
  const centre = () => (state.moment >= state.from && state.moment <= state.to ? state.moment : undefined);
  for (let i = 1; i <= 9; i++) actions[i] = () => i <= state.meta.runs.length && state.set({ focus: i - 1 });
  document.addEventListener('keydown', (key) => {
    if (key.ctrlKey || key.metaKey || key.altKey) return;
    if (help.open && key.key !== '?') return;
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
