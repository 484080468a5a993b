//! Returns the origin of a block as frames: those of its stack, or of its tag and pool if no stack was recorded.
//!
//! A tag from a snapshot contains the program's words and the whole stack, such as `forward;layer
//! 3;model.py:call:12<train.py:step:80`. The frames are parsed from the tag, and the words become outer frames.

use super::events::Source;
use crate::hash::Map;
use crate::history::Frame;
use crate::recording::Row;
use crate::stack::{is_plumbing, split_frames, split_tag};
use std::borrow::Cow;
use std::hash::Hash;

/// Maximum bytes of a name. Viewers can handle this length, and real names are shorter.
const MOST_NAME: usize = 4096;
/// The bytes that a frame takes in addition to its names.
const FRAME: usize = size_of::<Frame>();
/// The names of a stack are written again for each origin. They are not kept, but writing them takes time, so this
/// fraction of their bytes is charged as kept.
const WRITTEN: u64 = 16;

/// Identifies the origin of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Origin {
    pub(super) stack: u32,
    pub(super) tag: u32,
    pub(super) pool: u32,
}

impl Origin {
    pub(super) fn of(row: &Row) -> Self {
        Self {
            stack: row.stack,
            tag: row.tag,
            pool: row.pool,
        }
    }
}

/// Replaces control characters in a name and cuts it to the maximum length.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    let mut end = text.len().min(MOST_NAME);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let short = &text[..end];
    if short.len() == text.len() && !short.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut clean = short.replace(char::is_control, " ");
    if short.len() < text.len() {
        clean.push('…');
    }
    Cow::Owned(clean)
}

fn cleaned(frame: Frame) -> Frame {
    Frame {
        function: clean(&frame.function).into_owned(),
        file: clean(&frame.file).into_owned(),
        line: frame.line,
    }
}

fn named(function: impl Into<String>) -> Frame {
    Frame {
        function: function.into(),
        ..Frame::default()
    }
}

impl Source<'_> {
    /// Returns the frames of an origin, innermost first. There is always at least one.
    pub(super) fn frames(&self, origin: Origin) -> Vec<Frame> {
        let addresses = self.history.definitions.stack(origin.stack);
        let frames: Vec<Frame> = self.symbols.stack(addresses).map(cleaned).collect();
        if !frames.is_empty() {
            let bytes = frames
                .iter()
                .map(|frame| (FRAME + frame.function.len() + frame.file.len()) as u64);
            // One stack has several origins if its tags or pools differ. Each origin has all names of the stack.
            self.keep(bytes.sum::<u64>() / WRITTEN);
            return frames;
        }
        let (words, calls) = self.tag(origin.tag);
        let mut frames = calls;
        frames.extend(words.into_iter().rev().map(named));
        frames.push(named(clean(&self.pool_name(origin.pool)).into_owned()));
        frames
    }

    /// Returns whether the recording has a stack of addresses for an origin.
    pub(super) fn has_stack(&self, origin: Origin) -> bool {
        self.history.definitions.stack(origin.stack).next().is_some()
    }

    /// Returns the frames of an origin like [`frames`](Self::frames). Frames that frameworks put around every call are
    /// removed unless the options ask for every frame.
    pub(super) fn folded(&self, origin: Origin) -> Vec<Frame> {
        let mut frames = self.frames(origin);
        let is_kept = |frame: &Frame| self.options.every_frame || !is_plumbing(&frame.file, &frame.function);
        if frames.iter().any(is_kept) {
            frames.retain(is_kept);
        }
        frames
    }

    /// Returns the words of a tag, outermost first, and the frames that it contains, innermost first.
    pub(super) fn tag(&self, number: u32) -> (Vec<String>, Vec<Frame>) {
        let (labels, stack) = split_tag(self.history.definitions.tag(number));
        let words = labels.split(';').filter(|word| !word.is_empty());
        let words = words.map(|word| clean(word).into_owned()).collect();
        let frames = split_frames(stack).filter(|frame| !frame.is_empty());
        (words, frames.map(|frame| cleaned(call(frame))).collect())
    }
}

/// Parses a frame of the form `file:function:line`. The file and the line may be missing.
fn call(text: &str) -> Frame {
    let (before, line) = match text.rsplit_once(':').map(|(before, line)| (before, line.parse())) {
        Some((before, Ok(line))) => (before, line),
        _ => (text, 0),
    };
    // C++ function names contain pairs of colons.
    let (file, function) = match before.find(':') {
        Some(at) if !before[at..].starts_with("::") => (&before[..at], &before[at + 1..]),
        _ => ("", before),
    };
    Frame {
        function: function.to_owned(),
        file: file.to_owned(),
        line,
    }
}

/// Numbers keys from 0 in the order in which they are added.
pub(super) struct Numbers<K> {
    numbers: Map<K, u32>,
}

impl<K> Default for Numbers<K> {
    fn default() -> Self {
        Self {
            numbers: Map::default(),
        }
    }
}

impl<K: Eq + Hash> Numbers<K> {
    /// Returns the number of a key, and whether the key is new.
    pub(super) fn of(&mut self, key: K) -> (u32, bool) {
        let next = self.numbers.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        (number, number == next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_snapshots_become_frames() {
        let parts = |text: &str| -> Vec<(String, String, u32)> {
            let frames = split_frames(text).map(call);
            frames
                .map(|frame| (frame.file, frame.function, frame.line))
                .collect()
        };
        let frame = |file: &str, function: &str, line| (file.to_owned(), function.to_owned(), line);
        let stack = "model.py:<lambda>:12<train.py:step:80<at::empty<v.cpp:at::mul<v.cpp:f:3";
        assert_eq!(split_tag(stack), ("", stack));
        assert_eq!(
            parts(stack),
            [
                frame("model.py", "<lambda>", 12),
                frame("train.py", "step", 80),
                frame("", "at::empty", 0),
                frame("v.cpp", "at::mul", 0),
                frame("v.cpp", "f", 3),
            ]
        );
        for none in ["", "mm", "a<b", "layers.7", "x:y", "a:b:3<"] {
            assert_eq!(split_tag(none), (none, ""), "{none}");
        }
    }

    #[test]
    fn control_characters_in_names_are_replaced_and_long_names_are_cut() {
        assert_eq!(clean("a\nb\0c\u{9b}"), "a b c ");
        assert!(matches!(clean("plain;\"<é>"), Cow::Borrowed("plain;\"<é>")));
        let long = clean(&"é".repeat(1 << 20)).into_owned();
        assert!(long.len() < MOST_NAME + 8 && long.ends_with("é…"));
    }
}
