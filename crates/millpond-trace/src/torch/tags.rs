//! A stack of frames as one short line: who asked for the memory.
//!
//! Stacks are up to two hundred frames of which a dozen say something. A tag names Python's frames where
//! there are any, else the C++ ones that are not the allocator or the unwinder, innermost first:
//! `model.py:forward:12<train.py:step:80`. The program's own words come before, each ended by `;`.
//! Stacks are shared objects in the file, so each is read once.

use super::schema::{Key, Walk};
use crate::ReadError;
use crate::pickle::Value;
use crate::strings::{Interner, Map};

/// Frames that a tag names at most.
const FRAMES: usize = 8;
/// Characters of a frame's file or function at most: C++ templates have thousands.
const NAME: usize = 80;

/// Tags made so far.
#[derive(Default)]
pub(super) struct Tags {
    /// By frames, user metadata and compile context.
    known: Map<[Option<Value>; 3], u32>,
    frames: Map<Value, Frame>,
    /// Text of the tag in the making.
    text: String,
    last: Option<([Option<Value>; 3], u32)>,
}

/// A frame as it appears in tags.
#[derive(Clone)]
enum Frame {
    Noise,
    Python(Box<str>),
    Native(Box<str>),
}

impl Tags {
    /// The tag of an event or block.
    #[inline]
    pub(super) fn of(
        &mut self,
        walk: &Walk<'_>,
        frames: Option<Value>,
        user: Option<Value>,
        compile: Option<Value>,
        into: &mut Interner,
    ) -> Result<u32, ReadError> {
        let key = [frames, user, compile];
        if let Some((last, tag)) = self.last
            && last == key
        {
            return Ok(tag);
        }
        let tag = match self.known.get(&key) {
            Some(&tag) => tag,
            None => {
                let tag = self.make(walk, key, into)?;
                self.known.insert(key, tag);
                tag
            }
        };
        self.last = Some((key, tag));
        Ok(tag)
    }

    fn make(
        &mut self,
        walk: &Walk<'_>,
        key: [Option<Value>; 3],
        into: &mut Interner,
    ) -> Result<u32, ReadError> {
        let [frames, user, compile] = key;
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

    fn stack(
        &mut self,
        walk: &Walk<'_>,
        frames: Value,
        text: &mut String,
    ) -> Result<(), ReadError> {
        let Some(items) = walk.arena.items(frames) else {
            return Ok(());
        };
        let mut python: Vec<Value> = Vec::new();
        let mut native: Vec<Value> = Vec::new();
        for frame in items {
            if !self.frames.contains_key(&frame) {
                let read = read_frame(walk, frame)?;
                self.frames.insert(frame, read);
            }
            match &self.frames[&frame] {
                Frame::Noise => {}
                Frame::Python(_) => python.push(frame),
                Frame::Native(_) if native.len() < FRAMES => native.push(frame),
                Frame::Native(_) => {}
            }
            if python.len() == FRAMES {
                break;
            }
        }
        let named = if python.is_empty() { native } else { python };
        for (at, frame) in named.iter().enumerate() {
            if at > 0 {
                text.push('<');
            }
            if let Frame::Python(name) | Frame::Native(name) = &self.frames[frame] {
                text.push_str(name);
            }
        }
        Ok(())
    }
}

fn read_frame(walk: &Walk<'_>, frame: Value) -> Result<Frame, ReadError> {
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
    push_clean(
        &mut name,
        if is_python {
            function
        } else {
            function.split('(').next().unwrap_or(function)
        },
    );
    if line > 0 {
        name.push_str(&format!(":{line}"));
    }
    let name = name.into_boxed_str();
    Ok(if is_python {
        Frame::Python(name)
    } else {
        Frame::Native(name)
    })
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

/// Adds at most [`NAME`] characters, none of which would end a tag, a line or a field.
fn push_clean(text: &mut String, words: &str) {
    text.extend(words.chars().take(NAME).map(|char| match char {
        ',' => ';',
        char if char.is_control() => ' ',
        char => char,
    }));
}
