//! Code that is loaded on a device, and the names of the tensors' kernels.

use super::abi::{FunctionHandle, ModuleHandle};
use super::driver::Driver;
use super::error::{CudaError, insist};
use millpond_pool::dtype::DType;
use std::collections::HashMap;

/// Loaded code in a device's context. Its owner unloads it once, in that context.
pub(super) struct Code(pub(super) ModuleHandle);

impl Code {
    /// Unloads the code, which must not run any more. The context must be current on this thread.
    pub(super) fn unload(&self, driver: &Driver) -> Result<(), CudaError> {
        // SAFETY: the code was loaded by this library, and it is not used any more.
        insist(|| unsafe { driver.module_unload(self.0) })
    }

    /// Unloads the code when the last handle of its device is dropped, after the work of all streams is complete. If the driver refuses,
    /// the code stays loaded until the context ends. The context must be current on this thread.
    pub(super) fn unload_last(&self, driver: &Driver) {
        let _ = self.unload(driver);
    }
}

/// The module that is loaded on a device. The device owns and unloads it.
pub(super) struct Loaded {
    pub(super) code: Code,
    /// The functions that were launched before.
    pub(super) functions: HashMap<Entry, FunctionHandle>,
}

/// The type in which sums are accumulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wide {
    /// `f64`.
    Float,
    /// `i64`.
    Int,
    /// `u64`.
    UInt,
}

impl Wide {
    /// Returns the type of an element.
    pub fn dtype(self) -> DType {
        match self {
            Self::Float => DType::F64,
            Self::Int => DType::I64,
            Self::UInt => DType::U64,
        }
    }
}

/// The kernels, with their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// `(walk, to, from or null, value)`, for elements of that many bytes.
    Copy(usize),
    /// `(walk, to, left, right or null, value, factor, operation)`.
    Binary(DType),
    /// `(walk, to, from, type of to, type of from)`.
    Cast,
    /// `(walk, to, left, right, type of to, type of both, what, share)`.
    Sum(Wide),
    /// `(walk, to, from, type of to, type of from, many, apart)`.
    SumDim(Wide),
    /// `(walk, product, to, left, right)`.
    Matmul(DType),
    /// `(to, len, packed, bytes of it, damaged or null)`.
    Unpack,
}

impl Entry {
    pub(super) fn name(self) -> String {
        match self {
            Self::Copy(bytes) => format!("millpond_copy_{bytes}"),
            Self::Binary(dtype) => format!("millpond_binary_{dtype}"),
            Self::Cast => "millpond_cast".to_owned(),
            Self::Sum(wide) => format!("millpond_sum_{}", wide.dtype()),
            Self::SumDim(wide) => format!("millpond_sum_dim_{}", wide.dtype()),
            Self::Matmul(dtype) => format!("millpond_matmul_{dtype}"),
            Self::Unpack => "millpond_unpack".to_owned(),
        }
    }
}
