//! A CUDA driver and pools of its devices: what calls cost, and pairs of an allocation and a free beside the driver's own.
//!
//! `driver` prints the table of costs that a replay's model reads, `alloc` a pool beside `cuMemAlloc` and `cuMemAllocAsync`, `kernels` what
//! an array of structures costs a kernel beside a structure of arrays. On the emulated driver all say that its times are the machine's and no card's.

mod alloc;
#[allow(unsafe_code, reason = "writes and reads memory of a device")]
mod check;
mod driver;
#[allow(unsafe_code, reason = "launches kernels")]
mod kernels;
#[allow(
    unsafe_code,
    reason = "calls the driver past the library, to be measured beside it"
)]
mod peer;
mod samples;
#[allow(unsafe_code, reason = "writes and reads memory of a device")]
mod stamps;

pub use alloc::alloc;
pub use check::{Checked, Streams, run_checked, streams};
pub use driver::driver;
pub use kernels::kernels;

use cudarc::driver::DriverError;
use millpond::cuda::{CudaDevice, CudaError, DevicePoolError, KernelError};
use millpond::engine::SourceError;
use thiserror::Error;

/// Why a device could not be measured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver, or there is none.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The driver, called past the library.
    #[error("the driver failed: {0:?}")]
    Driver(#[from] DriverError),
    /// A kernel could not be loaded or launched.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A pool could not be made.
    #[error(transparent)]
    Pool(#[from] DevicePoolError),
    /// The device gave no memory.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A pool gave none.
    #[error(transparent)]
    Alloc(#[from] millpond::AllocError),
    /// Something was measured that does not hold.
    #[error("{0}")]
    Untrue(String),
}

/// What is said where the driver is the emulated one.
const EMULATED: &str = "The driver is the emulated one: these times are the emulator's on this machine, and tell nothing of a card.";

/// The device and its driver, in a line.
fn about(device: &CudaDevice) -> Result<String, CudaError> {
    let version = CudaDevice::driver_version()?;
    Ok(format!(
        "{device}, CUDA {}.{}",
        version / 1000,
        version % 1000 / 10
    ))
}
