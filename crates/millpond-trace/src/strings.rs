//! Strings stored once and identified by small numbers.
//!
//! All text is in one buffer, so a string costs its bytes and eight more. The total is limited, because a small hostile
//! file can name combinations of long strings far beyond its own size.

use crate::texts::Texts;
use std::cell::Cell;
use std::rc::Rc;

/// The most bytes of a tag's stack. A stack of two hundred frames has about a sixth of it.
pub(crate) const MOST_STACK: usize = 60 << 10;

/// Strings stored once. Index 0 is always the empty string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strings {
    text: String,
    ends: Vec<usize>,
}

impl Default for Strings {
    fn default() -> Self {
        Self {
            text: String::new(),
            ends: vec![0],
        }
    }
}

impl Strings {
    /// Creates a set with only the empty string.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the string at `index`, or the empty string if there is none.
    pub fn get(&self, index: u32) -> &str {
        let index = index as usize;
        let Some(&end) = self.ends.get(index) else {
            return "";
        };
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text[start..end]
    }

    /// Returns the number of strings, including the empty one.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns `false`, because index 0 always exists.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns a copy with each string replaced. Indices keep their meaning, and index 0 stays empty.
    #[must_use]
    pub fn map(&self, mut replace: impl FnMut(&str) -> String) -> Self {
        let mut mapped = Self {
            text: String::new(),
            ends: Vec::with_capacity(self.ends.len()),
        };
        for (index, text) in self.iter().enumerate() {
            let text = if index == 0 { String::new() } else { replace(text) };
            mapped.push(&text);
        }
        mapped
    }

    /// Returns all strings in order of their index.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.ends.len() as u32).map(|index| self.get(index))
    }

    /// Adds a string, even if the set contains it already. Returns its index.
    pub fn push(&mut self, text: &str) -> u32 {
        let index = self.ends.len() as u32;
        self.text.push_str(text);
        self.ends.push(self.text.len());
        index
    }
}

/// The bytes that several [`Interner`]s may still take together. Each device of a file has an interner.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Rc<Cell<usize>>);

impl Shared {
    /// Creates a limit of `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Rc::new(Cell::new(bytes)))
    }

    /// Takes `bytes` of the remaining bytes. Returns `false`, and takes none, if fewer are left.
    fn take(&self, bytes: usize) -> bool {
        let left = self.0.get().checked_sub(bytes);
        self.0.set(left.unwrap_or(self.0.get()));
        left.is_some()
    }
}

impl Default for Shared {
    /// Returns the limit for the tags of one file.
    fn default() -> Self {
        Self::new(Interner::TAG_BYTES)
    }
}

/// Builds [`Strings`].
pub(crate) struct Interner {
    strings: Strings,
    found: Texts,
    left: Shared,
    /// The last result. It is often the next one too.
    last: u32,
    /// How often a string was replaced by the empty one because the limit was reached.
    pub(crate) dropped: u64,
}

impl Interner {
    /// The limit on the text of all tags of one file. It is a thousand times the need of the available recordings.
    pub(crate) const TAG_BYTES: usize = 96 << 20;

    pub(crate) fn new(left: &Shared) -> Self {
        Self {
            strings: Strings::new(),
            found: Texts::default(),
            left: left.clone(),
            last: 0,
            dropped: 0,
        }
    }

    /// Reserves space for `strings` strings of `bytes` bytes in total.
    pub(crate) fn reserve(&mut self, strings: usize, bytes: usize) {
        self.found.reserve(strings);
        self.strings.ends.reserve(strings);
        self.strings.text.reserve(bytes);
    }

    /// Returns the index of `bytes` and adds it if it is new. Invalid UTF-8 is replaced.
    #[inline]
    pub(crate) fn intern(&mut self, bytes: &[u8]) -> u32 {
        if bytes.is_empty() {
            return 0;
        }
        let strings = &self.strings;
        if strings.get(self.last).as_bytes() == bytes {
            return self.last;
        }
        match self.found.find(bytes, |at| strings.get(at).as_bytes()) {
            Ok(found) => {
                self.last = found;
                found
            }
            Err(hash) => self.add(bytes, hash),
        }
    }

    #[cold]
    fn add(&mut self, bytes: &[u8], hash: u32) -> u32 {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return self.intern(String::from_utf8_lossy(bytes).as_bytes());
        };
        // Each entry is charged sixteen additional bytes, so that the number of short strings is limited as well.
        if !self.left.take(text.len() + 16) {
            self.dropped += 1;
            return 0;
        }
        let index = self.strings.push(text);
        self.found.add(hash, index);
        index
    }

    pub(crate) fn get(&self, index: u32) -> &str {
        self.strings.get(index)
    }

    /// Returns the bytes that all interners with the same limit may still take.
    pub(crate) fn left(&self) -> usize {
        self.left.0.get()
    }

    pub(crate) fn finish(mut self) -> Strings {
        self.strings.text.shrink_to_fit();
        self.strings
    }
}
