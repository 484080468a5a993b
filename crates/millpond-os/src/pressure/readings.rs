//! The source of the pressure data.

use super::evidence::Evidence;
use super::files::Files;
use super::{Pressure, Thresholds, cgroup, devices, machine, process};
use std::path::PathBuf;

/// The source of the pressure data: the system, or a directory with the same structure.
#[derive(Clone, Debug)]
pub struct Readings {
    pub(super) files: Files,
}

impl Default for Readings {
    fn default() -> Self {
        Self::system()
    }
}

impl Readings {
    /// Uses the system's own files.
    #[must_use]
    pub fn system() -> Self {
        Self::under("/")
    }

    /// Uses a directory with a `proc` directory and the cgroup directories that `proc/self/mountinfo` names, all below
    /// it. Tests use this to simulate a system.
    #[must_use]
    pub fn under(root: impl Into<PathBuf>) -> Self {
        Self {
            files: Files::under(root.into()),
        }
    }

    /// Returns true if these are the system's own files.
    pub fn is_system(&self) -> bool {
        self.files.is_system()
    }

    /// Reads the pressure with these thresholds. Devices are always read from their drivers.
    #[must_use]
    pub fn pressure(&self, thresholds: &Thresholds) -> Pressure {
        Pressure {
            devices: devices::read(thresholds),
            ..self.of_process(thresholds)
        }
    }

    /// Reads the pressure without devices.
    pub fn of_process(&self, thresholds: &Thresholds) -> Pressure {
        let mut evidence = Evidence::default();
        machine::read(&self.files, &mut evidence);
        process::read(&self.files, &mut evidence);
        cgroup::read(&self.files, &mut evidence);
        Pressure::judge(evidence, thresholds)
    }
}
