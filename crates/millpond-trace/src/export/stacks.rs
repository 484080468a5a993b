//! Returns the origin of a block as frames: those of its stack, or of its tag and pool if no stack was recorded.
//!
//! A tag from a snapshot contains the program's words and the innermost frames, such as `forward;layer
//! 3;model.py:call:12<train.py:step:80`. Such frames are parsed again, and the words surround them.

use super::events::Source;
use crate::hash::Map;
use crate::history::Frame;
use crate::recording::Row;
use std::borrow::Cow;
use std::hash::Hash;

/// Maximum bytes of a name. Viewers can handle this length, and real names are shorter.
const MOST_NAME: usize = 4096;
/// The bytes that a frame takes besides its names.
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
        if !addresses.is_empty() {
            let frames: Vec<Frame> = self.symbols.stack(addresses).into_iter().map(cleaned).collect();
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

    /// Returns the words of a tag, outermost first, and the frames that it contains, innermost first.
    pub(super) fn tag(&self, number: u32) -> (Vec<String>, Vec<Frame>) {
        let tag = clean(self.history.definitions.tag(number));
        let mut words: Vec<&str> = tag.split(';').filter(|word| !word.is_empty()).collect();
        let calls = words.last().and_then(|last| calls(last));
        if calls.is_some() {
            words.pop();
        }
        let words = words.into_iter().map(str::to_owned).collect();
        (words, calls.unwrap_or_default())
    }
}

/// Parses frames of the form `file:function:line<file:function:line`. Returns `None` for any other text.
fn calls(text: &str) -> Option<Vec<Frame>> {
    let mut frames = Vec::new();
    let mut rest = text;
    // A function may be called `<lambda>`, so another frame follows only after a line number.
    loop {
        let next = rest.match_indices('<').find(|(at, _)| ends_in_line(&rest[..*at]));
        let (one, after) = match next {
            Some((at, _)) => (&rest[..at], Some(&rest[at + 1..])),
            None => (rest, None),
        };
        frames.push(call(one)?);
        match after {
            Some(after) => rest = after,
            None => return Some(frames),
        }
    }
}

fn ends_in_line(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(_, line)| line.parse::<u32>().is_ok())
}

fn call(text: &str) -> Option<Frame> {
    let (before, line) = text.rsplit_once(':')?;
    // C++ function names contain pairs of colons.
    let (file, function) = match before.find(':') {
        Some(at) if !before[at..].starts_with("::") => (&before[..at], &before[at + 1..]),
        _ => ("", before),
    };
    Some(Frame {
        function: function.to_owned(),
        file: file.to_owned(),
        line: line.parse().ok()?,
    })
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
        let frames = calls("model.py:<lambda>:12<train.py:step:80<at::empty(int):3").expect("frames");
        let short: Vec<_> = frames
            .iter()
            .map(|frame| (&*frame.file, &*frame.function, frame.line))
            .collect();
        assert_eq!(
            short,
            [
                ("model.py", "<lambda>", 12),
                ("train.py", "step", 80),
                ("", "at::empty(int)", 3)
            ]
        );
        for none in ["", "mm", "a<b", "layers.7", "x:y", "a:b:3<"] {
            assert_eq!(calls(none), None, "{none}");
        }
    }

    #[test]
    fn names_end_no_lines() {
        assert_eq!(clean("a\nb\0c\u{9b}"), "a b c ");
        assert!(matches!(clean("plain;\"<é>"), Cow::Borrowed("plain;\"<é>")));
        let long = clean(&"é".repeat(1 << 20)).into_owned();
        assert!(long.len() < MOST_NAME + 8 && long.ends_with("é…"));
    }
}
