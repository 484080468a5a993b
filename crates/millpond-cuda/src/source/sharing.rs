//! Sharing of memory that is mapped by pages with other devices and processes.

use crate::abi::{ACCESS_READ_WRITE, Access, AllocationProperties, HANDLE_FILE, Location, attribute};
use crate::device::{CudaDevice, attribute_of};
use crate::error::CudaError;

/// The users of the memory of a pool or source, in addition to its own device in this process.
///
/// Memory that the driver allocates as a whole needs no preparation for sharing: kernels on peers can use it after
/// `cuCtxEnablePeerAccess`, other processes through `cuIpcGetMemHandle`, and network cards through GPUDirect RDMA. Memory that
/// is [mapped by pages](super::CudaMemory::Virtual) cannot be shared unless it was created for that. This type sets the users
/// for which it is created. A program that shares memory through the older calls must take the memory from a pool of
/// [`CudaMemory::Plain`](super::CudaMemory::Plain).
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
/// // Kernels on the other devices may read and write this buffer. `cuMemRetainAllocationHandle` with its address, followed by
/// // `cuMemExportToShareableHandle`, exports it to other processes as a file descriptor.
/// let weights = pool.alloc::<f32>(1000, &CudaStream::new(&device)?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "it has no effect until a pool or source is made with it"]
pub struct CudaSharing {
    peers: Vec<CudaDevice>,
    exportable: bool,
    rdma: bool,
}

impl CudaSharing {
    /// Creates settings that share the memory with no other users.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the devices whose kernels may also read and write the memory. The program must order these kernels with the pool's
    /// streams: it makes a stream of the pool's device wait for them, and [records](crate::DeviceBuffer::record_use) the
    /// use on that stream.
    pub fn peers(mut self, devices: impl IntoIterator<Item = CudaDevice>) -> Self {
        self.peers = devices.into_iter().collect();
        self
    }

    /// Sets whether the memory can be exported to other processes as a Linux file descriptor. The other process must release
    /// the memory before the buffer is freed: the pool allocates the same memory again and does not know which processes still
    /// use it.
    pub fn exportable(mut self, on: bool) -> Self {
        self.exportable = on;
        self
    }

    /// Sets whether network cards and other devices on the bus may read and write the memory through GPUDirect RDMA. They must
    /// release the memory before the buffer is freed.
    pub fn rdma(mut self, on: bool) -> Self {
        self.rdma = on;
        self
    }

    /// Returns whether the memory is not shared.
    pub(super) fn is_none(&self) -> bool {
        self.peers.is_empty() && !self.exportable && !self.rdma
    }

    /// Checks that the device supports all requested kinds of sharing.
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

    /// Returns the properties with which physical memory of a device is created.
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

    /// Returns the access rights of mapped memory, with those of its own device first.
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
