//! Prepares blocks before they are requested.

use super::classes::PAGE;
use super::heap::{Heap, large, lock, small};
use super::request::AllocRequest;
use millpond_account::error::AllocError;
use millpond_engine::display_size;
use millpond_os::machine_memory;
use millpond_os::reentrancy::inside;
use std::fmt;

/// The blocks that a pool prepares: sizes in bytes, and the number of blocks of each size.
///
/// ```
/// use millpond::{Pool, pool::Prewarm};
///
/// let pool = Pool::builder().prewarm(Prewarm::six_sizes(12 << 20).touched()).host()?;
/// assert!(pool.stats().reserved.current >= 12 << 20);
/// assert_eq!(pool.stats().allocations, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prewarm {
    blocks: Vec<(usize, usize)>,
    touched: bool,
}

impl Prewarm {
    /// Creates a description from pairs of a size and a number of blocks.
    #[must_use]
    pub fn of(blocks: impl IntoIterator<Item = (usize, usize)>) -> Self {
        Self {
            blocks: blocks.into_iter().collect(),
            touched: false,
        }
    }

    /// Returns a description of 16 blocks of each of the eleven powers of two from 64 bytes to 64 KiB. This is 2 MiB in total.
    #[must_use]
    pub fn small_sizes() -> Self {
        Self::of((6..=16).map(|log| (1 << log, 16)))
    }

    /// Returns a description of six sizes from 1 KiB to 1 MiB, each four times the one before. Each size gets an equal share of
    /// `total` bytes.
    #[must_use]
    pub fn six_sizes(total: usize) -> Self {
        Self::of((0..6).map(|step| (1024 << (2 * step), (total / 6) >> (10 + 2 * step))))
    }

    /// Also backs the blocks with physical memory, so that the first access causes no page fault.
    #[must_use]
    pub fn touched(mut self) -> Self {
        self.touched = true;
        self
    }

    /// Returns the sizes and the number of blocks of each.
    #[doc(hidden)]
    pub fn blocks(&self) -> impl Iterator<Item = (usize, usize)> {
        self.blocks.iter().copied()
    }

    /// Returns the requested bytes of all blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let each = |(bytes, count): &(usize, usize)| (*bytes as u64).saturating_mul(*count as u64);
        self.blocks.iter().map(each).fold(0, u64::saturating_add)
    }
}

impl fmt::Display for Prewarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (bytes, count)) in self.blocks.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{count} of {}", display_size(*bytes as u64))?;
        }
        Ok(())
    }
}

impl Heap {
    /// Prepares blocks. Small blocks are put on the shelves. Larger blocks stay free in the engine, next to each other.
    pub(crate) fn prewarm(&'static self, prewarm: &Prewarm) -> Result<(), AllocError> {
        let _inside = inside();
        self.expect_whole()?;
        if self.is_guarded() {
            // A freed guarded block is never reused without changes, so memory is reserved instead of blocks.
            return self.reserve(prewarm.bytes());
        }
        let mut held = Vec::new();
        let outcome = prewarm
            .blocks
            .iter()
            .try_for_each(|(bytes, count)| self.make_ready(*bytes, *count, &mut held));
        self.with_engine(|core| {
            for (address, bytes) in held {
                if prewarm.touched {
                    core.populate(address, bytes);
                }
                core.free(address);
            }
        });
        if prewarm.touched {
            self.touch_shelves();
        }
        outcome
    }

    fn make_ready(
        &'static self,
        bytes: usize,
        count: usize,
        held: &mut Vec<(usize, usize)>,
    ) -> Result<(), AllocError> {
        let mut hold = |bytes: usize| {
            let room = large(bytes).ok_or(AllocError::UNCOUNTABLE)?;
            let (address, _) = self.ask_for(bytes, |core| core.allocate(room, 1, |_, _| {}))?;
            held.push((address, room));
            Ok(())
        };
        if let Some((class, each)) = small(bytes, 1) {
            let missing = |ready: usize| each.saturating_mul(count.saturating_sub(ready));
            if missing(0) as u64 > machine_memory().1 {
                return hold(missing(0));
            }
            let mut ready = lock(&self.shelves[class]).blocks();
            while ready < count {
                self.add_span(class, AllocRequest::new(bytes, 1), &mut [])?;
                let before = std::mem::replace(&mut ready, lock(&self.shelves[class]).blocks());
                if ready <= before {
                    // The pool took back free blocks to make room for these. The request for the rest fails, or makes room for it.
                    return hold(missing(ready));
                }
            }
            return Ok(());
        }
        (0..count).try_for_each(|_| hold(bytes))
    }

    fn touch_shelves(&self) {
        for (class, shelf) in self.shelves.iter().enumerate() {
            let mut parts = Vec::new();
            let mut shelf = lock(shelf);
            shelf.free_parts(class, |start, end| parts.push((start, end)));
            self.with_engine(|core| {
                for (start, end) in parts {
                    // Pages that also hold live blocks are or will be backed by memory, and their contents do not change.
                    let first = start & !(PAGE - 1);
                    if let Some(restored) = core.restore(start, end - start) {
                        shelf.restored(restored);
                        core.populate(first, end.next_multiple_of(PAGE) - first);
                    }
                }
            });
        }
    }

    /// Reserves at least `total` bytes and backs all free memory with physical memory.
    pub(crate) fn reserve(&'static self, total: u64) -> Result<(), AllocError> {
        let _inside = inside();
        self.expect_whole()?;
        let mut held = Vec::new();
        let outcome = loop {
            let short = total.saturating_sub(self.reserved_now());
            if short == 0 {
                break Ok(());
            }
            // The allocation may be served from free memory. In that case the next one is not.
            let bytes = usize::try_from(short).ok().and_then(large);
            let Some(bytes) = bytes else {
                break Err(AllocError::UNCOUNTABLE);
            };
            match self.ask_for(bytes, |core| core.allocate(bytes, 1, |_, _| {})) {
                Ok((address, _)) => held.push(address),
                Err(error) => break Err(error),
            }
        };
        self.with_engine(|core| {
            held.into_iter().for_each(|address| core.free(address));
            core.populate_free();
        });
        self.touch_shelves();
        outcome
    }

    fn reserved_now(&self) -> u64 {
        let core = lock(&self.core);
        core.as_ref().map_or(0, |core| core.reserved().current)
    }
}
