//! The observers of a pool: subscribers, and the ledger of live blocks.

use super::cache::Cache;
use super::fast;
use super::heap::{Heap, RawBlock, lock};
use super::request::AllocRequest;
use super::slow_path_reason::SlowPathReason;
use millpond_account::event::{BlockInfo, EventKind};
use millpond_account::ledger::{Ledger, WrongFree};
use millpond_account::watchers::{EventFilter, Watchers};
use millpond_os::reentrancy::inside;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that the pool took from its source or gave back, and that were not reported yet.
#[derive(Debug, Default)]
pub struct SourceTraffic {
    pub(crate) taken: AtomicU64,
    pub(crate) given: AtomicU64,
}

impl SourceTraffic {
    /// Returns the bytes to report, by kind of event, and resets them.
    pub fn drain(&self) -> [(EventKind, u64); 2] {
        [
            (EventKind::Refilled, self.taken.swap(0, Ordering::Relaxed)),
            (EventKind::Trimmed, self.given.swap(0, Ordering::Relaxed)),
        ]
    }
}

thread_local! {
    /// The observers that this thread used last. They are taken out while they are called, so that a nested call finds none
    /// and looks them up.
    static KNOWN: Cell<Option<Arc<Watchers>>> = const { Cell::new(None) };
}

/// Registers the destructors of the thread's locals with the C library, which allocates memory for them. If the pool is `malloc`,
/// registering them during an event would recurse without end. Called inside a reentrancy guard.
pub(super) fn prepare_thread() {
    let _ = KNOWN.try_with(|_| ());
    millpond_account::session::prepare_thread();
}

/// An event to report.
#[derive(Clone, Copy)]
enum Said<'a> {
    Allocated,
    /// An allocation that was picked for the sampled ledger.
    Picked,
    Freed,
    Other(EventKind),
    Wrong(&'a WrongFree),
}

impl Said<'_> {
    #[inline(always)]
    fn to(self, watchers: &Watchers, info: BlockInfo) -> Result<(), Box<WrongFree>> {
        match self {
            Self::Allocated => watchers.allocated(&info),
            Self::Picked => watchers.picked(&info),
            Self::Freed => return watchers.freed(&info),
            Self::Other(kind) => watchers.note(kind, &info),
            Self::Wrong(wrong) => watchers.wrong(wrong),
        }
        Ok(())
    }
}

/// Describes a block for an event.
#[inline(always)]
fn info(taken: RawBlock, requested: usize, align: usize) -> BlockInfo {
    BlockInfo {
        address: taken.address,
        requested,
        bytes: taken.bytes,
        align,
        ..BlockInfo::default()
    }
}

/// Returns the number of the next change of observers. Its lowest bit is set if a recording is the only observer.
fn change_after(change: u64, only_record: bool) -> u64 {
    (change | 1) + 1 + u64::from(only_record)
}

#[inline(always)]
fn only_recorded(change: u64) -> bool {
    change & 1 == 1
}

impl Heap {
    /// Returns the current observers.
    pub(crate) fn watchers(&self) -> Arc<Watchers> {
        Arc::clone(&lock(&self.watchers))
    }

    /// Changes the observers. Every call that begins after this one has returned reports to the new ones.
    pub(crate) fn change_watchers<R>(&self, change: impl FnOnce(&Watchers) -> (Watchers, R)) -> R {
        let (before, answer) = {
            let _inside = inside();
            // The list of caches is locked before the observers, in the same order as for a fork.
            let registry = lock(&self.registry);
            let mut now = lock(&self.watchers);
            let (made, answer) = change(&now);
            let sees = made.sees();
            let sampled = matches!(sees, EventFilter::OneIn(_));
            let change = change_after(self.watch_changes.load(Ordering::Relaxed), made.only_record());
            let before = std::mem::replace(&mut *now, Arc::new(made.of_change(change)));
            self.watch_changes.store(change, Ordering::Release);
            if sampled {
                registry.caches.iter().for_each(|cache| cache.pick_anew());
            }
            // The reason that covers more events is turned on first, so that no event is missed in between.
            if sees == EventFilter::Every {
                self.switch_reason(&registry, SlowPathReason::Watched, true);
            }
            self.switch_reason(&registry, SlowPathReason::Sampled, sampled);
            self.switch_reason(&registry, SlowPathReason::Watched, sees == EventFilter::Every);
            (before, answer)
        };
        // Dropping may run a subscriber's code, so it happens outside of every lock.
        drop(before);
        answer
    }

    /// Reports an event to the current observers, which each thread caches. This function and all functions that it calls up to
    /// the subscribers are inlined, so that the fields stay in registers. If they were written one by one and read two at a time,
    /// the processor would wait for the writes.
    #[inline(always)]
    fn say(&self, said: Said<'_>, info: BlockInfo) -> Result<(), Box<WrongFree>> {
        let change = self.watch_changes.load(Ordering::Acquire);
        let known = KNOWN.try_with(Cell::take).ok().flatten();
        let known = match known {
            Some(known) if known.is_of(self.number(), change) => known,
            other => self.get_to_know(other),
        };
        let answer = said.to(&known, info);
        // This fails only while the thread ends. In that case the observers are dropped.
        let _ = KNOWN.try_with(|place| place.set(Some(known)));
        answer
    }

    /// Reports to a recording in the shortest way, if it is the only observer. Otherwise returns false and reports nothing.
    #[inline(always)]
    fn record<const ALLOCATED: bool>(&self, taken: RawBlock, requested: usize) -> bool {
        let change = self.watch_changes.load(Ordering::Acquire);
        only_recorded(change) && self.record_now::<ALLOCATED>(change, taken, requested)
    }

    /// Reports to a recording. This is one function for each kind of event, into which all calls are inlined, so that the fields
    /// stay in registers.
    #[inline(never)]
    fn record_now<const ALLOCATED: bool>(&self, change: u64, taken: RawBlock, requested: usize) -> bool {
        use millpond_account::session::{Way, tell_short};
        use millpond_os::thread::{self, COUNTING};
        let pool = self.number();
        thread::inside() & COUNTING != 0
            || tell_short::<ALLOCATED>(Way { pool, change }, &info(taken, requested, 0))
    }

    #[cold]
    #[inline(never)]
    fn get_to_know(&self, before: Option<Arc<Watchers>>) -> Arc<Watchers> {
        drop(before);
        self.watchers()
    }

    /// Reports an allocated block.
    #[inline(always)]
    pub(super) fn tell_allocated(&self, taken: RawBlock, requested: usize, align: usize) {
        if !self.record::<true>(taken, requested) {
            self.say_allocated(taken, requested, align);
        }
        self.tell_flow();
    }

    #[inline(never)]
    fn say_allocated(&self, taken: RawBlock, requested: usize, align: usize) {
        // An allocation cannot be a wrong free.
        let _ = self.say(Said::Allocated, info(taken, requested, align));
    }

    /// Reports a refused request.
    pub(super) fn tell_refused(&self, ask: &AllocRequest) {
        let nothing = RawBlock { address: 0, bytes: 0 };
        let info = info(nothing, ask.told, ask.align);
        let _ = self.say(Said::Other(EventKind::Refused), info);
        self.tell_flow();
    }

    /// Reports a free, before the block can be allocated again. An alignment of 0 means that the caller did not pass one.
    #[inline(always)]
    pub(super) fn tell_freed(
        &self,
        taken: RawBlock,
        requested: usize,
        align: usize,
    ) -> Result<(), Box<WrongFree>> {
        if self.record::<false>(taken, requested) {
            return Ok(());
        }
        self.say_freed(taken, requested, align)
    }

    #[inline(never)]
    fn say_freed(&self, taken: RawBlock, requested: usize, align: usize) -> Result<(), Box<WrongFree>> {
        self.say(Said::Freed, info(taken, requested, align))
    }

    /// Prints the error of a wrong free on standard error, for callers that cannot receive an error. Called outside of every
    /// lock.
    #[cold]
    pub(super) fn say_wrong(&self, wrong: &WrongFree) {
        let _inside = inside();
        millpond_os::say(&format!("millpond: {wrong}\n"));
    }

    /// Reports a wrong free to the observers.
    pub(super) fn tell_wrong_to_watchers(&self, wrong: &WrongFree) {
        if self.is_watched() {
            let _ = self.say(Said::Wrong(wrong), BlockInfo::default());
        }
    }

    /// Reports the bytes that were taken from the source and given back to it since the last report.
    #[inline]
    pub(super) fn tell_flow(&self) {
        if self.flow.taken.load(Ordering::Relaxed) | self.flow.given.load(Ordering::Relaxed) != 0 {
            self.tell_flow_now();
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_flow_now(&self) {
        for (kind, bytes) in self.flow.drain() {
            if bytes > 0 && self.has_reason(SlowPathReason::Watched) {
                let info = BlockInfo {
                    bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
                    ..BlockInfo::default()
                };
                let _ = self.say(Said::Other(kind), info);
            }
        }
    }

    /// Returns whether this thread's next allocation is picked for the sampled ledger.
    pub(super) fn picks(&'static self) -> bool {
        if !self.has_reason(SlowPathReason::Sampled) {
            return false;
        }
        let ledger = || self.watchers().ledger().cloned();
        let picks = |cache: &Cache| cache.picks(|| ledger().map_or(u32::MAX, |ledger| ledger.gap()));
        // Without a cache there is no counter per thread, so the ledger itself decides.
        fast::with(self, picks).unwrap_or_else(|| ledger().is_some_and(|ledger| ledger.picks()))
    }

    /// Enters a picked block in the ledger.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_picked(&self, ask: &AllocRequest, taken: RawBlock) {
        // An allocation cannot be a wrong free.
        let _ = self.say(Said::Picked, info(taken, ask.told, ask.align));
    }

    /// Returns whether a block may be in a sampled ledger.
    pub(super) fn may_be_sampled(&self, address: usize) -> bool {
        self.has_reason(SlowPathReason::Sampled) && !self.is_unsampled(address)
    }

    /// Returns whether frees are reported.
    pub(super) fn tells_frees(&self) -> bool {
        self.has_reason(SlowPathReason::Watched) || self.has_reason(SlowPathReason::Sampled)
    }

    /// Returns whether the pool has observers of every event.
    pub(crate) fn is_watched(&self) -> bool {
        self.has_reason(SlowPathReason::Watched)
    }

    /// Returns the ledger of live blocks, if there is one.
    pub(crate) fn ledger(&self) -> Option<Arc<Ledger>> {
        lock(&self.watchers).ledger().cloned()
    }
}
