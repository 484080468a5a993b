//! Blocks without a type or an owner: a pointer is allocated, and the same pointer is freed.

use super::Pool;
use super::heap::{Heap, RawBlock, lock};
use millpond_account::error::AllocError;
use millpond_account::event::BlockInfo;
use millpond_account::ledger::{Ledger, Tracking, WrongFree};
use millpond_os::reentrancy::inside;
use std::ptr::{self, NonNull};
use std::sync::Arc;

impl Heap {
    /// Returns the ledger of raw blocks. It must be complete, because the size of a raw block is recorded only there.
    pub(crate) fn hands(&self) -> &Ledger {
        let new = || Arc::new(Ledger::builder(Tracking::All).complete(true).build());
        if let Some(hands) = self.hands.get() {
            return hands;
        }
        let mut made = Some(new());
        // A fork holds this lock too. Otherwise its child would wait forever for a thread that was initialising the ledger.
        let ledgers = lock(&self.ledgers);
        let hands = self.hands.get_or_init(|| made.take().unwrap_or_else(new));
        drop(ledgers);
        hands
    }

    fn allocate_raw(&'static self, requested: usize, align: usize) -> Result<RawBlock, AllocError> {
        let taken = self.allocate(requested, align.max(self.align()), false)?;
        let _inside = inside();
        let info = BlockInfo {
            address: taken.address,
            requested,
            bytes: taken.bytes,
            align,
            ..BlockInfo::default()
        };
        let hands = self.hands();
        if hands
            .insert(taken.address, hands.record(&info, self.kind(), None))
            .is_none()
        {
            // There is no memory for the entry of this block.
            self.free(taken, requested, 0);
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
            // The ledger is no longer complete and does not contain the block.
            return Err(Box::new(WrongFree::Foreign { address }));
        };
        let taken = RawBlock {
            address,
            bytes: record.bytes,
        };
        self.free(taken, record.requested, 0);
        Ok(())
    }
}

/// Raw blocks. The pool records each block, so that a pointer is enough to free it and a wrong pointer is detected. This
/// costs about 100 ns. A block by [layout](Pool::allocate) costs a tenth of that. A [`Buffer`](crate::Buffer) is freed
/// automatically.
impl Pool {
    /// Allocates an uninitialised block of at least `bytes` bytes at a multiple of `align` and of 64. All bytes of the block may
    /// be used.
    ///
    /// ```
    /// use millpond::{Pool, ledger::WrongFree};
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
    /// Returns an error if there is not enough memory, or if `align` is not a power of two. The pool stays usable.
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

    /// Frees a raw block by its address alone.
    ///
    /// # Safety
    /// Nothing uses the block any more. The pool checks that the pointer is that of a block.
    ///
    /// # Errors
    /// Returns an error if the pointer is not that of a live raw block of this pool. In that case nothing is changed.
    pub unsafe fn free_raw(&self, pointer: NonNull<u8>) -> Result<(), Box<WrongFree>> {
        self.heap().free_raw(pointer, None)
    }

    /// Frees a raw block and checks the size and the alignment that it was requested with.
    ///
    /// # Safety
    /// Nothing uses the block any more. The pool checks that the pointer is that of a block.
    ///
    /// # Errors
    /// Returns the errors of [`free_raw`](Self::free_raw), and an error if the size or the alignment is not the requested
    /// one. In that case nothing is changed.
    pub unsafe fn free_raw_sized(
        &self,
        pointer: NonNull<u8>,
        bytes: usize,
        align: usize,
    ) -> Result<(), Box<WrongFree>> {
        self.heap().free_raw(pointer, Some((bytes, align)))
    }

    /// Returns the bytes of the block for a request: multiples of 64 up to 1 KiB, eighths of an octave up to 64 KiB, and
    /// whole pages of 4 KiB beyond. Returns `None` if there is no such block.
    #[must_use]
    pub fn block_bytes(&self, bytes: usize, align: usize) -> Option<usize> {
        let block = align
            .is_power_of_two()
            .then(|| RawBlock::of(0, bytes, align).bytes)?;
        Some(block).filter(|block| *block >= bytes && isize::try_from(*block).is_ok())
    }
}
