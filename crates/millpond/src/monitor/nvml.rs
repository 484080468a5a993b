//! What each process has of a device's memory, by NVIDIA's management library: loaded when it is first needed, and none where it is
//! not there.

use super::snapshot::DeviceProcess;
use crate::cuda::ManagementLibrary;

/// The library, once it was looked for.
#[derive(Debug, Default)]
pub(super) struct Nvml {
    looked: bool,
    library: Option<ManagementLibrary>,
}

impl Nvml {
    /// Bytes of each process on the device at this place of the bus; none where nobody can say.
    pub(super) fn processes(&mut self, bus: &str) -> Option<Vec<DeviceProcess>> {
        if !std::mem::replace(&mut self.looked, true) {
            self.library = ManagementLibrary::load().ok();
        }
        let mut processes = self.library.as_ref()?.processes(bus)?;
        processes.sort_by_key(|(id, used)| (std::cmp::Reverse(*used), *id));
        Some(
            processes
                .into_iter()
                .map(|(id, used)| DeviceProcess { id, used })
                .collect(),
        )
    }
}
