//! Snapshots: recordings of one moment with the blocks of all pools.
//!
//! ```text
//!   state     the contents of each pool, from its account, its placement or its sums
//!   room      a preallocated buffer for the largest blocks
//!   rows      the state as rows of a recording
//!   refused   automatic snapshots, when memory has run out
//! ```
//!
//! A snapshot does not allocate from a pool. It uses its own mappings, and if a pool is the program's allocator, the
//! arena that contains the tables of pools. The locks of pools are taken one after the other in their order, and
//! nothing is written while one is held.

mod refused;
mod room;
mod rows;
mod state;

pub use refused::told as refused_finally;
pub(super) use refused::{look_at_environment, recording_begins};

use super::row_builder::RowBuilder;
use super::writer::{Counted, measure};
use super::{LEAST_MEMORY, RecordError, facts, set_start_at, unwritten, with_process};
use memmap2::MmapMut;
use millpond_os::metadata::has_room;
use millpond_os::reentrancy::quiet;
use millpond_os::time::Time;
use millpond_trace::recording::Writer;
use refused::Refusal;
use state::State;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The default maximum size of a file in bytes.
const MOST_BYTES: u64 = 64 << 20;
/// The bytes of memory that the writer of a file needs at one time, if memory is short.
const TO_WRITE: usize = 8 << 20;

/// The report of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotReport {
    /// The number of blocks that are listed individually.
    pub blocks: u64,
    /// The bytes of these blocks.
    pub bytes: u64,
    /// The number of blocks that are only part of sums: the smaller ones if there are too many, and those of pools
    /// without an account.
    pub summed_blocks: u64,
    /// The bytes of these blocks.
    pub summed_bytes: u64,
    /// The bytes of the file.
    pub file_bytes: u64,
}

/// Writes the current contents of all pools of this process as a recording of one moment. `millpond report`, `convert`,
/// `diff` and `view` open it like any recording. `%p` in the path stands for the process id.
///
/// Blocks come from the pools' accounts, with address, size, tag, thread, and with stack and time
/// if the account stores them. Without an account, large blocks are listed by address and the others as one total. The
/// sums of each pool are exact in both cases. A row that stands for several blocks has a tag that contains their
/// number.
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
/// Returns an error if the file could not be written or memory is short.
pub fn snapshot(path: impl AsRef<Path>) -> Result<SnapshotReport, RecordError> {
    Snapshots::new().write(path)
}

/// The settings of snapshots: of requested ones, and of automatic ones after out-of-memory errors.
///
/// ```
/// use millpond::record::Snapshots;
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
    /// Returns the settings that [`snapshot`] uses.
    #[must_use]
    pub fn new() -> Self {
        Self {
            most_bytes: MOST_BYTES,
            most_files: 8,
            every: Duration::from_secs(60),
            facts: Vec::new(),
        }
    }

    /// Sets the approximate maximum size of a file. The default is 64 MiB, which is enough for a million blocks. The
    /// largest blocks are listed. The others are added up by pool and tag, and the file states that.
    #[must_use]
    pub fn most_bytes(mut self, bytes: u64) -> Self {
        self.most_bytes = bytes;
        self
    }

    /// Sets how many files are written automatically in the lifetime of a process. The default is 8.
    #[must_use]
    pub fn most_files(mut self, files: u32) -> Self {
        self.most_files = files;
        self
    }

    /// Sets the minimum time between two automatic files. The default is a minute.
    #[must_use]
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// Adds a fact about the run to the file.
    #[must_use]
    pub fn fact(mut self, name: &str, value: &str) -> Self {
        self.facts.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes a snapshot now, like [`snapshot`].
    ///
    /// # Errors
    /// Returns the errors of [`snapshot`].
    pub fn write(&self, path: impl AsRef<Path>) -> Result<SnapshotReport, RecordError> {
        let _quiet = quiet();
        let path = with_process(path.as_ref());
        let mut all = facts();
        all.push(("snapshot".to_owned(), "asked for".to_owned()));
        self.write_with(&path, all, None)
    }

    /// Returns the maximum number of listed blocks.
    fn most_blocks(&self) -> usize {
        usize::try_from(self.most_bytes / rows::ROW).map_or(usize::MAX / 2, |most| most.max(1))
    }

    /// Writes a snapshot. The allocations of this call are not recorded.
    fn write_with(
        &self,
        path: &Path,
        mut facts: Vec<(String, String)>,
        refusal: Option<&Refusal<'_>>,
    ) -> Result<SnapshotReport, RecordError> {
        let no_memory = || RecordError::NoMemory {
            path: path.to_owned(),
        };
        // A failed allocation in the writer would abort the process. This memory is reserved here and released just
        // before the writer needs it.
        let to_write = MmapMut::map_anon(TO_WRITE).map_err(|_| no_memory())?;
        let state = State::look(self.most_blocks()).ok_or_else(no_memory)?;
        drop(to_write);
        if !has_room(LEAST_MEMORY) {
            return Err(no_memory());
        }
        let (now, measured) = measure();
        facts.extend(self.facts.iter().cloned());
        set_start_at(&mut facts, Time::from_nanos(0));
        let file = super::file::create(path).map_err(|source| RecordError::File {
            path: path.to_owned(),
            source,
        })?;
        let file = Counted {
            inner: BufWriter::new(file),
            bytes: 0,
        };
        let write = || {
            let mut rows = RowBuilder::new(Writer::new(file, &facts)?, 0)?;
            let mut report = rows::write(&mut rows, &state, &measured, now, self.most_bytes, refusal)?;
            report.file_bytes = rows.finish(now)?.bytes;
            Ok(report)
        };
        write().map_err(|error| unwritten(path, error))
    }
}

/// Writes a snapshot to this path after an out-of-memory error. See [`Snapshots::on_out_of_memory`].
pub fn snapshot_on_oom(path: impl Into<PathBuf>) {
    Snapshots::new().on_out_of_memory(path);
}
