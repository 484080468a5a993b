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
mod managed;
mod mark;
mod pinned;
mod pool;
mod registered;
mod segments;
mod source;
mod staged;
mod staging;
mod stream;
mod streams;
mod timer;
mod transfer;

pub use buffer::DeviceBuffer;
pub use device::{CudaDevice, DeviceMemory};
pub use error::CudaError;
pub use managed::{Advice, CudaManaged};
pub use pinned::CudaPinned;
pub use pool::{DevicePool, DevicePoolBuilder, DevicePoolError};
pub use registered::Registered;
pub use source::{CudaMemory, CudaSource};
pub use staged::Staged;
pub use staging::{Staging, StagingError};
pub use stream::CudaStream;
pub use timer::CudaTimer;
pub use transfer::{HostEnd, Transfer, TransferError};

pub(crate) use mark::{Mark, settle};
pub(crate) use pinned::is_known;
pub(crate) use transfer::upload_part;

/// Functions of the driver that this crate calls where they are there, and that the driver here does not have.
///
/// # Errors
/// Where there is no driver.
pub fn missing_functions() -> Result<Vec<&'static str>, CudaError> {
    Ok(driver::Driver::get()?.missing_functions())
}
