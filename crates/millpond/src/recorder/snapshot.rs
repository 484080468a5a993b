//! Snapshots: what all pools hold at one moment, as a recording of that moment.
//!
//! ```text
//!   state     what each pool holds, by its account, its placement or its sums
//!   room      the largest blocks, in room that is taken beforehand
//!   rows      all of that as rows of a recording
//!   refused   snapshots by themselves, when memory has run out
//! ```
//!
//! Nothing is asked of a pool: what a snapshot needs comes from mappings of its own, and where a pool is the program's allocator,
//! from the arena that pools have their tables in. Locks are taken one pool after the other and in their order, and nothing is
//! written while one is held.

mod refused;
mod room;
mod rows;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use refused::told as refused_finally;
pub(super) use refused::{look_at_environment, recording_begins};

use super::book::Book;
use super::scribe::{Counted, measure};
use super::{RecordError, facts, with_process};
use crate::reentrancy::quiet;
use memmap2::MmapMut;
use millpond_trace::recording::Writer;
use refused::Refusal;
use state::State;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a file may take, unless something else is said.
const MOST_BYTES: u64 = 64 << 20;
/// What the writer of a file needs at once.
const TO_WRITE: usize = 32 << 20;

/// What a snapshot came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotReport {
    /// Blocks that are listed one by one.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks that are in sums: the smaller ones of too many, and those that pools keep no account of.
    pub summed_blocks: u64,
    /// Their bytes.
    pub summed_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
}

/// Writes down what all pools of this process hold now, as a recording of one moment: `millpond report`, `convert`, `diff` and
/// `view` open it as any other. `%p` in the path is the number of the process.
///
/// Blocks come from the pools' [accounts](crate::Pool::track): where, how large, whose tag, which thread, and as far as the account
/// has them their stacks and times. Of a pool without one the larger blocks are known by their places, and the others in one sum.
/// Every pool's sums are exact either way; what is not listed block by block has a tag that says how many blocks it stands for.
///
/// ```
/// use millpond::{Pool, Tracking};
///
/// let pool = Pool::builder().track(Some(Tracking::All)).host()?;
/// let _scope = millpond::tag("weights");
/// let weights = pool.alloc_zeroed::<f32>(1 << 20)?;
/// # let folder = std::env::temp_dir();
/// let path = folder.join("millpond-doc-now-%p.mpr");
/// let report = millpond::snapshot(&path)?;
/// assert!(report.bytes + report.summed_bytes >= 4 << 20);
/// # std::fs::remove_file(path.to_str().unwrap().replace("%p", &std::process::id().to_string()))?;
/// # drop(weights);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The file could not be written, or there is no memory to do it in.
pub fn snapshot(path: impl AsRef<Path>) -> Result<SnapshotReport, RecordError> {
    Snapshots::new().write(path)
}

/// How snapshots are made, when they are asked for and when memory has run out.
///
/// ```
/// use millpond::Snapshots;
/// use std::time::Duration;
///
/// # let folder = std::env::temp_dir();
/// Snapshots::new()
///     .most_bytes(8 << 20)
///     .most_files(2)
///     .every(Duration::from_secs(600))
///     .on_out_of_memory(folder.join("training.%p.oom-%n.mpr"));
/// # Snapshots::never_on_out_of_memory();
/// ```
#[derive(Clone, Debug)]
pub struct Snapshots {
    most_bytes: u64,
    most_files: u32,
    every: Duration,
    facts: Vec<(String, String)>,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self::new()
    }
}

impl Snapshots {
    /// As [`snapshot`] makes them.
    #[must_use]
    pub fn new() -> Self {
        Self {
            most_bytes: MOST_BYTES,
            most_files: 8,
            every: Duration::from_secs(60),
            facts: Vec::new(),
        }
    }

    /// What a file may take, about; 64 MiB unless something else is said, which is room for a million blocks. The largest blocks
    /// come first; the others are added up by pool and tag, and the file says so.
    #[must_use]
    pub fn most_bytes(mut self, bytes: u64) -> Self {
        self.most_bytes = bytes;
        self
    }

    /// How many files are written by themselves in the life of a process; 8 unless something else is said.
    #[must_use]
    pub fn most_files(mut self, files: u32) -> Self {
        self.most_files = files;
        self
    }

    /// The time between two of them at the least; a minute unless something else is said.
    #[must_use]
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// A fact about the run that goes into the file.
    #[must_use]
    pub fn fact(mut self, name: &str, value: &str) -> Self {
        self.facts.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes one now, as [`snapshot`] does.
    ///
    /// # Errors
    /// As there.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<SnapshotReport, RecordError> {
        let _quiet = quiet();
        let path = with_process(path.as_ref());
        let mut all = facts();
        all.push(("snapshot".to_owned(), "asked for".to_owned()));
        self.write_with(&path, all, None)
    }

    /// The number of blocks that are listed.
    fn most_blocks(&self) -> usize {
        usize::try_from(self.most_bytes / rows::ROW).map_or(usize::MAX / 2, |most| most.max(1))
    }

    /// All that is allocated here is nobody's.
    fn write_with(
        &self,
        path: &Path,
        mut facts: Vec<(String, String)>,
        refusal: Option<&Refusal<'_>>,
    ) -> Result<SnapshotReport, RecordError> {
        let no_memory = || RecordError::NoMemory {
            path: path.to_owned(),
        };
        // What the writer takes cannot be refused to it without an end of the process: it is kept free until then.
        let to_write = MmapMut::map_anon(TO_WRITE).map_err(|_| no_memory())?;
        let state = State::look(self.most_blocks()).ok_or_else(no_memory)?;
        drop(to_write);
        let (now, measured) = measure();
        facts.extend(self.facts.iter().cloned());
        begin_with_the_process(&mut facts, now);
        let file = super::file::create(path).map_err(|source| RecordError::File {
            path: path.to_owned(),
            source,
        })?;
        let file = Counted {
            inner: BufWriter::new(file),
            bytes: 0,
        };
        let mut book = Book::new(Writer::new(file, &facts)?, 0);
        let mut report = rows::write(&mut book, &state, &measured, now, self.most_bytes, refusal)?;
        report.file_bytes = book.finish(now)?.bytes;
        Ok(report)
    }
}

/// Times in a snapshot count from the beginning of the process's clock.
fn begin_with_the_process(facts: &mut Vec<(String, String)>, now: u64) {
    facts.retain(|(name, _)| name != "start");
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .ok()
        .and_then(|since| since.checked_sub(Duration::from_nanos(now)));
    if let Some(start) = since {
        let text = format!("{}.{:09}", start.as_secs(), start.subsec_nanos());
        facts.push(("start".to_owned(), text));
    }
}

/// Writes a snapshot whenever memory has run out, to this path: see [`Snapshots::on_out_of_memory`].
pub fn snapshot_on_oom(path: impl Into<PathBuf>) {
    Snapshots::new().on_out_of_memory(path);
}
