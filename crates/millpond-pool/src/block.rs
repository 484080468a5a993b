//! Owned blocks of bytes, which are freed when dropped. Buffers, storages, rented memory and workspaces consist of them.
//!
//! An `OwnedBlock` has bytes and no elements. All code that accesses memory by pointer and size is here, so it is written only
//! once. The types above it define what the bytes contain.

mod direct;
mod foreign;
mod origin;
mod owner;

pub use direct::Direct;
pub use foreign::Foreign;
pub use foreign::{ForeignMemory, foreign_memory};
pub use origin::Origin;
pub(crate) use origin::origin;
pub use origin::{Handle, Memory};
pub use owner::Owner;

use crate::pool::RawBlock;
use millpond_account::error::AllocError;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// The minimum alignment of a block: a cache line, and the widest vector register.
pub const ALIGN: usize = 64;

/// A block of bytes with the requested alignment. It is freed when dropped, on any thread.
///
/// Invariant: if `bytes` is 0, no block was allocated, and `pointer` is only a multiple of `align`, not an address of memory.
/// Otherwise `owner` has allocated `[pointer, pointer + bytes)` for a request of `requested` bytes at a multiple of `align`.
/// These bytes may be read and written, no other code uses them, and they are freed exactly once, in the drop. If a foreign
/// owner is not writable, the bytes may only be read, and other code may read them too.
#[derive(Debug)]
pub(crate) struct OwnedBlock {
    pointer: NonNull<u8>,
    bytes: usize,
    requested: usize,
    align: usize,
    /// It is taken out only in the drop.
    owner: ManuallyDrop<Owner>,
}

// SAFETY: the block belongs to its holder alone by the invariant, owners may be called from any thread, and a shared block
// lends nothing but its address.
unsafe impl Send for OwnedBlock {}
// SAFETY: as above.
unsafe impl Sync for OwnedBlock {}

/// Returns the bytes of `len` elements.
pub fn bytes_of<T>(len: usize) -> Result<usize, AllocError> {
    const {
        assert!(
            size_of::<T>() > 0,
            "elements of zero size need no memory: use a type whose size is not zero"
        );
    };
    match size_of::<T>().checked_mul(len) {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(bytes),
        _ => Err(AllocError::UNCOUNTABLE),
    }
}

/// Returns the alignment to request so that elements are aligned too.
pub(crate) fn align_of_elements<T>(align: usize) -> Result<usize, AllocError> {
    if !align.is_power_of_two() {
        return Err(AllocError::Alignment {
            align: align as u64,
            most: 1 << 46,
        });
    }
    Ok(align.max(align_of::<T>()).max(ALIGN))
}

impl OwnedBlock {
    /// Creates an empty block. A block is allocated when it has to grow.
    fn empty(owner: Owner, align: usize) -> Self {
        let pointer = NonNull::new(ptr::without_provenance_mut(align));
        Self {
            pointer: pointer.unwrap_or(NonNull::dangling()),
            bytes: 0,
            requested: 0,
            align,
            owner: ManuallyDrop::new(owner),
        }
    }

    /// Creates a block over memory that another library or a `Vec` owns.
    ///
    /// # Safety
    /// The requirements of [`Buffer::foreign`](crate::Buffer::foreign) apply. If the owner is not writable, nothing writes
    /// through the block.
    pub(crate) unsafe fn foreign(
        pointer: NonNull<u8>,
        bytes: usize,
        align: usize,
        owner: Arc<Foreign>,
    ) -> Self {
        Self {
            pointer,
            bytes,
            requested: bytes,
            align,
            owner: ManuallyDrop::new(Owner::Foreign(owner)),
        }
    }

    /// Allocates a block. For 0 bytes no block is allocated. `align` is a power of two. If `zeroed` is true, the first
    /// `requested` bytes are zero, otherwise the block is uninitialised.
    ///
    /// The fast path is inlined into callers in every crate, so that the fields of the block stay in registers. If they were returned
    /// in memory and copied from there two at a time, the processor would wait for the writes.
    #[inline(always)]
    pub(crate) fn allocate(
        owner: Owner,
        requested: usize,
        align: usize,
        zeroed: bool,
    ) -> Result<Self, AllocError> {
        let Owner::Pool(heap) = owner else {
            return Self::allocate_elsewhere(owner, requested, align, zeroed);
        };
        let taken = if requested > 0 {
            heap.allocate(requested, align.max(heap.align()), zeroed)?
        } else {
            RawBlock {
                address: align,
                bytes: 0,
            }
        };
        Ok(Self::of(taken, owner, requested, align))
    }

    /// Allocates a block from an owner that is not a pool.
    #[inline(never)]
    fn allocate_elsewhere(
        owner: Owner,
        requested: usize,
        align: usize,
        zeroed: bool,
    ) -> Result<Self, AllocError> {
        if requested == 0 {
            return Ok(Self::empty(owner, align));
        }
        let taken = match &owner {
            Owner::Pool(heap) => heap.allocate(requested, align.max(heap.align()), zeroed)?,
            Owner::Tenant(terms) => terms.allocate(requested, align, zeroed)?,
            Owner::Direct(source) => source.allocate(requested, align, zeroed)?,
            Owner::Foreign(_) => return Err(AllocError::Foreign),
        };
        Ok(Self::of(taken, owner, requested, align))
    }

    /// Creates the owned block of a block that `owner` has just allocated for this request.
    #[inline(always)]
    fn of(taken: RawBlock, owner: Owner, requested: usize, align: usize) -> Self {
        let pointer = NonNull::new(ptr::with_exposed_provenance_mut(taken.address));
        Self {
            pointer: pointer.unwrap_or(NonNull::dangling()),
            bytes: taken.bytes,
            requested,
            align,
            owner: ManuallyDrop::new(owner),
        }
    }

    #[inline]
    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// Returns the number of usable bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn align(&self) -> usize {
        self.align
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Makes the block at least `bytes` bytes large. Its first `keep` bytes are kept, possibly at another address. The
    /// bytes up to `bytes` are zero if `zero` is true, and uninitialised otherwise. After an error the block is unchanged.
    ///
    /// If the block had room to spare, the owner still counts the size of the original request as requested.
    pub(crate) fn grow(&mut self, keep: usize, bytes: usize, zero: bool) -> Result<(), AllocError> {
        let keep = keep.min(self.bytes);
        if bytes <= self.bytes {
            if zero {
                self.zero(keep, bytes);
            }
            return Ok(());
        }
        let larger = Self::allocate(self.owner().clone(), bytes, self.align, zero)?;
        if keep > 0 {
            // SAFETY: by the invariant both blocks belong to this buffer alone and have these bytes, because `keep <=
            // self.bytes < bytes`. `self` is freed next, and its contents are not used again.
            unsafe {
                self.owner.move_contents(self.pointer, larger.pointer, keep);
            };
        }
        *self = larger;
        Ok(())
    }

    /// Sets the bytes from `from` to `to` to zero, if there are any.
    pub(crate) fn zero(&mut self, from: usize, to: usize) {
        let to = to.min(self.bytes);
        if from < to {
            let start = self.pointer.as_ptr().wrapping_add(from);
            // SAFETY: the bytes are inside the block, which belongs to this value alone by the invariant.
            unsafe { start.write_bytes(0, to - from) };
        }
    }

    /// Copies the first `bytes` bytes of another block to this one, or fewer if one of the blocks is smaller.
    pub(crate) fn copy_from(&mut self, other: &Self, bytes: usize) {
        let bytes = bytes.min(self.bytes).min(other.bytes);
        // SAFETY: both blocks have these bytes by the invariant, and two blocks do not overlap.
        unsafe { self.pointer.copy_from_nonoverlapping(other.pointer, bytes) };
    }

    /// Records that the block is deliberately never freed.
    pub(crate) fn note_leaked(&self) {
        if self.bytes > 0 {
            self.owner.note_leaked(self.pointer);
        }
    }

    /// Frees the block of any owner, and drops the owner.
    ///
    /// # Safety
    /// This is the last use of the block.
    #[inline(never)]
    unsafe fn free_slowly(&mut self) {
        // SAFETY: the caller guarantees that the owner is not used again.
        let owner = unsafe { ManuallyDrop::take(&mut self.owner) };
        if self.bytes > 0 {
            // SAFETY: by the invariant the owner has allocated it for this request, and it is not used after the drop.
            unsafe { owner.free(self.pointer, self.bytes, self.requested) };
        }
    }

    /// Leaks the block. Its memory and its owner stay for as long as the process runs.
    pub(crate) fn leak(self) -> NonNull<u8> {
        ManuallyDrop::new(self).pointer
    }
}

impl Drop for OwnedBlock {
    #[inline(always)]
    fn drop(&mut self) {
        match *self.owner {
            Owner::Pool(heap) if self.bytes > 0 => {
                let address = self.pointer.as_ptr().expose_provenance();
                let bytes = self.bytes;
                // By the invariant the pool has allocated it for this request, and it is not used after the drop. A pool as the owner
                // needs no drop itself.
                heap.free(RawBlock { address, bytes }, self.requested, 0);
            }
            // SAFETY: the value is dropped.
            _ => unsafe { self.free_slowly() },
        }
    }
}
