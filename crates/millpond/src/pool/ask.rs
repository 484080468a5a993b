//! What is asked of a pool, how the engine is asked for it, and how a request is refused.

use super::core::Core;
use super::heap::{Heap, lock};
use crate::budget::Refusal;
use crate::error::AllocError;
use crate::metadata::has_reserve;
use crate::post_mortem::{PostMortem, Survey};
use crate::reentrancy::inside;
use millpond_engine as engine;
use std::cell::Cell;
use std::time::Instant;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) requested: usize,
    pub(crate) align: usize,
    /// Whether the bytes asked for are to read as zero.
    pub(super) zeroed: bool,
    /// The place in the line of requests that wait.
    pub(super) ticket: Option<u64>,
    /// Whether it may wait for a budget, and until when.
    pub(super) until: Option<Instant>,
    /// Whether a tenant's charge has reached the pool's own budget already.
    pub(super) charged: bool,
}

impl Ask {
    pub(crate) fn new(requested: usize, align: usize) -> Self {
        Self {
            requested,
            align,
            zeroed: false,
            ticket: None,
            until: None,
            charged: false,
        }
    }

    pub(crate) fn zeroed(self) -> Self {
        Self { zeroed: true, ..self }
    }
}

thread_local! {
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// This thread asks a pool's source, under that pool's lock, until it is dropped.
struct Asking {
    before: bool,
}

impl Asking {
    fn begin() -> Self {
        Self {
            before: ASKING.replace(true),
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        ASKING.set(self.before);
    }
}

/// Whether this thread is called by a pool's source, and so under that pool's lock.
pub(crate) fn by_a_source() -> bool {
    ASKING.get()
}

impl Heap {
    /// Asks the engine for something of the pool's own.
    pub(super) fn ask_for<R>(
        &'static self,
        bytes: usize,
        work: impl FnMut(&mut Core) -> Result<R, engine::AllocError>,
    ) -> Result<R, AllocError> {
        self.ask(Ask::new(bytes, 1), work)
    }

    /// Asks the engine and, where memory is short, once more with all that threads and shelves hold, and other pools
    /// of the same budget.
    pub(super) fn ask<R>(
        &'static self,
        ask: Ask,
        mut work: impl FnMut(&mut Core) -> Result<R, engine::AllocError>,
    ) -> Result<R, AllocError> {
        let requested = ask.requested;
        self.keep_tables(requested)?;
        if !self.is_behind(ask.ticket) {
            match self.with_core(requested, &mut work) {
                Err(error) if error.is_out_of_memory() => {}
                outcome => return outcome.map_err(|error| self.refuse(requested, error)),
            }
            self.drain_caches();
            self.release_spans();
            match self.with_core(requested, &mut work) {
                Err(error) if error.is_out_of_memory() && self.reserved.is_some() => {}
                outcome => return outcome.map_err(|error| self.refuse(requested, error)),
            }
            self.trim_siblings();
        }
        let outcome = if self.is_behind(ask.ticket) {
            Err(self.nothing_left(requested))
        } else {
            self.with_core(requested, work)
        };
        outcome.map_err(|error| self.refuse(requested, error))
    }

    fn with_core<R>(
        &self,
        requested: usize,
        work: impl FnOnce(&mut Core) -> Result<R, engine::AllocError>,
    ) -> Result<R, engine::AllocError> {
        let outcome = self.with_engine(|core| {
            let _asking = Asking::begin();
            work(core)
        });
        outcome.unwrap_or(Err(engine::AllocError::TooLarge {
            requested: requested as u64,
            limit: 0,
        }))
    }

    /// What is said to a request that would have to wait for others, and may not.
    pub(super) fn nothing_left(&self, requested: usize) -> engine::AllocError {
        let core = lock(&self.core);
        let stats = core.as_ref().map(|core| core.memory.stats());
        engine::AllocError::Exhausted {
            requested: requested as u64,
            device_free: 0,
            largest_hole: 0,
            cached: stats.map_or(0, engine::Stats::cached),
        }
    }

    /// Sees to it that the tables have room before the pool grows: what threads keep and shelves hold makes room for
    /// them.
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

    /// There is no memory for the pool's own tables.
    pub(super) fn refuse_tables(&self, requested: usize) -> AllocError {
        self.refuse(requested, self.nothing_left(requested))
    }

    pub(super) fn refuse_size(&self, requested: usize) -> AllocError {
        let (requested, limit) = (requested as u64, isize::MAX as u64);
        self.refuse(
            requested as usize,
            engine::AllocError::TooLarge { requested, limit },
        )
    }

    /// Counts a refusal, and says who holds what.
    #[cold]
    fn refuse(&self, requested: usize, why: engine::AllocError) -> AllocError {
        let refusal = self.count_refusal();
        if self.is_broken() {
            return self.broken();
        }
        match refusal {
            Some(refusal) if why.is_out_of_memory() => AllocError::Budget(Box::new(refusal.into_error(None))),
            _ => AllocError::of(why, || self.post_mortem(requested)),
        }
    }

    /// Has it written down that a request was refused in the end, where that is wanted; answers the error. Under no lock.
    #[cold]
    pub(super) fn refused_finally(&self, requested: usize, error: AllocError) -> AllocError {
        #[cfg(feature = "record")]
        {
            // The source of another pool asks under the lock of that pool, whose own refusal follows.
            if by_a_source() {
                return error;
            }
            let label = || self.watchers().pool().clone();
            crate::recorder::refused_finally(label, requested as u64, 0, error)
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
        core.refusals += 1;
        core.memory.source_mut().take_refusal()
    }

    /// Who holds what, for a request that was refused. Under the pool's lock, and nothing is allocated.
    pub(crate) fn post_mortem(&self, requested: usize) -> PostMortem {
        let _inside = inside();
        let mut survey = Survey::new(requested as u64);
        survey.limit(self.limit.bytes(), self.limit.remaining());
        self.survey(&mut survey);
        survey.finish()
    }

    pub(crate) fn survey(&self, survey: &mut Survey) {
        // Asked by a source, this may be the very pool that it belongs to: then it is left out.
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
