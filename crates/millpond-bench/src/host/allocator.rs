//! The interface of a measured allocator, and a block that frees itself.

use std::alloc::Layout;
use std::hint::black_box;
use std::ptr::NonNull;
use thiserror::Error;

/// The size and alignment of a block. Invariant: the size is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape(Layout);

impl Shape {
    /// Creates a shape. A size of 0 becomes 1. An invalid layout becomes a single byte.
    pub(crate) fn new(size: usize, align: usize) -> Self {
        Self(Layout::from_size_align(size.max(1), align).unwrap_or(Layout::new::<u8>()))
    }

    #[inline]
    pub(crate) fn size(self) -> usize {
        self.0.size()
    }

    #[inline]
    pub(crate) fn align(self) -> usize {
        self.0.align()
    }

    #[inline]
    pub(crate) fn layout(self) -> Layout {
        self.0
    }
}

/// An allocator under test.
///
/// # Safety
///
/// A non-null address that [`alloc`](Self::alloc) or [`alloc_zeroed`](Self::alloc_zeroed) returns must point to `size` bytes at
/// a multiple of `align`. This process may read and write them, and no other block overlaps them, until the address is passed
/// to [`free`](Self::free). An allocator that is `Sync` accepts the free from any thread.
pub(crate) unsafe trait Allocator {
    /// Allocates memory of this shape, or returns null.
    fn alloc(&self, shape: Shape) -> *mut u8;

    /// Allocates zeroed memory of this shape, or returns null.
    fn alloc_zeroed(&self, shape: Shape) -> *mut u8;

    /// Frees memory.
    ///
    /// # Safety
    /// The address must come from this allocator for this shape, and must not have been freed yet.
    unsafe fn free(&self, address: NonNull<u8>, shape: Shape);

    /// Returns unused memory to the system, if the allocator has a call for that.
    fn trim(&self) {}
}

// SAFETY: every call is forwarded to the allocator.
unsafe impl<A: Allocator> Allocator for &A {
    #[inline]
    fn alloc(&self, shape: Shape) -> *mut u8 {
        (**self).alloc(shape)
    }

    #[inline]
    fn alloc_zeroed(&self, shape: Shape) -> *mut u8 {
        (**self).alloc_zeroed(shape)
    }

    #[inline]
    unsafe fn free(&self, address: NonNull<u8>, shape: Shape) {
        // SAFETY: the caller guarantees what `free` requires.
        unsafe { (**self).free(address, shape) }
    }

    fn trim(&self) {
        (**self).trim();
    }
}

/// The part of a block that is written after its allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Nothing.
    None,
    /// The first byte.
    First,
    /// One byte of each 4 KiB.
    Page,
    /// Every byte.
    Full,
}

impl Touch {
    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::First => "first",
            Self::Page => "page",
            Self::Full => "full",
        }
    }

    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::None => "not touched",
            Self::First => "first byte written",
            Self::Page => "one byte of each 4 KiB written",
            Self::Full => "every byte written",
        }
    }

    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let all = [Self::None, Self::First, Self::Page, Self::Full];
        let found = all.into_iter().find(|touch| touch.name() == name);
        found.ok_or_else(|| format!("cannot touch blocks with '{name}': use none, first, page or full"))
    }
}

/// The allocator refused to allocate memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("cannot allocate {size} bytes")]
pub(crate) struct Refused {
    size: usize,
}

/// An allocated block. Invariant: `address` came from `from` for `shape`, and has not been freed.
pub(crate) struct Block<'a, A: Allocator> {
    address: NonNull<u8>,
    shape: Shape,
    from: &'a A,
}

// SAFETY: a block is the only owner of its bytes, and its drop calls `free`, which any thread may call.
unsafe impl<A: Allocator + Sync> Send for Block<'_, A> {}

impl<'a, A: Allocator> Block<'a, A> {
    /// Allocates a block with arbitrary contents. It must be written before it is read.
    #[inline]
    pub(crate) fn new(from: &'a A, shape: Shape) -> Result<Self, Refused> {
        Self::made(from, shape, from.alloc(shape))
    }

    /// Allocates a zeroed block.
    #[inline]
    pub(crate) fn zeroed(from: &'a A, shape: Shape) -> Result<Self, Refused> {
        Self::made(from, shape, from.alloc_zeroed(shape))
    }

    #[inline]
    fn made(from: &'a A, shape: Shape, address: *mut u8) -> Result<Self, Refused> {
        // The address must seem to be used. Otherwise the compiler would remove the allocation and its free.
        let address = NonNull::new(black_box(address)).ok_or(Refused { size: shape.size() })?;
        Ok(Self { address, shape, from })
    }

    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.shape.size()
    }

    #[cfg(test)]
    pub(crate) fn address(&self) -> usize {
        self.address.addr().get()
    }

    /// Writes the byte at an offset in the block.
    #[inline]
    pub(crate) fn put(&mut self, at: usize, byte: u8) {
        assert!(at < self.size());
        // SAFETY: the offset is within the block, as the assertion checks.
        let place = unsafe { self.address.add(at) };
        // SAFETY: by the invariant the byte belongs to this block.
        unsafe { place.write_volatile(byte) };
    }

    /// Returns the byte at an offset in the block.
    ///
    /// # Safety
    /// The byte must have been written by [`put`](Self::put) or [`fill`](Self::fill), or the block must have been allocated as
    /// zeroed.
    #[inline]
    pub(crate) unsafe fn get(&self, at: usize) -> u8 {
        assert!(at < self.size());
        // SAFETY: the offset is within the block, as the assertion checks.
        let place = unsafe { self.address.add(at) };
        // SAFETY: by the invariant the byte belongs to this block, and the caller guarantees that it has a value.
        unsafe { place.read_volatile() }
    }

    /// Writes a part of the block.
    #[inline]
    pub(crate) fn touch(&mut self, part: Touch) {
        match part {
            Touch::None => {}
            Touch::First => self.put(0, 1),
            Touch::Page => self.touch_pages(),
            Touch::Full => self.fill(1),
        }
    }

    /// Writes the first byte of each 4 KiB.
    #[inline]
    pub(crate) fn touch_pages(&mut self) {
        for at in (0..self.size()).step_by(4096) {
            self.put(at, 1);
        }
    }

    /// Writes every byte.
    #[inline]
    pub(crate) fn fill(&mut self, byte: u8) {
        // SAFETY: by the invariant all of these bytes belong to this block.
        unsafe { self.address.as_ptr().write_bytes(byte, self.shape.size()) };
        black_box(self.address);
    }

    /// Copies the bytes of another block, as many as both contain.
    ///
    /// # Safety
    /// Every byte of the other block must have been written.
    #[inline]
    pub(crate) unsafe fn copy(&mut self, other: &Self) {
        let bytes = self.size().min(other.size());
        // SAFETY: by the invariants both blocks are valid for this many bytes and do not overlap. The caller guarantees that
        // the bytes of the other one have values.
        unsafe {
            self.address
                .as_ptr()
                .copy_from_nonoverlapping(other.address.as_ptr(), bytes);
        }
        black_box(self.address);
    }

    /// Returns the bytes of the block.
    ///
    /// # Safety
    /// Every byte must have been written by [`fill`](Self::fill), or the block must have been allocated as zeroed.
    #[inline]
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: by the invariant the bytes belong to this block, and the caller guarantees that they have values.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.shape.size()) }
    }
}

impl<A: Allocator> Drop for Block<'_, A> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the invariant guarantees what `free` requires, and drop runs only once.
        unsafe { self.from.free(self.address, self.shape) }
    }
}
