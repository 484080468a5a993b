//! Automatic snapshots after a request has finally failed, written on the requesting thread.
//!
//! One lock protects the decision whether a file is written, and nothing else runs under it. A file is written for the
//! first failure of each cause, if enough time has passed since the last file, up to a maximum number of files. The
//! file is complete when the error is returned, so it exists even if the error ends the process.

use super::{SnapshotReport, Snapshots};
use crate::{RecordError, facts, recorded_to};
use foldhash::fast::FixedState;
use memmap2::MmapMut;
use millpond_account::error::AllocError;
use millpond_account::event::PoolLabel;
use millpond_os as os;
use millpond_os::fork::Participant;
use millpond_os::ranked::{Locked, Rank, Ranked};
use millpond_os::reentrancy::quiet;
use millpond_os::thread::{self, COUNTING};
use millpond_os::time::Time;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const VARIABLE: &str = "MILLPOND_OOM_SNAPSHOT";
/// The value of the variable that disables the files.
const NONE: &str = "none";
/// The maximum address space that is reserved for use when memory is exhausted.
const RESERVE: usize = 24 << 20;

/// A failed request.
pub(super) struct Refusal<'a> {
    pub(super) pool: PoolLabel,
    pub(super) requested: u64,
    pub(super) stream: u32,
    pub(super) error: &'a AllocError,
}

/// The path of the files.
#[derive(Clone, Debug)]
enum Place {
    /// Next to the recording, if there is one.
    Beside,
    To(PathBuf),
    Nowhere,
}

struct Turns {
    /// The settings of the program, or of the environment if the program made none.
    settings: Option<(Snapshots, Place)>,
    /// The known facts about this run. The environment is not read while memory is short.
    facts: Vec<(String, String)>,
    /// The causes that already have a file.
    causes: Vec<u64>,
    files: u32,
    /// The time of the last file.
    last: Option<Time>,
    /// The process in which a file is being written.
    writing: Option<u32>,
    reserve: Option<MmapMut>,
}

/// This lock is taken before all locks of pools.
static TURNS: Ranked<Turns> = Ranked::new(
    Rank::Snapshots,
    Turns {
        settings: None,
        facts: Vec::new(),
        causes: Vec::new(),
        files: 0,
        last: None,
        writing: None,
        reserve: None,
    },
);
/// True if a file may have to be written.
static ARMED: AtomicBool = AtomicBool::new(false);

static FORKS: Participant = Participant::new(Rank::Snapshots, || Box::new(TURNS.lock()));

fn turns() -> Locked<'static, Turns> {
    FORKS.register();
    TURNS.lock()
}

impl Snapshots {
    /// Writes a snapshot after each out-of-memory error: when a request to any pool has failed after all cached memory
    /// was freed. `%p` in the path stands for the process id and `%n` for the number of the file. Without `%n` only one
    /// file is written. The file contains the request and the error's text, and the error names the file.
    ///
    /// One file is written for each cause, which is a pool or the budget that refused. The total is limited by
    /// [`most_files`](Self::most_files) and the rate by [`every`](Self::every). The requesting thread writes the file
    /// before the error is returned.
    ///
    /// The environment variable `MILLPOND_OOM_SNAPSHOT=oom.%p-%n.mpr` has the same effect, unless the program calls
    /// this method. If neither is used and the process is [recorded](crate::Recorder), files are written next to the
    /// recording: `run.oom-1.mpr` next to `run.mpr`, and none next to a file whose name begins with a dot. The value
    /// `none` of the variable disables them.
    pub fn on_out_of_memory(self, path: impl Into<PathBuf>) {
        let _quiet = quiet();
        set(self, Place::To(path.into()), true);
    }

    /// Disables automatic snapshots from now on, including those next to a recording.
    pub fn never_on_out_of_memory() {
        let _quiet = quiet();
        set(Self::new(), Place::Nowhere, true);
    }
}

/// Reserves addresses, at most a sixteenth of those that the process may use.
fn reserve() -> Option<MmapMut> {
    let most = os::address_limit().map_or(u64::MAX, |limit| limit / 16);
    MmapMut::map_anon(usize::try_from(most).map_or(RESERVE, |most| most.min(RESERVE))).ok()
}

/// Stores settings. `over` selects whether they replace earlier ones.
fn set(snapshots: Snapshots, place: Place, over: bool) {
    let facts = facts();
    let reserve = reserve();
    let mut turns = turns();
    if !over && turns.settings.is_some() {
        return;
    }
    turns.settings = Some((snapshots, place));
    let before = std::mem::replace(&mut turns.facts, facts);
    let reserve = std::mem::replace(&mut turns.reserve, reserve);
    drop(turns);
    drop((before, reserve));
    ARMED.store(true, Ordering::Release);
}

/// Applies the environment's setting, at most once in a process.
pub(crate) fn look_at_environment() {
    static LOOKED: AtomicBool = AtomicBool::new(false);
    if LOOKED.load(Ordering::Relaxed) || LOOKED.swap(true, Ordering::AcqRel) {
        return;
    }
    let _quiet = quiet();
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        let place = if path == NONE {
            Place::Nowhere
        } else {
            Place::To(path.into())
        };
        set(Snapshots::new(), place, false);
    }
}

/// Notes that a recording has begun, next to which files can be written.
pub(crate) fn recording_begins() {
    look_at_environment();
    set(Snapshots::new(), Place::Beside, false);
}

/// A file to write.
struct Turn {
    snapshots: Snapshots,
    path: PathBuf,
    facts: Vec<(String, String)>,
    cause: u64,
}

impl Turns {
    /// Returns the file to write for a failed request, if one is due.
    fn take(&mut self, cause: u64, now: Time) -> Option<Turn> {
        let (snapshots, place) = self.settings.as_ref()?;
        let here = std::process::id();
        let rests = self.last.is_some_and(|last| now.since(last) < snapshots.every);
        if self.writing == Some(here) || rests || self.causes.contains(&cause) {
            return None;
        }
        let number = self.files + 1;
        if number > snapshots.most_files {
            return None;
        }
        let path = match place {
            Place::Nowhere => return None,
            Place::Beside => beside(&recorded_to()?, number)?,
            Place::To(path) => named(path, number)?,
        };
        let turn = Turn {
            snapshots: snapshots.clone(),
            path,
            facts: self.facts.clone(),
            cause,
        };
        self.writing = Some(here);
        self.reserve = None;
        Some(turn)
    }

    fn done(&mut self, turn: &Turn, written: bool, now: Time) {
        self.writing = None;
        self.reserve = reserve();
        if written {
            self.files += 1;
            self.causes.push(turn.cause);
        }
        // The time also counts if the write fails, because an immediate retry would fail too.
        self.last = Some(now);
    }
}

/// Returns the path of a file next to a recording. Returns `None` for a hidden recording, which is temporary.
fn beside(recording: &Path, number: u32) -> Option<PathBuf> {
    let stem = recording.file_stem().unwrap_or_default().to_string_lossy();
    (!stem.starts_with('.')).then(|| recording.with_file_name(format!("{stem}.oom-{number}.mpr")))
}

/// Returns the path of the file with a number. Returns `None` if the path allows only one file and it exists.
fn named(path: &Path, number: u32) -> Option<PathBuf> {
    let path = crate::with_process(path);
    match path.to_str() {
        Some(text) if text.contains("%n") => Some(text.replace("%n", &number.to_string()).into()),
        _ if number > 1 => None,
        _ => Some(path),
    }
}

/// Returns the cause of a failure: a pool, or a budget, which counts as one cause for all its pools.
fn cause(pool: u64, error: &AllocError) -> u64 {
    let budget = error.post_mortem().and_then(|why| why.budget.as_ref());
    match budget {
        Some(budget) => FixedState::with_seed(0).hash_one(budget.path.as_str()),
        None => pool,
    }
}

/// Writes a snapshot of a finally failed request, if one is due. Returns the error, which then names the file. The
/// caller holds no lock of a pool.
#[cold]
#[inline(never)]
pub fn told(label: impl FnOnce() -> PoolLabel, requested: u64, stream: u32, error: AllocError) -> AllocError {
    if !ARMED.load(Ordering::Acquire) || !error.is_out_of_memory() || error.snapshot().is_some() {
        return error;
    }
    // Requests by the library itself are ignored.
    if thread::inside() & COUNTING != 0 {
        return error;
    }
    let _quiet = quiet();
    let pool = label();
    // The clock is read before the lock is taken.
    let now = Time::now();
    let turn = turns().take(cause(pool.id, &error), now);
    let Some(turn) = turn else { return error };
    let refusal = Refusal {
        pool,
        requested,
        stream,
        error: &error,
    };
    let written = write(&turn, &refusal);
    let now = Time::now();
    turns().done(&turn, written.is_ok(), now);
    match written {
        Ok(_) => error.with_snapshot(turn.path),
        Err(why) => {
            os::say(&format!(
                "millpond: cannot write the snapshot of an out-of-memory error: {why}\n"
            ));
            error
        }
    }
}

fn write(turn: &Turn, refusal: &Refusal<'_>) -> Result<SnapshotReport, RecordError> {
    let mut facts = turn.facts.clone();
    facts.retain(|(name, _)| name != "pid");
    facts.push(("pid".to_owned(), std::process::id().to_string()));
    facts.push(("snapshot".to_owned(), "out of memory".to_owned()));
    turn.snapshots.write_with(&turn.path, facts, Some(refusal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn turns(snapshots: Snapshots, place: Place) -> Turns {
        Turns {
            settings: Some((snapshots, place)),
            facts: Vec::new(),
            causes: Vec::new(),
            files: 0,
            last: None,
            writing: None,
            reserve: None,
        }
    }

    fn second(number: u64) -> Time {
        Time::from_nanos(1_000_000_000 * number)
    }

    #[test]
    fn each_cause_has_one_file_and_files_have_a_minimum_interval() {
        let to = Place::To("oom-%n.mpr".into());
        let mut turns = turns(Snapshots::new().most_files(3), to);
        let mut at = |cause, time| {
            let turn = turns.take(cause, second(time))?;
            assert!(turns.take(99, second(time)).is_none(), "one at a time");
            turns.done(&turn, true, second(time));
            Some(turn.path.display().to_string())
        };
        assert_eq!(at(1, 0).as_deref(), Some("oom-1.mpr"));
        assert_eq!(at(1, 100), None, "it has one");
        assert_eq!(at(2, 59), None, "too soon");
        assert_eq!(at(2, 60).as_deref(), Some("oom-2.mpr"));
        assert_eq!(at(3, 200).as_deref(), Some("oom-3.mpr"));
        assert_eq!(at(4, 1000), None, "as many as there may be");
    }

    #[test]
    fn a_snapshot_that_could_not_be_written_is_retried() {
        let to = Place::To("oom-%n.mpr".into());
        let mut turns = turns(Snapshots::new().every(Duration::from_secs(5)), to);
        let turn = turns.take(1, second(0)).expect("the first");
        turns.done(&turn, false, second(0));
        assert!(turns.take(1, second(4)).is_none());
        let turn = turns.take(1, second(5)).expect("again");
        assert_eq!(turn.path, Path::new("oom-1.mpr"));
    }

    #[test]
    fn file_names_contain_the_process_and_the_number() {
        assert_eq!(
            beside(Path::new("/a/run.7.mpr"), 2),
            Some("/a/run.7.oom-2.mpr".into())
        );
        assert_eq!(beside(Path::new("run"), 1), Some("run.oom-1.mpr".into()));
        assert_eq!(beside(Path::new("/a/.run.7.mpr.part"), 1), None);
        let here = std::process::id();
        let expected = PathBuf::from(format!("a-{here}-3.mpr"));
        assert_eq!(named(Path::new("a-%p-%n.mpr"), 3), Some(expected));
        assert_eq!(named(Path::new("a.mpr"), 1), Some("a.mpr".into()));
        assert_eq!(named(Path::new("a.mpr"), 2), None, "it would be written over");
        let mut turns = turns(Snapshots::new(), Place::Nowhere);
        assert!(turns.take(1, second(0)).is_none());
    }
}
