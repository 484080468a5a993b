//! What a placement policy is.

use crate::block::{Block, Group, Request, Stream};
use crate::compaction::WholeSegments;
use crate::conf::RetainConf;
use crate::error::{AllocError, SourceError};
use crate::plan::Planner;
use crate::space::Piece;
use crate::supply::Supply;

/// How far a policy's answers can be trusted to be those of the original.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fidelity {
    /// Same bytes and addresses as the original on every recording tried.
    Exact,
    /// Re-implemented from published rules; not held against the original byte for byte.
    PublishedRules,
    /// The original is closed or adaptive; expect the size of the effect, not the bytes.
    Estimate,
    /// This project's own: the replay runs the very code a pool runs.
    Original,
}

impl Fidelity {
    /// The words used in reports.
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

/// Something a caller says about where the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mark {
    /// A step of the program's repeating work begins.
    Step,
    /// So many units of time have passed. How long one is, is for the caller to choose: a second, or whatever else
    /// passes when the program goes on.
    Ticks(u32),
}

impl Mark {
    /// The time that passes with it: a step is one tick too.
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
/// Pure bookkeeping: a policy sees size, alignment, stream, order and explicit marks; never memory,
/// tags, ids, the future or a clock. The same calls in the same order always give the same addresses.
///
/// The engine counts, defers and checks around it, so a policy only places: it need not keep totals,
/// and is told of a block's end only when no stream uses it any more.
pub trait Policy: Send {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// How true it is to the original.
    fn fidelity(&self) -> Fidelity;

    /// Whether it can serve nothing on a source that is not paged.
    fn needs_pages(&self) -> bool {
        false
    }

    /// Finds or makes a block.
    ///
    /// # Errors
    /// [`Refusal`] when neither the free blocks nor the source can serve it. The policy stays usable.
    fn allocate(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal>;

    /// Takes a block back that no stream uses any more.
    fn free(&mut self, supply: &mut Supply<'_>, block: Block);

    /// The block that it gave last, of what was free already, comes back and is asked for again, with nothing between. Answers
    /// whether it would give it again and be where it was, and counts the request then; otherwise it is told of both.
    fn repeat(&mut self) -> bool {
        false
    }

    /// Gives back to the source whatever no block uses, as far as its rules go. The device has been waited for,
    /// and no block waits for a stream.
    fn release_cached(&mut self, supply: &mut Supply<'_>);

    /// Bytes of free blocks that could go back to the source now: whole page handles, and whole segments where
    /// there are none. A walk, for reports and tests.
    fn returnable_bytes(&self) -> u64 {
        let mut whole = WholeSegments::default();
        self.layout(&mut |piece| whole.see(piece));
        whole.bytes()
    }

    /// Makes room for the account of so many blocks, free ones and live ones together; a hint, which policies
    /// may pass over.
    fn expect_blocks(&mut self, _blocks: usize) {}

    /// Hears where the program is. Most policies do not care.
    fn mark(&mut self, _supply: &mut Supply<'_>, _mark: Mark) {}

    /// Changes from now on how much free memory is kept, and for how long; answers whether the policy keeps to such
    /// rules.
    fn set_retain(&mut self, _retain: &RetainConf) -> bool {
        false
    }

    /// Says who solves its plans; policies without plans do not care.
    fn set_planner(&mut self, _planner: Box<dyn Planner>) {}

    /// Gives one wholly free segment back, as recorded programs do out of their own turn; answers
    /// whether there was one at that address.
    fn release_segment(&mut self, _supply: &mut Supply<'_>, _address: u64) -> bool {
        false
    }

    /// Takes over a segment with the blocks that live in it, as found in a recording; answers the
    /// blocks in the order given, or nothing where the policy cannot.
    fn adopt(&mut self, _segment: Adopted<'_>) -> Option<Vec<Block>> {
        None
    }

    /// Shows every tile of every segment, address order within a segment.
    fn layout(&self, visit: &mut dyn FnMut(Piece));

    /// Asserts the policy's own invariants; called after every step in debug builds.
    ///
    /// # Panics
    /// When one does not hold: that is a bug in the policy.
    fn check(&self);
}

/// A segment found in a recording's first state, for [`Policy::adopt`].
#[derive(Debug)]
pub struct Adopted<'a> {
    /// The segment, already counted by the source.
    pub segment: crate::source::Segment,
    /// Its stream.
    pub stream: Stream,
    /// Its private pool.
    pub group: Group,
    /// Whether it belongs to the small pool.
    pub small: bool,
    /// Blocks in address order: address, bytes of the block, bytes requested.
    pub blocks: &'a [(u64, u64, u64)],
}

/// Why a policy found no block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Larger than the policy can ever serve.
    TooLarge {
        /// The most it could serve.
        limit: u64,
    },
    /// The source did not give what would have been needed.
    Source(SourceError),
    /// The alignment cannot be given.
    Alignment {
        /// The largest that can.
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
            // A share of the device is all the policy may have.
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
            // Other shortages name their own limit, and how to raise it.
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
