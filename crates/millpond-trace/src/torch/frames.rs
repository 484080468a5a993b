//! Classifies the frames of stacks and formats their names for tags.
//!
//! Newer snapshots share one dict for each frame. Older ones contain a dict wherever a frame occurs. In both cases a
//! frame is classified and named once. It is identified by its dict if that was read before, and otherwise by its
//! contents. A file of a package keeps the path below the folder in which packages are installed, so that it can be
//! distinguished from a file of the program.

use super::names::{native_role, push_name};
use super::schema::Key;
use crate::hash::Map;
use crate::pickle::{Arena, Value};
use crate::stack::{is_program, python_file};
use crate::strings::Interner;

/// Maximum number of keys of a frame.
const MOST_KEYS: usize = 32;
/// Maximum number of different frames. Further ones are in no tag.
const MOST_FRAMES: u32 = 1 << 20;
/// The number of the first frame. Events have lower numbers.
pub(super) const FIRST_FRAME: u32 = 1 << 27;

/// The role of a frame in a stack.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A frame of the allocator, the unwinder or the interpreter. These frames are in every stack.
    Noise,
    /// A Python frame of the program itself.
    Program,
    /// A Python frame of a framework, or a native frame around every node.
    Framework,
    /// A native frame without one of the following roles.
    Native,
    /// A native frame of an operator of PyTorch.
    Operator,
    /// A native frame of a node of the backward pass.
    Node,
    /// The native frame that runs a node of the backward pass.
    Engine,
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
    role: Role,
    /// Its name for tags.
    name: Option<Name>,
}

/// The name of a frame: a range in [`Frames::names`].
#[derive(Clone, Copy)]
pub(super) struct Name {
    start: u32,
    end: u32,
}

/// The contents of a frame. Texts are given by their numbers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Content {
    file: u32,
    function: u32,
    line: i64,
}

impl Frames {
    /// Returns the role of `value`, or `None` if it is not a frame or has other keys than PyTorch writes.
    #[inline]
    pub(super) fn role(&mut self, arena: &Arena, value: Value) -> Option<Role> {
        let number = self.number(arena, value)?;
        Some(self.frames[(number - FIRST_FRAME) as usize].role)
    }

    /// Returns the name of `value` for tags and its role. Returns `None` if it is not a frame or is in every stack.
    pub(super) fn named(&mut self, arena: &Arena, value: Value) -> Option<(Name, Role)> {
        let number = self.number(arena, value)?;
        let frame = &mut self.frames[(number - FIRST_FRAME) as usize];
        if frame.role == Role::Noise {
            return None;
        }
        let names = &mut self.names;
        let name = *frame.name.get_or_insert_with(|| {
            let start = names.len();
            // The limit is the same as that for the text of all tags.
            if start < Interner::TAG_BYTES {
                frame.content.name(arena, names);
            }
            Name {
                start: start as u32,
                end: names.len() as u32,
            }
        });
        (name.start < name.end).then_some((name, frame.role))
    }

    /// Returns the text of a name.
    pub(super) fn text(&self, name: Name) -> &str {
        &self.names[name.start as usize..name.end as usize]
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
        let role = self.judge(arena, content);
        self.frames.push(Frame {
            content,
            role,
            name: None,
        });
        self.numbers.insert(content, FIRST_FRAME + at);
        Some(FIRST_FRAME + at)
    }

    fn judge(&mut self, arena: &Arena, content: Content) -> Role {
        if content.is_python(arena) {
            let [file, function] = [content.file, content.function].map(|text| arena.strings.get(text));
            if is_program(python_file(file), function) {
                Role::Program
            } else {
                Role::Framework
            }
        } else if self.is_noise(arena, content) {
            Role::Noise
        } else {
            native_role(arena.strings.get(content.function))
        }
    }

    /// Returns whether this is a frame of the allocator, the unwinder or the interpreter. These frames are in every
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
            "__libc_",
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
    /// Reads the contents of a frame. Returns `None` if the pairs have none of a frame's keys, or a known key that a
    /// frame does not have.
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
        let [file, function] = [self.file, self.function].map(|text| arena.strings.get(text));
        push_name(file, function, self.line, self.is_python(arena), name);
    }
}
