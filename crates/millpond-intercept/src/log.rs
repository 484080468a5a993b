//! Reads a log.

use crate::format::{CHUNK, EVENT, HEADER, LOST, MAGIC, Memory, VERSION, kind};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The words of a chunk.
const WORDS: usize = CHUNK / 8;

/// The reason why a log could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The system could not read the file.
    #[error("the log could not be read: {0}")]
    Io(#[from] io::Error),
    /// The file is not a log, or a library of another version wrote it.
    #[error("this is not a log of this version of millpond")]
    NotOurs,
}

/// The log of a process. Its records stay in the file.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
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
pub(crate) enum Record {
    Event(Event),
    Measured {
        device: u32,
        used: u64,
        total: u64,
    },
    Stack {
        number: u32,
        addresses: Vec<u64>,
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
    /// Opens a log.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not a log.
    pub fn open(path: &Path) -> Result<Self, LogError> {
        let mut header = Vec::new();
        read_words(&mut File::open(path)?, HEADER, &mut header)?;
        let Some([MAGIC, VERSION, process, parent, wall_clock, start, limit, lost]) = header.first_chunk()
        else {
            return Err(LogError::NotOurs);
        };
        debug_assert_eq!(header.get(LOST), Some(lost));
        Ok(Self {
            path: path.to_owned(),
            process: *process as u32,
            parent: *parent as u32,
            wall_clock: *wall_clock,
            start: *start,
            limit: Some(*limit).filter(|limit| *limit > 0),
            lost: *lost,
        })
    }

    /// Returns whether the process made no request for memory.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn is_empty(&self) -> io::Result<bool> {
        for record in self.records()? {
            if let Record::Event(_) = record? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the complete records in the order in which they were written.
    pub(crate) fn records(&self) -> io::Result<Records<File>> {
        Records::new(File::open(&self.path)?)
    }
}

/// Reads the records of a log. One chunk is in memory.
pub(crate) struct Records<R> {
    file: R,
    chunk: Vec<u64>,
    /// The next record in the chunk.
    at: usize,
}

impl<R: Read> Records<R> {
    fn new(mut file: R) -> io::Result<Self> {
        let mut chunk = Vec::new();
        read_words(&mut file, WORDS, &mut chunk)?;
        Ok(Self {
            file,
            chunk,
            at: HEADER,
        })
    }
}

impl<R: Read> Iterator for Records<R> {
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<io::Result<Record>> {
        loop {
            if self.at == WORDS {
                self.at = 0;
                if let Err(error) = read_words(&mut self.file, WORDS, &mut self.chunk) {
                    return Some(Err(error));
                }
            }
            let first = *self.chunk.get(self.at)?;
            let (kind, memory, words) = (first as u8, (first >> 8) as u8, (first >> 32) as usize);
            // A record lies in one chunk.
            let record = self.chunk.get(self.at..self.at.checked_add(words)?)?;
            if kind == 0 || words == 0 || kind == kind::SKIP && self.at + words != WORDS {
                return None;
            }
            self.at += words;
            if let Some(record) = decode(kind, memory, record) {
                return Some(Ok(record));
            }
        }
    }
}

/// Reads the remaining whole words of the file, at most `most`.
fn read_words(file: &mut impl Read, most: usize, words: &mut Vec<u64>) -> io::Result<()> {
    let mut bytes = Vec::new();
    file.take(most as u64 * 8).read_to_end(&mut bytes)?;
    words.clear();
    words.extend(bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)));
    Ok(())
}

/// Returns a record, or `None` if it was withdrawn or its kind is unknown.
fn decode(kind: u8, memory: u8, words: &[u64]) -> Option<Record> {
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
            addresses: words.get(2..)?.to_vec(),
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

    /// Returns the records of a log that continues with these words after its header.
    fn records(words: &[u64]) -> Vec<Record> {
        let mut all = vec![0; HEADER];
        all.extend(words);
        let bytes: Vec<u8> = all.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let records = Records::new(&*bytes).expect("a slice can be read");
        records.collect::<Result<_, _>>().expect("a slice can be read")
    }

    #[test]
    fn reading_ends_at_the_first_incomplete_record() {
        let end = first_word(kind::END, 0, 2);
        assert_eq!(records(&[end, 7, end, 8, 0, 9]).len(), 2);
        assert_eq!(records(&[end, 7, first_word(kind::ALLOC, 1, EVENT), 8]).len(), 1);
        assert_eq!(records(&[first_word(kind::SKIP, 0, WORDS)]).len(), 0);
        assert_eq!(records(&[u64::MAX, 1]).len(), 0);
    }

    #[test]
    fn records_of_all_chunks_are_read_and_no_record_crosses_chunks() {
        let end = first_word(kind::END, 0, 2);
        let rest = WORDS - HEADER;
        let mut words = vec![0; rest];
        words[0] = end;
        words[2] = first_word(kind::SKIP, 0, rest - 2);
        words.extend([end, 1, end, 2, 0]);
        assert_eq!(records(&words).len(), 3);
        // Without a skip, the chunk is full.
        for at in (0..rest).step_by(2) {
            words[at] = end;
        }
        assert_eq!(records(&words).len(), rest / 2 + 2);
        words[rest - 2] = first_word(kind::END, 0, 4);
        assert_eq!(records(&words).len(), rest / 2 - 1);
    }

    #[test]
    fn texts_have_their_recorded_length() {
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
        assert_eq!(records(&module), [expected]);
        let mut too_long = module;
        too_long[5] = 60;
        assert_eq!(records(&too_long), []);
    }
}
