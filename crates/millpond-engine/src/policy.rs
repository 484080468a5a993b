//! The interface of a placement policy.

use crate::block::{Block, Group, Request, Stream};
use crate::compaction::WholeSegments;
use crate::conf::RetainConf;
use crate::error::{AllocError, SourceError};
use crate::plan::Planner;
use crate::space::Piece;
use crate::supply::Supply;

/// How closely a policy follows the original.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fidelity {
    /// Same bytes and addresses as the original on every recording tested.
    Exact,
    /// Re-implemented from published rules. It was not compared with the original byte for byte.
    PublishedRules,
    /// The original is closed source or adaptive. The size of an effect is reliable, the exact bytes are not.
    Estimate,
    /// A policy of this project. A replay runs the same code as a pool.
    Original,
}

impl Fidelity {
    /// Returns the description used in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact against the original",
            Self::PublishedRules => "published rules",
            Self::Estimate => "estimate",
            Self::Original => "the original itself",
        }
    }
}

/// Information from the caller about the program's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mark {
    /// A step of the program's repeating work begins.
    Step,
    /// The given number of time units has passed. The caller chooses the unit, for example a second. Any other quantity
    /// that advances with the program is possible.
    Ticks(u32),
}

impl Mark {
    /// Returns the number of ticks of the mark. A step is one tick.
    #[must_use]
    pub fn ticks(self) -> u32 {
        match self {
            Self::Step => 1,
            Self::Ticks(ticks) => ticks,
        }
    }
}

/// Decides which block serves a request.
///
/// A policy is pure bookkeeping. Its inputs are size, alignment, stream, order and explicit marks. It never accesses
/// memory, tags, identifiers, future calls or a clock. The same calls in the same order always return the same
/// addresses.
///
/// The engine counts, defers and checks. A policy therefore need not keep totals. The engine frees a block only when no
/// stream uses it any more.
pub trait Policy: Send {
    /// Returns the name of the policy on the command line.
    fn name(&self) -> &'static str;

    /// Returns how closely the policy follows the original.
    fn fidelity(&self) -> Fidelity;

    /// Returns whether the policy can serve requests only on a paged source.
    fn needs_pages(&self) -> bool {
        false
    }

    /// Finds or creates a block.
    ///
    /// # Errors
    /// Returns a [`Refusal`] if neither the free blocks nor the source can serve the request. The policy stays usable.
    fn allocate(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal>;

    /// Frees a block that no stream uses any more.
    fn free(&mut self, supply: &mut Supply<'_>, block: Block);

    /// Waits for the device and frees the blocks that waited for a stream.
    fn free_deferred(&mut self, supply: &mut Supply<'_>) {
        for block in supply.synchronize() {
            self.free(supply, block);
        }
    }

    /// Frees the last allocated block and allocates it again, if that would return the same block and leave the state
    /// unchanged. Otherwise returns `false` and does nothing, and the caller frees and allocates separately. The caller
    /// ensures that the block was already free before its allocation, and that no other operation has followed.
    fn repeat(&mut self) -> bool {
        false
    }

    /// Returns unused memory to the source, as far as the policy's rules allow. The caller has waited for the device,
    /// so no block waits for a stream.
    fn release_cached(&mut self, supply: &mut Supply<'_>);

    /// Returns unused memory like [`release_cached`](Self::release_cached), and also memory between live blocks if the
    /// policy's rules allow it. No other thread submits work to the device meanwhile.
    fn compact(&mut self, supply: &mut Supply<'_>) {
        self.release_cached(supply);
    }

    /// Returns the bytes of free blocks that could be returned to the source now: whole page handles, or whole segments
    /// on a device without pages. Visits every block, so it is meant for reports and tests.
    fn returnable_bytes(&self) -> u64 {
        let mut whole = WholeSegments::default();
        self.layout(&mut |piece| whole.see(piece));
        whole.bytes()
    }

    /// Reserves bookkeeping space for a number of blocks, free and live together. Policies may ignore this hint.
    fn expect_blocks(&mut self, _blocks: usize) {}

    /// Receives a mark of the program's progress. Most policies ignore it.
    fn mark(&mut self, _supply: &mut Supply<'_>, _mark: Mark) {}

    /// Changes how much free memory is kept, and for how long. Returns whether the policy supports these settings.
    fn set_retain(&mut self, _retain: &RetainConf) -> bool {
        false
    }

    /// Sets the planner. Policies without plans ignore it.
    fn set_planner(&mut self, _planner: Box<dyn Planner>) {}

    /// Returns one wholly free segment to the source, as recorded programs sometimes do. Returns whether there was one
    /// at this address.
    fn release_segment(&mut self, _supply: &mut Supply<'_>, _address: u64) -> bool {
        false
    }

    /// Takes over a segment with its live blocks, as found in a recording. Returns the blocks in the given order, or
    /// `None` if the policy cannot do this.
    fn adopt(&mut self, _segment: Adopted<'_>) -> Option<Vec<Block>> {
        None
    }

    /// Visits every piece of every segment, in address order within a segment.
    fn layout(&self, visit: &mut dyn FnMut(Piece));

    /// Asserts the policy's own invariants. The engine calls it regularly in debug builds.
    ///
    /// # Panics
    /// Panics if an invariant does not hold, which is a bug in the policy.
    fn check(&self);
}

/// A segment of a recording's initial state, for [`Policy::adopt`].
#[derive(Debug)]
pub struct Adopted<'a> {
    /// The segment, already counted by the source.
    pub segment: crate::source::Segment,
    /// The stream of the segment.
    pub stream: Stream,
    /// The private pool of the segment.
    pub group: Group,
    /// Whether it belongs to the small pool.
    pub small: bool,
    /// Blocks in address order, each with its address, size and requested size in bytes.
    pub blocks: &'a [(u64, u64, u64)],
}

/// Why a policy found no block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request is larger than the policy can ever serve.
    TooLarge {
        /// Maximum size that the policy could serve, in bytes.
        limit: u64,
    },
    /// The source refused a call that was needed.
    Source(SourceError),
    /// The policy does not support the alignment.
    Alignment {
        /// The largest supported alignment.
        most: u64,
    },
}

impl From<SourceError> for Refusal {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

impl Refusal {
    pub(crate) fn into_error(
        self,
        request: &Request,
        device: (Option<u64>, u64),
        largest_hole: u64,
        reserved: u64,
        cached: u64,
    ) -> AllocError {
        let requested = request.bytes;
        let (capacity, device_free) = device;
        match self {
            Self::TooLarge { limit } => AllocError::TooLarge { requested, limit },
            Self::Alignment { most } => AllocError::Alignment {
                align: request.align,
                most,
            },
            // The limit is below the device's capacity, so it is the program's share of the device.
            Self::Source(SourceError::OutOfMemory { capacity: limit, .. })
                if capacity.is_some_and(|c| limit < c) =>
            {
                AllocError::Limited {
                    requested,
                    limit,
                    reserved,
                    largest_hole,
                    cached,
                }
            }
            // Other shortages state their own limit and how to raise it.
            Self::Source(SourceError::OutOfMemory { .. }) => AllocError::Exhausted {
                requested,
                device_free,
                largest_hole,
                cached,
            },
            Self::Source(error) => AllocError::Source(error),
        }
    }
}
