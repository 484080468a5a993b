//! An open device as seen by recordings, the monitor and the readings of memory pressure.

use super::{CudaDevice, DeviceMemory, open_devices};
use crate::nvml::ManagementLibrary;
use millpond_os::device::{self, Device, OpenDevice};
use std::sync::OnceLock;

/// Registers the devices that this process has opened among the open devices.
pub(super) fn provide() {
    device::provide(|| {
        let open = |device| -> Box<dyn OpenDevice> { Box::new(device) };
        open_devices().into_iter().map(open).collect()
    });
}

impl OpenDevice for CudaDevice {
    fn device(&self) -> Device {
        Device::Cuda(self.number())
    }

    fn name(&self) -> &str {
        CudaDevice::name(self)
    }

    fn memory(&self) -> Option<(u64, u64)> {
        let DeviceMemory { free, total } = CudaDevice::memory(self).ok()?;
        Some((free, total))
    }

    /// Queries NVIDIA's management library, which stays loaded after the first successful load.
    fn processes(&self) -> Option<Vec<(u32, Option<u64>)>> {
        static LIBRARY: OnceLock<ManagementLibrary> = OnceLock::new();
        let bus = self.pci_bus().ok()?;
        if let Some(library) = LIBRARY.get() {
            return library.processes(&bus);
        }
        let library = ManagementLibrary::load().ok()?;
        let processes = library.processes(&bus);
        // Another thread may have been first. The library counts how often it is initialised.
        let _ = LIBRARY.set(library);
        processes
    }
}
