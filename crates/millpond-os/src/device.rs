//! The location of memory: the host or a device.

use std::fmt;
#[cfg(target_os = "linux")]
use std::sync::OnceLock;

/// The location of memory: the host, or a device of some kind with an index.
///
/// ```
/// use millpond::{Device, Pool};
///
/// let buffer = Pool::host()?.alloc_zeroed::<f32>(8)?;
/// assert_eq!(buffer.device(), Device::Host);
/// assert_eq!(buffer.device().to_string(), "host");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Device {
    /// The memory of this machine.
    Host,
    /// The memory of a CUDA device, by its number.
    Cuda(u32),
}

impl Device {
    /// Returns the number of the CUDA device, or `None` for the host.
    #[doc(hidden)]
    pub const fn cuda_number(self) -> Option<u32> {
        match self {
            Self::Host => None,
            Self::Cuda(number) => Some(number),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.pad("host"),
            Self::Cuda(number) => f.pad(&format!("cuda:{number}")),
        }
    }
}

/// A device that this process has opened.
#[cfg(target_os = "linux")]
pub trait OpenDevice {
    /// Returns the device.
    fn device(&self) -> Device;

    /// Returns the name that the driver gives the device.
    fn name(&self) -> &str;

    /// Returns the bytes that no process uses and all bytes of the device, if the driver answers.
    fn memory(&self) -> Option<(u64, u64)>;

    /// Returns the id of each process that uses the device, with its bytes if they are known. Returns `None` if the
    /// processes are unknown.
    fn processes(&self) -> Option<Vec<(u32, Option<u64>)>>;
}

/// A function that returns the open devices of one kind.
#[cfg(target_os = "linux")]
type Provider = fn() -> Vec<Box<dyn OpenDevice>>;

#[cfg(target_os = "linux")]
static PROVIDER: OnceLock<Provider> = OnceLock::new();

/// Makes [`open_devices`] use `provider` from now on.
#[cfg(target_os = "linux")]
pub fn provide(provider: Provider) {
    if PROVIDER.get().is_none() {
        // If the process forked while another thread was setting the value, the child would wait for that thread
        // forever.
        let _no_forks = crate::fork::prevent();
        let _ = PROVIDER.set(provider);
    }
}

/// Returns the devices that this process has opened, by their numbers. Does not load a driver.
#[cfg(target_os = "linux")]
pub fn open_devices() -> Vec<Box<dyn OpenDevice>> {
    PROVIDER.get().map_or_else(Vec::new, |provider| provider())
}
