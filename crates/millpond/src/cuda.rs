//! CUDA: devices, and where their memory comes from.
//!
//! Needs NVIDIA's driver when the program runs and nothing of CUDA when it is built. Without a driver everything here answers
//! with an error that says so. Whatever a driver lacks or refuses is a value too.

mod abi;
mod buffer;
mod device;
mod driver;
mod error;
mod events;
mod fork;
mod kernel_error;
pub(crate) mod kernels;
pub(crate) mod launch;
mod module;
mod pool;
mod queue;
#[cfg(feature = "derive")]
mod soa;
mod source;
mod stream;
mod streams;

pub use crate::tensor::{DeviceOperand, DeviceOutput, DeviceTensor, DeviceTensorMut};
pub use buffer::DeviceBuffer;
pub use device::{CudaDevice, DeviceMemory};
pub use error::CudaError;
pub use kernel_error::KernelError;
pub use launch::{CudaKernel, Extent, KernelArg, KernelArgMut, Launch};
pub use module::CudaModule;
pub use pool::{DevicePool, DevicePoolBuilder, DevicePoolError};
pub use queue::CudaQueue;
pub(crate) use queue::PARTS;
#[cfg(feature = "derive")]
pub use soa::{DeviceField, DeviceSoa};
pub use source::{CudaMemory, CudaSource};
pub use stream::CudaStream;

/// Functions of the driver that this crate calls where they are there, and that the driver here does not have.
///
/// # Errors
/// Where there is no driver.
pub fn missing_functions() -> Result<Vec<&'static str>, CudaError> {
    Ok(driver::Driver::get()?.missing_functions())
}
