//! Reads the lines of a text file without an allocation for each line.

use crate::{ReadError, source::Source};

/// Maximum bytes of a line. Without a limit, a file of one line would have to fit into memory.
const LONGEST: usize = 1 << 20;

/// The result of [`Lines::next`].
pub(crate) enum Line<'a> {
    /// A line that ends in a line break.
    Whole(&'a [u8]),
    /// The text after the last line break: a line, or the beginning of one in a truncated file.
    Last(&'a [u8]),
    /// The end of the file. `cut` is true if a compressed stream was truncated.
    End { cut: bool },
}

pub(crate) struct Lines<'s, 'a> {
    source: &'s mut Source<'a>,
    /// Number of the last returned line, counted from 1.
    pub(crate) number: u64,
}

impl<'s, 'a> Lines<'s, 'a> {
    pub(crate) fn new(source: &'s mut Source<'a>) -> Self {
        Self { source, number: 0 }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.source.offset()
    }

    /// Returns the next line without its line break.
    pub(crate) fn next(&mut self) -> Result<Line<'_>, ReadError> {
        let mut searched = 0;
        let (length, whole) = loop {
            let buffered = self.source.buffered();
            if let Some(at) = memchr::memchr(b'\n', &buffered[searched..]) {
                break (searched + at, true);
            }
            searched = buffered.len();
            if searched > LONGEST {
                let what = format!("it is longer than {LONGEST} bytes");
                return Err(ReadError::Csv {
                    line: self.number + 1,
                    what,
                });
            }
            match self.source.fill(searched + 1) {
                Ok(()) if self.source.buffered().len() > searched => {}
                Ok(()) if searched == 0 => return Ok(Line::End { cut: false }),
                Ok(()) => break (searched, false),
                Err(ReadError::Damaged { .. }) => return Ok(Line::End { cut: true }),
                Err(error) => return Err(error),
            }
        };
        self.number += 1;
        self.source.check_lines(self.number)?;
        // The line is consumed before it is sliced, because consuming only advances a position and keeps the bytes.
        self.source.consume(length + usize::from(whole));
        let line = self.source.consumed(length + usize::from(whole));
        let line = &line[..length];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Ok(if whole {
            Line::Whole(line)
        } else {
            Line::Last(line)
        })
    }
}

/// Parses a whole number, decimal or hexadecimal with `0x`.
#[inline]
pub(crate) fn number(field: &[u8]) -> Option<u64> {
    let field = field.trim_ascii();
    if let [b'0', b'x' | b'X', digits @ ..] = field {
        return hexadecimal(digits);
    }
    if field.is_empty() || field.len() > 20 {
        return None;
    }
    let mut value = 0u64;
    for &byte in field {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// Parses a hexadecimal number, with or without `0x`.
pub(crate) fn hexadecimal(field: &[u8]) -> Option<u64> {
    let field = field.trim_ascii();
    let digits = field
        .strip_prefix(b"0x")
        .or_else(|| field.strip_prefix(b"0X"))
        .unwrap_or(field);
    let text = std::str::from_utf8(digits).ok()?;
    if text.starts_with('+') {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}

/// Maximum size. No memory is larger, and larger sizes would overflow later sums.
pub(crate) const MOST_BYTES: u64 = 1 << 62;
