// Tags as people wrote them.

// "<" joins frames and also begins names such as "<lambda>": one behind a colon is part of a name.
function splitFrames(stack) {
  return stack.split(/(?<!:)</);
}

// A tag with the frame that a person recognises in place of its whole stack.
function shortTag(tag, site) {
  return site ? tag.slice(0, tag.lastIndexOf(';') + 1) + site : tag;
}

// `site` is the frame of the tag's stack that a person recognises.
function tagParts(tag, site) {
  if (tag === '') return { phase: 'untagged', module: 'untagged', operator: 'untagged', frame: 'untagged' };
  const fields = tag.split(';');
  if (fields.length === 1) {
    const frames = splitFrames(tag);
    const outer = frames[frames.length - 1];
    return { phase: outer, module: outer, operator: site || tag, frame: site || tag };
  }
  const [phase, path = '', operator = ''] = fields;
  // One group for the same module in every layer.
  const module = path.replace(/(^|\.)\d+(?=\.|$)/g, '$1*').replace(/\/.*$/, '');
  return {
    phase: phase || 'no phase',
    module: [phase, module].filter(Boolean).join(' · ') || 'no module',
    operator: operator || 'no operator',
    frame: site || 'no frame',
  };
}
