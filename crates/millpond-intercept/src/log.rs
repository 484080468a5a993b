//! Reads a log.

use crate::format::{CHUNK, EVENT, HEADER, LOST, MAGIC, Memory, VERSION, kind};
use std::io;
use std::path::Path;

/// Why a log could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The system could not read the file.
    #[error("the log could not be read: {0}")]
    Io(#[from] io::Error),
    /// The file is no log, or the library that wrote it is of another version.
    #[error("this is no log of this version of millpond")]
    NotOurs,
}

/// The log of a process.
#[derive(Debug)]
pub struct Log {
    words: Vec<u64>,
    /// The process.
    pub process: u32,
    /// Its parent.
    pub parent: u32,
    /// The wall clock at the start, in nanoseconds since 1970.
    pub wall_clock: u64,
    /// The steady clock at the start, in nanoseconds.
    pub start: u64,
    /// The bytes of each device, if they were limited.
    pub limit: Option<u64>,
    /// The number of events that could not be written.
    pub lost: u64,
}

/// A call that allocated or freed, or that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: u8,
    pub(crate) memory: Memory,
    pub(crate) time: u64,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) requested: u64,
    pub(crate) stream: u64,
    pub(crate) device: i32,
    pub(crate) thread: u32,
    pub(crate) pool: u64,
    pub(crate) stack: u32,
}

/// A record of a log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    Event(Event),
    Measured {
        device: u32,
        used: u64,
        total: u64,
    },
    Stack {
        number: u32,
        addresses: &'a [u64],
    },
    Module {
        address: u64,
        bytes: u64,
        base: u64,
        build_id: Vec<u8>,
        path: String,
    },
    Thread {
        number: u32,
        name: String,
    },
    Program(String),
    End,
}

impl Log {
    /// Reads a log.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is no log.
    pub fn read(path: &Path) -> Result<Self, LogError> {
        let bytes = std::fs::read(path)?;
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| {
                u64::from_ne_bytes([
                    word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
                ])
            })
            .collect();
        let Some([MAGIC, VERSION, process, parent, wall_clock, start, limit, lost]) = words.first_chunk()
        else {
            return Err(LogError::NotOurs);
        };
        debug_assert_eq!(words.get(LOST), Some(lost));
        Ok(Self {
            process: *process as u32,
            parent: *parent as u32,
            wall_clock: *wall_clock,
            start: *start,
            limit: Some(*limit).filter(|limit| *limit > 0),
            lost: *lost,
            words,
        })
    }

    /// Returns whether the process took no memory and asked for none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.records().any(|record| matches!(record, Record::Event(_)))
    }

    /// Returns the complete records in the order in which they were written.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let mut at = HEADER;
        std::iter::from_fn(move || {
            loop {
                let first = *self.words.get(at)?;
                let (kind, memory, words) = (first as u8, (first >> 8) as u8, (first >> 32) as usize);
                let record = self.words.get(at..at.checked_add(words)?)?;
                if kind == 0 || words == 0 || kind == kind::SKIP && !(at + words).is_multiple_of(CHUNK / 8) {
                    return None;
                }
                at += words;
                if let Some(record) = decode(kind, memory, record) {
                    return Some(record);
                }
            }
        })
    }
}

/// Returns a record, or `None` for one that was withdrawn or is of no known kind.
fn decode(kind: u8, memory: u8, words: &[u64]) -> Option<Record<'_>> {
    Some(match kind {
        kind::ALLOC..=kind::NODE => {
            let [_, time, address, bytes, requested, stream, place, pool, stack] =
                *words.first_chunk::<EVENT>()?;
            Record::Event(Event {
                kind,
                memory: Memory::from_number(memory)?,
                time,
                address,
                bytes,
                requested,
                stream,
                device: place as i32,
                thread: (place >> 32) as u32,
                pool,
                stack: stack as u32,
            })
        }
        kind::MEASURED => {
            let [_, device, used, total] = *words.first_chunk()?;
            Record::Measured {
                device: device as u32,
                used,
                total,
            }
        }
        kind::STACK => Record::Stack {
            number: *words.get(1)? as u32,
            addresses: words.get(2..)?,
        },
        kind::MODULE => {
            let [_, address, bytes, base, id, path] = *words.first_chunk()?;
            let words = words.get(6..)?;
            let build_id = text(words, id)?;
            let path = text(words.get(build_id.len().div_ceil(8)..)?, path)?;
            Record::Module {
                address,
                bytes,
                base,
                build_id,
                path: String::from_utf8_lossy(&path).into_owned(),
            }
        }
        kind::THREAD => {
            let name = text(words.get(2..)?, 16)?;
            let name = name.split(|byte| *byte == 0).next()?;
            Record::Thread {
                number: *words.get(1)? as u32,
                name: String::from_utf8_lossy(name).into_owned(),
            }
        }
        kind::PROGRAM => {
            let path = text(words.get(2..)?, *words.get(1)?)?;
            Record::Program(String::from_utf8_lossy(&path).into_owned())
        }
        kind::END => Record::End,
        _ => return None,
    })
}

/// Returns the first bytes of words.
fn text(words: &[u64], bytes: u64) -> Option<Vec<u8>> {
    let bytes = usize::try_from(bytes).ok()?;
    let words = words.get(..bytes.div_ceil(8))?;
    let mut text: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    text.truncate(bytes);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::first_word;

    fn log(records: &[u64]) -> Log {
        let mut words = vec![0; HEADER];
        words.extend(records);
        Log {
            words,
            process: 1,
            parent: 0,
            wall_clock: 0,
            start: 0,
            limit: None,
            lost: 0,
        }
    }

    #[test]
    fn records_end_at_the_first_that_is_not_complete() {
        let end = first_word(kind::END, 0, 2);
        assert_eq!(log(&[end, 7, end, 8, 0, 9]).records().count(), 2);
        assert_eq!(
            log(&[end, 7, first_word(kind::ALLOC, 1, EVENT), 8])
                .records()
                .count(),
            1
        );
        assert_eq!(log(&[first_word(kind::SKIP, 0, 1 << 20)]).records().count(), 0);
        assert_eq!(log(&[u64::MAX, 1]).records().count(), 0);
    }

    #[test]
    fn texts_are_as_long_as_they_say() {
        let (id, path) = (
            u64::from_ne_bytes(*b"\x01\x02\0\0\0\0\0\0"),
            u64::from_ne_bytes(*b"/lib/a\0\0"),
        );
        let module = [
            first_word(kind::MODULE, 0, 8),
            0x1000,
            0x200,
            0x800,
            2,
            6,
            id,
            path,
        ];
        let expected = Record::Module {
            address: 0x1000,
            bytes: 0x200,
            base: 0x800,
            build_id: vec![1, 2],
            path: "/lib/a".to_owned(),
        };
        assert_eq!(log(&module).records().next(), Some(expected));
        let mut too_long = module;
        too_long[5] = 60;
        assert_eq!(log(&too_long).records().next(), None);
    }
}
