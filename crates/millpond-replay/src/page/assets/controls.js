// The switches and keys of a report.

const RANGES = ['zero', 'fit'];

function controls(state) {
  const series = (values) => state.set({ series: { ...state.series, ...values } });
  switches(state, {
    'series-requested': () => series({ requested: !state.series.requested }),
    'series-allocated': () => series({ allocated: !state.series.allocated }),
    'series-all': () => state.toggleAll(),
    'axis-event': () => state.set({ axis: 'event' }),
    'axis-time': () => state.set({ axis: 'time' }),
    ...Object.fromEntries(RANGES.map((range) => [`range-${range}`, () => state.set({ range })])),
  }, () => {
    for (const name of ['requested', 'allocated']) press(byId(`series-${name}`), state.series[name]);
    press(byId('series-all'), state.showsAll);
    for (const range of RANGES) press(byId(`range-${range}`), state.range === range);
  });
  byId('axis').hidden = !state.meta.timed;
}

function keys(state, swapTheme) {
  const policies = Array.from({ length: Math.min(state.meta.runs.length, 10) }, (_, i) => [(i + 1) % 10, () => state.set({ focus: i })]);
  keyboard(state, swapTheme, {
    a: () => byId('series-allocated').click(),
    f: () => state.set({ range: next(RANGES, state.range) }),
    g: () => state.set({ grouping: next(Object.keys(GROUPINGS), state.grouping), lit: null }),
    r: () => state.toggleAll(),
    t: () => state.meta.timed && state.set({ axis: next(['event', 'time'], state.axis) }),
    ...Object.fromEntries(policies),
  });
}
