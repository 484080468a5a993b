//! A stack of frames as one short line: who asked for the memory.
//!
//! Stacks are up to two hundred frames of which a dozen say something. A tag names Python's frames where
//! there are any, else the C++ ones that are not the allocator or the unwinder, innermost first:
//! `model.py:forward:12<train.py:step:80`. The program's own words come before, each ended by `;`.
//! Stacks and frames are shared objects in the file, so each is read once.

use super::schema::{Key, Walk};
use crate::pickle::{Arena, Value};
use crate::strings::{Interner, Map};
use std::fmt::Write;

/// Frames that a tag names at most.
pub(super) const FRAMES: usize = 8;
/// Bytes of a frame's path at most.
const PATH: usize = 4096;
/// Characters of a frame's file or function at most: C++ templates have thousands.
const NAME: usize = 80;

/// Places for tags asked for lately.
const RECENT: usize = 512;
/// Keys of a frame at most.
const MOST_KEYS: usize = 32;

/// What an event says about its origin: frames, user metadata and compile context.
type Words = [Value; 3];

/// What a frame is to a tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Frame {
    /// No frame, or one with other keys than PyTorch writes.
    Other,
    Noise,
    Python,
    Native,
}

/// What each dict is to a tag, by its number: stacks are many, so looking one up must cost nothing.
#[derive(Default)]
pub(super) struct Frames {
    known: Vec<Option<Frame>>,
    /// Whether a string names the allocator, by its number: a long one may be named by a million frames.
    allocators: Map<u32, bool>,
}

impl Frames {
    /// What `value` is.
    #[inline]
    pub(super) fn of(&mut self, arena: &Arena, value: Value) -> Frame {
        let Some(number) = value.dict() else {
            return Frame::Other;
        };
        match self.known.get(number) {
            Some(&Some(known)) => known,
            _ => self.add(arena, value, number),
        }
    }

    #[cold]
    fn add(&mut self, arena: &Arena, dict: Value, number: usize) -> Frame {
        let Some(fields) = Fields::of(arena, dict) else {
            return Frame::Other;
        };
        let frame = if fields.is_python() {
            Frame::Python
        } else if self.is_noise(&fields) {
            Frame::Noise
        } else {
            Frame::Native
        };
        if number >= self.known.len() {
            self.known.resize(number + 1, None);
        }
        self.known[number] = Some(frame);
        frame
    }

    /// Whether this is a frame of the allocator, the unwinder or the interpreter: they are in every stack.
    fn is_noise(&mut self, fields: &Fields<'_>) -> bool {
        const STARTS: [&str; 12] = [
            "torch::unwind",
            "torch::CapturedTraceback",
            "torch::cuda::",
            "c10::",
            "Py",
            "_Py",
            "pybind11",
            "__libc_start",
            "_start",
            "std::",
            "??",
            "clone",
        ];
        let function = fields.function;
        function.is_empty()
            || STARTS.iter().any(|start| function.starts_with(start))
            || fields.strings().into_iter().any(|(number, text)| {
                let known = self.allocators.entry(number);
                *known.or_insert_with(|| text.contains("CachingAllocator"))
            })
    }
}

/// The values of a frame's dict.
#[derive(Default)]
struct Fields<'a> {
    file: &'a str,
    function: &'a str,
    /// The numbers of both.
    numbers: [u32; 2],
    line: i64,
}

impl<'a> Fields<'a> {
    /// None if the dict has none of them, or others that this reader knows.
    fn of(arena: &'a Arena, dict: Value) -> Option<Self> {
        let mut fields = Self::default();
        let mut named = false;
        for (at, (key, value)) in arena.pairs(dict)?.enumerate() {
            if at == MOST_KEYS {
                return None;
            }
            match Key::of(key) {
                Key::Filename => {
                    fields.file = arena.as_text(value).unwrap_or_default();
                    fields.numbers[0] = value.string().unwrap_or(0);
                }
                Key::Name => {
                    fields.function = arena.as_text(value).unwrap_or_default();
                    fields.numbers[1] = value.string().unwrap_or(0);
                }
                Key::Line => fields.line = arena.as_int(value).unwrap_or(0),
                // Newer versions tell of graphs as well.
                Key::Unknown => continue,
                _ => return None,
            }
            named = true;
        }
        named.then_some(fields)
    }

    fn strings(&self) -> [(u32, &'a str); 2] {
        let [file, function] = self.numbers;
        [(file, self.file), (function, self.function)]
    }

    fn is_python(&self) -> bool {
        self.file.ends_with(".py") || self.file.starts_with('<')
    }

    /// Adds the frame's name as tags show it.
    fn name(&self, name: &mut String) {
        // A path is no longer; of one that is, no folder is sought beyond.
        let file = tail(self.file, PATH);
        if !matches!(file, "" | "??") {
            let folders = memchr::memrchr2(b'/', b'\\', file.as_bytes()).map_or(0, |at| at + 1);
            push_clean(name, &file[folders..]);
            name.push(':');
        }
        // Arguments of C++ functions are long and say little.
        let end = match self.is_python() {
            true => None,
            // Nothing behind the first characters is shown, so nothing is sought there.
            false => self.function.bytes().take(4 * NAME).position(|byte| byte == b'('),
        };
        push_clean(name, &self.function[..end.unwrap_or(self.function.len())]);
        if self.line > 0 {
            let _ = write!(name, ":{}", self.line);
        }
    }
}

/// Tags made so far.
pub(super) struct Tags {
    known: Map<u128, u32>,
    /// Some of `known`, each at the one place its key can have here: this is asked for each event.
    recent: Vec<(u128, u32)>,
    frames: Frames,
    /// How each frame appears, by the number of its dict: where in `names`.
    named: Map<u32, (u32, u32)>,
    names: String,
    /// Text of the tag in the making.
    text: String,
}

impl Tags {
    pub(super) fn new(frames: Frames) -> Self {
        Self {
            known: Map::default(),
            // No words, no tag.
            recent: vec![(0, 0); RECENT],
            frames,
            named: Map::default(),
            names: String::new(),
            text: String::new(),
        }
    }

    /// The next tags go into another interner.
    pub(super) fn forget(&mut self) {
        self.known.clear();
        self.recent.fill((0, 0));
    }

    /// The tag of an event or block.
    #[inline]
    pub(super) fn of(&mut self, walk: &Walk<'_>, words: Words, into: &mut Interner) -> u32 {
        // One number to hash: this runs for each event.
        let [frames, user, compile] = words;
        let words_bits = u128::from(user.bits()) | u128::from(compile.bits()) << 32;
        let key = u128::from(walk.arena.identity(frames)) | words_bits << 64;
        // Stacks begin at different slots, a few apart.
        let place = (key >> 32) as usize % RECENT;
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
            match self.frames.of(arena, item) {
                Frame::Other | Frame::Noise => {}
                Frame::Python => python.push(item),
                Frame::Native => native.push(item),
            }
            if python.count == FRAMES {
                break;
            }
        }
        let named = if python.count > 0 { &python } else { &native };
        for (at, &frame) in named.frames[..named.count].iter().enumerate() {
            if at > 0 {
                text.push('<');
            }
            text.push_str(self.name(arena, frame));
        }
    }

    fn name(&mut self, arena: &Arena, frame: Value) -> &str {
        let names = &mut self.names;
        let (start, end) = *self.named.entry(frame.bits()).or_insert_with(|| {
            let start = names.len();
            // As much again as all tags may take together.
            if let Some(fields) = Fields::of(arena, frame)
                && start < Interner::TAG_BYTES
            {
                fields.name(names);
            }
            (start as u32, names.len() as u32)
        });
        &self.names[start as usize..end as usize]
    }
}

/// The first frames of a kind.
struct Short {
    frames: [Value; FRAMES],
    count: usize,
}

impl Default for Short {
    fn default() -> Self {
        Self {
            frames: [Value::NONE; FRAMES],
            count: 0,
        }
    }
}

impl Short {
    fn push(&mut self, frame: Value) {
        if let Some(place) = self.frames.get_mut(self.count) {
            *place = frame;
            self.count += 1;
        }
    }
}

/// The last `most` bytes of `text`, or a few less.
fn tail(text: &str, most: usize) -> &str {
    let from = text.len().saturating_sub(most);
    let from = (from..text.len()).find(|&at| text.is_char_boundary(at));
    &text[from.unwrap_or(text.len())..]
}

/// Adds at most [`NAME`] characters, none of which would end a line or a field.
fn push_clean(text: &mut String, words: &str) {
    let plain = |&byte: &u8| byte.is_ascii() && byte != b',' && !byte.is_ascii_control();
    let head = words.len().min(NAME);
    if words.as_bytes()[..head].iter().all(plain) {
        text.push_str(&words[..head]);
        return;
    }
    text.extend(words.chars().take(NAME).map(|char| match char {
        ',' => ';',
        char if char.is_control() => ' ',
        char => char,
    }));
}
