//! Formats a stack of frames as one short line that shows who requested the memory.
//!
//! Stacks have up to two hundred frames, of which a dozen are useful. A tag names the Python frames if there are any.
//! Otherwise it names the C++ frames that do not belong to the allocator or the unwinder. The innermost frame comes
//! first: `model.py:forward:12<train.py:step:80`. The program's own words come before, each followed by `;`. Stacks and
//! frames are shared objects in the file, so each is read once.

use super::frames::{FrameKind, Frames, push_clean};
use super::schema::Walk;
use crate::caution::TAG_FRAMES;
use crate::hash::Map;
use crate::pickle::{Arena, Value};
use crate::strings::Interner;

/// Number of slots for recently used tags.
const RECENT: usize = 512;

/// The values that describe an event's origin: frames, user metadata and compile context.
type Words = [Value; 3];

/// The tags created so far.
pub(super) struct Tags {
    known: Map<u128, u32>,
    /// Some of `known`, each in the slot of its key. The lookup runs for each event.
    recent: Vec<(u128, u32)>,
    frames: Frames,
    /// Text of the tag that is being created.
    text: String,
    /// The number of stacks that have more frames than their tags.
    cut: u64,
}

impl Tags {
    pub(super) fn new(frames: Frames) -> Self {
        Self {
            known: Map::default(),
            // The key 0 has no words, so it has no tag.
            recent: vec![(0, 0); RECENT],
            frames,
            text: String::new(),
            cut: 0,
        }
    }

    /// Clears the tags, because the next ones use another interner.
    pub(super) fn forget(&mut self) {
        self.known.clear();
        self.recent.fill((0, 0));
        self.cut = 0;
    }

    /// Returns the number of different stacks since the last [`forget`](Self::forget) that have more frames than their
    /// tags.
    pub(super) fn cut(&self) -> u64 {
        self.cut
    }

    /// Returns the tag of an event or block.
    #[inline]
    pub(super) fn of(&mut self, walk: &Walk<'_>, words: Words, into: &mut Interner) -> u32 {
        // The key is one number, because its hash is computed for each event.
        let [frames, user, compile] = words;
        let words_bits = u128::from(user.bits()) | u128::from(compile.bits()) << 32;
        let key = u128::from(walk.arena.identity(frames)) | words_bits << 64;
        let place = place(key);
        if self.recent[place].0 == key {
            return self.recent[place].1;
        }
        let tag = match self.known.get(&key) {
            Some(&tag) => tag,
            None => {
                let tag = self.make(walk.arena, words, into);
                self.known.insert(key, tag);
                tag
            }
        };
        self.recent[place] = (key, tag);
        tag
    }

    fn make(&mut self, arena: &Arena, words: Words, into: &mut Interner) -> u32 {
        let [frames, user, compile] = words;
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        for words in [user, compile] {
            let words = arena.as_text(words).unwrap_or_default();
            if !matches!(words, "" | "N/A") {
                push_clean(&mut text, words);
                text.push(';');
            }
        }
        self.stack(arena, frames, &mut text);
        let tag = into.intern(text.as_bytes());
        self.text = text;
        tag
    }

    fn stack(&mut self, arena: &Arena, stack: Value, text: &mut String) {
        let Some(items) = arena.items(stack) else {
            return;
        };
        let mut python = Short::default();
        let mut native = Short::default();
        for item in items {
            match self.frames.kind(arena, item) {
                FrameKind::Other | FrameKind::Noise => {}
                FrameKind::Python => python.push(item),
                FrameKind::Native => native.push(item),
            }
            if python.is_cut {
                break;
            }
        }
        let named = if python.count > 0 { &python } else { &native };
        self.cut += u64::from(named.is_cut);
        for (at, &frame) in named.frames[..named.count].iter().enumerate() {
            if at > 0 {
                text.push('<');
            }
            text.push_str(self.frames.name(arena, frame));
        }
    }
}

/// Returns the slot of a key in [`Tags::recent`]. Stacks begin at different indices, close to each other, so the
/// product spreads them. If keys collide, lookups are only slower.
#[inline]
fn place(key: u128) -> usize {
    let slot = (key >> 32) as u32 ^ (key >> 64) as u32;
    (slot.wrapping_mul(0x9e37_79b1) >> (32 - RECENT.ilog2())) as usize
}

/// The first frames of one kind.
struct Short {
    frames: [Value; TAG_FRAMES],
    count: usize,
    /// Whether the stack has more frames than these.
    is_cut: bool,
}

impl Default for Short {
    fn default() -> Self {
        Self {
            frames: [Value::NONE; TAG_FRAMES],
            count: 0,
            is_cut: false,
        }
    }
}

impl Short {
    fn push(&mut self, frame: Value) {
        match self.frames.get_mut(self.count) {
            Some(place) => {
                *place = frame;
                self.count += 1;
            }
            None => self.is_cut = true,
        }
    }
}
