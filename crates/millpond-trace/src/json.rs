//! Reads a JSON file as a stream of tokens, for files whose contents are mostly skipped.
//!
//! serde would also hold nothing in memory, but it visits every value of every event and recurses. This reader skips a
//! value of any depth by a search for quotes and brackets. Skipped values are checked only for their brackets. All
//! other values are checked.

use crate::ReadError;
use crate::source::Source;

/// Maximum bytes kept of a name or number. Relevant ones are shorter, and only the beginning of longer ones is kept.
const KEPT: usize = 64;

pub(crate) struct Json<'s, 'a> {
    source: &'s mut Source<'a>,
    text: Vec<u8>,
}

/// Why reading stopped.
pub(crate) enum JsonStop {
    /// The file or its compressed stream ends within a value.
    Cut,
    Error(ReadError),
}

impl From<ReadError> for JsonStop {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Damaged { .. } => Self::Cut,
            error => Self::Error(error),
        }
    }
}

impl<'s, 'a> Json<'s, 'a> {
    pub(crate) fn new(source: &'s mut Source<'a>) -> Self {
        Self {
            source,
            text: Vec::with_capacity(KEPT),
        }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.source.offset()
    }

    /// Calls [`Source::check_lines`].
    pub(crate) fn check_lines(&self, lines: usize) -> Result<(), JsonStop> {
        Ok(self.source.check_lines(lines as u64)?)
    }

    /// Returns the next byte that is not white space, without consuming it.
    #[inline]
    pub(crate) fn peek(&mut self) -> Result<u8, JsonStop> {
        loop {
            let buffered = self.source.buffered();
            match buffered.iter().position(|byte| !byte.is_ascii_whitespace()) {
                Some(at) => {
                    let byte = buffered[at];
                    self.source.consume(at);
                    return Ok(byte);
                }
                None => {
                    let all = buffered.len();
                    self.source.consume(all);
                    self.more(1)?;
                }
            }
        }
    }

    /// Consumes `wanted` if it comes next. Returns whether it did.
    #[inline]
    pub(crate) fn take(&mut self, wanted: u8) -> Result<bool, JsonStop> {
        let found = self.peek()? == wanted;
        if found {
            self.source.consume(1);
        }
        Ok(found)
    }

    fn expect(&mut self, wanted: u8) -> Result<(), JsonStop> {
        match self.take(wanted)? {
            true => Ok(()),
            false => Err(self.unexpected(wanted)),
        }
    }

    #[cold]
    fn unexpected(&mut self, wanted: u8) -> JsonStop {
        let found = self.source.buffered().first().copied().unwrap_or(b' ');
        let at = self.source.offset();
        let what = format!(
            "found {:?} instead of {:?} at byte {at}",
            char::from(found),
            char::from(wanted)
        );
        JsonStop::Error(ReadError::Json { what })
    }

    /// Returns whether another value follows an opening bracket or a value. Otherwise `close` follows, and it is
    /// consumed.
    #[inline]
    pub(crate) fn another(&mut self, first: &mut bool, close: u8) -> Result<bool, JsonStop> {
        if self.take(close)? {
            return Ok(false);
        }
        if !std::mem::take(first) {
            self.expect(b',')?;
            // Some writers put a comma before the bracket.
            if self.take(close)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads a key and its colon. Returns the beginning of the key, with escapes unchanged.
    pub(crate) fn key(&mut self) -> Result<&[u8], JsonStop> {
        self.string()?;
        self.expect(b':')?;
        Ok(&self.text)
    }

    /// Reads a string or a scalar as text. Skips any other value and returns `None`.
    pub(crate) fn scalar(&mut self) -> Result<Option<&str>, JsonStop> {
        match self.peek()? {
            b'"' => self.string()?,
            b'{' | b'[' => {
                self.skip()?;
                return Ok(None);
            }
            _ => self.bare()?,
        }
        Ok(std::str::from_utf8(&self.text).ok())
    }

    fn string(&mut self) -> Result<(), JsonStop> {
        self.expect(b'"')?;
        self.text.clear();
        loop {
            let buffered = self.source.buffered();
            // JSON strings contain no zero byte, so a zero byte is a hole in the file.
            let end = memchr::memchr3(b'"', b'\\', 0, buffered);
            let length = end.unwrap_or(buffered.len());
            let keep = length.min(KEPT.saturating_sub(self.text.len()));
            self.text.extend_from_slice(&buffered[..keep]);
            match end.map(|at| buffered[at]) {
                None => {
                    self.source.consume(length);
                    self.more(1)?;
                }
                Some(b'"') => {
                    self.source.consume(length + 1);
                    return Ok(());
                }
                Some(0) => {
                    self.source.consume(length);
                    return Err(self.unexpected(b'"'));
                }
                Some(_) => {
                    self.source.consume(length);
                    self.more(2)?;
                    self.source.consume(2);
                }
            }
        }
    }

    /// Reads a number or a word.
    fn bare(&mut self) -> Result<(), JsonStop> {
        self.text.clear();
        loop {
            let buffered = self.source.buffered();
            let ends =
                |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b'}' | b']' | b':' | b'"');
            let end = buffered.iter().position(ends);
            let length = end.unwrap_or(buffered.len());
            // Without this check, a hole in a file would be one word of the same length.
            if let Some(other) = buffered[..length].iter().position(|byte| !is_of_word(*byte)) {
                self.source.consume(other);
                return Err(self.unexpected(b','));
            }
            let keep = length.min(KEPT.saturating_sub(self.text.len()));
            self.text.extend_from_slice(&buffered[..keep]);
            self.source.consume(length);
            if end.is_some() {
                break;
            }
            self.more(1)?;
        }
        if self.text.is_empty() {
            Err(self.unexpected(b'0'))
        } else {
            Ok(())
        }
    }

    /// Skips one value of any depth.
    pub(crate) fn skip(&mut self) -> Result<(), JsonStop> {
        let mut depth = 0u64;
        loop {
            match self.peek()? {
                b'"' => self.string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.source.consume(1);
                }
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    self.source.consume(1);
                }
                b',' | b':' if depth > 0 => self.source.consume(1),
                _ => self.bare()?,
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn more(&mut self, bytes: usize) -> Result<(), JsonStop> {
        self.source.fill(bytes)?;
        if self.source.buffered().len() < bytes {
            Err(JsonStop::Cut)
        } else {
            Ok(())
        }
    }
}

/// Returns whether a byte can be part of a number, `true`, `false`, `null`, or a word such as `NaN` or `-Infinity`.
fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.' | b'_')
}
