//! The writing thread. It takes the events of all threads, sorts them by time, and enters them in the recording.
//!
//! Each thread writes events to its own ring, so the order between threads has to be reconstructed. An event can be
//! taken when no earlier event can still arrive. A thread marks its ring as busy before it reads the time of an event.
//! An event that is not in the ring yet is therefore later than the last check at which the ring was not busy.

use super::modules;
use super::row_builder::{Measured, RowBuilder};
use millpond_account::registry::live_pools;
use millpond_account::session::{Lost, Session, Taker};
use millpond_account::stats::PoolStats;
use millpond_os::device::{Device, open_devices};
use millpond_os::reentrancy::quiet;
use millpond_os::thread_number;
use millpond_os::time::Time;
use millpond_trace::recording::{Gauge, RecordingError};
use std::collections::{BTreeSet, HashSet};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

/// An upper bound for the delay until this thread sees that a ring is busy, in nanoseconds.
const HOLD: u64 = 200_000;
/// The interval between two checks while there are events, and while there are none.
const AT_WORK: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(25);
/// Events older than this are flushed to the file, in nanoseconds.
const FLUSH: u64 = 200_000_000;
/// The longest wait at the end for a thread that is writing an event, in nanoseconds.
const PATIENCE: u64 = 500_000_000;

/// The report of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordReport {
    /// The number of events in the file.
    pub events: u64,
    /// The number of events that did not fit in a ring. The file contains this number too.
    pub lost: u64,
    /// The bytes of the file.
    pub bytes: u64,
}

/// A ring and the progress of reading it.
struct Known {
    taker: Taker,
    /// The time of the last check at which it was not busy.
    quiet: u64,
    lost: Lost,
    /// Whether no more events can follow.
    is_over: bool,
}

/// The state of the writing thread.
pub(super) struct EventWriter<W: Write> {
    session: Arc<Session>,
    rows: RowBuilder<Counted<W>>,
    rings: Vec<Known>,
    nested: Lost,
    /// The interval of the pools' sums, or `None` if they are not recorded.
    every: Option<u64>,
    next_look: u64,
    /// The last sums and their time. They are entered after all events up to that time.
    measured: Option<(u64, Vec<Measured>)>,
    next_flush: u64,
    /// The base addresses of the code modules that are defined.
    modules: HashSet<u64>,
    stack: Vec<u64>,
    /// The number of this thread.
    thread: u32,
    /// True if only threads of this library remain, so that nobody will stop the recording.
    is_abandoned: bool,
}

/// A writer that counts its bytes.
#[derive(Debug)]
pub(super) struct Counted<W> {
    pub(super) inner: W,
    pub(super) bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

fn now() -> u64 {
    Time::now().nanos()
}

impl<W: Write> EventWriter<W> {
    pub(super) fn new(session: Arc<Session>, rows: RowBuilder<Counted<W>>, every: Option<Duration>) -> Self {
        let every = every.map(|every| u64::try_from(every.as_nanos()).unwrap_or(u64::MAX));
        Self {
            session,
            rows,
            rings: Vec::new(),
            nested: Lost::default(),
            every,
            next_look: 0,
            measured: None,
            next_flush: now().saturating_add(FLUSH),
            modules: HashSet::new(),
            stack: Vec::new(),
            thread: 0,
            is_abandoned: false,
        }
    }

    /// Writes until the recording is stopped, a write fails, or only threads of this library remain. In the last case `end` is called
    /// when the file is complete.
    pub(super) fn run(mut self, end: fn()) -> Result<RecordReport, RecordingError> {
        let quiet = quiet();
        self.thread = thread_number();
        let written = self.write();
        self.session.deactivate();
        if let Err(RecordingError::NoMemory) = written {
            self.rows.flush()?;
        }
        written?;
        let (events, lost, is_abandoned) = (self.rows.events, self.rows.lost, self.is_abandoned);
        let file = self.rows.finish(now())?;
        drop(quiet);
        if is_abandoned {
            end();
        }
        Ok(RecordReport {
            events,
            lost,
            bytes: file.bytes,
        })
    }

    fn write(&mut self) -> Result<(), RecordingError> {
        self.define_code()?;
        loop {
            let stopping = self.session.is_stopping();
            self.session.is_at_work();
            let any = self.look()?;
            if stopping || self.is_abandoned {
                return self.end();
            }
            std::thread::park_timeout(if any { AT_WORK } else { IDLE });
        }
    }

    /// Writes the events that are available now.
    fn look(&mut self) -> Result<bool, RecordingError> {
        let now = now();
        self.meet()?;
        let limit = self.limit(now);
        let any = self.merge_and_say(limit)?;
        self.count_losses()?;
        if let Some(every) = self.every
            && now >= self.next_look
            && self.measured.is_none()
        {
            self.next_look = now.saturating_add(every);
            self.measured = Some(measure());
        }
        if now >= self.next_flush {
            self.next_flush = now.saturating_add(FLUSH);
            self.rows.flush()?;
            self.is_abandoned = millpond_os::is_abandoned();
        }
        Ok(any)
    }

    /// Writes the remaining events. No thread begins a new event any more.
    fn end(&mut self) -> Result<(), RecordingError> {
        let until = now().saturating_add(PATIENCE);
        while self.rings.iter().any(|known| known.taker.ring.is_busy()) && now() < until {
            std::thread::yield_now();
        }
        self.meet()?;
        self.merge_and_say(u64::MAX)?;
        self.count_losses()?;
        if self.every.is_some() {
            self.measured = Some(measure());
            self.merge_and_say(u64::MAX)?;
        }
        self.define_code()
    }

    /// Enters all events up to a time, and the sums between them.
    fn merge_and_say(&mut self, limit: u64) -> Result<bool, RecordingError> {
        let mut any = false;
        if let Some((time, measured)) = self.measured.take_if(|(time, _)| *time <= limit) {
            any = self.merge(time)?;
            for measured in &measured {
                self.rows.measured(measured, time)?;
            }
        }
        Ok(self.merge(limit)? || any)
    }

    /// Adds new pools and threads.
    fn meet(&mut self) -> Result<(), RecordingError> {
        for pool in self.session.new_pools() {
            self.rows.define_pool(&pool)?;
        }
        for ring in self.session.new_rings() {
            // This thread allocates when it starts, before it is quiet.
            if ring.thread == self.thread {
                continue;
            }
            self.rows
                .define_thread(ring.thread, &millpond_os::task_name(ring.task))?;
            self.rings.push(Known {
                taker: Taker::new(ring),
                quiet: 0,
                lost: Lost::default(),
                is_over: false,
            });
        }
        Ok(())
    }

    /// Returns the time up to which all events have arrived.
    fn limit(&mut self, now: u64) -> u64 {
        for known in &mut self.rings {
            if !known.taker.ring.is_busy() {
                known.quiet = now;
            }
        }
        let quiet = self.rings.iter().map(|known| known.quiet).min();
        quiet.unwrap_or(now).saturating_sub(HOLD)
    }

    /// Enters all events up to a time, the earliest first.
    fn merge(&mut self, limit: u64) -> Result<bool, RecordingError> {
        let mut any = false;
        for known in &mut self.rings {
            known.taker.look();
        }
        loop {
            // The ring with the earliest event, and the time at which another ring is next.
            let (mut first, mut first_time, mut other) = (None, u64::MAX, u64::MAX);
            for (at, known) in self.rings.iter().enumerate() {
                let Some(time) = known.taker.time() else { continue };
                if first.is_none() || time < first_time {
                    other = first_time;
                    (first, first_time) = (Some(at), time);
                } else {
                    other = other.min(time);
                }
            }
            let Some(known) = first.and_then(|at| self.rings.get_mut(at)) else {
                return Ok(any);
            };
            if first_time > limit {
                return Ok(any);
            }
            any = true;
            let thread = known.taker.ring.thread;
            while known.taker.time().is_some_and(|time| time <= other.min(limit))
                && let Some(told) = known.taker.take(&mut self.stack)
            {
                let session = &self.session;
                let mark = |number| session.mark_of(number);
                self.rows.enter(&told, thread, &self.stack, mark)?;
            }
        }
    }

    fn count_losses(&mut self) -> Result<(), RecordingError> {
        for known in &mut self.rings {
            // This is read first, because a thread may lose an event and end after its losses are read.
            known.is_over = known.taker.is_over();
            let lost = known.taker.ring.lost();
            let since = lost.since(known.lost);
            if since.events > 0 {
                known.lost = lost;
                self.rows.lose(since, known.taker.ring.thread)?;
            }
        }
        let nested = self.session.nested();
        let since = nested.since(self.nested);
        if since.events > 0 {
            self.nested = nested;
            self.rows.lose(since, 0)?;
        }
        self.rings.retain(|known| !known.is_over);
        Ok(())
    }

    /// Defines new code modules, if stacks are recorded.
    fn define_code(&mut self) -> Result<(), RecordingError> {
        if !self.session.has_stacks() {
            return Ok(());
        }
        for module in modules::all() {
            if self.modules.insert(module.address) {
                self.rows.define_module(&module)?;
            }
        }
        Ok(())
    }
}

/// Returns the sums of the pools, the process and the devices, and their time. Pools count exactly, independent of lost
/// events.
pub(super) fn measure() -> (u64, Vec<Measured>) {
    let mut measured = Vec::new();
    let mut with_pools = BTreeSet::new();
    for pool in live_pools() {
        measure_pool(pool.label().id, &pool.stats(), &mut measured);
        with_pools.insert(pool.device());
    }
    // The time is taken right after the sums, because an event between the two would count as part of the sums.
    let time = now();
    // Devices are listed only if some have pools, because a handle keeps a device open.
    let has_devices = with_pools.iter().any(|device| *device != Device::Host);
    for of in has_devices.then(open_devices).into_iter().flatten() {
        let Device::Cuda(device) = of.device() else {
            continue;
        };
        let memory = with_pools.contains(&of.device()).then(|| of.memory()).flatten();
        let Some((free, total)) = memory else { continue };
        for (gauge, bytes) in [
            (Gauge::DeviceUsed, total.saturating_sub(free)),
            (Gauge::DeviceTotal, total),
        ] {
            measured.push(Measured {
                gauge,
                pool: 0,
                device,
                bytes,
            });
        }
    }
    measured.extend(millpond_os::resident_bytes().map(|bytes| Measured {
        gauge: Gauge::Resident,
        pool: 0,
        device: 0,
        bytes,
    }));
    (time, measured)
}

fn measure_pool(pool: u64, stats: &PoolStats, measured: &mut Vec<Measured>) {
    let sums = [
        (Gauge::Requested, stats.requested.current),
        (Gauge::Allocated, stats.allocated.current),
        (Gauge::Active, stats.active()),
        (Gauge::Reserved, stats.reserved.current),
        (Gauge::Hits, stats.hits),
        (Gauge::Allocations, stats.allocations),
    ];
    measured.extend(sums.map(|(gauge, bytes)| Measured {
        gauge,
        pool: pool as u32,
        device: 0,
        bytes,
    }));
}
