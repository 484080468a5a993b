// The card that says what a block is.
function showTip(tip, data, serial, x, y, wide) {
  const { story } = data;
  const places = data.shown;
  const parts = tagParts(story.tagText(serial), story.sites[story.tag[serial]]);
  const slack = places.slack[serial];
  const lived = story.gone[serial] - story.birth[serial];
  const end = story.gone[serial] === story.events ? 'the end' : `event ${count(story.gone[serial])}`;
  tip.replaceChildren(
    h('b', {}, parts.module === parts.operator ? parts.operator : `${parts.module} · ${parts.operator}`),
    h('span', {}, `${exact(story.requested[serial])}${slack > 0 ? ` + ${exact(slack)} rounding` : ''}`),
    h('span', {}, `events ${count(story.birth[serial])} to ${end}, ${count(lived)} long`),
    h('span', {}, `${hex(places.address[serial])} · allocation ${count(serial)} · stream ${story.meta.streams[story.stream[serial]] ?? 0}`),
    h('small', {}, story.shortTag(serial) || 'no tag'),
  );
  placeTip(tip, x, y, wide);
}
