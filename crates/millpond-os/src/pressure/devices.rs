//! Reads the used memory of devices.

use super::{Level, Share, Thresholds};
use crate::device::{Device, open_devices};

/// The pressure on the memory of a device, from all processes and the driver. Free memory that pools cache counts as
/// used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DevicePressure {
    /// The device.
    pub device: Device,
    /// The bytes used by all processes.
    pub used: u64,
    /// The total bytes.
    pub total: u64,
    /// The level, by the [thresholds](Thresholds::used) for the used share of a limit.
    pub level: Level,
}

impl DevicePressure {
    /// Computes the pressure from the free and the total bytes.
    pub fn of(device: Device, free: u64, total: u64, thresholds: &Thresholds) -> Self {
        let used = total.saturating_sub(free);
        Self {
            device,
            used,
            total,
            level: thresholds.used.level(Share::of(used, total)),
        }
    }

    /// Returns the bytes that are still available.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.total.saturating_sub(self.used)
    }

    /// Returns the used share.
    #[must_use]
    pub fn used_share(&self) -> Share {
        Share::of(self.used, self.total)
    }
}

/// Reads the devices that this process has opened, as far as they respond.
pub(super) fn read(thresholds: &Thresholds) -> Vec<DevicePressure> {
    let devices = open_devices();
    let read = devices.iter().filter_map(|device| {
        let (free, total) = device.memory()?;
        Some(DevicePressure::of(device.device(), free, total, thresholds))
    });
    read.collect()
}
