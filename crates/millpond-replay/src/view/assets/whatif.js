// What other policies would have taken from the devices: lines over the timelines, replayed when they are asked for.

// Lines that can be told apart.
const MOST_REPLAYS = 6;

// The line of one policy over one recording.
class Replay {
  constructor(told, { table, offset }) {
    this.told = told;
    this.values = Float64Array.from(told.bytes);
    this.times = Float64Array.from(told.times, (time) => time + offset);
    // Null if the policy reached the end.
    this.stopped = told.stopped === null ? null : told.stopped + offset;
    this.byTime = new Steps(this.times, this.values, Infinity);
    this.table = table;
  }

  get length() {
    return this.values.length;
  }

  // Made when the axis is of events: a change is with the events at its time.
  get byEvent() {
    this.events ??= this.times.map((time) => this.table.eventsBefore(time));
    return (this.eventCurve ??= new Steps(this.events, this.values, Infinity));
  }

  // Where on an axis the policy could not go on; past everything where it could.
  stop(axis) {
    if (this.stopped === null) return Infinity;
    return axis === 'time' ? this.stopped : this.table.eventsBefore(this.stopped, true);
  }
}

function replayInk(policy) {
  return policyInk(meta.inks.indexOf(policy));
}

class WhatIf {
  constructor(look) {
    this.look = look;
    this.list = byId('what-if-list');
    this.choice = byId('what-if');
    byId('what-if-row').hidden = meta.policies.length === 0;
    this.choice.addEventListener('change', () => {
      const { value } = this.choice;
      this.choice.value = '';
      if (value) this.toggle(value);
    });
    look.listen(() => this.show(), 'replays', 'theme', 'exact', 'focus');
    look.set({ replays: meta.shown.slice(0, MOST_REPLAYS) });
    this.show();
  }

  toggle(policy) {
    const { look } = this;
    const shown = look.replays.includes(policy) ? look.replays.filter((other) => other !== policy) : [...look.replays, policy].slice(-MOST_REPLAYS);
    look.set({ replays: shown });
    this.ask();
  }

  // Lines that are shown and not there yet are fetched, one after the other.
  async ask() {
    const { look } = this;
    for (const recording of look.recordings) {
      if (!recording.ready) continue;
      for (const policy of look.replays) {
        if (recording.replays.has(policy)) continue;
        recording.replays.set(policy, { waits: true });
        look.touch('replays');
        recording.replays.set(policy, await this.fetch(recording, policy));
        look.touch('replays');
      }
    }
  }

  async fetch(recording, policy) {
    try {
      const told = await recording.source.json(`replay-${policy}`);
      return told.failed ? { failed: told.failed } : new Replay(told, recording);
    } catch (error) {
      return { failed: error.message };
    }
  }

  show() {
    const { look, choice } = this;
    const size = look.exact ? exact : human;
    const free = meta.policies.filter((policy) => !look.replays.includes(policy));
    choice.replaceChildren(h('option', { value: '' }, 'another policy …'), ...free.map((policy) => h('option', { value: policy }, policy)));
    choice.disabled = free.length === 0;
    this.list.replaceChildren(...look.replays.map((policy) => {
      const swatch = h('i', { class: `swatch policy-${meta.inks.indexOf(policy)}` });
      const told = this.tell(look.recording.replays.get(policy), size);
      return h('li', {}, h('button', { type: 'button', class: 'plain', title: `${told.title}. Click to take it away`, onclick: () => this.toggle(policy) }, swatch, h('b', {}, policy), ` ${told.text}`, h('span', { class: 'away', 'aria-hidden': 'true' }, '×')));
    }));
  }

  tell(replay, size) {
    if (!replay || replay.waits) return { text: '…', title: 'It is being replayed' };
    if (replay.failed) return { text: 'cannot be replayed', title: replay.failed };
    const { peak, coarse, fidelity } = replay.told;
    const { stopped } = replay;
    const title = [
      `Reserved by ${replay.told.policy} at its peak, on devices without a limit: ${exact(peak)}`,
      `how true it is: ${fidelity}`,
      coarse ? 'drawn as the most in each of many stretches of time' : '',
      stopped === null ? '' : `it could not go on at ${moment(stopped)}`,
    ].filter(Boolean).join('; ');
    return { text: stopped === null ? `${size(peak)} at peak` : `stops at ${moment(stopped)}`, title };
  }
}
