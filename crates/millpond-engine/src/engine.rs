//! One policy over one source, with exact counts of all bytes.

use crate::block::{Block, Request, Stream};
use crate::compaction::Compaction;
use crate::conf::RetainConf;
use crate::deferred::Deferred;
use crate::error::AllocError;
use crate::meter::Meter;
use crate::policy::{Adopted, Mark, Policy};
use crate::source::Source;
use crate::space::{BlockId, Piece, PieceState};
use crate::stats::Stats;
use crate::supply::Supply;

/// A policy joined with a source.
///
/// The policy places blocks. The engine keeps exact counts and keeps a freed block from being reused before the streams
/// that used it have finished. In debug builds it also checks the structure after many steps.
pub struct Engine<S: Source> {
    policy: Box<dyn Policy>,
    source: S,
    meter: Meter,
    deferred: Deferred,
    stats: Stats,
    /// The last allocated block and its request, if the block was already free and no other operation has followed.
    latest: Option<(BlockId, Request)>,
    #[cfg(debug_assertions)]
    steps: u64,
}

impl<S: Source> Engine<S> {
    /// Joins a policy and a source.
    pub fn new(policy: Box<dyn Policy>, source: S) -> Self {
        Self {
            policy,
            source,
            meter: Meter::default(),
            deferred: Deferred::default(),
            stats: Stats::default(),
            latest: None,
            #[cfg(debug_assertions)]
            steps: 0,
        }
    }

    /// Allocates a block.
    ///
    /// # Errors
    /// Returns an error if the policy finds no place for the request. The engine stays usable and nothing is lost.
    pub fn allocate(&mut self, request: Request) -> Result<Block, AllocError> {
        if !request.align.is_power_of_two() {
            return Err(AllocError::Alignment {
                align: request.align,
                most: 1 << 63,
            });
        }
        if !self.deferred.is_empty() {
            self.collect();
        }
        let operations = self.meter.operations();
        let mut supply = Supply::new(&mut self.source, &mut self.meter, &mut self.deferred);
        let outcome = self.policy.allocate(&mut supply, &request);
        let touched = self.meter.operations() != operations;
        match outcome {
            Ok(block) => {
                self.stats.requested.add(block.requested());
                self.stats.allocated.add(block.bytes());
                self.stats.allocations += 1;
                self.stats.hits += u64::from(!touched);
                self.settle(touched);
                self.latest = (!touched).then(|| (block.key(), request));
                Ok(block)
            }
            Err(refusal) => {
                self.stats.refusals += 1;
                self.settle(true);
                let device = (
                    self.source.capacity(),
                    self.source.free_bytes().unwrap_or(u64::MAX),
                );
                let (reserved, cached) = (self.stats.reserved.current, self.stats.cached());
                Err(refusal.into_error(&request, device, self.largest_hole(), reserved, cached))
            }
        }
    }

    /// Frees a block. It is free at once on its own stream. If other streams used it, it is free after they have finished their
    /// present work.
    pub fn free(&mut self, block: Block, uses: &[Stream]) {
        let operations = self.meter.operations();
        self.stats.requested.sub(block.requested());
        self.stats.allocated.sub(block.bytes());
        self.stats.frees += 1;
        if uses.is_empty() {
            let mut supply = Supply::new(&mut self.source, &mut self.meter, &mut self.deferred);
            self.policy.free(&mut supply, block);
        } else {
            self.deferred.push(block, uses, &mut self.source, &mut self.meter);
        }
        self.settle(self.meter.operations() != operations);
    }

    /// Frees `block` and allocates it again for `request`, if that would return the same block. Returns `false` and
    /// does nothing otherwise.
    ///
    /// This succeeds only for the last allocated block and an equal request, and only if freeing the block would restore the
    /// policy's earlier state. Temporaries in a loop take this path. It does not change any address.
    pub fn repeat(&mut self, block: &Block, request: &Request) -> bool {
        let latest = self.latest == Some((block.key(), *request)) && self.deferred.is_empty();
        if !latest || !self.policy.repeat() {
            return false;
        }
        self.stats.frees += 1;
        self.stats.allocations += 1;
        self.stats.hits += 1;
        true
    }

    /// Reserves bookkeeping space for a number of blocks, free and live together, so that it need not grow later. The
    /// number is not a limit.
    pub fn expect_blocks(&mut self, blocks: usize) {
        self.policy.expect_blocks(blocks);
    }

    /// Frees the waiting blocks whose streams have finished.
    pub fn collect(&mut self) {
        for block in self.deferred.ready(&self.source) {
            let mut supply = Supply::new(&mut self.source, &mut self.meter, &mut self.deferred);
            self.policy.free(&mut supply, block);
        }
        self.settle(true);
    }

    /// Waits for the device, joins free neighbours, and returns unused memory to the source. Physical pages are
    /// returned, and live blocks do not move. The result says what was returned and why the rest stayed.
    ///
    /// The policy decides what is returned. `millpond` returns every whole free page handle, and on a device without
    /// pages every whole free segment. With `relocate:on` it also returns the free pages of other handles. Nothing is
    /// returned while the device [cannot be waited for](Source::can_wait).
    pub fn compact(&mut self) -> Compaction {
        let reserved_before = self.meter.reserved.current;
        let waited = self.deferred.bytes();
        self.release_by(|policy, supply| policy.compact(supply));
        let kept = self.policy.returnable_bytes();
        let (reserved_after, allocated) = (self.stats.reserved.current, self.stats.allocated.current);
        Compaction {
            reserved_before,
            reserved_after,
            waited,
            allocated,
            shared: reserved_after.saturating_sub(allocated).saturating_sub(kept),
            kept,
            largest_hole: self.largest_hole(),
        }
    }

    /// Returns unused memory like [`compact`](Self::compact) without `relocate:on`. Computes no result, because that would
    /// visit every block.
    pub fn release_cached(&mut self) {
        self.release_by(|policy, supply| policy.release_cached(supply));
    }

    fn release_by(&mut self, release: impl FnOnce(&mut dyn Policy, &mut Supply<'_>)) {
        if !self.source.can_wait(None) {
            return;
        }
        let mut supply = Supply::new(&mut self.source, &mut self.meter, &mut self.deferred);
        self.policy.free_deferred(&mut supply);
        release(&mut *self.policy, &mut supply);
        self.settle(true);
    }

    /// Returns one wholly free segment to the source. Returns `false` if there is none at `address` or if the device
    /// [cannot be waited for](Source::can_wait).
    pub fn release_segment(&mut self, address: u64) -> bool {
        if !self.source.can_wait(None) {
            return false;
        }
        let mut supply = Supply::new(&mut self.source, &mut self.meter, &mut self.deferred);
        let released = self.policy.release_segment(&mut supply, address);
        self.settle(true);
        released
    }

    /// Passes a mark of the program's progress to the policy. While the device [cannot be waited
    /// for](Source::can_wait), the policy keeps the memory that it would return, and a [`Mark::Step`] is ignored.
    pub fn mark(&mut self, mark: Mark) {
        if matches!(mark, Mark::Ticks(_)) && !self.deferred.is_empty() {
            self.collect();
        }
        if mark == Mark::Step && !self.source.can_wait(None) {
            return;
        }
        let mut supply = Supply::new(&mut self.source, &mut self.meter, &mut self.deferred);
        supply.end_idle_mappings();
        self.policy.mark(&mut supply, mark);
        self.settle(true);
    }

    /// Changes how much free memory the policy keeps, and for how long. Returns whether the policy supports these
    /// settings. [`release_cached`](Self::release_cached) returns the free memory above a new limit.
    pub fn set_retain(&mut self, retain: &RetainConf) -> bool {
        self.latest = None;
        self.policy.set_retain(retain)
    }

    /// Takes over a segment and its live blocks, as found in a recording. Returns `None` if the policy does not support this.
    pub fn adopt(&mut self, adopted: Adopted<'_>) -> Option<Vec<Block>> {
        let bytes = adopted.segment.bytes();
        let blocks = self.policy.adopt(adopted)?;
        self.meter.reserved.add(bytes);
        for block in &blocks {
            self.stats.requested.add(block.requested());
            self.stats.allocated.add(block.bytes());
        }
        self.settle(true);
        Some(blocks)
    }

    /// Returns the counts.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Resets every peak to the current value.
    pub fn reset_peaks(&mut self) {
        self.meter.reserved.peak = self.meter.reserved.current;
        self.stats.reset_peaks();
    }

    /// Returns the counts of the calls to the source.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Returns the policy.
    #[must_use]
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// Returns the source.
    #[must_use]
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Returns a mutable reference to the source, for example to complete the events of a simulated one.
    pub fn source_mut(&mut self) -> &mut S {
        &mut self.source
    }

    /// Returns the blocks that wait for a stream.
    #[must_use]
    pub fn deferred(&self) -> &Deferred {
        &self.deferred
    }

    /// Returns the bytes of the largest contiguous free block.
    #[must_use]
    pub fn largest_hole(&self) -> u64 {
        let mut largest = 0;
        self.policy.layout(&mut |piece: Piece| {
            if piece.state == PieceState::Free {
                largest = largest.max(piece.bytes);
            }
        });
        largest
    }

    /// Updates the counts after a step.
    #[inline]
    fn settle(&mut self, source_called: bool) {
        self.latest = None;
        self.stats
            .active
            .set(self.stats.allocated.current + self.deferred.bytes());
        if source_called {
            self.stats.reserved = self.meter.reserved;
            self.stats.stalls += u64::from(self.meter.take_stalled());
        }
        #[cfg(debug_assertions)]
        self.check_in_debug();
    }

    /// Asserts every invariant of the engine and its policy.
    ///
    /// # Panics
    /// Panics if an invariant does not hold.
    pub fn check(&self) {
        self.policy.check();
        let stats = &self.stats;
        assert!(
            stats.requested.current <= stats.allocated.current,
            "requested above allocated: {stats:?}"
        );
        assert!(
            stats.allocated.current <= stats.active.current,
            "allocated above active: {stats:?}"
        );
        assert!(
            stats.active.current <= stats.reserved.current,
            "active above reserved: {stats:?}"
        );
        let (mut live, mut mapped) = (0, 0);
        let mut last: Option<Piece> = None;
        self.policy.layout(&mut |piece| {
            if let Some(before) = last.filter(|before| before.segment == piece.segment) {
                assert_eq!(
                    before.address + before.bytes,
                    piece.address,
                    "hole or overlap before {piece:?}"
                );
            }
            last = Some(piece);
            live += if piece.state == PieceState::Live {
                piece.bytes
            } else {
                0
            };
            mapped += if piece.state == PieceState::Unmapped {
                0
            } else {
                piece.bytes
            };
        });
        assert_eq!(live, stats.active.current, "live blocks against the active bytes");
        assert_eq!(
            mapped, stats.reserved.current,
            "mapped pieces against the reserved bytes"
        );
    }

    /// Checks after every step at first, and less often the more blocks are held and the more steps were made. A check visits every block
    /// and every list of free ones. If it ran more often, a debug run of a long recording would spend most of its time in it.
    #[cfg(debug_assertions)]
    fn check_in_debug(&mut self) {
        self.steps += 1;
        let held = self.stats.allocations - self.stats.frees.min(self.stats.allocations);
        let interval = 1 + held * held / 1024 + self.steps / 256;
        if self.steps.is_multiple_of(interval) {
            self.check();
        }
    }
}
