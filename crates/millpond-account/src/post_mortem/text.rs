//! Texts of limited length without heap allocation.

use std::fmt;

const ELLIPSIS: &str = "…";

/// A text of at most `N` bytes. A longer text is truncated and ends in `…`. When displayed, characters that control a
/// terminal are replaced by `�`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize> {
    /// Invariant: the first `len` bytes are UTF-8.
    bytes: [u8; N],
    len: usize,
    cut: bool,
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
            cut: false,
        }
    }
}

impl<const N: usize> Text<N> {
    /// Makes a text, truncated if it is too long.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut made = Self::default();
        made.push_str(text);
        made
    }

    /// Appends as much of a text as fits.
    pub fn push_str(&mut self, text: &str) {
        if self.cut {
            return;
        }
        if text.len() <= N - self.len {
            self.put(text);
            return;
        }
        self.cut = true;
        let Some(most) = N.checked_sub(ELLIPSIS.len()) else {
            return;
        };
        if self.len > most {
            self.len = floor(self.as_str(), most);
        } else {
            self.put(&text[..floor(text, most - self.len)]);
        }
        self.put(ELLIPSIS);
    }

    /// Appends a text that is known to fit.
    fn put(&mut self, text: &str) {
        let end = self.len + text.len();
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(text.as_bytes());
            self.len = end;
        }
    }

    /// Returns the stored text. Control characters are not replaced.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.bytes.get(..self.len).unwrap_or_default()).unwrap_or_default()
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push_str(text);
        Ok(())
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for c in self.as_str().chars() {
            f.write_char(if steers(c) { char::REPLACEMENT_CHARACTER } else { c })?;
        }
        Ok(())
    }
}

/// Returns the last character boundary at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0)
}

/// Returns true for control characters and for marks that change the direction of text.
fn steers(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}
