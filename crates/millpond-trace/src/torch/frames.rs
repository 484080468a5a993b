//! Frames of stacks: what each is to a tag, and how it appears there.
//!
//! Newer snapshots share one dict for each frame, older ones write a dict wherever a frame occurs. Either way a
//! frame is judged and named once: it is known by its dict where that was met before, else by what it says.

use super::schema::Key;
use crate::hash::Map;
use crate::pickle::{Arena, Value};
use crate::strings::Interner;
use std::fmt::Write;

/// Bytes of a frame's path at most.
const PATH: usize = 4096;
/// Characters of a frame's file or function at most: C++ templates have thousands.
const NAME: usize = 80;
/// Keys of a frame at most.
const MOST_KEYS: usize = 32;
/// Frames that say different things at most; further ones are in no tag.
const MOST_FRAMES: u32 = 1 << 20;
/// Frames are kept under numbers from this on, events under lower ones.
pub(super) const FIRST_FRAME: u32 = 1 << 27;

/// What a frame is to a tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// No frame, or one with other keys than PyTorch writes.
    Other,
    Noise,
    Python,
    Native,
}

/// The frames met so far.
#[derive(Default)]
pub(super) struct Frames {
    /// By number, from [`FIRST_FRAME`] on.
    frames: Vec<Frame>,
    /// Numbers of those whose dicts were not taken, by their dicts. 0 is none: stacks are many, so looking one up
    /// must cost nothing.
    dicts: Vec<u32>,
    numbers: Map<Content, u32>,
    /// Whether a string names the allocator, by its number, where that was asked: a long one may be named by a
    /// million frames.
    allocators: Vec<Option<bool>>,
    names: String,
}

struct Frame {
    content: Content,
    kind: Kind,
    /// How it appears in a tag: where in [`Frames::names`].
    name: Option<(u32, u32)>,
}

/// What a frame says; its texts by their numbers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Content {
    file: u32,
    function: u32,
    line: i64,
}

impl Frames {
    /// What `value` is.
    #[inline]
    pub(super) fn kind(&mut self, arena: &Arena, value: Value) -> Kind {
        match self.number(arena, value) {
            Some(number) => self.frames[(number - FIRST_FRAME) as usize].kind,
            None => Kind::Other,
        }
    }

    /// How `value` appears in a tag; nothing if it is no frame.
    pub(super) fn name(&mut self, arena: &Arena, value: Value) -> &str {
        let Some(number) = self.number(arena, value) else {
            return "";
        };
        let frame = &mut self.frames[(number - FIRST_FRAME) as usize];
        let names = &mut self.names;
        let (start, end) = *frame.name.get_or_insert_with(|| {
            let start = names.len();
            // As much again as all tags may take together.
            if start < Interner::TAG_BYTES {
                frame.content.name(arena, names);
            }
            (start as u32, names.len() as u32)
        });
        &self.names[start as usize..end as usize]
    }

    /// Takes a frame's dict, if these pairs are just what PyTorch writes: a file, a function and a line. Its number.
    pub(super) fn take(&mut self, arena: &Arena, pairs: &[Value]) -> Option<u32> {
        let &[k, _, l, _, m, _] = pairs else { return None };
        let keys = [k, l, m].map(Key::of);
        if ![Key::Filename, Key::Name, Key::Line]
            .iter()
            .all(|key| keys.contains(key))
        {
            return None;
        }
        let content = Content::of(arena, pairs.chunks_exact(2).map(|pair| (pair[0], pair[1])))?;
        self.number_of(arena, content)
    }

    #[inline]
    fn number(&mut self, arena: &Arena, value: Value) -> Option<u32> {
        if let Some(number) = arena.taken_by(value) {
            return (number >= FIRST_FRAME).then_some(number);
        }
        let dict = value.dict()?;
        match self.dicts.get(dict) {
            Some(&number) if number > 0 => Some(number),
            _ => self.add(arena, value, dict),
        }
    }

    /// Looks at a dict that was not taken and not met before.
    #[cold]
    fn add(&mut self, arena: &Arena, value: Value, dict: usize) -> Option<u32> {
        let content = Content::of(arena, arena.pairs(value)?)?;
        let number = self.number_of(arena, content)?;
        if dict >= self.dicts.len() {
            self.dicts.resize(dict + 1, 0);
        }
        self.dicts[dict] = number;
        Some(number)
    }

    fn number_of(&mut self, arena: &Arena, content: Content) -> Option<u32> {
        if let Some(&number) = self.numbers.get(&content) {
            return Some(number);
        }
        let at = self.frames.len() as u32;
        if at == MOST_FRAMES {
            return None;
        }
        let kind = self.judge(arena, content);
        self.frames.push(Frame {
            content,
            kind,
            name: None,
        });
        self.numbers.insert(content, FIRST_FRAME + at);
        Some(FIRST_FRAME + at)
    }

    fn judge(&mut self, arena: &Arena, content: Content) -> Kind {
        if content.is_python(arena) {
            Kind::Python
        } else if self.is_noise(arena, content) {
            Kind::Noise
        } else {
            Kind::Native
        }
    }

    /// Whether this is a frame of the allocator, the unwinder or the interpreter: they are in every stack.
    fn is_noise(&mut self, arena: &Arena, content: Content) -> bool {
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
        let function = arena.strings.get(content.function);
        function.is_empty()
            || STARTS.iter().any(|start| function.starts_with(start))
            || [content.file, content.function]
                .into_iter()
                .any(|text| self.is_allocator(arena, text))
    }

    fn is_allocator(&mut self, arena: &Arena, text: u32) -> bool {
        let at = text as usize;
        if at >= self.allocators.len() {
            self.allocators.resize(at + 1, None);
        }
        *self.allocators[at].get_or_insert_with(|| {
            let text = arena.strings.get(text).as_bytes();
            memchr::memmem::find(text, b"CachingAllocator").is_some()
        })
    }
}

impl Content {
    /// None if the pairs have none of a frame's keys, or others that this reader knows.
    fn of(arena: &Arena, pairs: impl Iterator<Item = (Value, Value)>) -> Option<Self> {
        let mut content = Self::default();
        let mut named = false;
        for (at, (key, value)) in pairs.enumerate() {
            if at == MOST_KEYS {
                return None;
            }
            match Key::of(key) {
                Key::Filename => content.file = value.string().unwrap_or(0),
                Key::Name => content.function = value.string().unwrap_or(0),
                Key::Line => content.line = arena.as_int(value).unwrap_or(0),
                // Newer versions tell of graphs as well.
                Key::Unknown => continue,
                _ => return None,
            }
            named = true;
        }
        named.then_some(content)
    }

    fn is_python(self, arena: &Arena) -> bool {
        let file = arena.strings.get(self.file);
        file.ends_with(".py") || file.starts_with('<')
    }

    /// Adds the frame's name as tags show it.
    fn name(self, arena: &Arena, name: &mut String) {
        // A path is no longer; of one that is, no folder is sought beyond.
        let file = tail(arena.strings.get(self.file), PATH);
        if !matches!(file, "" | "??") {
            let folders = memchr::memrchr2(b'/', b'\\', file.as_bytes()).map_or(0, |at| at + 1);
            push_clean(name, &file[folders..]);
            name.push(':');
        }
        let function = arena.strings.get(self.function);
        // Arguments of C++ functions are long and say little.
        let end = match self.is_python(arena) {
            true => None,
            // Nothing behind the first characters is shown, so nothing is sought there.
            false => function.bytes().take(4 * NAME).position(|byte| byte == b'('),
        };
        push_clean(name, &function[..end.unwrap_or(function.len())]);
        if self.line > 0 {
            let _ = write!(name, ":{}", self.line);
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
pub(super) fn push_clean(text: &mut String, words: &str) {
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
