//! What is measured: an allocator behind four calls, and a block of it that gives itself back.

use std::alloc::Layout;
use std::hint::black_box;
use std::ptr::NonNull;
use thiserror::Error;

/// Size and alignment of a block. Invariant: the size is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape(Layout);

impl Shape {
    /// Sizes of nought are made one; an alignment that is none, the least.
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
/// An address that [`alloc`](Self::alloc) or [`alloc_zeroed`](Self::alloc_zeroed) answers, unless it is null, is
/// that of `size` bytes, at a multiple of `align`, which this process may read and write and which nobody else is
/// given, until it is given to [`free`](Self::free). An allocator that is `Sync` takes it back from any thread.
pub(crate) unsafe trait Allocator {
    /// Memory of this shape, or null.
    fn alloc(&self, shape: Shape) -> *mut u8;

    /// Memory of this shape that reads as zero, or null.
    fn alloc_zeroed(&self, shape: Shape) -> *mut u8;

    /// Takes memory back.
    ///
    /// # Safety
    /// The address came from this allocator, for this shape, and is given back for the first time.
    unsafe fn free(&self, address: NonNull<u8>, shape: Shape);

    /// Gives to the system what no block uses, as far as the allocator has a call for that.
    fn trim(&self) {}
}

// SAFETY: every call is the allocator's own.
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
        // SAFETY: the caller's word is the one asked for.
        unsafe { (**self).free(address, shape) }
    }

    fn trim(&self) {
        (**self).trim();
    }
}

/// The allocator had no memory to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{size} bytes were refused")]
pub(crate) struct Refused {
    size: usize,
}

/// A block in our hands. Invariant: `address` came from `from` for `shape`, and has not been given back.
pub(crate) struct Block<'a, A: Allocator> {
    address: NonNull<u8>,
    shape: Shape,
    from: &'a A,
}

// SAFETY: a block is the sole owner of its bytes, and what it calls when dropped takes them from any thread.
unsafe impl<A: Allocator + Sync> Send for Block<'_, A> {}

impl<'a, A: Allocator> Block<'a, A> {
    /// With any contents. Nothing may be read before it is written.
    #[inline]
    pub(crate) fn new(from: &'a A, shape: Shape) -> Result<Self, Refused> {
        Self::made(from, shape, from.alloc(shape))
    }

    /// Reading as zero.
    #[inline]
    pub(crate) fn zeroed(from: &'a A, shape: Shape) -> Result<Self, Refused> {
        Self::made(from, shape, from.alloc_zeroed(shape))
    }

    #[inline]
    fn made(from: &'a A, shape: Shape, address: *mut u8) -> Result<Self, Refused> {
        // What is allocated must be seen to be used, or the pair is optimised away.
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

    /// Writes the byte at a place in the block.
    #[inline]
    pub(crate) fn put(&mut self, at: usize, byte: u8) {
        assert!(at < self.size());
        // SAFETY: within the block, as was just looked at.
        let place = unsafe { self.address.add(at) };
        // SAFETY: by the invariant a byte of ours.
        unsafe { place.write_volatile(byte) };
    }

    /// The byte at a place in the block.
    ///
    /// # Safety
    /// It was written, by [`put`](Self::put) or [`fill`](Self::fill) or because the block was asked for as zero.
    #[inline]
    pub(crate) unsafe fn get(&self, at: usize) -> u8 {
        assert!(at < self.size());
        // SAFETY: within the block, as was just looked at.
        let place = unsafe { self.address.add(at) };
        // SAFETY: by the invariant a byte of ours, and by the caller's word it has a value.
        unsafe { place.read_volatile() }
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
        // SAFETY: by the invariant all of these bytes are ours.
        unsafe { self.address.as_ptr().write_bytes(byte, self.shape.size()) };
        black_box(self.address);
    }

    /// Writes a copy of another block, as far as both go.
    ///
    /// # Safety
    /// Every byte of the other was written.
    #[inline]
    pub(crate) unsafe fn copy(&mut self, other: &Self) {
        let bytes = self.size().min(other.size());
        // SAFETY: by the invariants both are ours for so many bytes and apart from each other; by the caller's word
        // those of the other have values.
        unsafe {
            self.address
                .as_ptr()
                .copy_from_nonoverlapping(other.address.as_ptr(), bytes);
        }
        black_box(self.address);
    }

    /// Its bytes.
    ///
    /// # Safety
    /// Every byte was written, by [`fill`](Self::fill) or because the block was asked for as zero.
    #[inline]
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: by the invariant the bytes are ours, and by the caller's word they have values.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.shape.size()) }
    }
}

impl<A: Allocator> Drop for Block<'_, A> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the invariant says what `free` asks for, and drop runs once.
        unsafe { self.from.free(self.address, self.shape) }
    }
}
