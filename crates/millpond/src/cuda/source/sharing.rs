//! Who else may use memory that is mapped by pages.

use crate::cuda::abi::{ACCESS_READ_WRITE, Access, AllocationProperties, HANDLE_FILE, Location, attribute};
use crate::cuda::device::{CudaDevice, attribute_of};
use crate::cuda::error::CudaError;

/// Who else may use the memory of a pool or source, beside its own device in this process.
///
/// Memory that the driver allocates as a whole serves others without being told: kernels on peers once `cuCtxEnablePeerAccess` was
/// called, other processes by `cuIpcGetMemHandle`, network cards by GPUDirect RDMA. Memory that is
/// [mapped by pages](super::CudaMemory::Virtual) does not. It is refused there unless the pool was made for it, which this says. What a
/// program shares by the older calls it takes from a pool of [`CudaMemory::Plain`](super::CudaMemory::Plain).
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, CudaSharing, CudaStream, DevicePool};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// let peers = (1..CudaDevice::count()?).map(CudaDevice::get).collect::<Result<Vec<_>, _>>()?;
/// let sharing = CudaSharing::new().peers(peers).exportable(true);
/// let pool = DevicePool::builder().sharing(sharing).build(&device)?;
/// // Kernels on the other devices may read and write this; and with `cuMemRetainAllocationHandle` at its address, and
/// // `cuMemExportToShareableHandle`, it goes to other processes as a file.
/// let weights = pool.alloc::<f32>(1000, &CudaStream::new(&device)?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "it says something to the pool or source that is made with it"]
pub struct CudaSharing {
    peers: Vec<CudaDevice>,
    exportable: bool,
    rdma: bool,
}

impl CudaSharing {
    /// Nobody else.
    pub fn new() -> Self {
        Self::default()
    }

    /// Kernels on these devices too may read and write the memory. They are ordered with the pool's streams by the program, which
    /// [records](crate::cuda::DeviceBuffer::record_use) on a stream of the pool's device that waits for them.
    pub fn peers(mut self, devices: impl IntoIterator<Item = CudaDevice>) -> Self {
        self.peers = devices.into_iter().collect();
        self
    }

    /// The memory may leave the process, as a file descriptor of Linux. The other process lets go of it before the buffer is given
    /// back: the pool hands the same memory out again, and knows nothing of who has it open.
    pub fn exportable(mut self, on: bool) -> Self {
        self.exportable = on;
        self
    }

    /// Network cards and other devices of the bus may read and write the memory, by GPUDirect RDMA. They let go of it before the
    /// buffer is given back.
    pub fn rdma(mut self, on: bool) -> Self {
        self.rdma = on;
        self
    }

    /// Whether it is nobody.
    pub(super) fn is_none(&self) -> bool {
        self.peers.is_empty() && !self.exportable && !self.rdma
    }

    /// Whether the device can do all of it.
    pub(super) fn check(&self, device: &CudaDevice) -> Result<(), CudaError> {
        let number = device.number();
        for peer in self.peers.iter().filter(|peer| peer.number() != number) {
            let mut can = 0;
            // SAFETY: the pointer is to a local.
            unsafe {
                device
                    .driver()
                    .can_access_peer(&raw mut can, peer.handle(), device.handle())
            }?;
            if can == 0 {
                let peer = peer.number();
                return Err(CudaError::NoPeer { device: number, peer });
            }
        }
        let lacks = |what| attribute_of(device.driver(), device.handle(), what).unwrap_or(0) == 0;
        if self.exportable && lacks(attribute::FILE_HANDLES) {
            let sharing = "exported as a file";
            return Err(CudaError::NotShared {
                device: number,
                sharing,
            });
        }
        if self.rdma && lacks(attribute::RDMA_OF_PAGES) {
            let sharing = "used by GPUDirect RDMA";
            return Err(CudaError::NotShared {
                device: number,
                sharing,
            });
        }
        Ok(())
    }

    /// What physical memory of a device is made with.
    pub(super) fn properties(&self, device: &CudaDevice) -> AllocationProperties {
        let plain = AllocationProperties::on(device.handle());
        AllocationProperties {
            handles: if self.exportable {
                HANDLE_FILE
            } else {
                plain.handles
            },
            remote: u8::from(self.rdma),
            ..plain
        }
    }

    /// Who has access once it is mapped: its device first.
    pub(super) fn access(&self, device: &CudaDevice) -> Vec<Access> {
        let peers = self.peers.iter().filter(|peer| peer.number() != device.number());
        let all = std::iter::once(device).chain(peers);
        let access = all.map(|device| Access {
            location: Location::device(device.handle()),
            flags: ACCESS_READ_WRITE,
        });
        access.collect()
    }
}
