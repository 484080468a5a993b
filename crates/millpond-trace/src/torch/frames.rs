//! Classifies the frames of stacks and formats their names for tags.
//!
//! Newer snapshots share one dict for each frame. Older ones contain a dict wherever a frame occurs. In both cases a
//! frame is classified and named once. It is identified by its dict if that was read before, and otherwise by its
//! contents. A file of a package keeps the path below the folder in which packages are installed, so that it can be
//! told from a file of the program.

use super::schema::Key;
use crate::hash::Map;
use crate::pickle::{Arena, Value};
use crate::stack::{is_program, python_file};
use crate::strings::Interner;
use std::fmt::Write;

/// Maximum characters of a frame's file or function. C++ templates have thousands.
const NAME: usize = 80;
/// Maximum bytes of a function that are searched.
const SEARCHED: usize = 512;
/// Maximum number of keys of a frame.
const MOST_KEYS: usize = 32;
/// Maximum number of different frames. Further ones are in no tag.
const MOST_FRAMES: u32 = 1 << 20;
/// The number of the first frame. Events have lower numbers.
pub(super) const FIRST_FRAME: u32 = 1 << 27;

/// The role of a frame in a stack.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A frame of the allocator, the unwinder or the interpreter. Such frames are in every stack.
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
    /// Returns the role of `value`, or `None` if it is not a frame, or one with other keys than PyTorch writes.
    #[inline]
    pub(super) fn role(&mut self, arena: &Arena, value: Value) -> Option<Role> {
        let number = self.number(arena, value)?;
        Some(self.frames[(number - FIRST_FRAME) as usize].role)
    }

    /// Returns the name of `value` for tags and its role. Returns `None` if it is not a frame or is in every stack.
    pub(super) fn named(&mut self, arena: &Arena, value: Value) -> Option<(&str, Role)> {
        let number = self.number(arena, value)?;
        let frame = &mut self.frames[(number - FIRST_FRAME) as usize];
        if frame.role == Role::Noise {
            return None;
        }
        let names = &mut self.names;
        let (start, end) = *frame.name.get_or_insert_with(|| {
            let start = names.len();
            // The limit is the same as that for the text of all tags.
            if start < Interner::TAG_BYTES {
                frame.content.name(arena, names);
            }
            (start as u32, names.len() as u32)
        });
        (start < end).then(|| (&self.names[start as usize..end as usize], frame.role))
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
        let [file, function] = [self.file, self.function].map(|text| arena.strings.get(text));
        push_name(file, function, self.line, self.is_python(arena), name);
    }
}

/// Adds `file:function:line`. Native frames have no arguments and template parameters, which are long and not useful.
fn push_name(file: &str, function: &str, line: i64, is_python: bool, name: &mut String) {
    let start = name.len();
    let file = python_file(file);
    if !matches!(file, "" | "??") {
        push_clean(name, file);
        name.push(':');
    }
    if is_python {
        push_clean(name, function);
    } else {
        push_native(name, function);
    }
    // Semicolons separate the fields of a tag.
    if name[start..].contains(';') {
        let plain = name[start..].replace(';', "_");
        name.truncate(start);
        name.push_str(&plain);
    }
    if line > 0 {
        let _ = write!(name, ":{line}");
    }
}

/// Adds a native function up to its arguments or template parameters. Anonymous namespaces are left out.
fn push_native(name: &mut String, function: &str) {
    const ANONYMOUS: &str = "(anonymous namespace)::";
    let mut rest = head(function);
    while let Some(at) = rest.find(['(', '<']) {
        let Some(after) = rest[at..].strip_prefix(ANONYMOUS) else {
            rest = &rest[..at];
            break;
        };
        push_clean(name, &rest[..at]);
        rest = after;
    }
    push_clean(name, rest);
}

/// Returns the beginning of a function, of which only so much is searched.
fn head(function: &str) -> &str {
    let end = (0..=function.len().min(SEARCHED)).rev();
    let end = end.into_iter().find(|&at| function.is_char_boundary(at));
    &function[..end.unwrap_or(0)]
}

/// Returns the role of a native frame that is not in every stack.
fn native_role(function: &str) -> Role {
    let function = head(function);
    let autograd = function.strip_prefix("torch::autograd::");
    if autograd.is_some_and(|rest| rest.starts_with("Engine::evaluate_function")) {
        Role::Engine
    } else if autograd.is_some_and(|rest| ["Node::", "PyNode::"].iter().any(|of| rest.starts_with(of))) {
        // It runs a node that is written in Python, or any node.
        Role::Framework
    } else if autograd.is_some_and(|rest| rest.contains("::apply(")) {
        Role::Node
    } else if function.starts_with("at::_ops::") && function.contains("::call(") {
        Role::Operator
    } else {
        Role::Native
    }
}

/// Returns the name and the role of a line of Python's traceback, such as `File "model.py", line 12, in forward`.
/// Further lines of the text, which show the code, are ignored.
pub(super) fn named_by_line(text: &str) -> Option<(String, Role)> {
    let line = head(text.trim_start()).lines().next()?;
    let (file, rest) = line.strip_prefix("File \"")?.split_once("\", line ")?;
    let (line, function) = rest.split_once(", in ")?;
    let (function, line) = (function.trim(), line.parse().ok()?);
    let mut name = String::new();
    push_name(file, function, line, true, &mut name);
    let role = match is_program(python_file(file), function) {
        true => Role::Program,
        false => Role::Framework,
    };
    Some((name, role))
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
