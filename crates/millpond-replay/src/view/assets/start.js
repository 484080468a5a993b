// The order of things: the overview first, then the blocks, then names and findings.

const recordings = meta.names.map((name, index) => new Recording(name, index));
const look = new Look(recordings);
const axis = new Axis(look, 1000);

const swapTheme = themes(look);
for (const recording of recordings) {
  const canvas = h('canvas', { class: 'timeline', tabindex: 0, role: 'img', 'aria-label': `Bytes over time of ${recording.name}, by group. Arrows pan, plus and minus zoom, brackets step from change to change, j and k go from block to block.` });
  const title = recordings.length > 1 ? h('h3', {}, h('kbd', {}, String(recording.index + 1)), ` ${recording.name}`) : null;
  byId('timelines').append(h('div', { class: 'picture' }, title, canvas, h('div', { class: 'tip', hidden: true })));
  timelines.push(new Timeline(look, axis, recording, canvas));
}
if (recordings.length > 1) {
  byId('clock').hidden = false;
  byId('clock').textContent = meta.offsets ? 'All recordings are on one clock.' : `Each recording begins at the left, because ${meta.apart}.`;
}
new WholeStrip(look);
new Holders(look);
new Addresses(look, axis);
new WindowSums(look, new Flame(look));
new Card(look);
new Compare(look);
new StepByStep(look);
const whatIf = new WhatIf(look);
const telling = new Telling(look);
controls(look);
keys(look, telling, swapTheme);

// The lens of the way that was chosen is made when it is chosen.
async function focus() {
  for (const recording of recordings) {
    if (!recording.ready || recording.lensNow(look.way)) continue;
    await recording.lens(look.way);
    look.touch('data', 'scale');
  }
}
look.listen((changed) => {
  if (changed.has('way') || changed.has('data')) focus();
});

// What has come of a recording is shown. While nobody has moved, the window stays the whole of what there is.
let end = look.to;

// A state without a history has no times, so its addresses take the place of the timeline.
function openOnAddresses() {
  byId('timelines-title').textContent = 'Where blocks lie';
  const picture = byId('addresses').parentElement;
  const column = picture.parentElement;
  byId('timelines').before(picture, byId('addresses-note'));
  column.hidden = true;
  for (const id of ['timelines', 'clock', 'strip', 'axis', 'moment', 'go-peak', 'zoom-out']) byId(id).hidden = true;
  byId('shows-reserved').parentElement.hidden = true;
}

function arrived(recording) {
  return (what) => {
    const whole = look.from <= 0 && look.to >= end;
    if (what === 'data' && recording.glance.by_rows && recordings.length === 1) look.axis = 'event';
    if (what === 'glance' && recordings.every(({ glance }) => glance?.state_only)) openOnAddresses();
    if (what === 'data') look.openOnRefusal();
    const isBySite = recordings.every(({ ready, table }) => ready && table.usual === 'site');
    if (what === 'data' && isBySite && look.way === 'tag') look.set({ way: 'site' });
    if (what === 'glance' || what === 'data') {
      end = look.end;
      if (whole) look.look(0, end);
      look.touch('window', 'scale');
    }
    look.touch(what);
  };
}

// Takes a step for some recordings, one after the other.
async function each(some, step) {
  for (const recording of some) {
    const changed = arrived(recording);
    try {
      await step(recording, changed);
    } catch (error) {
      recording.failed = error.message;
      changed('failed');
    }
  }
}

document.addEventListener('DOMContentLoaded', async () => {
  // A file has the answers. A server replays the recordings for them, which waits until the page is complete.
  const answer = () => each(recordings, (recording, changed) => recording.loadAnswers(changed));
  if (!meta.served) await answer();
  await each(recordings, (recording, changed) => recording.load(changed));
  whatIf.ask();
  await each(recordings.filter((recording) => recording.ready), (recording, changed) => recording.loadMore(changed));
  document.documentElement.dataset.told = 'yes';
  if (meta.served) await answer();
  document.documentElement.dataset.answered = 'yes';
});

// For those who measure the page from outside: when the overview and the blocks were painted, in milliseconds, and how long pictures took.
const { dataset } = document.documentElement;
const told = (name, is) => {
  if (dataset[name] === undefined && recordings.every(is)) requestAnimationFrame(() => (dataset[name] ??= String(Math.round(performance.now()))));
};
look.listen(() => {
  told('overview', (recording) => recording.glance !== null);
  told('blocks', (recording) => recording.ready);
});
document.documentElement.addEventListener('millpond-frames', () => {
  dataset.frames = JSON.stringify(frameTimes.all.splice(0));
});
