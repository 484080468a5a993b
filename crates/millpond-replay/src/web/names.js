// Tags as people wrote them.

// "<" joins frames and also begins names such as "<lambda>": one behind a colon is part of a name.
function splitFrames(stack) {
  return stack.split(/(?<!:)</);
}

function tagParts(tag) {
  if (tag === '') return { phase: 'untagged', module: 'untagged', operator: 'untagged', frame: 'untagged' };
  const fields = tag.split(';');
  if (fields.length === 1) {
    const frames = splitFrames(tag);
    const outer = frames[frames.length - 1];
    return { phase: outer, module: outer, operator: frames[0], frame: frames[0] };
  }
  const [phase, path = '', operator = '', frames = ''] = fields;
  // One group for the same module in every layer.
  const module = path.replace(/(^|\.)\d+(?=\.|$)/g, '$1*').replace(/\/.*$/, '');
  return {
    phase: phase || 'no phase',
    module: [phase, module].filter(Boolean).join(' · ') || 'no module',
    operator: operator || 'no operator',
    frame: splitFrames(frames)[0] || 'no frame',
  };
}
