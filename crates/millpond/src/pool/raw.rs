//! Blocks by hand: a pointer to take, the same pointer to give back.

use super::Pool;
use super::heap::{Heap, Taken, lock};
use crate::error::AllocError;
use crate::event::Facts;
use crate::ledger::{Ledger, Tracking, WrongFree};
use crate::reentrancy::inside;
use std::ptr::{self, NonNull};
use std::sync::Arc;

impl Heap {
    /// The account of blocks that were handed out by hand. It has to be complete: a block's size is known here only.
    pub(crate) fn hands(&self) -> &Ledger {
        let new = || Arc::new(Ledger::builder(Tracking::All).complete(true).build());
        if let Some(hands) = self.hands.get() {
            return hands;
        }
        let mut made = Some(new());
        // A fork holds this lock: else its child would wait for ever for a thread that was at it.
        let ledgers = lock(&self.ledgers);
        let hands = self.hands.get_or_init(|| made.take().unwrap_or_else(new));
        drop(ledgers);
        hands
    }

    fn allocate_raw(&'static self, requested: usize, align: usize) -> Result<Taken, AllocError> {
        let taken = self.allocate(requested, align.max(self.align()))?;
        let _inside = inside();
        let facts = Facts {
            address: taken.address,
            requested,
            bytes: taken.bytes,
            align,
            ..Facts::default()
        };
        let hands = self.hands();
        if hands
            .insert(taken.address, hands.record(&facts, self.kind(), None))
            .is_none()
        {
            // No memory to remember it by.
            self.free(taken, requested);
            return Err(self.refused_finally(requested, self.refuse_tables(requested)));
        }
        Ok(taken)
    }

    fn free_raw(
        &'static self,
        pointer: NonNull<u8>,
        given: Option<(usize, usize)>,
    ) -> Result<(), Box<WrongFree>> {
        let address = pointer.as_ptr().expose_provenance();
        let record = {
            let _inside = inside();
            self.hands().remove(address, given)?
        };
        let Some(record) = record else {
            // The account is no longer complete, and does not know the block.
            return Err(Box::new(WrongFree::Foreign { address }));
        };
        let taken = Taken {
            address,
            bytes: record.bytes,
        };
        self.free(taken, record.requested);
        Ok(())
    }
}

/// Blocks by hand. Each is remembered, so that a pointer is enough to give it back, and a wrong one is told from a right
/// one: that costs about 100 ns. By [layout](Pool::allocate) a block costs a tenth of it; a [`Buffer`](crate::Buffer) goes
/// back by itself.
impl Pool {
    /// A block at a multiple of `align` and of 64. What the bytes hold is not said. All of its bytes may be used; they
    /// are at least those asked for.
    ///
    /// ```
    /// use millpond::{Pool, WrongFree};
    ///
    /// let pool = Pool::host()?;
    /// let block = pool.alloc_raw(1000, 64)?;
    /// assert_eq!(block.len(), pool.block_bytes(1000, 64).unwrap());
    /// // SAFETY: nothing uses the block any more.
    /// unsafe { pool.free_raw(block.cast()) }?;
    /// // SAFETY: a pointer that is not in our hands any more is refused.
    /// let twice = unsafe { pool.free_raw(block.cast()) };
    /// assert!(matches!(*twice.unwrap_err(), WrongFree::AlreadyFree { .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When there is no memory for it, or `align` is no power of two; the pool stays usable.
    pub fn alloc_raw(&self, bytes: usize, align: usize) -> Result<NonNull<[u8]>, AllocError> {
        if !align.is_power_of_two() {
            return Err(AllocError::Alignment {
                align: align as u64,
                most: 1 << 46,
            });
        }
        let taken = self.heap().allocate_raw(bytes, align)?;
        let pointer = NonNull::new(ptr::with_exposed_provenance_mut(taken.address));
        Ok(NonNull::slice_from_raw_parts(
            pointer.unwrap_or(NonNull::dangling()),
            taken.bytes,
        ))
    }

    /// Takes back a block that was handed out by hand, by its address alone.
    ///
    /// # Safety
    /// Nothing uses the block any more. That it is one is looked up.
    ///
    /// # Errors
    /// The pointer is none of such a block of this pool, or of one that was given back; nothing has changed.
    pub unsafe fn free_raw(&self, pointer: NonNull<u8>) -> Result<(), Box<WrongFree>> {
        self.heap().free_raw(pointer, None)
    }

    /// The same, and looks whether the caller knows what it was asked for.
    ///
    /// # Safety
    /// Nothing uses the block any more. That it is one is looked up.
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw), or the size or alignment is not the one asked for; nothing has changed.
    pub unsafe fn free_raw_sized(
        &self,
        pointer: NonNull<u8>,
        bytes: usize,
        align: usize,
    ) -> Result<(), Box<WrongFree>> {
        self.heap().free_raw(pointer, Some((bytes, align)))
    }

    /// Bytes of the block that a request takes: multiples of 64 up to 1 KiB, eighths of an octave up to 64 KiB, whole
    /// pages of 4 KiB beyond. None where there is no such block.
    #[must_use]
    pub fn block_bytes(&self, bytes: usize, align: usize) -> Option<usize> {
        let block = align
            .is_power_of_two()
            .then(|| Taken::of(0, bytes, align).bytes)?;
        Some(block).filter(|block| *block >= bytes && isize::try_from(*block).is_ok())
    }
}
