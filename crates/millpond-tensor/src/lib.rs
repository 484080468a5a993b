//! Tensors: numbers in any shape over a storage, and views that share the storage.
//!
//! ```text
//!   layout       sizes, strides and offsets, as integers
//!   view         borrowed views, shared and mutable
//!   views        views of views: part, order, shape
//!   batches      iterators over a large tensor
//!   make, empty  constructors
//!   copy         copies, and views in place of copies
//!   scalar       single numbers
//!   number       the operations on elements
//!   walk         iterates over the rows of several layouts
//!   operand      tensors and numbers as operands
//!   arithmetic   element-wise arithmetic: new, in place, into an output
//!   elementwise  the implementation of arithmetic
//!   kernel       loops over slices, compiled for the processor's vector instructions
//!   threads      splits an operation between threads
//!   map          functions of the caller on elements, chunks and batches, on several threads
//!   cast         conversions between element types
//!   reduce       sums and products of vectors
//!   matmul       products of matrices and of batches of matrices
//!   display      text for people
//!   arrays       conversions from and to `ndarray`
//!   dlpack       exchange with other libraries in the process, by DLPack
//!   serial       serde
//!   device       tensors on CUDA devices
//! ```
//!
//! A [`Tensor`] consists of a reference-counted storage and a `Layout`, which contains the positions of its
//! elements in the storage. Creating a view increments a count and copies a few numbers, and calls no allocator. Elements are
//! accessed through slices of the storage. So unsafe code is only needed for the call of a library that multiplies matrices
//! (`matmul/gemm.rs`), for calls of functions that are compiled for wider vectors (`kernel.rs`), for the pointers of DLPack, and
//! for kernels on devices (`device/launch.rs`, `device/storage.rs`).
//!
//! This crate is a part of [millpond](https://docs.rs/millpond), which re-exports its public names. Programs should depend on millpond:
//! the names that only millpond's own crates need may change without notice.

#![cfg(target_os = "linux")]
#![deny(unsafe_op_in_unsafe_fn)]

#[forbid(unsafe_code)]
mod arithmetic;
#[cfg(feature = "ndarray")]
#[forbid(unsafe_code)]
mod arrays;
#[forbid(unsafe_code)]
mod batches;
#[forbid(unsafe_code)]
mod cast;
#[forbid(unsafe_code)]
mod copy;
#[cfg(feature = "cuda")]
mod device;
#[forbid(unsafe_code)]
mod display;
#[cfg(feature = "dlpack")]
pub mod dlpack;
#[forbid(unsafe_code)]
mod elementwise;
#[forbid(unsafe_code)]
mod empty;
#[forbid(unsafe_code)]
mod error;
mod kernel;
#[forbid(unsafe_code)]
mod layout;
#[forbid(unsafe_code)]
mod make;
#[forbid(unsafe_code)]
mod map;
mod matmul;
#[forbid(unsafe_code)]
mod number;
#[forbid(unsafe_code)]
mod operand;
#[forbid(unsafe_code)]
mod reduce;
#[forbid(unsafe_code)]
mod scalar;
#[cfg(feature = "serde")]
#[forbid(unsafe_code)]
mod serial;
#[cfg(feature = "derive")]
#[forbid(unsafe_code)]
pub mod soa;
#[cfg(test)]
mod tests;
#[forbid(unsafe_code)]
mod threads;
#[forbid(unsafe_code)]
mod view;
#[forbid(unsafe_code)]
mod views;
#[forbid(unsafe_code)]
mod walk;
pub mod workspace;

pub use arithmetic::Output;
pub use batches::{Batches, BatchesMut};
pub use copy::{Destination, SharedOrCopied};
#[cfg(feature = "cuda")]
pub use device::{DeviceOperand, DeviceOutput, DeviceTensor, DeviceTensorMut, DeviceTensorRef, IntoQueue};
pub use empty::EmptyTensor;
pub use error::TensorError;
#[doc(hidden)]
pub use layout::Dims;
pub use layout::MAX_RANK;
pub use layout::count;
pub use operand::Operand;
pub use scalar::Scalar;
#[cfg(feature = "derive")]
pub use soa::{Soa, SoaChunks, SoaField, SoaIndexError, SoaLayout};
pub use view::{TensorMut, TensorRef};
pub use workspace::{Named, Scratch, Workspace, WorkspaceBuilder, WorkspaceError, WorkspaceStats};

use error::shared_by;
use layout::Layout;
use millpond_os::device::Device;
use millpond_pool::dtype::{DType, DTypeError, Element};
use millpond_pool::pool::PoolRef;
use millpond_pool::storage::Storage;
use std::sync::Arc;
use thiserror::Error;
use view::shared_storage;

/// A tensor: numbers of one type in any shape, in the memory of a pool.
///
/// A tensor is a view of a [`Storage`]. Cloning, slicing, reshaping and so on return another tensor that shares the storage, without a
/// copy and without a call to an allocator. The storage is freed when the last of these tensors is dropped, on any thread. Only
/// [`deep_copy`](Self::deep_copy), [`reshaped`](Self::reshaped), [`to_contiguous`](Self::to_contiguous) and computations copy elements,
/// and their documentation says so.
///
/// **Writing** requires `&mut` and a storage that no other tensor shares. Otherwise the call fails with the number of the other
/// tensors ([`TensorError::Shared`]). To write parts of a tensor, borrow views of it with [`view_mut`](Self::view_mut). A tensor
/// therefore never changes because of a write to another tensor, and many threads can read tensors at once.
///
/// New tensors take their memory from the current [set of pools](fn@millpond_set::pools). Constructors that end in `_in` take it from a
/// given pool. **Results of operations and copies take their memory from the operand's** [pool](Self::pool), tenant or source, so the
/// limit of a pool also applies to everything that is computed from its tensors. If there are two operands, the memory comes from the
/// pool of the first. The memory of a [slice](TensorRef::from_slice) or of a [foreign](Self::is_foreign) tensor has no pool, tenant or
/// source. If the first operand is one of these, the memory comes from the pool of the second. If both are, it comes from the current
/// set of pools. Operations that end in `_into` or `_assign` write into existing memory and allocate nothing. `deep_copy_in` copies to
/// a given pool.
///
/// The type of the elements is a value, [`DType`]. Operations never convert types implicitly. Shapes have up to [`MAX_RANK`]
/// dimensions, which are numbered from 0. Strides are in elements.
///
/// ```
/// use millpond::{DType, Pool, Tensor};
///
/// let tensor = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
/// let column = tensor.transpose(0, 1)?.slice(0, 1..2)?;
/// assert_eq!((column.shape(), column.to_vec::<f32>()?), (&[1, 2][..], vec![2.0, 5.0]));
/// assert_eq!(tensor.holders(), 2);
///
/// let pool = Pool::host()?;
/// let mut sum = Tensor::zeros_in(&pool, [2, 3], DType::F32)?;
/// tensor.add_into(&tensor, &mut sum)?;
/// sum.mul_assign(0.5)?;
/// assert_eq!(sum.as_slice::<f32>()?, tensor.as_slice::<f32>()?);
/// assert_eq!(pool.stats().allocations, 1);
///
/// let twice = sum.mul(2.0)?;
/// assert!(twice.pool().is_some_and(|of| of == pool));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Tensor {
    /// The storage that all views share. It has no weak references. A foreign storage is only ever held in this field, and it is
    /// not written if it is not writable.
    storage: Arc<Storage>,
    /// The layout. Its elements lie in the storage.
    layout: Layout,
}

shared_storage!(Tensor);

/// The error of taking a storage out of a tensor that shares it with other tensors, or whose memory is foreign.
#[derive(Debug, Error)]
#[error("{}", self.why())]
pub struct StillShared {
    /// The tensor, unchanged.
    pub tensor: Box<Tensor>,
    /// The number of other tensors that shared the storage. It is 0 if the memory is foreign and no other tensor shared it.
    pub others: usize,
}

impl StillShared {
    fn why(&self) -> String {
        match self.others {
            0 => "the memory belongs to another library, which frees it when the tensor is dropped: use a `deep_copy`"
                .to_owned(),
            1 => format!("{}: drop it first", shared_by(1)),
            others => format!("{}: drop them first", shared_by(others)),
        }
    }
}

impl Tensor {
    /// Creates a contiguous tensor from a storage. Returns an error if the number of elements does not match the shape.
    fn of(storage: Storage, shape: &[usize]) -> Result<Self, TensorError> {
        let layout = Layout::of_elements(shape, storage.elements())?;
        Ok(Self {
            storage: Arc::new(storage),
            layout,
        })
    }

    /// Returns the pool that allocated the storage, or `None` if the storage was not allocated from a pool.
    #[must_use]
    pub fn pool(&self) -> Option<PoolRef> {
        self.storage.pool()
    }

    /// Returns the storage, which contains the elements of all views of it.
    #[must_use]
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Returns whether the elements lie in foreign memory: memory of a `Vec` or of another library.
    ///
    /// No pool counts this memory, but [`foreign_memory`](millpond_pool::foreign_memory) does. The memory is returned to its owner when
    /// the last tensor that shares it is dropped.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.storage.is_foreign()
    }

    /// Returns the whole storage, even if this tensor is only a part of it. Nothing is copied.
    ///
    /// # Errors
    /// Returns the tensor and the number of the other tensors if other tensors share the storage, or if the memory is
    /// [foreign](Self::is_foreign).
    pub fn try_into_storage(self) -> Result<Storage, StillShared> {
        if self.is_foreign() {
            let others = self.holders() - 1;
            let tensor = Box::new(self);
            return Err(StillShared { tensor, others });
        }
        self.alone()
    }

    /// Returns the storage, or an error if other tensors share it.
    fn alone(self) -> Result<Storage, StillShared> {
        let layout = self.layout;
        let mut storage = self.storage;
        loop {
            let others = Arc::strong_count(&storage) - 1;
            storage = match Arc::try_unwrap(storage) {
                Ok(storage) => return Ok(storage),
                Err(storage) => storage,
            };
            // If the last other tensor was dropped between the two reads, the next attempt succeeds.
            if others > 0 {
                let tensor = Box::new(Self { storage, layout });
                return Err(StillShared { tensor, others });
            }
        }
    }

    /// Frees the storage now.
    ///
    /// ```
    /// use millpond::{DType, Tensor};
    ///
    /// let tensor = Tensor::zeros([100, 100], DType::F32)?;
    /// let row = tensor.select(0, 3)?;
    /// let refused = tensor.free().unwrap_err();
    /// assert_eq!(refused.to_string(), "another tensor shares the storage: drop it first");
    ///
    /// drop(row);
    /// refused.tensor.free()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the tensor and the number of the other tensors if other tensors share the storage. If two threads free two views of
    /// one storage at the same time, both calls may fail.
    pub fn free(self) -> Result<(), StillShared> {
        self.alone().map(Storage::free)
    }

    /// Borrows a view for reading.
    ///
    /// # Errors
    /// Returns no error at present, because the host can read all current kinds of memory.
    pub fn view(&self) -> Result<TensorRef<'_>, TensorError> {
        let view = TensorRef::of(self.storage.as_bytes(), self.dtype(), self.layout);
        Ok(view.at_home(self.storage.home()))
    }

    /// Borrows a view for writing.
    ///
    /// ```
    /// use millpond::{DType, Tensor};
    ///
    /// let mut tensor = Tensor::zeros([3, 2], DType::I32)?;
    /// tensor.view_mut()?.slice(0, 1..)?.transpose(0, 1)?.fill(7)?;
    /// assert_eq!(tensor.as_slice::<i32>()?, [0, 0, 7, 7, 7, 7]);
    /// # Ok::<(), millpond::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`TensorError::Shared`] if other tensors share the storage, [`TensorError::Overlapping`] if elements of this tensor
    /// overlap, and [`TensorError::ReadOnly`] if the memory is read-only.
    pub fn view_mut(&mut self) -> Result<TensorMut<'_>, TensorError> {
        self.layout.expect_apart()?;
        if !self.storage.is_writable() {
            return Err(TensorError::ReadOnly);
        }
        let (dtype, layout) = (self.dtype(), self.layout);
        let (home, bytes) = only_holder(&mut self.storage)?.parts_mut();
        Ok(TensorMut::of(bytes, dtype, layout).at_home(home))
    }

    /// Returns the elements as a slice, if they are contiguous in memory.
    ///
    /// # Errors
    /// Returns an error if they are not contiguous or not of type `T`.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        self.view()?.as_slice()
    }

    /// Returns the elements as a mutable slice, if they are contiguous in memory.
    ///
    /// # Errors
    /// Returns an error if they are not contiguous, not of type `T` or read-only, or if other tensors share the storage.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        self.view_mut()?.into_mut_slice()
    }

    /// Returns an element.
    ///
    /// # Errors
    /// Returns an error if the index is not that of an element.
    pub fn get(&self, index: &[usize]) -> Result<Scalar, TensorError> {
        self.view()?.get(index)
    }

    /// Returns the only element of a tensor of one element.
    ///
    /// # Errors
    /// Returns an error unless there is exactly one element.
    pub fn item(&self) -> Result<Scalar, TensorError> {
        self.view()?.item()
    }

    /// Copies the elements, in order, to a `Vec`.
    ///
    /// # Errors
    /// Returns an error if they are not of type `T`.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        self.view()?.to_vec()
    }

    /// Copies the elements, in order, to a `Vec` of `bool`. Every value except 0 is true.
    ///
    /// # Errors
    /// Returns an error if they are not of type [`DType::Bool`].
    pub fn to_bools(&self) -> Result<Vec<bool>, TensorError> {
        self.view()?.to_bools()
    }
}

/// Returns the storage for writing, or an error if other tensors share it.
fn only_holder<S>(storage: &mut Arc<S>) -> Result<&mut S, TensorError> {
    // The count is read before `get_mut`, because it may be smaller a moment later. If this is the only tensor, it remains the only
    // one, because there is no other view to clone.
    let others = (Arc::strong_count(storage) - 1).max(1);
    Arc::get_mut(storage).ok_or(TensorError::Shared { others })
}

/// Returns an error if the type is not the expected one.
fn expect(expected: DType, found: DType) -> Result<(), TensorError> {
    if expected == found {
        return Ok(());
    }
    Err(DTypeError { expected, found }.into())
}
