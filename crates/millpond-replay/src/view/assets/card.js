// What is known of one block: the card that follows the pointer, and the one that stays when a block was chosen.

function fillTip(tip, recording, { block, group }) {
  const { table } = recording;
  if (block === null) {
    tip.replaceChildren(h('b', {}, group));
    return;
  }
  const life = lifetime(table, block);
  tip.replaceChildren(
    h('b', {}, table.name(block, table.usual)),
    h('span', {}, `${exact(table.bytes[block] - table.slack[block])}${table.slack[block] > 0 ? ` + ${exact(table.slack[block])} rounding` : ''}`),
    h('span', {}, `${life.span} · ${table.name(block, 'pool')}`),
    h('small', {}, 'click for its stack'),
  );
}

function lifetime(table, block) {
  const since = table.since(block);
  const alive = table.death[block] === LIVES;
  const until = alive ? table.end.end : table.time[table.death[block]];
  const fate = { [FATES.lives]: 'still held at the end', [FATES.freed]: 'freed', [FATES.atOnce]: 'freed at once', [FATES.vanished]: 'gone by the next keyframe' }[table.fate[block]];
  return { since, until, alive, fate, span: `${moment(since)} to ${alive ? 'the end' : moment(until)}, ${duration(until - since)} long` };
}

// A tag without the stack at its end, which is listed.
function withoutStack(tag, stack) {
  return stack?.length > 0 && tag.includes('<') ? tag.slice(0, tag.lastIndexOf(';') + 1) : tag;
}

class Card {
  constructor(look) {
    this.look = look;
    this.element = byId('card');
    look.listen(() => this.show(), 'block', 'focus', 'data', 'stacks', 'exact');
  }

  show() {
    const { recording, block } = this.look;
    this.element.hidden = block === null || !recording.ready;
    if (this.element.hidden) return;
    const { table } = recording;
    const { pool, stream, thread, tag } = table.origin5(table.origin[block]);
    const life = lifetime(table, block);
    const size = this.look.exact ? exact : human;
    const facts = [
      ['block', size(table.bytes[block])],
      ['requested', size(table.bytes[block] - table.slack[block])],
      ['allocated', moment(life.since)],
      [life.fate, life.alive ? '' : moment(life.until)],
      ['lived', duration(life.until - life.since)],
      ['address', table.address[block] > 0 ? hex(table.address[block]) : 'not recorded'],
      ['pool', table.name(block, 'pool') || String(pool)],
      ['stream', String(stream)],
      ['thread', table.name(block, 'thread') || String(thread)],
    ];
    const stack = recording.stacks ? stackOf(table, recording.stacks, table.origin[block]) : null;
    const frames = stack?.slice(0, 60).map((frame) => h('li', { title: frame.file }, frameText(frame))) ?? [];
    this.element.replaceChildren(
      h('div', { class: 'head' }, h('h2', {}, 'Block'), h('button', { type: 'button', class: 'plain', title: 'Back to the list (Esc)', onclick: () => this.look.set({ block: null }) }, 'Close')),
      h('h3', {}, table.name(block, table.usual)),
      h('dl', { class: 'facts two' }, ...facts.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)])),
      h('p', { class: 'whole-tag mono' }, withoutStack(table.tags.get(tag) ?? '', stack) || 'no tag'),
      h('h3', {}, stack === null ? 'Stack: still being looked up' : stack.length > 0 ? 'Stack, the innermost function first' : 'No stack was recorded'),
      h('ol', { class: 'stack mono' }, ...frames),
    );
  }
}
