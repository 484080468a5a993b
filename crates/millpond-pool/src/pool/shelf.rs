//! Small blocks of one class that no thread has cached.
//!
//! Blocks are cut from spans. A span has a bit for each of its blocks, which is set while the block is free. The blocks that were
//! freed last are in a list instead, so that threads that pass blocks to each other do not search for their spans.

use super::classes::{SMALL, class_bytes};
use millpond_engine::Block;
use std::collections::BTreeMap;
use std::mem;

/// Spans are multiples of this.
const SPAN_UNIT: usize = 64 << 10;
/// The number of blocks of a span, if its size is between [`SPAN_UNIT`] and [`MOST_SPAN`].
const SPAN_BLOCKS: usize = 64;
const MOST_SPAN: usize = 4 * SMALL;
/// The maximum number of bytes of the blocks in the list of the blocks that were freed last, and the minimum and maximum of their number.
const RECENT_BYTES: usize = 1 << 20;
const LEAST_RECENT: usize = 8;
const MOST_RECENT: usize = 512;

/// Returns the bytes of a span for a class.
pub(crate) fn span_bytes(class: usize) -> usize {
    (class_bytes(class) * SPAN_BLOCKS)
        .clamp(SPAN_UNIT, MOST_SPAN)
        .next_multiple_of(SPAN_UNIT)
}

fn most_recent(class: usize) -> usize {
    (RECENT_BYTES / class_bytes(class)).clamp(LEAST_RECENT, MOST_RECENT)
}

/// One bit for each block of a span, from the lowest bit of the first word on. A set bit is a free block.
type Bits = Box<[u64]>;

/// A span of blocks of one class.
#[derive(Debug)]
struct Span {
    block: Block,
    bits: Bits,
    /// The number of set bits.
    free: usize,
    /// The start of the next span with free blocks, if this span has free blocks.
    next: Option<usize>,
}

/// Free blocks of one class, and the spans of the class.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    /// The blocks that were freed last. Their bits are not set. The capacity is reserved when a span is added, so that a free never
    /// allocates, because a free must work even if there is no memory.
    recent: Vec<usize>,
    /// The spans by their start.
    spans: BTreeMap<usize, Span>,
    /// The number of set bits of all spans.
    free: usize,
    /// The start of the first span with a set bit.
    open: Option<usize>,
    /// Bytes of discarded pages of free blocks.
    discarded: u64,
    /// Whether the shelf was used since the last check.
    used: bool,
    /// Whether the last check found that the shelf was not used.
    idle: bool,
}

impl Shelf {
    /// Takes as many blocks as fit into `out`. Returns their number. The blocks that were freed last are taken first, and they are at the
    /// end of `out`, where a thread's cache takes them first.
    ///
    /// While there are discarded pages, calls `restore` with the address and the bytes of each block before it is taken.
    /// `restore` returns the bytes of the block's discarded pages, or `None` if the block cannot be used now.
    pub(crate) fn take(
        &mut self,
        class: usize,
        out: &mut [usize],
        mut restore: impl FnMut(usize, usize) -> Option<u64>,
    ) -> usize {
        self.used = true;
        let (bytes, discarded) = (class_bytes(class), &mut self.discarded);
        let mut is_usable = |address| {
            let restored = match *discarded {
                0 => Some(0),
                _ => restore(address, bytes),
            };
            *discarded -= restored.unwrap_or(0);
            restored.is_some()
        };
        let mut count = 0;
        while count < out.len()
            && let Some(&address) = self.recent.last()
            && is_usable(address)
        {
            self.recent.pop();
            out[count] = address;
            count += 1;
        }
        'spans: while count < out.len()
            && let Some(start) = self.open
            && let Some(span) = self.spans.get_mut(&start)
        {
            for (at, word) in span.bits.iter_mut().enumerate() {
                while *word != 0 {
                    let nth = at * 64 + word.trailing_zeros() as usize;
                    if count == out.len() || !is_usable(start + nth * bytes) {
                        break 'spans;
                    }
                    out[count] = start + nth * bytes;
                    count += 1;
                    *word &= *word - 1;
                    span.free -= 1;
                    self.free -= 1;
                }
            }
            self.open = span.next.take();
        }
        out[..count].reverse();
        count
    }

    /// Returns the bits of a new span for [`add_span`](Self::add_span). Returns `None` if there is no memory for them.
    pub(crate) fn expect_span(&mut self, class: usize) -> Option<Bits> {
        let room = most_recent(class) - self.recent.len();
        self.recent.try_reserve_exact(room).ok()?;
        let blocks = span_bytes(class) / class_bytes(class);
        let (mut bits, words) = (Vec::new(), blocks.div_ceil(64));
        bits.try_reserve_exact(words).ok()?;
        bits.resize(words, u64::MAX);
        if let Some(last) = bits.last_mut() {
            *last >>= words * 64 - blocks;
        }
        Some(bits.into_boxed_slice())
    }

    /// Adds a span, all of whose blocks are free.
    pub(crate) fn add_span(&mut self, class: usize, block: Block, bits: Bits) {
        let (start, free) = (block.address() as usize, span_bytes(class) / class_bytes(class));
        let next = self.open.replace(start);
        self.free += free;
        self.spans.insert(
            start,
            Span {
                block,
                bits,
                free,
                next,
            },
        );
    }

    pub(crate) fn put(&mut self, class: usize, blocks: &[usize]) {
        self.used = true;
        let most = most_recent(class);
        for part in blocks.chunks(most / 2) {
            if self.recent.len() + part.len() > most {
                self.settle(class, most / 2);
            }
            self.recent.extend_from_slice(part);
        }
    }

    /// Moves all recent blocks except the `kept` blocks that were freed last to their spans, by setting their bits.
    fn settle(&mut self, class: usize, kept: usize) {
        let (bytes, moved) = (class_bytes(class), self.recent.len().saturating_sub(kept));
        self.recent[..moved].sort_unstable();
        let mut blocks = self.recent.drain(..moved).peekable();
        while let Some(first) = blocks.next() {
            let Some((start, span)) = self.spans.range_mut(..=first).next_back() else {
                continue;
            };
            let (before, end) = (span.free, *start + span_bytes(class) / bytes * bytes);
            // If a program frees a block with a wrong size, the block is put on a shelf without a span at its address. It is leaked.
            let mut next = Some(first).filter(|address| *address < end);
            while let Some(address) = next {
                let nth = (address - start) / bytes;
                let (word, bit) = (&mut span.bits[nth / 64], 1 << (nth % 64));
                span.free += usize::from(*word & bit == 0);
                *word |= bit;
                next = blocks.next_if(|address| *address < end);
            }
            self.free += span.free - before;
            if before == 0 && span.free > 0 {
                span.next = self.open.replace(*start);
            }
        }
    }

    /// Calls `tell` with the start and the end of each free range. A range consists of adjacent free blocks.
    pub(crate) fn free_parts(&mut self, class: usize, mut tell: impl FnMut(usize, usize)) {
        let bytes = class_bytes(class);
        self.settle(class, 0);
        self.sort();
        let mut part: Option<(usize, usize)> = None;
        for (start, span) in &self.spans {
            for nth in (0..span.bits.len() * 64).filter(|nth| span.bits[nth / 64] >> (nth % 64) & 1 == 1) {
                let address = start + nth * bytes;
                part = match part {
                    Some((start, end)) if end == address => Some((start, end + bytes)),
                    before => {
                        before.into_iter().for_each(|(start, end)| tell(start, end));
                        Some((address, address + bytes))
                    }
                };
            }
        }
        part.into_iter().for_each(|(start, end)| tell(start, end));
    }

    /// Sorts the spans with free blocks by address. Blocks are then taken from the lowest addresses first, so that spans at high
    /// addresses may become free.
    fn sort(&mut self) {
        self.open = None;
        for (start, span) in self.spans.iter_mut().rev().filter(|(_, span)| span.free > 0) {
            span.next = self.open.replace(*start);
        }
    }

    /// Returns whether pages of free blocks are discarded.
    pub(crate) fn has_discarded(&self) -> bool {
        self.discarded > 0
    }

    /// Records that pages of free blocks were discarded.
    pub(crate) fn discarded(&mut self, bytes: u64) {
        self.discarded += bytes;
    }

    /// Records that discarded pages are used again.
    pub(crate) fn restored(&mut self, bytes: u64) {
        self.discarded -= bytes;
    }

    /// Returns whether the shelf was not used since the last call, unless the last call has already found it unused.
    pub(crate) fn became_idle(&mut self) -> bool {
        let was_used = mem::take(&mut self.used);
        let became_idle = !was_used && !self.idle;
        self.idle = !was_used;
        became_idle
    }

    /// Returns the number of free blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.recent.len() + self.free
    }

    /// Removes the spans whose blocks are all free, and passes them to `give`, which returns the bytes of their discarded pages.
    pub(crate) fn release_spans(&mut self, class: usize, mut give: impl FnMut(Block) -> u64) {
        self.settle(class, 0);
        let blocks = span_bytes(class) / class_bytes(class);
        let whole = self.spans.iter().filter(|(_, span)| span.free == blocks);
        let whole: Vec<usize> = whole.map(|(start, _)| *start).collect();
        for span in whole.iter().filter_map(|start| self.spans.remove(start)) {
            self.free -= blocks;
            self.discarded -= give(span.block);
        }
        self.sort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_engine::{BlockId, Request, Stream};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn add_span(shelf: &mut Shelf, class: usize, address: usize) {
        let request = Request::new(span_bytes(class) as u64, Stream::DEFAULT);
        let block = Block::new(address as u64, request.bytes, &request, BlockId::NONE);
        let bits = shelf.expect_span(class).expect("memory");
        shelf.add_span(class, block, bits);
    }

    fn take(shelf: &mut Shelf, class: usize, count: usize) -> Vec<usize> {
        let mut batch = vec![0; count];
        let count = shelf.take(class, &mut batch, |_, _| None);
        batch.truncate(count);
        batch
    }

    fn release(shelf: &mut Shelf, class: usize) -> Vec<usize> {
        let mut spans = Vec::new();
        shelf.release_spans(class, |block| {
            spans.push(block.address() as usize);
            0
        });
        spans
    }

    /// Returns every block of a span.
    fn blocks_of(class: usize, span: usize) -> impl Iterator<Item = usize> {
        let bytes = class_bytes(class);
        (0..span_bytes(class) / bytes).map(move |nth| span + nth * bytes)
    }

    proptest! {
        /// Blocks leave and return in any order. None is lost or handed out twice, and exactly the whole spans are released.
        #[test]
        fn no_block_is_lost(
            class in prop::sample::select(vec![0, 3, 15, 20, 40, 63, 64]),
            steps in prop::collection::vec((0..600_usize, any::<u64>()), 1..60),
        ) {
            let (mut shelf, mut held, mut free) = (Shelf::default(), Vec::new(), BTreeSet::new());
            let mut spans = BTreeSet::new();
            for (amount, seed) in steps {
                match seed % 4 {
                    0 => {
                        let mut start = (seed >> 40) as usize * span_bytes(class);
                        while !spans.insert(start) {
                            start += span_bytes(class);
                        }
                        add_span(&mut shelf, class, start);
                        free.extend(blocks_of(class, start));
                    }
                    1 | 2 => {
                        let taken = take(&mut shelf, class, amount);
                        prop_assert_eq!(taken.len(), amount.min(free.len()));
                        prop_assert!(taken.iter().all(|block| free.remove(block)));
                        held.extend(taken);
                    }
                    _ => {
                        for nth in 0..amount.min(held.len()) {
                            let block = held.swap_remove((seed as usize).wrapping_mul(nth + 1) % held.len());
                            shelf.put(class, &[block]);
                            free.insert(block);
                        }
                    }
                }
                if amount % 5 == 0 {
                    let whole = spans.iter().copied().filter(|span| blocks_of(class, *span).all(|block| free.contains(&block)));
                    let whole: Vec<usize> = whole.collect();
                    prop_assert_eq!(&release(&mut shelf, class), &whole);
                    for span in whole {
                        spans.remove(&span);
                        blocks_of(class, span).for_each(|block| { free.remove(&block); });
                    }
                    let mut parts = BTreeSet::new();
                    let bytes = class_bytes(class);
                    shelf.free_parts(class, |start, end| parts.extend((start..end).step_by(bytes)));
                    prop_assert_eq!(&parts, &free);
                }
                prop_assert_eq!(shelf.blocks(), free.len());
                prop_assert!(shelf.recent.len() <= most_recent(class));
            }
        }
    }

    #[test]
    fn blocks_freed_last_are_taken_first() {
        let (mut shelf, class) = (Shelf::default(), 0);
        add_span(&mut shelf, class, 1 << 20);
        let held = take(&mut shelf, class, 8);
        assert_eq!(held.last(), Some(&(1 << 20)));
        shelf.put(class, &held);
        assert_eq!(take(&mut shelf, class, 8), held);
    }

    #[test]
    fn a_free_never_grows_the_list() {
        let (mut shelf, class) = (Shelf::default(), 0);
        (1..=4).for_each(|span| add_span(&mut shelf, class, span << 20));
        let (room, all) = (shelf.recent.capacity(), shelf.blocks());
        let held = take(&mut shelf, class, all);
        assert_eq!(held.len(), all);
        shelf.put(class, &held);
        assert_eq!((shelf.recent.capacity(), shelf.blocks()), (room, all));
        assert_eq!(release(&mut shelf, class).len(), 4);
        assert_eq!((shelf.blocks(), take(&mut shelf, class, 1)), (0, vec![]));
    }

    /// A program that frees a block twice may break itself, but not the counts of the shelf.
    #[test]
    fn a_block_that_is_freed_twice_is_counted_once() {
        let (mut shelf, class) = (Shelf::default(), 0);
        add_span(&mut shelf, class, 1 << 20);
        let held = take(&mut shelf, class, 10);
        shelf.put(class, &held);
        shelf.put(class, &held);
        assert_eq!(release(&mut shelf, class), [1 << 20]);
        assert_eq!(shelf.blocks(), 0);
    }

    /// A program that frees blocks with a wrong size may leak them, but the pool stays usable.
    #[test]
    fn a_block_outside_every_span_is_dropped() {
        let (mut shelf, class) = (Shelf::default(), 0);
        add_span(&mut shelf, class, 1 << 20);
        let all = shelf.blocks();
        let held = take(&mut shelf, class, all);
        shelf.put(class, &[1 << 19, 1 << 21]);
        assert!(release(&mut shelf, class).is_empty());
        assert_eq!((shelf.blocks(), take(&mut shelf, class, 1)), (0, vec![]));
        shelf.put(class, &held);
        assert_eq!(release(&mut shelf, class), [1 << 20]);
    }

    #[test]
    fn discarded_pages_are_restored_before_a_block_is_taken() {
        let (mut shelf, class) = (Shelf::default(), 63);
        add_span(&mut shelf, class, 1 << 20);
        shelf.discarded(3 * SMALL as u64);
        let mut allowed = [Some(SMALL as u64), None].into_iter();
        let mut batch = [0; 4];
        assert_eq!(shelf.take(class, &mut batch, |_, _| allowed.next().flatten()), 1);
        assert_eq!((shelf.blocks(), shelf.discarded), (3, 2 * SMALL as u64));
    }
}
