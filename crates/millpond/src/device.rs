//! Where memory is.

use crate::memory::MemoryKind;
use std::fmt;

/// Where memory is: on the host, or on a device of some kind with an index of its own.
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
    /// Memory of this machine.
    Host,
    /// Memory of a CUDA device, by its number.
    Cuda(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.pad("host"),
            Self::Cuda(number) => f.pad(&format!("cuda:{number}")),
        }
    }
}

impl MemoryKind {
    /// Where memory of this kind is; managed memory is the host's to hand out and to touch, wherever its pages are.
    #[must_use]
    pub fn device(self) -> Device {
        match self {
            Self::Host | Self::Pinned | Self::Managed => Device::Host,
        }
    }
}
