// What was found in a recording, its steps, and what is missing from it.

class Telling {
  constructor(look) {
    this.look = look;
    look.listen(() => this.show(), 'answers', 'told', 'focus', 'glance', 'data', 'failed', 'progress');
    byId('step-back').addEventListener('click', () => this.step(-1));
    byId('step-on').addEventListener('click', () => this.step(1));
    this.show();
  }

  show() {
    const { recording } = this.look;
    this.showAnswers(recording);
    this.showFacts(recording);
    this.showMissing(recording);
    this.showState(recording);
    this.showFindings(recording);
    const steps = recording.told?.steps;
    byId('steps').hidden = !steps || this.look.axis !== 'time';
    if (steps) byId('steps-count').textContent = `${count(steps.steps.length + steps.more)} steps`;
  }

  // The answer is the first thing on the page. Its place is kept free while the server replays the recording.
  showAnswers({ answers, glance }) {
    const list = byId('answers');
    const waits = answers === null && !glance?.state_only;
    list.hidden = answers?.length === 0 || glance?.state_only;
    list.classList.toggle('waits', waits);
    list.classList.toggle('failed', answers?.some(({ failed }) => failed) ?? false);
    const sentences = answers?.flatMap(({ device, sentences }) => sentences.map((sentence, i) => (i === 0 && device !== null ? `Device ${device}: ${sentence}` : sentence)));
    list.replaceChildren(...(sentences ?? ['The recording is being replayed to find what the program needs …']).map((sentence) => h('li', {}, sentence)));
  }

  showFacts(recording) {
    const { glance, told, table } = recording;
    if (!glance) return;
    const sums = (key) => count(glance.states.reduce((all, { total }) => all + total[key], 0));
    const facts = glance.state_only ? [`${sums('segments')} segments`, `${sums('blocks')} blocks`, `${sums('holes')} holes`] : [...(this.look.recordings.length > 1 ? [recording.name] : []), `${count(glance.rows)} rows`, `${count(glance.allocations)} allocations`, glance.by_rows ? 'no times' : duration(glance.to), ...(recording.offset > 0 ? [`begins at ${moment(recording.offset)}`] : [])];
    if (recording.ready) {
      const pools = table.names.pool.length;
      if (pools > 1) facts.push(`${count(pools)} pools`);
      const groups = table.names[table.usual].length;
      facts.push(`${table.usual}s in ${count(groups)} group${groups === 1 ? '' : 's'}`);
    }
    if (told?.refused > 0) facts.push(`${count(told.refused)} refused`);
    if (told?.steps) facts.push(`${count(told.steps.steps.length + told.steps.more)} steps ${stepSource(told.steps.source)}`);
    byId('facts-line').replaceChildren(...facts.map((fact) => h('span', {}, fact)));
  }

  showMissing(recording) {
    const { glance, told, table } = recording;
    const sentences = [...(told?.missing ?? glance?.missing ?? [])];
    const { end } = table;
    if (end?.others > 0) {
      sentences.push(end.othersUnder === null || end.blocks === 0 ? `${count(end.others)} blocks are listed as one sum` : `${count(end.others)} blocks, all or most of them smaller than ${human(end.othersUnder)}, are listed as one sum, to keep within what this page can hold`);
    }
    if (end?.moreNotes > 0) sentences.push(`${count(end.moreNotes)} marks, refusals and losses are not shown: they are too many`);
    byId('missing').hidden = sentences.length === 0;
    byId('missing-list').replaceChildren(...sentences.map((sentence) => h('li', {}, sentence)));
  }

  showState(recording) {
    const { glance, table } = recording;
    const state = byId('state');
    state.hidden = recording.ready && !recording.failed;
    if (recording.failed) state.textContent = `This recording could not be shown: ${recording.failed}`;
    else if (!glance) state.textContent = 'Reading the recording …';
    else state.textContent = `Reading the blocks: ${percent(table.blocks, Math.max(glance.allocations, 1))}`;
  }

  showFindings(recording) {
    const { told } = recording;
    const list = byId('findings');
    byId('findings-note').textContent = recording.glance?.state_only ? 'Findings need a history, and this snapshot has none.' : !told ? 'Still looking …' : told.findings.length === 0 ? 'There are no findings.' : '';
    list.replaceChildren(...(told?.findings ?? []).map((finding) => {
      const when = finding.when;
      const go = when ? h('button', { type: 'button', class: 'plain', onclick: () => this.look.goTo(when[0], when[1]) }, 'Show') : null;
      const who = finding.who.map((who) => h('li', {}, h('span', { class: 'name', title: who.name }, who.name), h('span', {}, human(who.bytes))));
      return h('li', {},
        h('header', {}, h('h3', {}, finding.name), h('b', {}, human(finding.bytes)), go),
        h('p', {}, finding.evidence),
        h('p', { class: 'remedy' }, finding.remedy),
        h('ul', { class: 'who' }, ...who),
      );
    }));
  }

  // To the step before or behind the window.
  step(by) {
    const { look } = this;
    const steps = look.recording.told?.steps?.steps;
    if (!steps || look.axis !== 'time') return;
    const middle = (look.from + look.to) / 2;
    const now = steps.findIndex((step) => step[1] <= middle && middle <= step[2]);
    const next = look.isWhole || now < 0 ? (by > 0 ? 0 : steps.length - 1) : Math.min(Math.max(now + by, 0), steps.length - 1);
    const [number, from, to] = steps[next];
    look.look(from, to);
    byId('steps-count').textContent = `step ${count(number)} of ${count(steps.length)}`;
  }
}

function stepSource(source) {
  if (source === 'recorded') return 'named';
  return source.marks !== undefined ? `by the marks ${source.marks}` : `of ${count(source.pattern)} allocations that repeat`;
}
