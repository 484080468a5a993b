//! Recordings: files to which all events of every pool are written while the program runs.
//!
//! ```text
//!   writer       the writing thread, which puts the events of all threads into one order
//!   file         creates the files: replaces older recordings and empty files, and no other files
//!   snapshot     one moment in its own file: on request, and when memory has run out
//!   row_builder  serial numbers, frees with the facts of their allocations, definitions, keyframes
//! ```
//!
//! The format is that of [`millpond_trace::recording`]. A file also contains exact sums from the pools' own accounts, so a lost
//! event costs detail but does not change the totals. While there is no recording, pools pay only the load that shows whether they
//! have observers.
//!
//! This crate is a part of [millpond](https://docs.rs/millpond), which re-exports its public names. Programs should depend on millpond:
//! the names that only millpond's own crates need may change without notice.

#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod file;
mod modules;
mod row_builder;
mod setting;
mod snapshot;
mod writer;

pub use setting::RecordSettingError;
pub use snapshot::refused_finally;
pub use snapshot::{SnapshotReport, Snapshots, snapshot, snapshot_on_oom};
pub use writer::RecordReport;

use file::RecordingFile;
use millpond_account::event::PoolLabel;
use millpond_account::registry::{LivePool, live_pools};
pub use millpond_account::session::RecordStacks;
use millpond_account::session::Sink;
use millpond_account::session::{self, RING_BYTES, Session};
use millpond_account::watchers::Watchers;
use millpond_os as os;
use millpond_os::fork::{Participant, Resting};
use millpond_os::metadata::has_room;
use millpond_os::ranked::{Locked, Rank, Ranked};
use millpond_os::reentrancy::quiet;
use millpond_os::spawn_hidden;
use millpond_os::time::Time;
use millpond_trace::recording::{RecordingError, Writer, set_bytes_per_stack, set_start};
use row_builder::RowBuilder;
use std::io::BufWriter;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use writer::{Counted, EventWriter};

/// The bytes of memory that must be free when a recording or a snapshot begins.
const LEAST_MEMORY: usize = 2 << 20;
/// The maximum time to wait for the beginning of the writing thread.
const LONGEST_START: Duration = Duration::from_secs(1);

/// The error of a recording that could not begin or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The process already has a recording.
    #[error("this process is already being recorded to {path}: stop that recording first")]
    Recording {
        /// The path of that recording.
        path: PathBuf,
    },
    /// The file could not be created.
    #[error("{path} cannot be written: {source}")]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file could not be written further. The part that was written before can be read.
    #[error("{path} is incomplete: {source}; the rest is lost, and the part that was written can be read")]
    Write {
        /// The path.
        path: PathBuf,
        /// The error of the system or of the encoder.
        source: RecordingError,
    },
    /// The thread that writes the file could not be started.
    #[error("cannot start the thread that writes the recording: {0}")]
    Thread(std::io::Error),
    /// The memory for writing the file could not be allocated.
    #[error(
        "cannot write {path}: no memory is left; if the process has a limit on addresses (ulimit -v), raise it"
    )]
    NoMemory {
        /// The path.
        path: PathBuf,
    },
    /// The writing thread panicked.
    #[error("the thread that writes the recording panicked; the file can be read up to that point")]
    Panicked,
}

/// The settings of a recording.
#[derive(Clone, Debug)]
pub struct RecorderBuilder {
    ring_bytes: usize,
    stacks: RecordStacks,
    sums_every: Option<Duration>,
    facts: Vec<(String, String)>,
}

impl RecorderBuilder {
    /// Sets the size of a thread's buffer for events that are not written yet. The default is 64 MiB, of which a thread
    /// allocates only what it needs. A larger buffer loses fewer events of a burst on a busy machine.
    #[must_use]
    pub fn ring_bytes(mut self, bytes: usize) -> Self {
        self.ring_bytes = bytes;
        self
    }

    /// Sets which allocations are recorded with their stacks. The default is none.
    #[must_use]
    pub fn stacks(mut self, stacks: RecordStacks) -> Self {
        self.stacks = stacks;
        self
    }

    /// Sets the interval at which the sums of pools, devices and the process are recorded. The default is a tenth of a
    /// second, and the minimum is a millisecond. `None` disables the sums.
    #[must_use]
    pub fn sums_every(mut self, every: Option<Duration>) -> Self {
        self.sums_every = every.map(|every| every.max(Duration::from_millis(1)));
        self
    }

    /// Adds a fact about the run to the file, such as its `rank` or its `commit`.
    #[must_use]
    pub fn fact(mut self, name: &str, value: &str) -> Self {
        self.facts.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts recording all pools of this process, including those that are made later. `%p` in the path stands for the
    /// process id.
    ///
    /// With `%p` in the path, the child of a fork begins a recording of its own at its first event, if the process that forked
    /// had no other threads. A child of a process with several threads is not recorded, because it cannot start a thread safely.
    ///
    /// # Errors
    /// Returns an error if the process already has a recording, or if the file or the thread cannot be created.
    pub fn start(self, path: impl AsRef<Path>) -> Result<Recorder, RecordError> {
        let _quiet = quiet();
        let pattern = path.as_ref();
        let path = with_process(pattern);
        let mut current = current();
        if let Some(running) = current
            .running
            .as_ref()
            .filter(|running| running.process == process::id())
        {
            return Err(RecordError::Recording {
                path: running.path.clone(),
            });
        }
        let successor = (path != pattern).then(|| (self.clone(), pattern.to_owned()));
        let running = self.begin(&path, successor)?;
        current.running = Some(running);
        current.successor = None;
        RECORDS.store(true, Ordering::Release);
        drop(current);
        snapshot::recording_begins();
        attach_all();
        watch_exit();
        Ok(Recorder(()))
    }

    fn begin(self, path: &Path, successor: Option<Successor>) -> Result<Running, RecordError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let file_error = |source| RecordError::File {
            path: path.to_owned(),
            source,
        };
        if !has_room(LEAST_MEMORY) {
            return Err(RecordError::NoMemory {
                path: path.to_owned(),
            });
        }
        let file = file::create(path).map_err(file_error)?;
        let start = Time::now();
        let mut facts = facts();
        set_start_at(&mut facts, start);
        if let RecordStacks::Bytes(bytes) = self.stacks {
            set_bytes_per_stack(&mut facts, bytes.max(1));
        }
        facts.extend(self.facts);
        let file = Counted {
            inner: BufWriter::new(RecordingFile::new(file, path).map_err(file_error)?),
            bytes: 0,
        };
        let begun = Writer::new(file, &facts).and_then(|mut writer| {
            // If the process is killed after this point, the file can still be opened.
            writer.flush()?;
            Ok(writer)
        });
        let writer = begun.map_err(|error| {
            // A file without a complete beginning is not a recording, so no later recording would replace it.
            let _ = std::fs::remove_file(path);
            match error {
                RecordingError::Io(source) => file_error(source),
                error => unwritten(path, error),
            }
        })?;
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let session = Session::new(number, self.ring_bytes, self.stacks);
        let session = Arc::new(session.leave_out(own_code().unwrap_or_default()));
        let rows = RowBuilder::new(writer, start.nanos()).map_err(|error| unwritten(path, error))?;
        let writer = EventWriter::new(Arc::clone(&session), rows, self.sums_every);
        let (begun, has_begun) = mpsc::sync_channel(1);
        let write = move || {
            {
                let _quiet = quiet();
                let _ = begun.send(());
                drop(begun);
            }
            writer.run(end_abandoned)
        };
        let thread = spawn_hidden("millpond-record", write).map_err(RecordError::Thread)?;
        // A new thread allocates from the program's pool before it runs this closure, and the C library ends the process if the pool is
        // full. So this waits until the closure runs, because the program may fill the pool soon.
        let _ = has_begun.recv_timeout(LONGEST_START);
        session.set_scribe(thread.thread().clone());
        Ok(Running {
            session,
            thread,
            path: path.to_owned(),
            process: process::id(),
            successor,
        })
    }
}

/// A running recording. It ends when it is stopped or dropped.
///
/// ```
/// use millpond::{Pool, Recorder};
///
/// let path = std::env::temp_dir().join("millpond-doc-%p.mpr");
/// let recorder = Recorder::start(&path)?;
/// let pool = Pool::host()?;
/// {
///     let _scope = millpond::tag("weights");
///     let _weights = pool.alloc_zeroed::<f32>(1 << 20)?;
///     recorder.mark("loaded");
/// }
/// let report = recorder.stop()?;
/// assert!(report.events >= 3 && report.lost == 0);
/// # std::fs::remove_file(path.to_str().unwrap().replace("%p", &std::process::id().to_string()))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A program that uses the library with this feature is also recorded if the environment variable `MILLPOND_RECORD` is
/// set: `MILLPOND_RECORD=run.mpr`, or with settings after the path, `run.%p.mpr,stacks=512K,sums=100ms,ring=64M`.
#[derive(Debug)]
#[must_use = "the recording ends when this is dropped"]
pub struct Recorder(());

impl Recorder {
    /// Starts recording all pools of this process, without stacks. See [`RecorderBuilder::start`].
    ///
    /// # Errors
    /// Returns an error if the process already has a recording, or if the file or the thread cannot be created.
    pub fn start(path: impl AsRef<Path>) -> Result<Self, RecordError> {
        Self::builder().start(path)
    }

    /// Returns a builder with the default settings.
    #[must_use]
    pub fn builder() -> RecorderBuilder {
        RecorderBuilder {
            ring_bytes: RING_BYTES,
            stacks: RecordStacks::Never,
            sums_every: Some(Duration::from_millis(100)),
            facts: Vec::new(),
        }
    }

    /// Marks this moment in the recording with a text.
    pub fn mark(&self, text: &str) {
        mark(text);
    }

    /// Stops the recording. Returns its report when the file is complete.
    ///
    /// # Errors
    /// Returns an error if the file could not be written.
    pub fn stop(self) -> Result<RecordReport, RecordError> {
        std::mem::forget(self);
        stop()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _quiet = quiet();
        if let Err(error) = stop() {
            os::say(&format!("millpond: {error}\n"));
        }
    }
}

/// Marks this moment in the recording of this process, if there is one.
pub fn mark(text: &str) {
    if let Some(session) = session() {
        session.mark(text);
    }
}

/// Marks the beginning of a step of a repeating program, such as training. Recordings are compared step by step and
/// searched for growth from step to step.
pub fn step(number: u64) {
    if let Some(session) = session() {
        session.step(number);
    }
}

/// The parts of a running recording.
struct Running {
    session: Arc<Session>,
    thread: JoinHandle<Result<RecordReport, RecordingError>>,
    path: PathBuf,
    /// The process that is recorded. A child of a fork is not, because the writing thread belongs to its parent.
    process: u32,
    /// The recording of a child of a fork, if the path differs by process.
    successor: Option<Successor>,
}

/// The settings and the path of a recording that begins later. The path contains `%p`.
type Successor = (RecorderBuilder, PathBuf);

/// The recordings of this process.
struct Recordings {
    running: Option<Running>,
    /// Sessions that are about to end. Pools may still send events to them.
    ending: Vec<Arc<Session>>,
    /// In the child of a fork: the recording that begins at the next event.
    successor: Option<Successor>,
}

static CURRENT: Ranked<Recordings> = Ranked::new(
    Rank::Recording,
    Recordings {
        running: None,
        ending: Vec::new(),
        successor: None,
    },
);
/// True if there is a recording. It is read without a lock.
static RECORDS: AtomicBool = AtomicBool::new(false);

static FORKS: Participant = Participant::new(Rank::Recording, || {
    let current = CURRENT.lock();
    let continues = current
        .running
        .as_ref()
        .is_some_and(|running| running.successor.is_some());
    let may_continue = continues && os::has_one_thread();
    let is_first_left_out = continues && !may_continue && !LEFT_OUT.swap(true, Ordering::Relaxed);
    Box::new(NoRecording {
        current,
        may_continue,
        is_first_left_out,
    })
});

/// Whether this process had a child that is not recorded although the path of the recording names the process.
static LEFT_OUT: AtomicBool = AtomicBool::new(false);

fn current() -> Locked<'static, Recordings> {
    FORKS.register();
    CURRENT.lock()
}

/// The lock that is held around a fork. No recording begins or ends while it is held.
struct NoRecording {
    current: Locked<'static, Recordings>,
    /// Whether the child may start a thread. If another thread of the parent was being started or was ending, it may have held a
    /// lock of the C library, which the child would wait for.
    may_continue: bool,
    /// Whether the child is the first one of the process that is not recorded because of that.
    is_first_left_out: bool,
}

impl Resting for NoRecording {
    /// Ends all recordings in the child of a fork, where no thread writes them. No part of a recording is dropped,
    /// because threads that exist only in the parent may have been changing it or may have held its locks. These locks
    /// are not used any more.
    fn forget_others(&mut self) {
        RECORDS.store(false, Ordering::Release);
        if let Some(mut running) = self.current.running.take() {
            self.current.successor = running.successor.take().filter(|_| self.may_continue);
            let is_awaited = self.current.successor.is_some() || self.is_first_left_out;
            IS_AWAITED.store(is_awaited, Ordering::Release);
            running.session.deactivate_for(begin_successor);
            // The thread of the recording does not exist here, and a new thread may get its id. Dropping the handle could
            // detach that new thread.
            std::mem::forget(running);
        }
        for session in self.current.ending.drain(..) {
            session.deactivate();
            std::mem::forget(session);
        }
        session::forget_way();
    }
}

/// Whether [`begin_successor`] has something to do at the next event. It is not behind the lock of [`CURRENT`], because the thread of a
/// recording reads it at its first allocation, and the thread that starts it holds that lock.
static IS_AWAITED: AtomicBool = AtomicBool::new(false);

/// Begins the recording of a child of a fork at the child's first event, and returns the session. Returns `None` at other events, and
/// if the child is not recorded.
fn begin_successor() -> Option<Arc<Session>> {
    if !IS_AWAITED.swap(false, Ordering::AcqRel) {
        return None;
    }
    let _quiet = quiet();
    let process = process::id();
    let Some((builder, path)) = current().successor.take() else {
        os::say(&format!(
            "millpond: process {process} is not recorded until it starts a program, because the process that forked had several threads, \
             or they could not be counted; no message follows for its later children\n"
        ));
        return None;
    };
    match builder.start(path) {
        // The recording runs until the process ends.
        Ok(recorder) => std::mem::forget(recorder),
        Err(error) => os::say(&format!("millpond: process {process} is not recorded: {error}\n")),
    }
    session()
}

fn session() -> Option<Arc<Session>> {
    if !RECORDS.load(Ordering::Acquire) {
        return None;
    }
    let _quiet = quiet();
    let current = current();
    current
        .running
        .as_ref()
        .map(|running| Arc::clone(&running.session))
}

/// Adds a new pool to the recording, if there is one. Starts the recording that the environment requests, if that has
/// not happened yet. The caller holds no lock of a pool.
pub fn attach(pool: &dyn LivePool) {
    snapshot::look_at_environment();
    setting::begin_by_environment();
    if let Some(session) = session() {
        pool.change_watchers(&|watchers| watchers.with_sink(Some(session.sink(watchers.pool()))));
    }
}

/// Like [`attach`], for a device's pool. Returns the pool's connection to the recording, if there is one.
pub fn sink_for(pool: &PoolLabel) -> Option<Sink> {
    snapshot::look_at_environment();
    setting::begin_by_environment();
    session().map(|session| session.sink(pool))
}

fn attach_all() {
    let Some(session) = session() else { return };
    change_all(|watchers| {
        let known = watchers.sink().is_some_and(|sink| sink.is_of(&session));
        if known {
            watchers.clone()
        } else {
            watchers.with_sink(Some(session.sink(watchers.pool())))
        }
    });
}

fn change_all(change: impl Fn(&Watchers) -> Watchers) {
    for pool in live_pools() {
        pool.change_watchers(&change);
    }
}

fn stop() -> Result<RecordReport, RecordError> {
    let _quiet = quiet();
    let running = {
        let mut current = current();
        RECORDS.store(false, Ordering::Release);
        let running = current.running.take();
        let running = running.filter(|running| running.process == process::id());
        current
            .ending
            .extend(running.as_ref().map(|running| Arc::clone(&running.session)));
        running
    };
    let Some(running) = running else {
        return Ok(RecordReport::default());
    };
    change_all(|watchers| match watchers.sink() {
        Some(sink) if sink.is_of(&running.session) => watchers.with_sink(None),
        _ => watchers.clone(),
    });
    running.session.stop();
    let report = match running.thread.join() {
        Ok(written) => written.map_err(|error| unwritten(&running.path, error)),
        Err(_) => Err(RecordError::Panicked),
    };
    current()
        .ending
        .retain(|ending| !Arc::ptr_eq(ending, &running.session));
    report
}

fn unwritten(path: &Path, source: RecordingError) -> RecordError {
    RecordError::Write {
        path: path.to_owned(),
        source,
    }
}

/// True if the module that contains this library contains no code of the program.
static IS_APART: AtomicBool = AtomicBool::new(false);

/// Leaves the frames of this library out of the stacks of recordings that begin later. May be called only if the module that contains the
/// library contains no code of the program, as in a library that is preloaded.
pub fn leave_out_own_code() {
    IS_APART.store(true, Ordering::Relaxed);
}

/// Returns the addresses of this library's code if it is left out of stacks.
fn own_code() -> Option<Range<u64>> {
    let here = leave_out_own_code as fn() as usize;
    IS_APART
        .load(Ordering::Relaxed)
        .then(|| modules::around(here as u64))?
}

/// Ends the process in which only threads of this library remain. Called on the writing thread when the recording is complete, so the
/// exit handler must not wait for that thread.
fn end_abandoned() {
    RECORDS.store(false, Ordering::Release);
    os::end_abandoned();
}

/// Completes the recording of a process that ends without its exit handlers, as by `_exit`. May be called in a signal handler and in a
/// child of `vfork`. If the writing thread waits for a lock of the calling thread, the last events may be lost after two seconds.
pub fn complete_now() {
    const PATIENCE: Duration = Duration::from_secs(2);
    if !RECORDS.load(Ordering::Acquire) {
        return;
    }
    let Some(current) = CURRENT.try_lock() else { return };
    let running = current.running.as_ref();
    let Some(running) = running.filter(|running| running.process == process::id()) else {
        return;
    };
    running.session.stop();
    let begun = Instant::now();
    while !running.thread.is_finished() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Registers an exit handler that completes the recording.
fn watch_exit() {
    extern "C" fn close() {
        let closed = std::panic::catch_unwind(|| {
            if !RECORDS.load(Ordering::Acquire) {
                return;
            }
            // The program's pool may be full, so messages must not be allocated from it.
            let _quiet = quiet();
            match stop() {
                Ok(report) if report.lost > 0 => os::say(&format!(
                    "millpond: {} of {} events are not in the recording, because a thread's ring was full; \
                     set a larger ring, as in MILLPOND_RECORD=run.%p.mpr,ring=256M or millpond run --ring 256M\n",
                    report.lost,
                    report.lost + report.events
                )),
                Ok(_) => {}
                Err(error) => os::say(&format!("millpond: {error}\n")),
            }
        });
        // The payload of a panic may panic when it is dropped.
        std::mem::forget(closed);
    }
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // If the handler cannot be registered, the end of the file is missing, as after a kill.
        os::at_exit(close);
    }
}

/// Returns the path of this process's recording, if there is one. Does not block.
fn recorded_to() -> Option<PathBuf> {
    let current = CURRENT.try_lock()?;
    let running = current.running.as_ref()?;
    (running.process == process::id()).then(|| running.path.clone())
}

fn with_process(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(text) => text.replace("%p", &process::id().to_string()).into(),
        None => path.to_owned(),
    }
}

/// Returns the known facts about this run.
fn facts() -> Vec<(String, String)> {
    let mut facts = vec![("pid".to_owned(), process::id().to_string())];
    let mut add =
        |name: &str, value: Option<String>| facts.extend(value.map(|value| (name.to_owned(), value)));
    let program = std::env::current_exe().ok();
    let name = program.as_ref().and_then(|path| path.file_name());
    add("program", name.map(|name| name.to_string_lossy().into_owned()));
    let read = |path: &str| std::fs::read_to_string(path).ok();
    add(
        "host",
        read("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()),
    );
    let rank = ["RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"];
    add("rank", rank.into_iter().find_map(|name| std::env::var(name).ok()));
    facts
}

/// Sets `start`, a time of this process's clock, as the origin of the times in a recording.
fn set_start_at(facts: &mut Vec<(String, String)>, start: Time) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    if let Some(start) = now.and_then(|now| now.checked_sub(Time::now().since(start))) {
        set_start(facts, start.as_nanos() as u64);
    }
}
