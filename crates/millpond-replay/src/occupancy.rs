//! Measures how full the segments of an allocator are at one moment: blocks, holes, and the requests that
//! still fit. The rules are those of PyTorch's caching allocator.

use crate::tags::tag_group;
use millpond_trace::{InitialBlock, InitialSegment, OLDER, Trace};
use serde::Serialize;

/// The largest request that the small segments serve.
const SMALL_REQUEST: u64 = 1 << 20;
/// The size of a small segment, the granularity of large ones, and the page of a small expandable segment.
const SMALL_SEGMENT: u64 = 2 << 20;
/// The page of a large expandable segment.
const LARGE_PAGE: u64 = 20 << 20;
/// Requests of at least this size get a segment of their own size.
const OWN_SEGMENT: u64 = 10 << 20;

/// The blocks and holes of a device's segments at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Occupancy {
    /// The device ordinal in the recorded process, or -1 for the host.
    pub device: i32,
    /// The sum of all pools. Its name is empty.
    pub total: PoolOccupancy,
    /// The share of the free bytes that is outside the largest hole. 0 if nothing is free.
    pub external_fragmentation: f64,
    /// The largest request that a hole outside the private pools serves without a call of the driver, in bytes.
    pub largest_cached_request_bytes: u64,
    /// Each pool, small before large segments, the default pool first.
    pub pools: Vec<PoolOccupancy>,
    /// Each segment, in address order.
    pub segments: Vec<SegmentOccupancy>,
}

/// The blocks and holes of several segments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolOccupancy {
    /// The name of the pool, such as `default, small` or `private (0, 1), large`.
    pub pool: String,
    /// The number of segments.
    pub segments: u64,
    /// Bytes of the segments.
    pub reserved_bytes: u64,
    /// Bytes of blocks that the program holds.
    pub block_bytes: u64,
    /// Bytes of blocks that the program has freed and that wait for a stream.
    pub waiting_bytes: u64,
    /// Bytes of the holes.
    pub free_bytes: u64,
    /// The number of blocks that the program holds.
    pub blocks: u64,
    /// The number of holes.
    pub holes: u64,
    /// Bytes of the largest hole.
    pub largest_hole_bytes: u64,
    /// The number of segments without a block.
    pub idle_segments: u64,
    /// Bytes that `torch.cuda.empty_cache()` returns to the driver: idle segments, and the whole free pages of
    /// expandable ones. It returns nothing of private pools that are in use.
    pub returnable_bytes: u64,
}

/// The blocks and holes of one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SegmentOccupancy {
    /// First address.
    pub address: u64,
    /// Whether it belongs to the pool's small segments.
    pub small: bool,
    /// Whether it is an expandable segment.
    pub expandable: bool,
    /// The stream, as recorded.
    pub stream: u64,
    /// The group of the tag that holds most of the segment. Empty if no block is held.
    pub holder: String,
    /// Its blocks and holes, and the name of its pool.
    #[serde(flatten)]
    pub sums: PoolOccupancy,
}

impl Occupancy {
    /// Measures the segments and blocks that a trace begins with. Blocks outside every segment do not count,
    /// and blocks that overlap count once.
    #[must_use]
    pub fn of_initial(trace: &Trace) -> Self {
        let mut blocks = trace.initial_blocks.iter().peekable();
        let mut all = Self {
            device: trace.origin.device,
            ..Self::default()
        };
        // Both lists are in address order, and segments do not overlap.
        for segment in &trace.initial_segments {
            let end = segment.address.saturating_add(segment.bytes);
            let mut walk = SegmentWalk::new(segment);
            while let Some(block) = blocks.next_if(|block| block.address < end) {
                walk.block(block);
            }
            all.add(walk.finish(trace), segment.pool);
        }
        let total = &all.total;
        if total.free_bytes > 0 {
            all.external_fragmentation = 1.0 - total.largest_hole_bytes as f64 / total.free_bytes as f64;
        }
        all.pools
            .sort_by_cached_key(|pool| (pool.pool.starts_with("private"), order(&pool.pool)));
        all
    }

    fn add(&mut self, segment: SegmentOccupancy, pool: u16) {
        let sums = &segment.sums;
        self.total.add(sums);
        match self.pools.iter_mut().find(|known| known.pool == sums.pool) {
            Some(known) => known.add(sums),
            None => self.pools.push(sums.clone()),
        }
        if pool == 0 {
            let most = if segment.small { SMALL_REQUEST } else { u64::MAX };
            let fits = sums.largest_hole_bytes.min(most);
            self.largest_cached_request_bytes = self.largest_cached_request_bytes.max(fits);
        }
        self.segments.push(segment);
    }
}

/// Returns a sort key: the pool without its kind, and whether its segments are large.
fn order(pool: &str) -> (String, bool) {
    let (name, kind) = pool.rsplit_once(", ").unwrap_or((pool, ""));
    (name.to_owned(), kind == "large")
}

/// Returns the largest request, in bytes, that gets a new segment while `room` bytes of the device are free.
#[must_use]
pub fn largest_fresh_request(room: u64) -> u64 {
    match room / SMALL_SEGMENT * SMALL_SEGMENT {
        room @ OWN_SEGMENT.. => room,
        SMALL_SEGMENT.. => SMALL_REQUEST,
        _ => 0,
    }
}

impl PoolOccupancy {
    /// Returns the sum of the segments that several traces begin with.
    #[must_use]
    pub fn of_all(traces: &[Trace]) -> Self {
        let mut sum = Self::default();
        for trace in traces {
            sum.add(&Occupancy::of_initial(trace).total);
        }
        sum
    }

    /// Adds the figures of a segment. Sums saturate, because the numbers of a damaged file may overflow.
    fn add(&mut self, other: &Self) {
        for (sum, one) in [
            (&mut self.segments, other.segments),
            (&mut self.reserved_bytes, other.reserved_bytes),
            (&mut self.block_bytes, other.block_bytes),
            (&mut self.waiting_bytes, other.waiting_bytes),
            (&mut self.free_bytes, other.free_bytes),
            (&mut self.blocks, other.blocks),
            (&mut self.holes, other.holes),
            (&mut self.idle_segments, other.idle_segments),
            (&mut self.returnable_bytes, other.returnable_bytes),
        ] {
            *sum = sum.saturating_add(one);
        }
        self.largest_hole_bytes = self.largest_hole_bytes.max(other.largest_hole_bytes);
    }
}

/// A walk over the blocks of one segment.
struct SegmentWalk<'a> {
    segment: &'a InitialSegment,
    /// The end of the last block.
    at: u64,
    sums: PoolOccupancy,
    /// Bytes by tag. Most segments have few tags.
    tags: Vec<(u32, u64)>,
}

/// The most tags of one segment that are counted separately.
const TAGS: usize = 64;

impl<'a> SegmentWalk<'a> {
    fn new(segment: &'a InitialSegment) -> Self {
        Self {
            segment,
            at: segment.address,
            sums: PoolOccupancy {
                segments: 1,
                reserved_bytes: segment.bytes,
                ..PoolOccupancy::default()
            },
            tags: Vec::new(),
        }
    }

    fn block(&mut self, block: &InitialBlock) {
        let bytes = block.bytes.unwrap_or(block.requested);
        let segment_end = self.segment.address.saturating_add(self.segment.bytes);
        let end = block.address.saturating_add(bytes).min(segment_end);
        let begin = block.address.max(self.at);
        if end <= begin {
            return;
        }
        self.hole(begin);
        let bytes = end - begin;
        if block.pending {
            self.sums.waiting_bytes += bytes;
        } else {
            self.sums.blocks += 1;
            self.sums.block_bytes += bytes;
            let known = self.tags.iter().position(|(tag, _)| *tag == block.tag);
            match known {
                Some(at) => self.tags[at].1 += bytes,
                None if self.tags.len() < TAGS => self.tags.push((block.tag, bytes)),
                None => {}
            }
        }
        self.at = end;
    }

    /// Adds the hole before `end`, if there is one.
    fn hole(&mut self, end: u64) {
        let bytes = end.saturating_sub(self.at);
        if bytes == 0 {
            return;
        }
        self.sums.holes += 1;
        self.sums.free_bytes += bytes;
        self.sums.largest_hole_bytes = self.sums.largest_hole_bytes.max(bytes);
        if self.segment.expandable && self.segment.pool == 0 {
            let page = if self.segment.small {
                SMALL_SEGMENT
            } else {
                LARGE_PAGE
            };
            let (from, to) = (self.at - self.segment.address, end - self.segment.address);
            let whole = (to / page).saturating_sub(from.div_ceil(page));
            self.sums.returnable_bytes += whole * page;
        }
    }

    fn finish(mut self, trace: &Trace) -> SegmentOccupancy {
        let segment = self.segment;
        self.hole(segment.address.saturating_add(segment.bytes));
        if self.sums.block_bytes + self.sums.waiting_bytes == 0 {
            self.sums.idle_segments = 1;
            self.sums.returnable_bytes = if segment.pool == 0 { segment.bytes } else { 0 };
        }
        let owner = match trace.pools.get(usize::from(segment.pool)) {
            None | Some((0, 0)) => "default".to_owned(),
            Some((a, b)) => format!("private ({a}, {b})"),
        };
        let kind = if segment.small { "small" } else { "large" };
        self.sums.pool = format!("{owner}, {kind}");
        let most = self.tags.iter().max_by_key(|(_, bytes)| *bytes);
        SegmentOccupancy {
            address: segment.address,
            small: segment.small,
            expandable: segment.expandable,
            stream: trace
                .streams
                .get(usize::from(segment.stream))
                .copied()
                .unwrap_or(0),
            holder: most.map_or_else(String::new, |(tag, _)| match tag {
                0 => OLDER.to_owned(),
                tag => tag_group(trace.tags.get(*tag)),
            }),
            sums: self.sums,
        }
    }
}

#[cfg(test)]
mod tests;
