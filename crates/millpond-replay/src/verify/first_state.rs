//! How large the blocks were that lived before a snapshot's history.
//!
//! A snapshot records what was *requested*, and for blocks that live to its end also the size of the
//! block. For one that lived before the history and was freed within it, the block's size must be found
//! out: a large block keeps what lay behind it when that was too little to be worth splitting off, up to
//! 1 MiB. Two facts decide.
//!
//! - Nothing that small stands free in the large pool. So a gap of up to 1 MiB behind a block is its own.
//! - An allocation takes the front of a free block. So behind a larger gap, the first allocation into it
//!   while the block still lives shows where the free part begins; what lies before is the block's own.
//!
//! Without the second, a free block seems larger than it was, best fit prefers another, and everything
//! after that lies elsewhere: `gpt_medium_ctx512_training` is such a recording, where a block of 4 MiB
//! kept 960 KiB and the free block behind it was as large as one in another segment.

use crate::program::{BEFORE, OpKind, Program};
use millpond_engine::TorchConf;
use millpond_engine::policies::TorchNative;
use millpond_trace::{InitialBlock, InitialSegment, Trace};
use std::collections::{BTreeMap, HashMap};

/// The least that is split off in the large pool, in bytes.
const WORTH_SPLITTING: u64 = 1 << 20;

/// One segment of the first state with its blocks: address, bytes of the block, bytes requested.
pub(super) struct SizedSegment<'a> {
    pub(super) segment: &'a InitialSegment,
    pub(super) blocks: &'a [InitialBlock],
    pub(super) sized: Vec<(u64, u64, u64)>,
}

/// The first state, every block with its size.
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

/// Blocks behind which a larger gap begins: by the end of what was requested, who they are.
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

    /// Walks the history: the place of each block that turned out to own more, and how much.
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
