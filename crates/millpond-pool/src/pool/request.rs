//! Requests to a pool, and how they are passed to the engine or refused.

use super::core::Core;
use super::heap::{Heap, lock};
use millpond_account::budget::Refusal;
use millpond_account::error::AllocError;
use millpond_account::post_mortem::{PostMortem, Survey};
use millpond_engine as engine;
use millpond_os::metadata::has_reserve;
use millpond_os::reentrancy::inside;
use std::cell::Cell;
use std::thread::LocalKey;
use std::time::Instant;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocRequest {
    pub(crate) requested: usize,
    /// The requested bytes for observers and errors. `malloc` requests whole blocks.
    pub(super) told: usize,
    pub(crate) align: usize,
    /// Whether the requested bytes must read as zero.
    pub(crate) zeroed: bool,
    /// The place in the queue of waiting requests.
    pub(super) ticket: Option<u64>,
    /// The deadline until which the request may wait, or `None` if it may not wait.
    pub(super) until: Option<Instant>,
    /// Whether a tenant's charge already includes the pool's own budget.
    pub(super) charged: bool,
    /// Whether the thread's cache may have a block. False if the fast path found none there.
    pub(super) looks_in_cache: bool,
    /// Whether a small block may have one of the sizes that only `malloc` uses.
    pub(super) fine: bool,
}

impl AllocRequest {
    pub(crate) fn new(requested: usize, align: usize) -> Self {
        Self {
            requested,
            told: requested,
            align,
            zeroed: false,
            ticket: None,
            until: None,
            charged: false,
            looks_in_cache: true,
            fine: false,
        }
    }
}

thread_local! {
    /// Whether this thread calls a pool's source under that pool's lock.
    static ASKING: Cell<bool> = const { Cell::new(false) };
    /// Whether the requests of this thread are optional.
    static OPTIONAL: Cell<bool> = const { Cell::new(false) };
}

/// Sets a flag of this thread. Dropping this restores it.
struct Mark {
    flag: &'static LocalKey<Cell<bool>>,
    before: bool,
}

impl Mark {
    fn set(flag: &'static LocalKey<Cell<bool>>) -> Self {
        Self {
            flag,
            before: flag.replace(true),
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.flag.set(self.before);
    }
}

/// Runs `work`, whose requests are optional: without the memory, its caller continues or repeats the request. Such requests do not wait.
/// Their refusals are not counted or reported, and the errors list no holders.
pub(crate) fn optionally<R>(work: impl FnOnce() -> R) -> R {
    let _optional = Mark::set(&OPTIONAL);
    work()
}

/// Returns whether the requests of this thread are [optional](optionally).
pub(super) fn is_optional() -> bool {
    OPTIONAL.get()
}

/// Returns whether the current code was called by a pool's source and therefore runs under that pool's lock.
pub fn by_a_source() -> bool {
    ASKING.get()
}

impl Heap {
    /// Requests memory from the engine for the pool itself.
    pub(super) fn ask_for<R>(
        &'static self,
        bytes: usize,
        work: impl FnMut(&mut Core) -> Result<R, engine::AllocError>,
    ) -> Result<R, AllocError> {
        self.ask(AllocRequest::new(bytes, 1), work)
    }

    /// Requests memory from the engine. If there is not enough, it retries after the caches and the shelves have returned their
    /// free memory, and again after other pools of the same budget have.
    pub(super) fn ask<R>(
        &'static self,
        ask: AllocRequest,
        mut work: impl FnMut(&mut Core) -> Result<R, engine::AllocError>,
    ) -> Result<R, AllocError> {
        let AllocRequest { requested, told, .. } = ask;
        self.keep_tables(told)?;
        if !self.is_behind(ask.ticket) {
            match self.with_core(requested, &mut work) {
                Err(error) if error.is_out_of_memory() => {}
                outcome => return outcome.map_err(|error| self.refuse(told, error)),
            }
            self.drain_caches();
            self.release_spans();
            match self.with_core(requested, &mut work) {
                Err(error) if error.is_out_of_memory() && self.reserved.is_some() => {}
                outcome => return outcome.map_err(|error| self.refuse(told, error)),
            }
            self.trim_siblings();
        }
        let outcome = if self.is_behind(ask.ticket) {
            Err(self.nothing_left(requested))
        } else {
            self.with_core(requested, work)
        };
        outcome.map_err(|error| self.refuse(told, error))
    }

    fn with_core<R>(
        &self,
        requested: usize,
        work: impl FnOnce(&mut Core) -> Result<R, engine::AllocError>,
    ) -> Result<R, engine::AllocError> {
        let mut core = lock(&self.core);
        let outcome = core.as_mut().and_then(|core| {
            self.change(core, |core| {
                let _asking = Mark::set(&ASKING);
                work(core)
            })
        });
        outcome.unwrap_or(Err(engine::AllocError::TooLarge {
            requested: requested as u64,
            limit: 0,
        }))
    }

    /// Returns the error for a request for which there is no memory, or which is behind other requests in the queue.
    pub(super) fn nothing_left(&self, requested: usize) -> engine::AllocError {
        let core = lock(&self.core);
        Core::nothing_left(requested as u64, core.as_ref().map_or(0, Core::cached))
    }

    /// Ensures that the pool's tables have room before the pool grows. If they have none, trims the pool to make room.
    fn keep_tables(&self, requested: usize) -> Result<(), AllocError> {
        if has_reserve() {
            return Ok(());
        }
        self.trim();
        if has_reserve() {
            return Ok(());
        }
        Err(self.refuse_tables(requested))
    }

    /// Returns the error that there is no memory for the pool's own tables.
    pub(super) fn refuse_tables(&self, requested: usize) -> AllocError {
        self.refuse_with(requested, self.nothing_left(requested), Survey::tables_are_full)
    }

    pub(super) fn refuse_size(&self, requested: usize) -> AllocError {
        let (requested, limit) = (requested as u64, isize::MAX as u64);
        self.refuse(
            requested as usize,
            engine::AllocError::TooLarge { requested, limit },
        )
    }

    /// Counts a refusal, and returns an error that lists the holders of memory.
    #[cold]
    fn refuse(&self, requested: usize, why: engine::AllocError) -> AllocError {
        self.refuse_with(requested, why, |_| ())
    }

    fn refuse_with(
        &self,
        requested: usize,
        why: engine::AllocError,
        add: impl FnOnce(&mut Survey),
    ) -> AllocError {
        let refusal = self.count_refusal();
        if self.is_broken() {
            return self.broken();
        }
        match refusal {
            Some(refusal) if why.is_out_of_memory() => AllocError::Budget(Box::new(refusal.into_error(None))),
            _ if is_optional() => AllocError::of(why, || Survey::new(requested as u64).finish()),
            _ => AllocError::of(why, || self.post_mortem(requested, add)),
        }
    }

    /// Writes a snapshot of a final refusal if this is enabled, and returns the error. Called under no lock.
    #[cold]
    pub(super) fn refused_finally(&self, requested: usize, error: AllocError) -> AllocError {
        #[cfg(feature = "record")]
        {
            // The source of another pool makes the request under the lock of that pool, which reports its own refusal.
            if by_a_source() || is_optional() {
                return error;
            }
            let label = || self.watchers().pool().clone();
            millpond_record::refused_finally(label, requested as u64, 0, error)
        }
        #[cfg(not(feature = "record"))]
        {
            let _ = requested;
            error
        }
    }

    pub(super) fn count_refusal(&self) -> Option<Refusal> {
        let mut core = lock(&self.core);
        let core = core.as_mut()?;
        core.refusals += u64::from(!is_optional());
        core.memory.source_mut().take_refusal()
    }

    /// Returns the holders of memory for a refused request. Runs under the pool's lock and allocates nothing.
    pub(crate) fn post_mortem(&self, requested: usize, add: impl FnOnce(&mut Survey)) -> PostMortem {
        let _inside = inside();
        let mut survey = Survey::new(requested as u64);
        add(&mut survey);
        survey.limit(self.limit.bytes(), self.limit.used());
        self.survey(&mut survey);
        survey.finish()
    }

    pub(crate) fn survey(&self, survey: &mut Survey) {
        // If a source makes the request, this pool may be the one that called the source, and its lock is held. In that case its
        // memory is not listed.
        let mut core = if by_a_source() {
            self.core.try_lock()
        } else {
            Some(lock(&self.core))
        };
        if let Some(core) = core.as_mut().and_then(|core| core.as_mut()) {
            self.change(core, |core| core.survey(survey));
        }
        drop(core);
        match self.ledger() {
            Some(ledger) => ledger.survey(survey),
            None => survey.no_account(),
        }
    }
}
