//! A stack of frames as one short line: who asked for the memory.
//!
//! Stacks are up to two hundred frames of which a dozen say something. A tag names Python's frames where
//! there are any, else the C++ ones that are not the allocator or the unwinder, innermost first:
//! `model.py:forward:12<train.py:step:80`. The program's own words come before, each ended by `;`.
//! Stacks and frames are shared objects in the file, so each is read once.

use super::schema::{Key, Walk};
use crate::ReadError;
use crate::pickle::Value;
use crate::strings::{Interner, Map};

/// Frames that a tag names at most.
const FRAMES: usize = 8;
/// Characters of a frame's file or function at most: C++ templates have thousands.
const NAME: usize = 80;

/// What an event says about its origin: frames, user metadata and compile context.
type Words = [Option<Value>; 3];

/// Tags made so far.
pub(super) struct Tags {
    known: Map<u128, u32>,
    last: (u128, u32),
    /// How each frame appears, by the number of its dict: stacks are many, so looking one up must cost nothing.
    frames: Vec<Frame>,
    names: Interner,
    /// Text of the tag in the making.
    text: String,
}

/// How a frame appears in tags; names are numbers in [`Tags::names`].
#[derive(Clone, Copy)]
enum Frame {
    Unread,
    Noise,
    Python(u32),
    Native(u32),
}

impl Tags {
    pub(super) fn new() -> Self {
        Self {
            known: Map::default(),
            // No words, no tag.
            last: (0, 0),
            frames: Vec::new(),
            names: Interner::new(Interner::TAG_BYTES),
            text: String::new(),
        }
    }

    /// The tag of an event or block.
    #[inline]
    pub(super) fn of(
        &mut self,
        walk: &Walk<'_>,
        words: Words,
        into: &mut Interner,
    ) -> Result<u32, ReadError> {
        // One number to hash: this runs for each event.
        let bits = |word: Option<Value>| word.map_or(0, |value| u128::from(value.bits()));
        let key = bits(words[0]) | bits(words[1]) << 32 | bits(words[2]) << 64;
        if self.last.0 == key {
            return Ok(self.last.1);
        }
        let tag = match self.known.get(&key) {
            Some(&tag) => tag,
            None => {
                let tag = self.make(walk, words, into)?;
                self.known.insert(key, tag);
                tag
            }
        };
        self.last = (key, tag);
        Ok(tag)
    }

    fn make(&mut self, walk: &Walk<'_>, words: Words, into: &mut Interner) -> Result<u32, ReadError> {
        let [frames, user, compile] = words;
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        for words in [user, compile].into_iter().flatten() {
            let words = walk.arena.as_text(words).unwrap_or_default();
            if !matches!(words, "" | "N/A") {
                push_clean(&mut text, words);
                text.push(';');
            }
        }
        if let Some(frames) = frames {
            self.stack(walk, frames, &mut text)?;
        }
        let tag = into.intern(text.as_bytes());
        self.text = text;
        Ok(tag)
    }

    fn stack(&mut self, walk: &Walk<'_>, stack: Value, text: &mut String) -> Result<(), ReadError> {
        let Some(items) = walk.arena.items(stack) else {
            return Ok(());
        };
        let mut python = Short::default();
        let mut native = Short::default();
        for item in items {
            match self.frame(walk, item)? {
                Frame::Unread | Frame::Noise => {}
                Frame::Python(name) => python.push(name),
                Frame::Native(name) => native.push(name),
            }
            if python.count == FRAMES {
                break;
            }
        }
        let named = if python.count > 0 { &python } else { &native };
        for (at, &name) in named.names[..named.count].iter().enumerate() {
            if at > 0 {
                text.push('<');
            }
            text.push_str(self.names.get(name));
        }
        Ok(())
    }

    #[inline]
    fn frame(&mut self, walk: &Walk<'_>, frame: Value) -> Result<Frame, ReadError> {
        let Some(number) = frame.dict() else {
            return Ok(Frame::Noise);
        };
        match self.frames.get(number) {
            None | Some(Frame::Unread) => self.new_frame(walk, frame, number),
            Some(&known) => Ok(known),
        }
    }

    #[cold]
    fn new_frame(&mut self, walk: &Walk<'_>, frame: Value, number: usize) -> Result<Frame, ReadError> {
        let frame = self.read_frame(walk, frame)?;
        if number >= self.frames.len() {
            self.frames.resize(number + 1, Frame::Unread);
        }
        self.frames[number] = frame;
        Ok(frame)
    }

    fn read_frame(&mut self, walk: &Walk<'_>, frame: Value) -> Result<Frame, ReadError> {
        let (mut file, mut function, mut line) = ("", "", 0);
        walk.fields(frame, |key, value| match key {
            Key::Filename => file = walk.arena.as_text(value).unwrap_or_default(),
            Key::Name => function = walk.arena.as_text(value).unwrap_or_default(),
            Key::Line => line = walk.arena.as_int(value).unwrap_or(0),
            _ => {}
        })?;
        let is_python = file.ends_with(".py") || file.starts_with('<');
        if !is_python && is_noise(file, function) {
            return Ok(Frame::Noise);
        }
        let mut name = String::new();
        if !matches!(file, "" | "??") {
            push_clean(&mut name, file.rsplit(['/', '\\']).next().unwrap_or(file));
            name.push(':');
        }
        // Arguments of C++ functions are long and say little.
        let end = if is_python { None } else { function.find('(') };
        push_clean(&mut name, &function[..end.unwrap_or(function.len())]);
        if line > 0 {
            name.push_str(&format!(":{line}"));
        }
        let name = self.names.intern(name.as_bytes());
        Ok(if is_python {
            Frame::Python(name)
        } else {
            Frame::Native(name)
        })
    }
}

/// The first names of a stack.
#[derive(Default)]
struct Short {
    names: [u32; FRAMES],
    count: usize,
}

impl Short {
    fn push(&mut self, name: u32) {
        if let Some(place) = self.names.get_mut(self.count) {
            *place = name;
            self.count += 1;
        }
    }
}

/// Frames of the allocator, the unwinder and the interpreter: they are in every stack.
fn is_noise(file: &str, function: &str) -> bool {
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
    function.is_empty()
        || file.contains("CachingAllocator")
        || function.contains("CachingAllocator")
        || STARTS.iter().any(|start| function.starts_with(start))
}

/// Adds at most [`NAME`] characters, none of which would end a line or a field.
fn push_clean(text: &mut String, words: &str) {
    text.extend(words.chars().take(NAME).map(|char| match char {
        ',' => ';',
        char if char.is_control() => ' ',
        char => char,
    }));
}
