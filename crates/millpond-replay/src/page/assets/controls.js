// The switches and keys of a report.

const RANGES = ['all', 'zero', 'fit'];

function controls(state) {
  const series = (values) => state.set({ series: { ...state.series, ...values } });
  switches(state, {
    'series-reserved': () => series({ reserved: next(['all', 'focus'], state.series.reserved) }),
    'series-allocated': () => series({ allocated: next(['focus', 'all', 'off'], state.series.allocated) }),
    'series-requested': () => series({ requested: !state.series.requested }),
    'axis-event': () => state.set({ axis: 'event' }),
    'axis-time': () => state.set({ axis: 'time' }),
    ...Object.fromEntries(RANGES.map((range) => [`range-${range}`, () => state.set({ range })])),
  }, () => {
    for (const name of ['reserved', 'allocated']) {
      press(byId(`series-${name}`), state.series[name] !== 'off');
      byId(`series-${name}`).querySelector('small').textContent = { all: 'all', focus: 'chosen', off: 'off' }[state.series[name]];
    }
    press(byId('series-requested'), state.series.requested);
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
    r: () => byId('series-reserved').click(),
    t: () => state.meta.timed && state.set({ axis: next(['event', 'time'], state.axis) }),
    ...Object.fromEntries(policies),
  });
}
