//! Exchanges tensors with other libraries in the process, without a copy, by [DLPack], which NumPy, PyTorch, JAX and
//! CuPy support.
//!
//! ```text
//!   abi      the structures that are exchanged
//!   codes    element types and devices as numbers
//!   managed  an owned structure
//!   export   tensors for other libraries
//!   import   tensors of other libraries
//!   error    errors of both directions
//! ```
//!
//! A tensor is exchanged as a pointer to a structure. The structure describes the elements and has a deleter, a
//! function to call from any thread when the elements are no longer needed. The owner of the pointer owns the memory.
//!
//! - **Export.** The structure holds the tensor, so the storage lives until the deleter is called, and its pool counts it.
//!   The elements are writable only if no other tensor shares them. The older form of the structure cannot be marked as
//!   read-only, so read-only memory requires the newer form.
//! - **Import.** The tensor uses the other library's memory, which [`foreign_memory`](millpond_pool::foreign_memory) counts and no
//!   pool does. It may be written if the structure permits it and no other tensor of this crate shares it. The other library's
//!   deleter is called once: when the last tensor is dropped, or immediately if the structure is refused.
//!
//! ```
//! use millpond::dlpack::{DLManagedTensorVersioned, READ_ONLY};
//! use millpond::{DType, Pool, Tensor};
//!
//! let pool = Pool::host()?;
//! let tensor = Tensor::zeros_in(&pool, [3, 4], DType::F32)?;
//! let column = tensor.select(1, 2)?;
//! drop(tensor);
//!
//! // Exports to another library. No other tensor shares the storage, so the library may write to it.
//! let raw: *mut DLManagedTensorVersioned = column.into_dlpack()?.into_raw();
//! // SAFETY: the structure is complete, and no other code uses it.
//! let (shape, stride, flags) = unsafe { (*(*raw).dl_tensor.shape, *(*raw).dl_tensor.strides, (*raw).flags) };
//! assert_eq!((shape, stride, flags & READ_ONLY), (3, 4, 0));
//!
//! // Imports from another library, which is this crate here.
//! // SAFETY: the structure is complete and owned, and no other code uses its memory.
//! let mut back = unsafe { Tensor::from_dlpack(raw) }?;
//! back.fill(7.0)?;
//! assert_eq!(back.to_vec::<f32>()?, [7.0; 3]);
//! assert!(back.is_foreign() && pool.stats().requested.current == 48);
//! drop(back);
//! assert_eq!(pool.stats().requested.current, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This module does not use `dlpark`. That library is well maintained, but little more than its structures would be
//! used. It does not check the range of the elements or whether they share memory, refuses strides that this module
//! must support, ends the process if a structure cannot be allocated, and adds a second derive macro for errors. The
//! standard fixes the structures. The tests compare these with those of `dlpark`, and exchange tensors with it.
//!
//! [DLPack]: https://dmlc.github.io/dlpack/latest/

mod abi;
#[forbid(unsafe_code)]
mod codes;
#[forbid(unsafe_code)]
mod error;
mod export;
mod import;
mod managed;
#[cfg(test)]
mod tests;

pub use abi::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, IS_COPIED,
    READ_ONLY, VERSION,
};
pub use error::{DlpackError, NotExported};
pub use managed::{Form, ManagedTensor};
