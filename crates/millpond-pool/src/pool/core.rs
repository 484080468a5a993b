//! The state under a pool's lock: the engine, and the blocks that it gave to the threads.

use super::account::Tally;
use super::classes::PAGE;
use super::compaction_trigger::CompactionTrigger;
use super::shelf::span_bytes;
use super::zero_tracking::ZeroTrackingSource;
use millpond_account::post_mortem::Survey;
use millpond_engine::{AllocError, Block, Engine, Gauge, PieceState, Request, Source, SourceWrapper, Stream};
use std::collections::HashMap;

/// The least growth of the reserved memory after which free spans are returned.
const LEAST_GROWTH: u64 = 2 << 20;

/// An engine over memory.
pub(crate) type Memory = Engine<ZeroTrackingSource>;

/// The state under a pool's lock.
pub(crate) struct Core {
    pub(crate) memory: Memory,
    /// Blocks above [`SMALL`](super::classes::SMALL) that are live or cached, by address.
    large: HashMap<usize, Block>,
    pub(crate) trigger: CompactionTrigger,
    /// The reserved bytes when free spans were last returned, and when the caches were last drained for that. Both are reduced when
    /// memory is returned to the source.
    searched_at: u64,
    drained_at: u64,
    /// Counters of operations that no thread's cache counts.
    pub(crate) tally: Tally,
    pub(crate) refusals: u64,
}

impl Core {
    pub(crate) fn new(memory: Memory) -> Self {
        Self {
            memory,
            large: HashMap::new(),
            trigger: CompactionTrigger::default(),
            searched_at: 0,
            drained_at: 0,
            tally: Tally::default(),
            refusals: 0,
        }
    }

    fn request(&mut self, bytes: usize, align: usize) -> Result<(Block, bool), AllocError> {
        if let Some(found) = self.request_once(bytes, align)? {
            return Ok(found);
        }
        // Free memory that was not returned to the system is still charged. There may be room after it is returned.
        self.memory.release_cached();
        match self.request_once(bytes, align)? {
            Some((block, _)) => Ok((block, true)),
            None => Err(Self::nothing_left(bytes as u64, self.cached())),
        }
    }

    /// Requests a block. Returns `None` if the block has discarded pages that cannot be charged again.
    fn request_once(&mut self, bytes: usize, align: usize) -> Result<Option<(Block, bool)>, AllocError> {
        let (block, missed) = self.request_any(bytes, align)?;
        let address = block.address() as usize;
        if self.restore(address, block.bytes() as usize).is_none() {
            self.memory.free(block, &[]);
            return Ok(None);
        }
        Ok(Some((block, missed)))
    }

    /// Requests a block, which may have discarded pages.
    fn request_any(&mut self, bytes: usize, align: usize) -> Result<(Block, bool), AllocError> {
        let hits = self.memory.stats().hits;
        let request = Request {
            bytes: bytes as u64,
            align: align as u64,
            ..Request::new(0, Stream::DEFAULT)
        };
        let mut block = self.memory.allocate(request)?;
        if !block.address().is_multiple_of(PAGE as u64) {
            // Blocks of whole pages from aligned addresses stay aligned, but a policy may place blocks elsewhere.
            self.memory.free(block, &[]);
            block = self.memory.allocate(Request {
                align: align.max(PAGE) as u64,
                ..request
            })?;
        }
        Ok((block, self.memory.stats().hits == hits))
    }

    /// Allocates a block above [`SMALL`](super::classes::SMALL) of whole pages. Returns its address, and whether the source was
    /// called for it. Calls `written` with the start and the end of each part that may not be zero.
    pub(crate) fn allocate(
        &mut self,
        bytes: usize,
        align: usize,
        mut written: impl FnMut(usize, usize),
    ) -> Result<(usize, bool), AllocError> {
        let most = self.memory.source().page_bytes() as usize;
        let (block, missed) = if align <= most {
            // Blocks of whole pages usually begin at a page boundary even if no alignment is requested. Without the request,
            // no room for padding is needed.
            self.request(bytes, if align <= PAGE { 1 } else { align })?
        } else {
            // The alignment is larger than the source's, so the aligned block is inside a larger block.
            let wider = bytes.checked_add(align).ok_or(AllocError::TooLarge {
                requested: bytes as u64,
                limit: isize::MAX as u64,
            })?;
            self.request(wider, most)?
        };
        let address = (block.address() as usize).next_multiple_of(align);
        self.large.insert(address, block);
        let source = self.memory.source_mut();
        source.hand_out(address as u64, bytes as u64, |start, end| {
            written(start as usize, end as usize);
        });
        Ok((address, missed))
    }

    /// Charges the discarded pages of some memory again, because it is about to be used. Returns their bytes, or `None` if
    /// the limit or the budget does not allow them.
    pub(crate) fn restore(&mut self, address: usize, bytes: usize) -> Option<u64> {
        let first = address & !(PAGE - 1);
        let end = (address + bytes).next_multiple_of(PAGE);
        let source = self.memory.source_mut();
        source.restore(first as u64, (end - first) as u64).ok()
    }

    /// Returns the bytes held from the source, without those that were returned to the system.
    pub(crate) fn reserved(&self) -> Gauge {
        self.memory.source().inner().held()
    }

    /// Returns whether the reserved memory has grown by 1/64, and whether it has grown by an eighth. After growth by 1/64, free spans
    /// are returned, which visits every span. After growth by an eighth, the caches are drained first, which stops every thread.
    pub(crate) fn has_grown(&mut self) -> (bool, bool) {
        let reserved = self.reserved().current;
        let has_grown = |at: &mut u64, share: u64| {
            *at = reserved.min(*at);
            let grown = reserved - *at >= (*at / share).max(LEAST_GROWTH);
            if grown {
                *at = reserved;
            }
            grown
        };
        (
            has_grown(&mut self.searched_at, 64),
            has_grown(&mut self.drained_at, 8),
        )
    }

    /// Returns the reserved bytes that no block uses.
    pub(crate) fn cached(&self) -> u64 {
        let active = self.memory.stats().active.current;
        self.reserved().current.saturating_sub(active)
    }

    pub(crate) fn reset_peaks(&mut self) {
        self.memory.reset_peaks();
        self.memory.source_mut().reset_peak();
    }

    /// Returns the error for a request for which there is no memory.
    pub(crate) fn nothing_left(requested: u64, cached: u64) -> AllocError {
        AllocError::Exhausted {
            requested,
            device_free: 0,
            largest_hole: 0,
            cached,
        }
    }

    /// Frees a block above [`SMALL`](super::classes::SMALL).
    pub(crate) fn free(&mut self, address: usize) {
        if let Some(block) = self.large.remove(&address) {
            self.memory.free(block, &[]);
        }
    }

    /// Allocates a span for a class. Returns it, and whether the source was called for it.
    pub(crate) fn allocate_span(&mut self, class: usize) -> Result<(Block, bool), AllocError> {
        let bytes = span_bytes(class);
        let (block, missed) = self.request(bytes, 1)?;
        let source = self.memory.source_mut();
        source.hand_out(block.address(), bytes as u64, |_, _| {});
        Ok((block, missed))
    }

    /// Calls `each` with the address and the bytes of each block above [`SMALL`](super::classes::SMALL) that is live or cached.
    pub(crate) fn each_large(&self, mut each: impl FnMut(usize, u64)) {
        for (address, block) in &self.large {
            each(*address, block.requested());
        }
    }

    /// Adds the held and the free memory to a survey.
    pub(crate) fn survey(&self, survey: &mut Survey) {
        let free = self.memory.source().free_bytes().unwrap_or(u64::MAX);
        survey.space(free, self.memory.largest_hole(), self.cached());
        self.memory.policy().layout(&mut |piece| survey.piece(piece));
    }

    /// Returns the memory of free parts to the system, because they share a page of the source with live blocks. Returns the
    /// bytes.
    pub(crate) fn discard_free(&mut self) -> u64 {
        let free = self.free_parts();
        free.into_iter()
            .map(|(start, end)| self.discard(start, end, true))
            .sum()
    }

    /// Finds the free parts that may have been written since the system gave them. If they have more than `kept` bytes, returns
    /// their memory to the system.
    pub(crate) fn discard_written(&mut self, kept: u64) {
        let source = self.memory.source();
        let written: Vec<(u64, u64)> = self
            .free_parts()
            .into_iter()
            .flat_map(|(start, end)| source.written_parts(start as u64, end as u64))
            .collect();
        let bytes: u64 = written.iter().map(|(start, end)| end - start).sum();
        if bytes > kept && source.can_wait(None) {
            for (start, end) in written {
                self.discard(start as usize, end as usize, true);
            }
        }
    }

    /// Returns the start and the end of each part that is free in the engine.
    fn free_parts(&self) -> Vec<(usize, usize)> {
        let mut free = Vec::new();
        self.memory.policy().layout(&mut |piece| {
            if piece.state == PieceState::Free {
                free.push((piece.address as usize, (piece.address + piece.bytes) as usize));
            }
        });
        free
    }

    /// Returns the memory of the whole pages between two addresses to the system. They are free on a shelf, or in the
    /// engine if `in_engine` is true. Returns the bytes of the pages that were not discarded before.
    pub(crate) fn discard(&mut self, start: usize, end: usize, in_engine: bool) -> u64 {
        let first = start.next_multiple_of(PAGE);
        let bytes = (end & !(PAGE - 1)).saturating_sub(first);
        let source = self.memory.source_mut();
        source.discard(first as u64, bytes as u64, in_engine)
    }

    /// Backs whole pages with physical memory.
    pub(crate) fn populate(&mut self, address: usize, bytes: usize) -> bool {
        let source = self.memory.source_mut();
        source.expect_use(address as u64, bytes as u64);
        source.source().populate(address as u64, bytes as u64)
    }

    /// Backs all unused memory of the pool with physical memory.
    pub(crate) fn populate_free(&mut self) {
        let mut free = Vec::new();
        self.memory.policy().layout(&mut |piece| {
            let first = piece.address.next_multiple_of(PAGE as u64);
            let end = (piece.address + piece.bytes) & !(PAGE as u64 - 1);
            if piece.state == PieceState::Free && first < end {
                free.push((first as usize, (end - first) as usize));
            }
        });
        for (address, bytes) in free {
            if self.restore(address, bytes).is_some() {
                self.populate(address, bytes);
            }
        }
    }

    /// Frees a span. Returns the bytes of its pages that are discarded.
    pub(crate) fn free_span(&mut self, span: Block) -> u64 {
        let source = self.memory.source();
        let discarded = source.discarded_in(span.address(), span.bytes());
        self.memory.free(span, &[]);
        discarded
    }
}
