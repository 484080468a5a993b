//! How much of devices' memory is in use.

use super::{Level, Share, Thresholds};
use crate::device::Device;

/// How scarce the memory of a device is: what all processes, the driver and this one use of it. What pools keep and nobody uses is
/// in use for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DevicePressure {
    /// The device.
    pub device: Device,
    /// Bytes in use, by whomever.
    pub used: u64,
    /// Bytes in all.
    pub total: u64,
    /// How scarce that is, by the [thresholds](Thresholds::used) for what is used of a limit.
    pub level: Level,
}

impl DevicePressure {
    /// Of so many bytes, some of which are free.
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    pub(crate) fn of(device: Device, free: u64, total: u64, thresholds: &Thresholds) -> Self {
        let used = total.saturating_sub(free);
        Self {
            device,
            used,
            total,
            level: thresholds.used.level(Share::of(used, total)),
        }
    }

    /// Bytes that can still be had.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.total.saturating_sub(self.used)
    }

    /// How much of it is used.
    #[must_use]
    pub fn used_share(&self) -> Share {
        Share::of(self.used, self.total)
    }
}

/// Of the devices that this process has opened, as far as they answer. No driver is loaded to ask.
pub(super) fn read(thresholds: &Thresholds) -> Vec<DevicePressure> {
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    {
        let devices = crate::cuda::open_devices();
        let asked = devices.iter().map(|device| device.pressure_by(thresholds));
        asked.filter_map(Result::ok).collect()
    }
    #[cfg(not(all(feature = "cuda", target_os = "linux")))]
    {
        let _ = thresholds;
        Vec::new()
    }
}
