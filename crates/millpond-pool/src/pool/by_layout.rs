//! Blocks that are allocated and freed by layout, as by Rust's allocators. A block is only a pointer.

use super::Pool;
use super::heap::RawBlock;
use millpond_account::error::AllocError;
use std::alloc::Layout;
use std::ptr::{self, NonNull};

impl Pool {
    /// Returns the alignment of a block for a layout.
    #[inline]
    fn align_for(&self, layout: Layout) -> usize {
        layout.align().max(self.align)
    }

    #[inline]
    fn block_of(&self, pointer: NonNull<u8>, layout: Layout) -> RawBlock {
        let address = pointer.as_ptr().expose_provenance();
        RawBlock::of(address, layout.size(), self.align_for(layout))
    }

    /// Allocates an uninitialised block for a layout. It has exactly the layout's size, at a multiple of its alignment and
    /// of 64. A layout of size 0 allocates no block.
    ///
    /// ```
    /// use std::alloc::Layout;
    ///
    /// let pool = millpond::Pool::host()?;
    /// let layout = Layout::array::<u64>(1000)?;
    /// let block = pool.allocate(layout)?;
    /// assert_eq!(block.len(), 8000);
    /// // SAFETY: handed out just now for this layout, and used no more.
    /// unsafe { pool.deallocate(block.cast(), layout) };
    /// assert_eq!(pool.stats().requested.current, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if there is not enough memory. The pool stays usable.
    #[inline]
    pub fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.allocate_either(layout, false)
    }

    #[inline]
    fn allocate_either(&self, layout: Layout, zeroed: bool) -> Result<NonNull<[u8]>, AllocError> {
        // A request of size 0 allocates no block.
        let mut pointer = ptr::without_provenance_mut(layout.align());
        if layout.size() > 0 {
            let taken = self
                .heap()
                .allocate(layout.size(), self.align_for(layout), zeroed)?;
            pointer = ptr::with_exposed_provenance_mut(taken.address);
        }
        let pointer = NonNull::new(pointer).unwrap_or(NonNull::dangling());
        Ok(NonNull::slice_from_raw_parts(pointer, layout.size()))
    }

    /// Allocates a block for a layout, with every byte zero.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory. The pool stays usable.
    #[inline]
    pub fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.allocate_either(layout, true)
    }

    /// Frees a block.
    ///
    /// # Safety
    /// This pool, through this handle or a clone of it, allocated the block for this layout, or has [resized](Self::resize)
    /// it to this layout. The block was not freed since, and nothing uses it any more.
    #[inline]
    pub unsafe fn deallocate(&self, pointer: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            let address = pointer.as_ptr().expose_provenance();
            self.heap()
                .free_as(address, layout.size(), self.align_for(layout));
        }
    }

    /// Changes the size of a block. It stays in place if the block for the new layout has the same size, and moves
    /// otherwise. The bytes that both sizes share are kept, and further bytes are uninitialised. After success the old
    /// pointer and layout are invalid, even if the address is the same. After an error they stay valid.
    ///
    /// # Safety
    /// The requirements of [`deallocate`](Self::deallocate) apply to the old pointer and layout.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory. The pool and the old block stay usable.
    pub unsafe fn resize(
        &self,
        pointer: NonNull<u8>,
        layout: Layout,
        wanted: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() > 0
            && wanted.size() > 0
            && self.block_of(pointer, layout) == self.block_of(pointer, wanted)
            && pointer.addr().get().is_multiple_of(wanted.align())
            && !self.heap().is_guarded()
        {
            let [from, to] = [layout, wanted].map(|layout| (layout.size(), self.align_for(layout)));
            self.heap().resize(self.block_of(pointer, layout), from, to);
            return Ok(NonNull::slice_from_raw_parts(pointer, wanted.size()));
        }
        let block = self.allocate(wanted)?;
        let bytes = layout.size().min(wanted.size());
        // SAFETY: both blocks have at least this many bytes, and a new block does not overlap with a live one.
        unsafe { block.cast::<u8>().copy_from_nonoverlapping(pointer, bytes) };
        // SAFETY: the caller guarantees the conditions, and the block is not used any more.
        unsafe { self.deallocate(pointer, layout) };
        Ok(block)
    }
}
