//! Temporaries of a scope, which are allocated from the arena.

use super::HostMemory;
use super::arena::{Arena, ArenaMemory, Chunk, Scope};
use crate::{TensorError, TensorMut};
use bytemuck::Pod;
use millpond_account::error::AllocError;
use millpond_pool::block::{ALIGN, Memory, bytes_of};
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::{DType, Element};
use std::cell::RefCell;
use std::fmt;
use std::ptr::NonNull;

/// Allocates temporaries, which live as long as the scope.
///
/// Invariant: while this exists, the arena is not reset to a mark before the beginning of the scope. An inner scope borrows this
/// one exclusively, and resets the arena to a mark after everything that was taken here. Memory that was returned for `'s` is
/// therefore not returned again during `'s`. No chunk is freed during `'s`, because the arena is borrowed exclusively.
pub struct Scratch<'s> {
    arena: RefCell<&'s mut Arena<HostMemory>>,
}

impl fmt::Debug for Scratch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

/// Every byte of a chunk is initialised.
impl ArenaMemory for HostMemory {
    type Chunk = Buffer<u8>;
    const ALIGN: usize = ALIGN;

    fn chunk(&self, bytes: usize) -> Result<Buffer<u8>, AllocError> {
        Buffer::zeroed(self.owner(), bytes, ALIGN)
    }
}

impl Chunk for Buffer<u8> {
    fn start(&self) -> usize {
        self.pointer().addr().get()
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}

/// Runs `work` in a new scope.
pub(super) fn enter<R>(arena: &mut Arena<HostMemory>, work: impl for<'s> FnOnce(&mut Scratch<'s>) -> R) -> R {
    let scope = Scope::enter(arena);
    work(&mut Scratch {
        arena: RefCell::new(&mut *scope.arena),
    })
}

impl<'s> Scratch<'s> {
    /// Returns a temporary of `len` elements with an alignment of 64 bytes. It contains zeros, or the values of earlier temporaries
    /// of this workspace.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<&'s mut [T], AllocError> {
        let (bytes, align) = (bytes_of::<T>(len)?, ALIGN.max(align_of::<T>()));
        let first = if bytes == 0 {
            NonNull::dangling()
        } else {
            let mut arena = self.arena.borrow_mut();
            let (chunk, start) = arena.take(bytes, align)?;
            let base = chunk.pointer();
            base.map_addr(|address| address.saturating_add(start)).cast::<T>()
        };
        // SAFETY: the bytes are aligned for `T` and initialised, which is sufficient for plain elements. By the invariant no other
        // code uses them during `'s`. If there are no elements, any aligned address is valid.
        Ok(unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), len) })
    }

    /// Returns a temporary of `len` zeroed elements.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    pub fn alloc_zeroed<T: Pod>(&self, len: usize) -> Result<&'s mut [T], AllocError> {
        let elements = self.alloc(len)?;
        bytemuck::fill_zeroes(elements);
        Ok(elements)
    }

    /// Returns a temporary copy of a slice.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    pub fn alloc_from<T: Pod>(&self, values: &[T]) -> Result<&'s mut [T], AllocError> {
        let elements = self.alloc(values.len())?;
        elements.copy_from_slice(values);
        Ok(elements)
    }

    /// Returns a temporary tensor. It contains zeros, or the values of earlier temporaries of this workspace.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, or if the shape is invalid.
    pub fn tensor<T: Element>(&self, shape: impl AsRef<[usize]>) -> Result<TensorMut<'s>, TensorError> {
        let shape = shape.as_ref();
        TensorMut::from_slice(self.alloc::<T>(crate::count(shape)?)?, shape)
    }

    /// Returns a temporary tensor of a type that is chosen at run time. It contains zeros, or the values of earlier temporaries of
    /// this workspace. Elements of `bool` are all false.
    ///
    /// ```
    /// # let pool = millpond::Pool::host()?;
    /// # let mut workspace = millpond::Workspace::builder(&pool).build()?;
    /// use millpond::Tensor;
    ///
    /// let input = Tensor::from_slice(&[1.5f64, 2.5], [2])?;
    /// let sum = workspace.scope(|scratch| {
    ///     let mut doubled = scratch.tensor_of(input.shape(), input.dtype())?;
    ///     input.mul_into(2, &mut doubled)?;
    ///     doubled.as_ref().sum()
    /// })?;
    /// assert_eq!(sum.to_f64(), Some(8.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, or if the shape is invalid.
    pub fn tensor_of(&self, shape: impl AsRef<[usize]>, dtype: DType) -> Result<TensorMut<'s>, TensorError> {
        let shape = shape.as_ref();
        let len = crate::count(shape)?;
        let bytes: &'s mut [u8] = match dtype.size() {
            // `bool` is the only type for which some bytes are invalid elements, so its elements are zeroed.
            1 if dtype == DType::Bool => self.alloc_zeroed(len)?,
            1 => self.alloc(len)?,
            2 => bytemuck::cast_slice_mut(self.alloc::<u16>(len)?),
            4 => bytemuck::cast_slice_mut(self.alloc::<u32>(len)?),
            8 => bytemuck::cast_slice_mut(self.alloc::<u64>(len)?),
            _ => bytemuck::cast_slice_mut(self.alloc::<u128>(len)?),
        };
        TensorMut::from_bytes(bytes, dtype, shape)
    }

    /// Runs `work` in an inner scope. The temporaries of the inner scope end when `work` returns or panics.
    ///
    /// ```
    /// # let pool = millpond::Pool::host()?;
    /// # let mut workspace = millpond::Workspace::builder(&pool).build()?;
    /// workspace.scope(|scratch| {
    ///     let kept = scratch.alloc_zeroed::<u32>(100)?;
    ///     for i in 0..1000 {
    ///         kept[0] += scratch.scope(|inner| Ok::<_, millpond::AllocError>(inner.alloc_from(&[i; 500])?[499]))?;
    ///     }
    ///     assert_eq!(kept[0], 499_500);
    ///     Ok::<(), millpond::AllocError>(())
    /// })?;
    /// assert!(workspace.stats().scratch_peak < 3000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scope<R>(&mut self, work: impl for<'i> FnOnce(&mut Scratch<'i>) -> R) -> R {
        enter(self.arena.get_mut(), work)
    }
}
