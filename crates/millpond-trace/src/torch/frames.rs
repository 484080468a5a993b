//! Classifies the frames of stacks and formats their names for tags.
//!
//! Newer snapshots share one dict for each frame. Older ones contain a dict wherever a frame occurs. In both cases a
//! frame is classified and named once. It is identified by its dict if that was read before, and otherwise by its
//! contents.

use super::schema::Key;
use crate::hash::Map;
use crate::pickle::{Arena, Value};
use crate::strings::Interner;
use std::fmt::Write;

/// Maximum bytes of a frame's path.
const PATH: usize = 4096;
/// Maximum characters of a frame's file or function. C++ templates have thousands.
const NAME: usize = 80;
/// Maximum number of keys of a frame.
const MOST_KEYS: usize = 32;
/// Maximum number of different frames. Further ones are in no tag.
const MOST_FRAMES: u32 = 1 << 20;
/// The number of the first frame. Events have lower numbers.
pub(super) const FIRST_FRAME: u32 = 1 << 27;

/// The kind of a frame, as it matters for tags.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// Not a frame, or one with other keys than PyTorch writes.
    Other,
    Noise,
    Python,
    Native,
}

/// The frames read so far.
#[derive(Default)]
pub(super) struct Frames {
    /// The frames by number, starting with [`FIRST_FRAME`].
    frames: Vec<Frame>,
    /// The numbers of frames whose dicts were not taken, by dict. 0 means none. There are many stacks, so a lookup must
    /// be fast.
    dicts: Vec<u32>,
    numbers: Map<Content, u32>,
    /// Whether each string names the allocator, if this was checked. A million frames may have the same long name, so
    /// the result is kept.
    allocators: Vec<Option<bool>>,
    names: String,
}

struct Frame {
    content: Content,
    kind: FrameKind,
    /// The range in [`Frames::names`] of its name for tags.
    name: Option<(u32, u32)>,
}

/// The contents of a frame. Texts are given by their numbers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Content {
    file: u32,
    function: u32,
    line: i64,
}

impl Frames {
    /// Returns the kind of `value`.
    #[inline]
    pub(super) fn kind(&mut self, arena: &Arena, value: Value) -> FrameKind {
        match self.number(arena, value) {
            Some(number) => self.frames[(number - FIRST_FRAME) as usize].kind,
            None => FrameKind::Other,
        }
    }

    /// Returns the name of `value` for tags, or an empty string if it is not a frame.
    pub(super) fn name(&mut self, arena: &Arena, value: Value) -> &str {
        let Some(number) = self.number(arena, value) else {
            return "";
        };
        let frame = &mut self.frames[(number - FIRST_FRAME) as usize];
        let names = &mut self.names;
        let (start, end) = *frame.name.get_or_insert_with(|| {
            let start = names.len();
            // The limit is the same as that for the text of all tags.
            if start < Interner::TAG_BYTES {
                frame.content.name(arena, names);
            }
            (start as u32, names.len() as u32)
        });
        &self.names[start as usize..end as usize]
    }

    /// Takes a frame's dict if it has exactly PyTorch's pairs: a file, a function and a line. Returns its number.
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

    /// Reads a dict that was not taken and not read before.
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

    fn judge(&mut self, arena: &Arena, content: Content) -> FrameKind {
        if content.is_python(arena) {
            FrameKind::Python
        } else if self.is_noise(arena, content) {
            FrameKind::Noise
        } else {
            FrameKind::Native
        }
    }

    /// Returns whether this is a frame of the allocator, the unwinder or the interpreter. Such frames are in every
    /// stack.
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
    /// Returns `None` if the pairs have none of a frame's keys, or other keys that this reader knows.
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
                // Newer versions also write keys about graphs.
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

    /// Adds the frame's name for tags.
    fn name(self, arena: &Arena, name: &mut String) {
        // No real path is longer. Of a longer one, only the end is searched for folders.
        let file = tail(arena.strings.get(self.file), PATH);
        if !matches!(file, "" | "??") {
            let folders = memchr::memrchr2(b'/', b'\\', file.as_bytes()).map_or(0, |at| at + 1);
            push_clean(name, &file[folders..]);
            name.push(':');
        }
        let function = arena.strings.get(self.function);
        // The arguments of C++ functions are long and not useful.
        let end = match self.is_python(arena) {
            true => None,
            // Only the first characters are shown, so only these are searched.
            false => function.bytes().take(4 * NAME).position(|byte| byte == b'('),
        };
        push_clean(name, &function[..end.unwrap_or(function.len())]);
        if self.line > 0 {
            let _ = write!(name, ":{}", self.line);
        }
    }
}

/// Returns the last `most` bytes of `text`, or slightly fewer.
fn tail(text: &str, most: usize) -> &str {
    let from = text.len().saturating_sub(most);
    let from = (from..text.len()).find(|&at| text.is_char_boundary(at));
    &text[from.unwrap_or(text.len())..]
}

/// Adds at most [`NAME`] characters, without any that would end a line or a field.
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
