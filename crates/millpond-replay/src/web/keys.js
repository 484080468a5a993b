// What both pages have above their pictures, and the keys.

function switches(state, clicks, show) {
  const shared = {
    'unit-human': () => state.set({ exact: false }),
    'unit-exact': () => state.set({ exact: true }),
    'zoom-out': () => state.look(0, state.end),
    'go-peak': () => state.set({ pinned: null, hover: null }),
  };
  for (const [id, act] of Object.entries({ ...shared, ...clicks })) byId(id).addEventListener('click', act);
  const showAll = () => {
    press(byId('axis-event'), state.axis === 'event');
    press(byId('axis-time'), state.axis === 'time');
    press(byId('unit-human'), !state.exact);
    press(byId('unit-exact'), state.exact);
    byId('zoom-out').hidden = state.isWhole;
    byId('go-peak').hidden = state.pinned === null;
    show();
  };
  state.listen(showAll);
  showAll();
}

// The value after another in a list, and the first after the last.
function next(values, value) {
  return values[(values.indexOf(value) + 1) % values.length];
}

function keyboard(state, swapTheme, own) {
  const help = byId('help');
  const centre = () => (state.inWindow(state.moment) ? state.moment : undefined);
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
    b: () => state.set({ exact: !state.exact }),
    d: swapTheme,
    p: () => state.set({ pinned: null, hover: null }),
    Home: () => state.look(0, state.end),
    Escape: () => state.set({ pinned: null, hover: null, lit: null, block: null, under: null }),
    '?': () => (help.open ? help.close() : help.showModal()),
    ...own,
  };
  document.addEventListener('keydown', (key) => {
    if (key.ctrlKey || key.metaKey || key.altKey) return;
    if (help.open && key.key !== '?') return;
    const focused = document.activeElement;
    // What is typed into a field is its own.
    if (['INPUT', 'SELECT'].includes(focused?.tagName)) return;
    // Home and the arrows belong to the page unless a picture has the focus.
    const picture = focused?.tagName === 'CANVAS' || focused === document.body;
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
