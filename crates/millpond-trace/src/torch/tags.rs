//! Formats a stack of frames as one line that shows where memory was requested.
//!
//! A tag contains the whole stack, the innermost frame first: `model.py:forward:12<train.py:step:80`. Only frames of
//! the allocator, the unwinder and the interpreter are left out. The program's own words come before, each followed by
//! `;`. A stack of a backward pass begins with `bwd`, the autograd node and the operator that it called, as in
//! `bwd;MulBackward0;mul_Tensor;`. If the forward line is known, it comes before the node:
//! `bwd;model.py:forward:12/MulBackward0;`. Stacks and frames are shared objects in the file, so each is read once.

use super::frames::{Frames, Name, Role};
use super::names::{named_by_line, push_clean};
use super::schema::Walk;
use crate::caution::CUT_FRAMES;
use crate::hash::Map;
use crate::pickle::{Arena, Value};
use crate::strings::{Interner, MOST_STACK};

/// Number of slots for recently used tags.
const RECENT: usize = 512;
/// Bytes of text that may be made before stacks are cut, in addition to [`ITEM`] for each item of the file's lists. A
/// file can name the same stack any number of times, each time with other words.
const FREE: usize = 256 << 20;
/// Bytes of text for each item of a list. Real frames have fewer.
const ITEM: usize = 64;

/// The values that describe the origin of an event or block.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub(super) frames: Value,
    pub(super) user: Value,
    pub(super) compile: Value,
    /// The lines of the traceback of the forward pass, outermost first.
    pub(super) forward: Value,
}

impl Origin {
    /// Creates an origin that has only a stack.
    pub(super) fn of_frames(frames: Value) -> Self {
        Self {
            frames,
            user: Value::NONE,
            compile: Value::NONE,
            forward: Value::NONE,
        }
    }

    fn key(self, arena: &Arena) -> Key {
        let words = u128::from(self.user.bits()) | u128::from(self.compile.bits()) << 32;
        (
            u128::from(arena.identity(self.frames)) | words << 64,
            arena.identity(self.forward),
        )
    }
}

/// The identity of [`Origin`]. It is made of numbers, because its hash is computed for each event.
type Key = (u128, u64);

/// The tags created so far.
pub(super) struct Tags {
    known: Map<Key, u32>,
    /// Some of `known`, each in the slot of its key. The lookup runs for each event.
    recent: Vec<(Key, u32)>,
    frames: Frames,
    /// The stack of the tag that is being created.
    stack: String,
    /// Text of the tag that is being created.
    text: String,
    /// Bytes of text created so far.
    made: usize,
    /// The number of stacks that have more frames than their tags.
    cut: u64,
}

impl Tags {
    pub(super) fn new(frames: Frames) -> Self {
        Self {
            known: Map::default(),
            // The key 0 has no words, so it has no tag.
            recent: vec![((0, 0), 0); RECENT],
            frames,
            stack: String::new(),
            text: String::new(),
            made: 0,
            cut: 0,
        }
    }

    /// Clears the tags, because the next ones use another interner.
    pub(super) fn forget(&mut self) {
        self.known.clear();
        self.recent.fill(((0, 0), 0));
        self.cut = 0;
    }

    /// Returns the number of different stacks since the last [`forget`](Self::forget) that have more frames than their
    /// tags.
    pub(super) fn cut(&self) -> u64 {
        self.cut
    }

    /// Returns the tag of an event or block.
    #[inline]
    pub(super) fn of(&mut self, walk: &Walk<'_>, origin: Origin, into: &mut Interner) -> u32 {
        let key = origin.key(walk.arena);
        let place = place(key);
        if self.recent[place].0 == key {
            return self.recent[place].1;
        }
        let tag = match self.known.get(&key) {
            Some(&tag) => tag,
            None => {
                let tag = self.make(walk.arena, origin, into);
                self.known.insert(key, tag);
                tag
            }
        };
        self.recent[place] = (key, tag);
        tag
    }

    fn make(&mut self, arena: &Arena, origin: Origin, into: &mut Interner) -> u32 {
        let is_whole = self.made < FREE + ITEM * arena.size() && into.left() > Interner::TAG_BYTES / 2;
        let mut stack = std::mem::take(&mut self.stack);
        stack.clear();
        let mut pass = Pass::default();
        let most = if is_whole { usize::MAX } else { CUT_FRAMES };
        let is_cut = self.push_stack(arena, origin.frames, most, &mut stack, &mut pass);
        let is_cut = is_cut || push_forward(arena, origin.forward, most, &mut stack, &mut pass);
        self.cut += u64::from(is_cut);

        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let own = [origin.user, origin.compile].map(|words| arena.as_text(words).unwrap_or_default());
        let own = own.into_iter().filter(|words| !matches!(*words, "" | "N/A"));
        if pass.is_backward {
            text.push_str("bwd;");
            let begin = text.len();
            for words in own {
                separate(&mut text, begin, '/');
                push_clean(&mut text, words);
            }
            for part in pass.line(&self.frames).into_iter().chain(pass.node(&self.frames)) {
                separate(&mut text, begin, '/');
                text.push_str(part);
            }
            text.push(';');
            text.push_str(
                pass.operator
                    .map_or("", |name| last_of(self.frames.text(name), "::call")),
            );
            text.push(';');
        } else {
            for words in own {
                push_clean(&mut text, words);
                text.push(';');
            }
        }
        text.push_str(&stack);
        self.made += text.len();
        let tag = into.intern(text.as_bytes());
        (self.text, self.stack) = (text, stack);
        tag
    }

    /// Adds at most `most` frames of a stack. Returns whether frames are left out.
    fn push_stack(
        &mut self,
        arena: &Arena,
        stack: Value,
        most: usize,
        text: &mut String,
        pass: &mut Pass,
    ) -> bool {
        let Some(items) = arena.items(stack) else {
            return false;
        };
        for (count, item) in items.enumerate() {
            // Frames without a name take time as well.
            self.made += 1;
            if count >= most {
                return true;
            }
            let Some((name, role)) = self.frames.named(arena, item) else {
                continue;
            };
            pass.note(name, role);
            let name = self.frames.text(name);
            if text.len() + name.len() > MOST_STACK {
                return true;
            }
            separate(text, 0, '<');
            text.push_str(name);
        }
        false
    }
}

/// Maximum lines of a traceback.
const MOST_LINES: usize = 1024;

/// Adds the frames of a traceback of the forward pass, as the callers of a stack of the backward pass. Returns
/// whether frames are left out.
fn push_forward(arena: &Arena, lines: Value, most: usize, text: &mut String, pass: &mut Pass) -> bool {
    let Some(items) = arena.items(lines) else {
        return false;
    };
    let lines: Vec<&str> = items
        .take(MOST_LINES)
        .filter_map(|item| arena.as_text(item))
        .collect();
    if lines.is_empty() {
        return false;
    }
    pass.is_backward = true;
    for (count, line) in lines.iter().rev().enumerate() {
        let Some((name, role)) = named_by_line(line) else {
            continue;
        };
        if pass.forward.is_empty() && role == Role::Program {
            pass.forward.push_str(&name);
        }
        if count >= most || text.len() + name.len() > MOST_STACK {
            return true;
        }
        separate(text, 0, '<');
        text.push_str(&name);
    }
    false
}

/// Adds a separator if the text after `begin` is not empty.
fn separate(text: &mut String, begin: usize, separator: char) {
    if text.len() > begin {
        text.push(separator);
    }
}

/// Returns the slot of a key in [`Tags::recent`]. Stacks begin at different indices, close to each other, so the
/// product spreads them. If keys collide, lookups are only slower.
#[inline]
fn place((words, forward): Key) -> usize {
    let slot = (words >> 32) as u32 ^ (words >> 64) as u32 ^ (forward >> 32) as u32;
    (slot.wrapping_mul(0x9e37_79b1) >> (32 - RECENT.ilog2())) as usize
}

/// The frames of a stack that describe a backward pass.
#[derive(Default)]
struct Pass {
    is_backward: bool,
    /// Whether the engine was reached. The frames after it called the backward pass and are no part of it.
    is_past: bool,
    /// The line of the program inside the backward pass. Compilers name the forward line there.
    line: Option<Name>,
    /// The line of the program in the traceback of the forward pass.
    forward: String,
    node: Option<Name>,
    /// The operator that the node called.
    operator: Option<Name>,
    /// The function that the engine called, or else the engine's own.
    function: Option<Name>,
}

impl Pass {
    #[inline]
    fn note(&mut self, name: Name, role: Role) {
        if self.is_past {
            return;
        }
        match role {
            Role::Engine => {
                (self.is_backward, self.is_past) = (true, true);
                self.function = self.function.or(Some(name));
            }
            Role::Node => {
                self.node = Some(name);
                self.is_backward = true;
            }
            Role::Operator if self.node.is_none() => self.operator = Some(name),
            Role::Program if self.line.is_none() => self.line = Some(name),
            Role::Native => self.function = Some(name),
            _ => {}
        }
    }

    /// Returns the forward line.
    fn line<'a>(&'a self, frames: &'a Frames) -> Option<&'a str> {
        let inside = self.line.map(|name| frames.text(name));
        inside.or_else(|| Some(&*self.forward).filter(|line| !line.is_empty()))
    }

    /// Returns the node, or else the function that the engine called if nothing else is known.
    fn node<'a>(&self, frames: &'a Frames) -> Option<&'a str> {
        if let Some(node) = self.node {
            return Some(last_of(frames.text(node), "::apply"));
        }
        let function = self.function.filter(|_| self.line(frames).is_none())?;
        let function = frames.text(function);
        // The result type comes before the function, and the file and the namespace before its name.
        let function = function.rsplit(' ').next().unwrap_or(function);
        let autograd = function.find(AUTOGRAD).map(|at| &function[at + AUTOGRAD.len()..]);
        Some(autograd.unwrap_or(function))
    }
}

const AUTOGRAD: &str = "torch::autograd::";

/// Returns the part of a path of namespaces before its last part `last`. For example, it is `MulBackward0` for
/// `torch::autograd::generated::MulBackward0::apply`.
fn last_of<'a>(path: &'a str, last: &str) -> &'a str {
    let path = path.strip_suffix(last).unwrap_or(path);
    path.rsplit("::").next().unwrap_or(path)
}
