//! How much of devices' memory is in use.

use super::{Level, Share, Thresholds};
use crate::device::{Device, open_devices};

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

/// Reads the devices that this process has opened, as far as they answer.
pub(super) fn read(thresholds: &Thresholds) -> Vec<DevicePressure> {
    let devices = open_devices();
    let read = devices.iter().filter_map(|device| {
        let (free, total) = device.memory()?;
        Some(DevicePressure::of(device.device(), free, total, thresholds))
    });
    read.collect()
}
