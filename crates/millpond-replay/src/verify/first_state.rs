//! Determines the sizes of the blocks that lived before a snapshot's history.
//!
//! A snapshot records the *requested* size of each block. Only for blocks that live to its end does it also
//! record the size of the block. For a block that lived before the history and was freed within it, the size
//! must be inferred. A large block keeps a remainder of up to 1 MiB that was too small to split off. Two facts
//! determine the size.
//!
//! - The large pool contains no free block that small. So a gap of up to 1 MiB behind a block belongs to it.
//! - An allocation takes the front of a free block. So the first allocation into a larger gap, while the
//!   block still lives, shows where the free part begins. The bytes before it belong to the block.
//!
//! Without the second fact, a free block seems larger than it was, best fit prefers another one, and all
//! later addresses differ. The recording `gpt_medium_ctx512_training` shows this: a block of 4 MiB kept 960
//! KiB, and the free block behind it was as large as one in another segment.

use crate::program::{BEFORE, OpKind, Program};
use millpond_engine::TorchConf;
use millpond_engine::policies::TorchNative;
use millpond_trace::{InitialBlock, InitialSegment, Trace};
use std::collections::{BTreeMap, HashMap};

/// The largest remainder that the large pool does not split off, in bytes.
const WORTH_SPLITTING: u64 = 1 << 20;

/// One segment of the first state with its blocks as address, bytes of the block, and requested bytes.
pub(super) struct SizedSegment<'a> {
    pub(super) segment: &'a InitialSegment,
    pub(super) blocks: &'a [InitialBlock],
    pub(super) sized: Vec<(u64, u64, u64)>,
}

/// Returns the first state with the size of every block.
pub(super) fn first_state<'a>(
    trace: &'a Trace,
    program: &Program,
    conf: &TorchConf,
) -> Vec<SizedSegment<'a>> {
    let mut segments: Vec<&InitialSegment> = trace.initial_segments.iter().collect();
    segments.sort_by_key(|s| s.address);
    let mut state: Vec<SizedSegment<'a>> = Vec::with_capacity(segments.len());
    let mut open = OpenGaps::default();
    for segment in segments {
        let blocks = within(&trace.initial_blocks, segment);
        let end = segment.address.saturating_add(segment.bytes);
        let mut sized = Vec::with_capacity(blocks.len());
        for (index, block) in blocks.iter().enumerate() {
            let limit = blocks.get(index + 1).map_or(end, |next| next.address);
            let room = limit.saturating_sub(block.address);
            let rounded = TorchNative::block_bytes(conf, block.requested)
                .unwrap_or(room)
                .min(room);
            let bytes = match block.bytes {
                Some(bytes) => bytes.min(room),
                None if segment.small => rounded,
                None if room - rounded <= WORTH_SPLITTING => room,
                None => {
                    open.insert(block, rounded, (state.len(), index));
                    rounded
                }
            };
            sized.push((block.address, bytes, block.requested));
        }
        state.push(SizedSegment {
            segment,
            blocks,
            sized,
        });
    }
    for ((segment, block), own) in open.resolve(program) {
        state[segment].sized[block].1 += own;
    }
    state
}

fn within<'a>(blocks: &'a [InitialBlock], segment: &InitialSegment) -> &'a [InitialBlock] {
    let end = segment.address.saturating_add(segment.bytes);
    let first = blocks.partition_point(|b| b.address < segment.address);
    let last = blocks.partition_point(|b| b.address < end);
    &blocks[first..last.max(first)]
}

/// Blocks in front of a larger gap, by the end of their requested bytes.
#[derive(Default)]
struct OpenGaps {
    by_end: BTreeMap<u64, (u32, (usize, usize))>,
    ends: HashMap<u32, u64>,
}

impl OpenGaps {
    fn insert(&mut self, block: &InitialBlock, rounded: u64, place: (usize, usize)) {
        let end = block.address.saturating_add(rounded);
        self.by_end.insert(end, (block.allocation, place));
        self.ends.insert(block.allocation, end);
    }

    /// Walks the history. Returns the position of each block that owns more bytes than requested, and the
    /// number of these bytes.
    fn resolve(mut self, program: &Program) -> Vec<((usize, usize), u64)> {
        let mut found = Vec::new();
        for op in program.ops.iter().filter(|op| op.event != BEFORE) {
            match op.kind {
                OpKind::Alloc => {
                    let candidate = self
                        .by_end
                        .range(..=op.address)
                        .next_back()
                        .map(|(end, who)| (*end, *who));
                    let Some((end, (allocation, place))) = candidate else {
                        continue;
                    };
                    if op.address - end <= WORTH_SPLITTING {
                        found.push((place, op.address - end));
                        self.close(allocation);
                    }
                }
                OpKind::Free | OpKind::FreeCompleted => self.close(op.allocation),
                OpKind::FreeRequested | OpKind::SegmentFree => {}
            }
        }
        found
    }

    fn close(&mut self, allocation: u32) {
        if let Some(end) = self.ends.remove(&allocation) {
            self.by_end.remove(&end);
        }
    }
}
