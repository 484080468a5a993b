//! A recording as rows, whatever file it came in, to be walked as often as it takes.
//!
//! A recording of Millpond's stays in its file: walking it takes memory for a few batches, so files may be larger than memory. Other formats are
//! read whole and walked as the same rows, so that whatever is said, drawn or written of a recording works for all of them.

mod define;
mod from_traces;
mod index;
mod live;
mod symbols;
#[cfg(test)]
mod tests;

pub use define::{Definitions, Frame, Module, Pool};
pub use index::Start;
pub use live::Live;
pub use symbols::Symbols;

use crate::recording::{Batch, End, Kind, Reader, RecordingError, Row};
use crate::{Caution, ReadError, ReadOptions, read};
use index::Index;
use std::fs::File;
use std::io::BufReader;
use std::ops::Range;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::Builder;

/// Batches of a file that is not worth a thread.
const SMALL: usize = 4;

/// A recording that could not be opened or walked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// A recording of Millpond's.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// A file of another format.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It has changed since it was opened.
    #[error("the recording has become shorter since it was opened; open it again")]
    Changed,
}

/// What is known of a recording before it is walked.
#[derive(Debug)]
pub struct History {
    rows: Source,
    /// What numbers in rows mean.
    pub definitions: Definitions,
    /// Facts about the recording, by name.
    pub facts: Vec<(String, String)>,
    /// The time of its last row, in nanoseconds since it began.
    pub duration: u64,
    /// How many rows it has.
    pub len: u64,
    /// Events that it says are missing.
    pub lost: u64,
    /// How it ends; none for a format that does not say.
    pub end: Option<End>,
    /// What its reader noticed.
    pub cautions: Vec<Caution>,
    /// Serial numbers of blocks that are older than the recording, though a row at its beginning hands them out.
    pub older: Vec<Range<u64>>,
    /// Whether it is what an allocator held at one moment, without a history.
    pub state_only: bool,
}

#[derive(Debug)]
enum Source {
    /// A recording of Millpond's, the bytes of it that were there when it was opened, and where walks can begin.
    File {
        path: PathBuf,
        bytes: u64,
        starts: Vec<Start>,
    },
    Rows(Vec<Row>),
}

impl History {
    /// Opens a recording in any format there is a reader for. A file of Millpond's is walked once, for what its numbers mean.
    ///
    /// # Errors
    /// It cannot be read, or is no recording.
    pub fn open(path: &Path, options: &ReadOptions<'_>) -> Result<Self, HistoryError> {
        Self::open_and_watch(path, options, |_, _| {})
    }

    /// The same, and shows each row and what is defined by then: whoever wants a glance at a large file takes it in the walk that
    /// opening it is.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub fn open_and_watch(
        path: &Path,
        options: &ReadOptions<'_>,
        mut watch: impl FnMut(&Row, &Definitions),
    ) -> Result<Self, HistoryError> {
        if is_ours(path)? {
            return Self::of_file(path, watch);
        }
        let recording = read(path, options)?;
        let history = from_traces::history(&recording);
        history.walk(|row, _| {
            watch(row, &history.definitions);
            Flow::On
        })?;
        Ok(history)
    }

    fn of_file(path: &Path, mut watch: impl FnMut(&Row, &Definitions)) -> Result<Self, HistoryError> {
        let reader = open(path)?;
        let mut history = Self {
            facts: reader.facts().to_vec(),
            rows: Source::File {
                path: path.to_owned(),
                bytes: 0,
                starts: Vec::new(),
            },
            definitions: Definitions::default(),
            duration: 0,
            len: 0,
            lost: 0,
            end: None,
            cautions: Vec::new(),
            older: Vec::new(),
            state_only: false,
        };
        let mut index = Index::default();
        let reader = batches(reader, u64::MAX, |before, batch| {
            index.begin_batch(before, history.len);
            let mut rows = batch.rows();
            while let Some(row) = rows.next() {
                history.len += 1;
                index.note(&row);
                history.note(&row, batch, rows.place());
                watch(&row, &history.definitions);
            }
            Flow::On
        })?;
        history.rows = Source::File {
            path: path.to_owned(),
            bytes: reader.bytes(),
            starts: index.finish(),
        };
        history.end = reader.end().cloned();
        Ok(history)
    }

    fn note(&mut self, row: &Row, batch: &Batch, place: usize) {
        match row.kind {
            Kind::Live => return,
            Kind::Lost => self.lost = self.lost.saturating_add(row.id),
            kind if kind as u8 >= Kind::DefineTag as u8 => {
                self.definitions.note(row, batch.text(place), batch.list(place));
            }
            _ => {}
        }
        self.duration = self.duration.max(row.time);
    }

    /// Walks all rows in order, with what marks say; stops where `each` says so.
    ///
    /// # Errors
    /// The file cannot be read any more. What was walked by then was as it is in the file.
    pub fn walk(&self, each: impl FnMut(&Row, Option<&str>) -> Flow) -> Result<(), HistoryError> {
        self.walk_from(&Start::default(), each)
    }

    /// The last place from which on a walk sees all that happens at a time and after, and what was there before: a keyframe, or the
    /// beginning.
    #[must_use]
    pub fn start_before(&self, time: u64) -> Start {
        let Source::File { starts, .. } = &self.rows else {
            return Start::default();
        };
        let after = starts.partition_point(|start| start.latest < time);
        let found = after.checked_sub(1).and_then(|at| starts.get(at));
        found.cloned().unwrap_or_default()
    }

    /// Walks all rows from a place on; shows first, as rows of gauges, what was known there of pools and devices.
    ///
    /// # Errors
    /// As of [`walk`](Self::walk).
    pub fn walk_from(
        &self,
        start: &Start,
        mut each: impl FnMut(&Row, Option<&str>) -> Flow,
    ) -> Result<(), HistoryError> {
        let (path, bytes) = match &self.rows {
            Source::Rows(rows) => {
                for row in rows {
                    if each(row, None) == Flow::Stop {
                        break;
                    }
                }
                return Ok(());
            }
            Source::File { path, bytes, .. } => (path, *bytes),
        };
        let mut reader = open(path)?;
        if start.bytes > 0 {
            reader.skip_to(start.bytes)?;
        }
        for row in &start.figures {
            if each(row, None) == Flow::Stop {
                return Ok(());
            }
        }
        let mut stopped = false;
        // What was added since is not walked: all walks see the same rows.
        let reader = batches(reader, bytes, |_, batch| {
            let mut rows = batch.rows();
            while let Some(row) = rows.next() {
                let text = match row.kind {
                    Kind::Mark => batch.text(rows.place()),
                    _ => None,
                };
                if each(&row, text) == Flow::Stop {
                    stopped = true;
                    return Flow::Stop;
                }
            }
            Flow::On
        })?;
        if !stopped && reader.bytes() < bytes {
            return Err(HistoryError::Changed);
        }
        Ok(())
    }

    /// The blocks in callers' hands after all that happened up to a time.
    ///
    /// # Errors
    /// As of [`walk`](Self::walk).
    pub fn live_at(&self, time: u64) -> Result<Live, HistoryError> {
        let mut live = Live::default();
        self.walk_from(&self.start_before(time.saturating_add(1)), |row, _| {
            if row.kind != Kind::Live && row.time > time {
                return Flow::Stop;
            }
            live.note(row);
            Flow::On
        })?;
        Ok(live)
    }
}

/// Whether a walk goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It does.
    On,
    /// It ends here.
    Stop,
}

/// Goes through the batches in the first so many bytes of a file, each with the bytes before it, and answers the reader where it stands
/// then. Large files are decoded in a thread of its own, one batch ahead.
fn batches(
    mut reader: Reader<BufReader<File>>,
    bytes: u64,
    mut each: impl FnMut(u64, &Batch) -> Flow,
) -> Result<Reader<BufReader<File>>, RecordingError> {
    for _ in 0..SMALL {
        if reader.bytes() >= bytes {
            return Ok(reader);
        }
        let before = reader.bytes();
        let Some(batch) = reader.next_batch()? else {
            return Ok(reader);
        };
        if each(before, &batch) == Flow::Stop {
            return Ok(reader);
        }
    }
    std::thread::scope(|scope| {
        let (decoded, next) = mpsc::sync_channel(1);
        let decode = move || {
            while reader.bytes() < bytes {
                let before = reader.bytes();
                let Some(batch) = reader.next_batch()? else {
                    break;
                };
                if decoded.send((before, batch)).is_err() {
                    break;
                }
            }
            Ok(reader)
        };
        let thread = Builder::new().spawn_scoped(scope, decode)?;
        while let Ok((before, batch)) = next.recv() {
            if each(before, &batch) == Flow::Stop {
                break;
            }
        }
        // Whoever decodes ends with the next batch.
        drop(next);
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn open(path: &Path) -> Result<Reader<BufReader<File>>, RecordingError> {
    let file = File::open(path)?;
    Reader::new(BufReader::with_capacity(1 << 20, file))
}

/// Whether a file begins as an Arrow stream does.
pub(crate) fn is_ours(path: &Path) -> Result<bool, ReadError> {
    use std::io::Read;
    let io_error = |source| ReadError::Io {
        name: path.display().to_string(),
        source,
    };
    let mut first = Vec::new();
    let file = File::open(path).map_err(io_error)?;
    file.take(4).read_to_end(&mut first).map_err(io_error)?;
    Ok(first == [0xff; 4])
}
