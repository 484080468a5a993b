//! Exchange of tensors with other libraries in the process, without a copy, by [DLPack]: what NumPy, PyTorch, JAX and CuPy
//! speak.
//!
//! ```text
//!   abi      the structures that cross the border
//!   codes    types of elements and devices, as numbers
//!   managed  such a structure, owned
//!   export   a tensor of ours for others
//!   import   a tensor of others for us
//!   error    why not
//! ```
//!
//! A tensor crosses the border as a pointer to a structure that says where its elements lie and has a function to call when
//! they are no longer needed, from whatever thread. Whoever has the pointer holds the memory.
//!
//! - **Out.** The structure holds the tensor, so the storage stays until the function was called, and its pool counts it.
//!   Elements are lent to be written only where no other tensor sees them. The older form of the structure cannot say
//!   read-only; memory that is has to cross in the newer one.
//! - **In.** The tensor stands on the other library's memory, which [`foreign_memory`](crate::foreign_memory) counts and no
//!   pool does. It may be written where the structure says so and no other tensor of ours shares it. The other
//!   library's function is called once: with the last tensor, or at once where the structure is refused.
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
//! // To another library. The column is the only tensor of its storage, so it may be written there.
//! let raw: *mut DLManagedTensorVersioned = column.into_dlpack()?.into_raw();
//! // SAFETY: the structure is whole, and nobody else has it.
//! let (shape, stride, flags) = unsafe { (*(*raw).dl_tensor.shape, *(*raw).dl_tensor.strides, (*raw).flags) };
//! assert_eq!((shape, stride, flags & READ_ONLY), (3, 4, 0));
//!
//! // And from another library, which is this one here.
//! // SAFETY: the structure is whole and ours, and nobody else uses its memory.
//! let mut back = unsafe { Tensor::from_dlpack(raw) }?;
//! back.fill(7.0)?;
//! assert_eq!(back.to_vec::<f32>()?, [7.0; 3]);
//! assert!(back.is_foreign() && pool.stats().requested.current == 48);
//! drop(back);
//! assert_eq!(pool.stats().requested.current, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Why not a library: of `dlpark`, which is well kept, little more than the structures would be left. It checks neither
//! where elements reach nor whether they share memory, refuses strides that this has to take, ends the process where there is
//! no memory for a structure, and brings a second derive of errors. The structures are fixed by the standard; the tests hold
//! these against its own, and exchange tensors with it.
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
