// Sums as a tree of calls: by the stack of each allocation, the outermost function first, or by the parts of its tag.

// Frames of a stack, the innermost.
const MOST_DEEP = 200;
const UNKNOWN = { name: '(stack not known)', file: '', line: 0 };

// The functions of all stacks, as `stacks.rs` tells them.
class Stacks {
  constructor(told) {
    this.frames = (told?.frames ?? []).map(([name, file, line]) => ({ name, file, line }));
    this.byNumber = new Map(told?.stacks ?? []);
    this.more = told?.more ?? 0;
    // Paths of origins, each made once.
    this.paths = { stack: [], tag: [] };
  }

  // The innermost first; empty where the block has no stack.
  of(number) {
    if (number === 0) return [];
    const frames = this.byNumber.get(number);
    return frames ? frames.map((frame) => this.frames[frame] ?? UNKNOWN) : [UNKNOWN];
  }
}

// A frame of a stack that came as text, "file:function:line".
function textFrame(text) {
  const [, before, line = 0] = text.match(/^(.*?)(?::(\d+))?$/) ?? [text, text];
  // The namespaces of C++ are joined by two colons.
  const [, file, name] = before.match(/^([^:]+):(?!:)(.*)$/) ?? [before, '', before];
  return { name, file, line: Number(line) };
}

// The stack of an origin, the innermost function first: its own, or the one in its tag.
function stackOf(table, stacks, origin) {
  const { stack, tag } = table.origin5(origin);
  if (stack !== 0) return stacks.of(stack);
  const text = table.tags.get(tag) ?? '';
  const last = text.slice(text.lastIndexOf(';') + 1);
  return splitFrames(last).filter((frame) => frame.includes(':')).map(textFrame);
}

// The parts of an origin's tag, the widest first.
function tagPath(table, origin) {
  const text = table.tags.get(table.origin5(origin).tag) ?? '';
  if (text === '') return ['(no tag)'];
  const fields = text.split(';');
  // A bare stack is named by the function of the program, as in a report.
  if (fields.length === 1) return [table.names.tag[table.group(origin, 'tag')] ?? text];
  const [phase, path = '', operator = ''] = fields;
  const parts = path.includes('.py:') ? path.split('/') : path.split('.');
  return [phase, ...parts, operator].filter(Boolean);
}

function hasStacks(table, stacks) {
  const origins = Math.min(table.originCount, 2000);
  for (let origin = 0; origin < origins; origin++) if (stackOf(table, stacks, origin).length > 0) return true;
  return false;
}

// The names on the way to an origin, the outermost first.
function pathOf(table, stacks, way, origin) {
  return (stacks.paths[way][origin] ??= way === 'stack' ? folded(stackOf(table, stacks, origin)).slice(0, MOST_DEEP).map(frameText).reverse() : tagPath(table, origin).slice(0, MOST_DEEP));
}

// A stack without the frames that frameworks put around every call.
function folded(stack) {
  const own = stack.filter(({ name, file }) => !(file.endsWith('.py') && meta.aroundCalls.includes(name)));
  return own.length > 0 ? own : stack;
}

function frameText({ name, file, line }) {
  const place = file.split('/').pop();
  return place ? `${name} (${place}${line ? `:${line}` : ''})` : name;
}

// A tree of `sums`; each node has its bytes, its blocks and its children by name.
function treeOf(sums, stacks, way) {
  const { table } = sums;
  const root = { name: 'all', bytes: sums.total, blocks: sums.count, children: new Map(), depth: 0 };
  for (let origin = 0; origin < sums.bytes.length; origin++) {
    if (sums.blocks[origin] === 0) continue;
    const path = pathOf(table, stacks, way, origin);
    let node = root;
    for (const name of path.length > 0 ? path : ['(no stack recorded)']) {
      let child = node.children.get(name);
      if (!child) {
        child = { name, bytes: 0, blocks: 0, children: new Map(), depth: node.depth + 1, parent: node };
        node.children.set(name, child);
      }
      child.bytes += sums.bytes[origin];
      child.blocks += sums.blocks[origin];
      node = child;
    }
  }
  return root;
}
