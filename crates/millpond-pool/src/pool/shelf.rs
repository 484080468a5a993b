//! Small blocks of one class that no thread has cached.

use super::classes::{SMALL, class_bytes};
use std::collections::BTreeMap;

/// Spans are multiples of this.
const SPAN_UNIT: usize = 64 << 10;
/// The number of blocks of a span, within the least and the most bytes of a span.
const SPAN_BLOCKS: usize = 64;
const MOST_SPAN: usize = 4 * SMALL;
/// Only shelves with at most this many free blocks are searched for whole spans while a program waits.
const SEARCHED: usize = 16 << 10;

/// Returns the bytes of a span for a class.
pub(crate) fn span_bytes(class: usize) -> usize {
    (class_bytes(class) * SPAN_BLOCKS)
        .clamp(SPAN_UNIT, MOST_SPAN)
        .next_multiple_of(SPAN_UNIT)
}

/// Free blocks of one class, and the uncut rest of a span.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    /// Has capacity for every block of the class, so that a free never allocates: the memory may have run out.
    free: Vec<usize>,
    /// The number of blocks in the spans of the class.
    blocks: usize,
    /// The rest of the span: its start and its end.
    next: usize,
    end: usize,
    /// Bytes of discarded pages under free blocks.
    discarded: u64,
    /// The number of changes, and their number at the last check.
    changes: u64,
    seen: u64,
    swept: u64,
}

impl Shelf {
    /// Takes as many blocks as fit into `out`, starting with those freed last. Returns their number.
    ///
    /// While there are discarded pages, calls `restore` with the address and the bytes of each block before it is taken.
    /// `restore` returns the bytes of the block's discarded pages, or `None` if the block cannot be used now.
    pub(crate) fn take(
        &mut self,
        class: usize,
        out: &mut [usize],
        mut restore: impl FnMut(usize, usize) -> Option<u64>,
    ) -> usize {
        self.changes += 1;
        let bytes = class_bytes(class);
        let mut count = 0;
        while self.discarded > 0
            && count < out.len()
            && let Some(&address) = self.free.last()
            && let Some(restored) = restore(address, bytes)
        {
            self.restored(restored);
            self.free.pop();
            out[count] = address;
            count += 1;
        }
        if self.discarded == 0 {
            let kept = self.free.len() - self.free.len().min(out.len() - count);
            for address in self.free.drain(kept..) {
                out[count] = address;
                count += 1;
            }
        }
        while count < out.len() && self.end - self.next >= bytes {
            out[count] = self.next;
            self.next += bytes;
            count += 1;
        }
        count
    }

    /// Makes room for the blocks of another span. Returns false if there is no memory for it.
    pub(crate) fn expect_span(&mut self, class: usize) -> bool {
        let blocks = self.blocks + span_bytes(class) / class_bytes(class);
        if blocks > self.free.capacity() {
            // `Vec::reserve` would copy the whole table, which is nearly empty here, and so touch all its pages.
            let mut larger = Vec::new();
            if larger.try_reserve_exact(blocks.next_power_of_two()).is_err() {
                return false;
            }
            larger.append(&mut self.free);
            self.free = larger;
        }
        self.blocks = blocks;
        true
    }

    /// Records that an expected span was not allocated, or that a span was returned.
    pub(crate) fn forget_span(&mut self, class: usize) {
        self.blocks -= span_bytes(class) / class_bytes(class);
    }

    pub(crate) fn put(&mut self, blocks: &[usize]) {
        self.changes += 1;
        self.free.extend_from_slice(blocks);
    }

    /// Starts to cut blocks from a new span, which was [expected](Self::expect_span). If another thread has added a span in
    /// the meantime, the rest of that span is cut into blocks.
    pub(crate) fn add_span(&mut self, class: usize, address: usize, bytes: usize) {
        self.cut_up(class);
        (self.next, self.end) = (address, address + bytes);
    }

    fn cut_up(&mut self, class: usize) {
        let bytes = class_bytes(class);
        while self.end - self.next >= bytes {
            self.free.push(self.next);
            self.next += bytes;
        }
        (self.next, self.end) = (0, 0);
    }

    /// Calls `tell` with the start and the end of each free range. Adjacent blocks are merged. The uncut rest is cut into
    /// blocks first.
    pub(crate) fn free_parts(&mut self, class: usize, mut tell: impl FnMut(usize, usize)) {
        let bytes = class_bytes(class);
        self.cut_up(class);
        // Blocks with low addresses are allocated first from now on, so that spans at high addresses may become free.
        self.free.sort_unstable_by(|one, other| other.cmp(one));
        let mut part: Option<(usize, usize)> = None;
        for address in self.free.iter().rev() {
            part = match part {
                Some((start, end)) if end == *address => Some((start, end + bytes)),
                before => {
                    before.into_iter().for_each(|(start, end)| tell(start, end));
                    Some((*address, *address + bytes))
                }
            };
        }
        part.into_iter().for_each(|(start, end)| tell(start, end));
    }

    /// Returns whether pages under free blocks are discarded.
    pub(crate) fn has_discarded(&self) -> bool {
        self.discarded > 0
    }

    /// Records that pages under free blocks were discarded.
    pub(crate) fn discarded(&mut self, bytes: u64) {
        self.discarded += bytes;
    }

    /// Records that discarded pages are used again, or that their span was returned.
    pub(crate) fn restored(&mut self, bytes: u64) {
        self.discarded -= bytes;
    }

    /// Returns whether nobody has used the shelf since the last call, and this was not returned before.
    pub(crate) fn became_idle(&mut self) -> bool {
        let idle = self.seen == self.changes && self.swept != self.changes;
        self.seen = self.changes;
        if idle {
            self.swept = self.changes;
        }
        idle
    }

    /// Returns the number of free blocks.
    pub(crate) fn blocks(&self, class: usize) -> usize {
        self.free.len() + (self.end - self.next) / class_bytes(class)
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self, class: usize) -> usize {
        self.free.len() * class_bytes(class) + (self.end - self.next)
    }

    /// Returns whether a short search may find a span whose blocks are all free.
    pub(crate) fn may_have_whole_span(&self, class: usize) -> bool {
        self.blocks(class) >= span_bytes(class) / class_bytes(class) && self.free.len() <= SEARCHED
    }

    /// Removes the spans whose blocks are all free. `spans` are those of this class: start and bytes.
    pub(crate) fn take_whole_spans(&mut self, class: usize, spans: &[(usize, usize)]) -> Vec<usize> {
        let bytes = class_bytes(class);
        self.cut_up(class);
        let mut counts: BTreeMap<usize, usize> = spans.iter().map(|(start, _)| (*start, 0)).collect();
        let span_of = |counts: &BTreeMap<usize, usize>, address: usize| {
            counts.range(..=address).next_back().map(|(start, _)| *start)
        };
        for address in &self.free {
            if let Some(start) = span_of(&counts, *address)
                && let Some(count) = counts.get_mut(&start)
            {
                *count += 1;
            }
        }
        let whole: Vec<usize> = spans
            .iter()
            .filter(|(start, length)| counts.get(start) == Some(&(length / bytes)))
            .map(|(start, _)| *start)
            .collect();
        self.free.retain(|address| {
            span_of(&counts, *address).is_none_or(|start| whole.binary_search(&start).is_err())
        });
        whole.iter().for_each(|_| self.forget_span(class));
        self.free.shrink_to(self.blocks);
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_blocks_stay_when_the_table_grows() {
        let (mut shelf, class, unit) = (Shelf::default(), 0, span_bytes(0));
        let mut held = Vec::new();
        for span in 1..20 {
            assert!(shelf.expect_span(class));
            assert!(shelf.free.capacity() >= shelf.blocks);
            shelf.add_span(class, span * unit, unit);
            let mut batch = vec![0; unit / class_bytes(class) - 3];
            assert_eq!(shelf.take(class, &mut batch, |_, _| None), batch.len());
            held.extend(batch);
        }
        held.sort_unstable();
        held.dedup();
        assert_eq!(held.len() + shelf.blocks(class), shelf.blocks);
    }

    #[test]
    fn a_shelf_is_searched_if_it_could_have_a_whole_span() {
        let (mut shelf, class, unit) = (Shelf::default(), 0, span_bytes(0));
        let blocks = unit / class_bytes(class);
        assert!(shelf.expect_span(class));
        shelf.add_span(class, unit, unit);
        let mut held = vec![0; blocks];
        assert_eq!(shelf.take(class, &mut held, |_, _| None), blocks);
        for (at, block) in held.iter().enumerate() {
            shelf.put(&[*block]);
            assert_eq!(shelf.may_have_whole_span(class), at + 1 == blocks, "{at}");
        }
        assert_eq!(shelf.take_whole_spans(class, &[(unit, unit)]), [unit]);
    }
}
