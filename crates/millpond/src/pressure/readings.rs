//! Where pressure is read from.

use super::evidence::Evidence;
use super::files::Files;
use super::{Pressure, Thresholds, cgroup, devices, machine, process};
use std::path::PathBuf;

/// Where pressure is read from: the system, or a folder that looks like it.
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
    /// The system's own files.
    #[must_use]
    pub fn system() -> Self {
        Self::under("/")
    }

    /// A folder with a `proc` and whatever cgroup folders `proc/self/mountinfo` names, all below it: what a test
    /// writes to act as the system.
    #[must_use]
    pub fn under(root: impl Into<PathBuf>) -> Self {
        Self {
            files: Files::under(root.into()),
        }
    }

    /// Whether these are the system's own.
    pub(crate) fn is_system(&self) -> bool {
        self.files.is_system()
    }

    /// Reads, and judges by these thresholds. Devices are asked themselves, wherever the rest is read from.
    #[must_use]
    pub fn pressure(&self, thresholds: &Thresholds) -> Pressure {
        Pressure {
            devices: devices::read(thresholds),
            ..self.of_process(thresholds)
        }
    }

    /// The same without devices.
    pub(crate) fn of_process(&self, thresholds: &Thresholds) -> Pressure {
        let mut evidence = Evidence::default();
        machine::read(&self.files, &mut evidence);
        process::read(&self.files, &mut evidence);
        cgroup::read(&self.files, &mut evidence);
        Pressure::judge(evidence, thresholds)
    }
}
