//! The slow way: where a thread's cache has no block or no room, where another thread has it, or where something is to be
//! done at every call.

use super::account::{Tally, bump};
use super::cache::{Cache, Free, Stacks, most_kept};
use super::classes::{KEPT, PAGE, SMALL, bin_of, class_bytes, class_of};
use super::core::Core;
use super::heap::{Heap, Taken, large, lock, small};
use super::local;
use crate::error::AllocError;
use crate::post_mortem::{PostMortem, Survey};
use millpond_engine as engine;

/// Small blocks that move between a thread and a shelf at once, at most.
const BATCH: usize = 32;

impl Heap {
    /// Hands a block out.
    #[cold]
    #[inline(never)]
    pub(crate) fn allocate_slowly(
        &'static self,
        requested: usize,
        align: usize,
    ) -> Result<Taken, AllocError> {
        if let Some((class, bytes)) = small(requested, align) {
            let found = local::with(self, |cache| {
                let address = cache.with(|stacks| stacks.pop(class))??;
                self.count(cache, |tally| tally.allocate(requested, bytes));
                Some(address)
            });
            return match found.flatten() {
                Some(address) => Ok(Taken { address, bytes }),
                None => self.refill(class, requested),
            };
        }
        let bytes = large(requested).ok_or_else(|| self.refuse_size(requested))?;
        if bytes <= KEPT && align <= PAGE {
            let found = local::with(self, |cache| {
                let block = cache.with(|stacks| stacks.pop_large(bin_of(bytes), bytes))??;
                self.count(cache, |tally| tally.allocate(requested, bytes));
                Some(block.address)
            });
            if let Some(address) = found.flatten() {
                return Ok(Taken { address, bytes });
            }
        }
        self.allocate_large(requested, bytes, align)
    }

    /// Takes a block back.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_slowly(&'static self, taken: Taken, requested: usize) {
        let Taken { address, bytes } = taken;
        let kept = local::with(self, |cache| {
            cache.with(|stacks| {
                if bytes <= SMALL {
                    self.keep(stacks, class_of(bytes), address);
                } else {
                    self.keep_large(stacks, Free { address, bytes });
                }
                self.count(cache, |tally| tally.free(requested, bytes));
            })
        });
        if kept.flatten().is_none() {
            self.free_outside(taken, requested);
        }
    }

    /// Keeps a small block, and makes room for it where there is none.
    fn keep(&self, stacks: &mut Stacks, class: usize, address: usize) {
        if !stacks.push(class, address) {
            stacks.older_half(class, |blocks| lock(&self.shelves[class]).put(blocks));
            stacks.push(class, address);
        }
    }

    fn keep_large(&self, stacks: &mut Stacks, block: Free) {
        if block.bytes > KEPT {
            return self.free_large(&[block]);
        }
        let bin = bin_of(block.bytes);
        if !stacks.push_large(bin, block) {
            stacks.spill_large(bin, block.bytes, |blocks| self.free_large(blocks));
            stacks.push_large(bin, block);
        }
    }

    /// A small block from the shelf, and more of them for the thread.
    fn refill(&'static self, class: usize, requested: usize) -> Result<Taken, AllocError> {
        let bytes = class_bytes(class);
        let mut batch = [0; BATCH];
        let want = (most_kept(class) / 2).clamp(1, BATCH);
        let mut missed = false;
        let mut count = lock(&self.shelves[class]).take(class, &mut batch[..want]);
        if count == 0 {
            let (address, length, called) = self.ask(requested, |core| core.add_span(class))?;
            missed = called;
            let mut shelf = lock(&self.shelves[class]);
            shelf.add_span(class, address, length);
            count = shelf.take(class, &mut batch[..want]);
        }
        let [first, rest @ ..] = &batch;
        let rest = &rest[..count.saturating_sub(1)];
        let kept = local::with(self, |cache| {
            cache.with(|stacks| rest.iter().take_while(|more| stacks.push(class, **more)).count())
        });
        let kept = kept.flatten().unwrap_or(0);
        if kept < rest.len() {
            lock(&self.shelves[class]).put(&rest[kept..]);
        }
        self.count_allocation(requested, bytes, missed);
        Ok(Taken {
            address: *first,
            bytes,
        })
    }

    fn allocate_large(
        &'static self,
        requested: usize,
        bytes: usize,
        align: usize,
    ) -> Result<Taken, AllocError> {
        let (address, missed) = self.ask(requested, |core| core.allocate(bytes, align))?;
        self.count_allocation(requested, bytes, missed);
        Ok(Taken { address, bytes })
    }

    /// Asks the engine and, where memory is short, once more with all that the threads and the shelves hold.
    fn ask<R>(
        &self,
        requested: usize,
        mut work: impl FnMut(&mut Core) -> Result<R, engine::AllocError>,
    ) -> Result<R, AllocError> {
        match self.with_core(requested, &mut work) {
            Err(error) if error.is_out_of_memory() => {}
            outcome => return outcome.map_err(|error| self.refuse(requested, error)),
        }
        self.drain_caches();
        self.release_spans();
        self.with_core(requested, work)
            .map_err(|error| self.refuse(requested, error))
    }

    fn with_core<R>(
        &self,
        requested: usize,
        work: impl FnOnce(&mut Core) -> Result<R, engine::AllocError>,
    ) -> Result<R, engine::AllocError> {
        let mut core = lock(&self.core);
        let Some(core) = core.as_mut() else {
            return Err(engine::AllocError::TooLarge {
                requested: requested as u64,
                limit: 0,
            });
        };
        work(core)
    }

    fn refuse_size(&self, requested: usize) -> AllocError {
        let (requested, limit) = (requested as u64, isize::MAX as u64);
        self.refuse(
            requested as usize,
            engine::AllocError::TooLarge { requested, limit },
        )
    }

    /// Counts a refusal, and says who holds what.
    #[cold]
    fn refuse(&self, requested: usize, why: engine::AllocError) -> AllocError {
        if let Some(core) = lock(&self.core).as_mut() {
            core.refusals += 1;
        }
        AllocError::of(why, || self.post_mortem(requested))
    }

    /// Who holds what, for a request that was refused. Under the pool's lock, and nothing is allocated.
    pub(crate) fn post_mortem(&self, requested: usize) -> PostMortem {
        let mut survey = Survey::new(requested as u64);
        if let Some(core) = lock(&self.core).as_ref() {
            core.survey(&mut survey);
        }
        survey.finish()
    }

    /// Counts by a thread that has a cache.
    fn count(&self, cache: &Cache, work: impl FnOnce(&Tally) -> bool) {
        if work(&cache.tally) {
            self.tell(cache);
        }
    }

    fn count_allocation(&'static self, requested: usize, bytes: usize, missed: bool) {
        let add = |tally: &Tally| {
            if missed {
                bump(&tally.misses);
            }
            tally.allocate(requested, bytes)
        };
        if local::with(self, |cache| self.count(cache, add)).is_none() {
            self.count_outside(|core| {
                add(&core.tally);
            });
        }
    }

    pub(crate) fn free_large(&self, blocks: &[Free]) {
        if let Some(core) = lock(&self.core).as_mut() {
            for block in blocks {
                core.free(block.address);
            }
        }
    }

    fn count_outside(&self, work: impl FnOnce(&mut Core)) {
        if let Some(core) = lock(&self.core).as_mut() {
            work(core);
            if !self.alone() {
                core.tally.tell(&self.totals, false);
            }
        }
    }

    /// Takes a block back where the thread has no cache: at its end, or while another thread looks into it.
    fn free_outside(&self, taken: Taken, requested: usize) {
        if taken.bytes <= SMALL {
            lock(&self.shelves[class_of(taken.bytes)]).put(&[taken.address]);
        }
        self.count_outside(|core| {
            if taken.bytes > SMALL {
                core.free(taken.address);
            }
            core.tally.free(requested, taken.bytes);
        });
        if self.is_closed() {
            self.end_if_empty();
        }
    }
}
