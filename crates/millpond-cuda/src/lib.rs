//! Devices, streams, memory, copies and kernels of CUDA. The public module `cuda` consists of this module and of the tensors,
//! workspaces and structures of arrays on devices.
//!
//! This crate is a part of [millpond](https://docs.rs/millpond), which re-exports its public names. Programs should depend on millpond:
//! the names that only millpond's own crates need may change without notice.

#![cfg(target_os = "linux")]
#![deny(unsafe_op_in_unsafe_fn)]

mod abi;
mod buffer;
mod callback;
mod calls;
mod captured;
mod code;
mod compile;
mod completion;
mod compressed;
mod cublas;
mod cublas_error;
mod device;
mod driver;
mod driver_pool;
mod emulated;
mod error;
mod events;
mod fork;
mod graph;
mod host_function;
#[cfg(feature = "cudarc")]
mod interop;
mod kernel_error;
pub mod kernels;
mod later;
pub mod launch;
mod library;
mod managed;
mod module;
mod nvml;
mod nvrtc;
mod pieces;
mod pinned;
mod pool;
mod queue;
mod registered;
mod rental;
mod segments;
mod slice;
mod source;
mod span;
mod speed;
mod staged;
mod staging;
mod stream;
mod streams;
mod timer;
mod transfer;
mod transfer_error;
mod wake;

pub use buffer::DeviceBuffer;
pub use calls::{DriverCalls, watch_driver_calls};
pub use compile::CompileOptions;
pub use compressed::{CompressedError, Sent};
pub use cublas::Gemm;
pub use cublas_error::CublasError;
pub use device::{CudaDevice, DeviceMemory};
pub use driver::driver_calls;
pub use driver_pool::{DriverPool, DriverPoolBuilder, DriverPoolStats, InstalledPool};
pub use emulated::{EmulatedLaunch, KernelParameters, emulate_kernel};
pub use error::CudaError;
pub use graph::{Capture, CudaGraph};
#[cfg(feature = "cudarc")]
pub use interop::Lent;
pub use kernel_error::KernelError;
pub use launch::{CudaKernel, DeviceElements, Extent, KernelArg, KernelArgMut, Launch};
pub use managed::{Advice, CudaManaged};
pub use module::CudaModule;
pub use pinned::CudaPinned;
pub use pool::{DevicePool, DevicePoolBuilder, DevicePoolError, DeviceTenant, UnpooledDevice};
pub use queue::{CudaQueue, MatmulBackend, PARTS, products};
pub use registered::Registered;
pub use rental::{DeviceRental, DeviceRented};
pub use slice::DeviceSlice;
pub use source::{CudaMemory, CudaSharing, CudaSource};
#[doc(hidden)]
pub use speed::copy_speeds;
pub use staged::Staged;
pub use staging::{Staging, StagingError};
pub use stream::CudaStream;
pub use timer::CudaTimer;
pub use transfer::{HostEnd, Transfer};
pub use transfer_error::TransferError;

pub use pinned::is_known;
pub use span::Span;
pub use stream::mark::{Mark, settle_on};
pub use transfer::upload_part;

/// Returns whether this process was forked from one that used CUDA. CUDA does not work in such a process.
#[doc(hidden)]
pub fn is_forked() -> bool {
    fork::is_forked()
}

/// Returns whether this process may have devices and pools of devices. Returns `false` in the child of a process that uses CUDA.
pub fn is_in_use() -> bool {
    fork::is_in_use()
}

/// Returns the names of the optional functions of the driver that this crate uses and that this driver does not have.
///
/// # Errors
/// Returns an error if there is no driver.
pub fn missing_functions() -> Result<Vec<&'static str>, CudaError> {
    Ok(driver::Driver::get()?.missing_functions())
}
