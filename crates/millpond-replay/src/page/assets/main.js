// The order of things: paint what the writer summed up, then decode, then answer exactly.

const meta = JSON.parse(byId('meta').textContent);
const state = new State(meta);
const axis = new EventAxis(state);
const data = {
  story: null,
  reserved: meta.runs.map(() => null),
  allocated: meta.runs.map(() => null),
  shown: null,
  failed: null,
  groupings: new Map(),
  grouping() {
    if (!this.groupings.has(state.grouping)) this.groupings.set(state.grouping, new Grouping(this.story, state.grouping));
    return this.groupings.get(state.grouping);
  },
};

const swapTheme = themes(state);
const plot = new Plot(state, axis, data);
const minimap = new Minimap(state);
const history = new History(state, axis, data);
const map = new AddressMap(state, data);
const tags = new TagList(state, data);
const table = new Table(state);
const readout = new Readout(state, axis, data);
controls(state);
keys(state, swapTheme);
readout.show();

async function decode() {
  const story = await Story.read(meta);
  const places = meta.runs.map((_, index) => new Places(story, index));
  // The chosen policy first, so that the reader has a whole picture early.
  const order = [state.focus, ...places.keys()].filter((index, at, all) => all.indexOf(index) === at);
  const ready = [];
  for (const index of order) {
    ready[index] = await places[index].reserved();
    await breathe();
  }
  data.story = story;
  data.reserved = ready;
  state.touch('data', 'moment');
  await breathe();

  const load = async () => {
    const index = state.focus;
    data.allocated[index] = await places[index].allocated();
    state.touch('data');
    await breathe();
    await places[index].addresses();
    if (state.focus === index) data.shown = places[index];
    state.touch('data');
  };
  state.listen((changed) => {
    if (changed.has('focus')) {
      if (places[state.focus].spot) data.shown = places[state.focus];
      load();
    }
  });
  await load();
  await story.readTimes();
  axis.times = story.times ?? null;
  state.touch('data');
  document.documentElement.dataset.ready = 'yes';
}

document.addEventListener('DOMContentLoaded', () => {
  decode().catch((error) => {
    data.failed = `This browser could not decode the recording: ${error.message}`;
    byId('moment-state').textContent = data.failed;
    throw error;
  });
});
