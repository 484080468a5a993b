//! Measures a CUDA driver and pools of its devices: the cost of calls, and pairs of an allocation and a free compared with the
//! driver's own.
//!
//! `driver` prints the table of costs that a replay's model reads. `alloc` compares a pool with `cuMemAlloc` and
//! `cuMemAllocAsync`. `kernels` compares an array of structures with a structure of arrays. On the emulated driver, each output
//! says that its times are those of the machine and not of a card.

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
#[allow(unsafe_code, reason = "writes and reads memory of a device")]
mod stamps;

pub use alloc::alloc;
pub use check::{Checked, Streams, run_checked, streams};
pub use driver::driver;
pub use kernels::kernels;

use crate::console::wrap;
use cudarc::driver::DriverError;
use millpond::cuda::{CudaDevice, CudaError, DevicePoolError, KernelError};
use millpond::engine::SourceError;
use thiserror::Error;

/// The reason why a device could not be measured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver failed or does not exist.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A direct call to the driver failed.
    #[error("a call of the driver failed: {0:?}")]
    Driver(#[from] DriverError),
    /// A kernel could not be loaded or launched.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A pool could not be created.
    #[error(transparent)]
    Pool(#[from] DevicePoolError),
    /// The device has no memory left.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A pool could not allocate memory.
    #[error(transparent)]
    Alloc(#[from] millpond::AllocError),
    /// A measured result is wrong.
    #[error("{0}")]
    Untrue(String),
}

/// The note for the emulated driver.
const EMULATED: &str =
    "The driver is emulated: these times are those of the emulator on this machine, not of a card.";

/// Returns the device and its driver in one line.
fn about(device: &CudaDevice) -> Result<String, CudaError> {
    let version = CudaDevice::driver_version()?;
    Ok(format!(
        "{device}, CUDA {}.{}",
        version / 1000,
        version % 1000 / 10
    ))
}

/// Returns the first lines of an output: the device, what is measured, and the note for the emulated driver.
fn heading(device: &CudaDevice, measured: &str) -> Result<String, CudaError> {
    let mut out = format!("{}, {measured}\n", about(device)?);
    if device.is_emulated() {
        out += &format!("\n{}\n", wrap(EMULATED));
    }
    Ok(out)
}
