//! Memory of the host that the driver has pinned.

use super::abi::{DevicePtr, MEMORY_TYPE_HOST, POINTER_IS_MANAGED, POINTER_MEMORY_TYPE};
use super::device::CudaDevice;
use super::error::CudaError;
use super::segments::{Segments, Way, source_of_segments};
use bytemuck::AnyBitPattern;
use millpond_account::MemoryKind;
use millpond_engine::{Event, Range, Segment, SourceError};
use millpond_pool::buffer::Buffer;
use millpond_pool::memory::MemorySource;
use millpond_pool::pinned::{note_pinned, note_unpinned};
use std::ffi::{c_uint, c_void};

/// Memory of the host that CUDA's driver has pinned. Devices copy to and from it asynchronously at the full speed of the link, and kernels
/// can access it.
///
/// It is a source of plain segments for any [`Pool`](millpond_pool::Pool), with all features of pools of the host's memory except guarded
/// blocks. Every device of the process may use the memory. The driver takes about a millisecond to pin a segment, so a pool is worthwhile.
/// The memory does not count against `RLIMIT_MEMLOCK`, and must not be accessed in the child of a fork.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, CudaPinned, CudaStream, DevicePool};
/// use millpond::{MemoryKind, Pool, source::is_pinned};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// let pinned = Pool::builder().over(Box::new(CudaPinned::new(&device)))?;
/// let batch = pinned.alloc_from(&[1.0f32, 2.0, 3.0])?;
/// assert!(is_pinned(batch.as_ptr()) && batch.kind() == MemoryKind::Pinned);
///
/// let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
/// let copying = stream.upload(batch, pool.alloc::<f32>(3, &stream)?)?;
/// let (batch, there) = copying.wait()?;
/// assert_eq!(there.to_vec()?, batch[..]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CudaPinned {
    segments: Segments,
}

impl CudaPinned {
    /// Creates a source. The driver is called through this device, and all devices may use the memory.
    #[must_use]
    pub fn new(device: &CudaDevice) -> Self {
        Self {
            segments: Segments::new(device, Way::Pinned),
        }
    }

    /// Returns the device through which the driver is called.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        self.segments.device()
    }

    /// Returns the bytes of the segments in use.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.segments.used()
    }
}

source_of_segments!(CudaPinned, note_pinned, note_unpinned);

// SAFETY: 1, 2: by the invariant of `Segments` each segment is the driver's memory, mapped for this process, until it is given back to the
// driver, which only `give` and the drop do. Tokens that are not ours are refused by address and size. 3: nothing here touches contents. 4:
// nothing is promised. 5, 6: nothing is done. 7: segments begin at a multiple of the page.
unsafe impl MemorySource for CudaPinned {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Pinned
    }

    fn fresh_is_zero(&self) -> bool {
        false
    }
}

impl CudaDevice {
    /// Returns the address by which kernels on this device access pinned memory of the host. The caller must order these accesses with
    /// those of the host, and keep the buffer meanwhile.
    ///
    /// # Errors
    /// Returns [`CudaError::Pageable`] if the driver has not pinned the memory, and the errors of the driver.
    pub fn address_of<T: AnyBitPattern>(&self, buffer: &Buffer<T>) -> Result<u64, CudaError> {
        if !is_known(self, buffer.as_ptr().cast(), buffer.bytes())? {
            return Err(CudaError::Pageable);
        }
        let _current = self.enter()?;
        let (mut address, at) = (0, buffer.as_ptr().cast_mut().cast());
        // SAFETY: the first pointer is to a local. Nothing is read through the other.
        unsafe { self.driver().host_device_address(&raw mut address, at, 0) }?;
        Ok(address)
    }
}

/// Returns whether the driver has pinned these bytes, by any kind of request. The driver copies asynchronously only with pinned memory.
///
/// This asks the driver for the attributes of the first and the last address. It does not ask for the flags of pinned memory:
/// they are documented only for memory that the driver has allocated, and not for memory that was registered with it.
pub fn is_known(device: &CudaDevice, start: *const u8, bytes: usize) -> Result<bool, CudaError> {
    let _current = device.enter()?;
    for at in [start, start.wrapping_add(bytes.saturating_sub(1))] {
        // The driver returns zeros for an address that it does not know.
        let (mut kind, mut managed): (c_uint, c_uint) = (0, 0);
        let mut attributes = [POINTER_MEMORY_TYPE, POINTER_IS_MANAGED];
        let mut answers: [*mut c_void; 2] = [(&raw mut kind).cast(), (&raw mut managed).cast()];
        // SAFETY: there are two attributes. Each is a 32-bit number that is written to a local. The driver does not read the
        // memory at the address.
        unsafe {
            device.driver().pointer_attributes(
                attributes.len() as c_uint,
                attributes.as_mut_ptr(),
                answers.as_mut_ptr(),
                at.addr() as DevicePtr,
            )
        }?;
        if kind != MEMORY_TYPE_HOST || managed != 0 {
            return Ok(false);
        }
    }
    Ok(true)
}
