//! Memory that the driver moves between the host and devices.

use super::abi::{DeviceNumber, PLACE_HOST, advice};
use super::device::CudaDevice;
use super::error::CudaError;
use super::segments::{Segments, Way, source_of_segments};
use super::stream::CudaStream;
use super::transfer::{Transfer, TransferError, begin};
use crate::buffer::Buffer;
use crate::device::Device;
use crate::dtype::Element;
use crate::memory::{MemoryKind, MemorySource};
use millpond_engine::{Event, Range, Segment, SourceError};

/// Managed memory: at one address for the host and every device, and the driver moves pages to whoever touches them.
///
/// A source of plain segments for any [`Pool`](crate::Pool). Where a device of the machine has none that the host may touch while it
/// works there is no source, as buffers are read and written at any time. What kernels do with an address is theirs to order: whoever hands one out
/// keeps the buffer, and stays away from what the kernel writes, until it is done.
///
/// [`CudaDevice::advise`] says where pages are wanted, [`CudaStream::prefetch`] brings them there. Both concern pages (4 to 64 KiB),
/// and what was advised stays with them: of a pool, with the next block there. Where that matters each buffer has pages of its own
/// with [`Unpooled`](crate::Unpooled).
///
/// ```
/// use millpond::cuda::{Advice, CudaDevice, CudaError, CudaManaged, CudaStream};
/// use millpond::{Device, MemoryKind, Unpooled};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// let managed = Unpooled::over(Box::new(CudaManaged::new(&device)?));
/// let table = managed.alloc_from(&[1.0f64; 1000])?;
/// assert_eq!(table.kind(), MemoryKind::Managed);
/// device.advise(&table, Advice::Prefer(Device::Cuda(0)))?;
/// let table = CudaStream::new(&device)?.prefetch(table, Device::Cuda(0))?.wait()?;
/// assert_eq!(table.iter().sum::<f64>(), 1000.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CudaManaged {
    segments: Segments,
}

impl CudaManaged {
    /// A source. The driver is asked by way of this device, and all devices may use the memory.
    ///
    /// # Errors
    /// [`CudaError::NoManagedMemory`].
    pub fn new(device: &CudaDevice) -> Result<Self, CudaError> {
        if let Some(number) = CudaDevice::without_managed_memory()? {
            return Err(CudaError::NoManagedMemory { number });
        }
        Ok(Self {
            segments: Segments::new(device, Way::Managed),
        })
    }

    /// The device by way of which the driver is asked.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        self.segments.device()
    }

    /// Bytes of the segments that are out.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.segments.used()
    }
}

fn nothing(_address: u64, _bytes: u64) {}

source_of_segments!(CudaManaged, nothing, nothing);

// SAFETY: 1, 2: by the invariant of `Segments` each segment is the driver's memory, which this process may read and write at any time:
// there is no source where that does not hold of every device. It ends when it is given back, which only `give` and the drop do; tokens that are
// not ours are refused by address and size. 3: pages move, contents do not change. 4: nothing is promised. 5, 6: nothing is done.
// 7: segments begin at a multiple of the page.
unsafe impl MemorySource for CudaManaged {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Managed
    }

    fn fresh_is_zero(&self) -> bool {
        false
    }
}

/// What is said of managed memory, and taken back. Nothing of it changes what the memory holds or who may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// It is read far more often than written: each device may keep a copy of its own until somebody writes.
    ReadMostly,
    /// It is not.
    NotReadMostly,
    /// Pages are wanted there, and stay as long as they can.
    Prefer(Device),
    /// They are wanted nowhere in particular.
    PreferNowhere,
    /// That place reaches pages wherever they are, without a fault.
    AccessedBy(Device),
    /// It does so no longer.
    NotAccessedBy(Device),
}

impl Advice {
    /// The driver's number, and the place it asks for; where none matters it is the host.
    fn raw(self) -> Result<(u32, DeviceNumber), CudaError> {
        let back = advice::BACK;
        Ok(match self {
            Self::ReadMostly => (advice::READ_MOSTLY, PLACE_HOST),
            Self::NotReadMostly => (advice::READ_MOSTLY + back, PLACE_HOST),
            Self::Prefer(place) => (advice::PREFERRED_LOCATION, number_of(place)?),
            Self::PreferNowhere => (advice::PREFERRED_LOCATION + back, PLACE_HOST),
            Self::AccessedBy(place) => (advice::ACCESSED_BY, number_of(place)?),
            Self::NotAccessedBy(place) => (advice::ACCESSED_BY + back, number_of(place)?),
        })
    }
}

/// The driver's number for a place.
fn number_of(place: Device) -> Result<DeviceNumber, CudaError> {
    match place {
        Device::Host => Ok(PLACE_HOST),
        Device::Cuda(number) => {
            let count = CudaDevice::count()?;
            let found = DeviceNumber::try_from(number).ok().filter(|_| number < count);
            found.ok_or(CudaError::NoDevice { number, count })
        }
    }
}

fn expect_managed<T: Element>(buffer: &Buffer<T>) -> Result<(), CudaError> {
    if buffer.kind() == MemoryKind::Managed {
        Ok(())
    } else {
        Err(CudaError::NotManaged)
    }
}

impl CudaDevice {
    /// Says something of the pages that a managed buffer lies in.
    ///
    /// # Errors
    /// [`CudaError::NotManaged`], [`CudaError::NoDevice`], and what the driver says.
    pub fn advise<T: Element>(&self, buffer: &Buffer<T>, advice: Advice) -> Result<(), CudaError> {
        expect_managed(buffer)?;
        let (advice, place) = advice.raw()?;
        if buffer.is_empty() {
            return Ok(());
        }
        let _current = self.enter_beside()?;
        let (address, bytes) = (buffer.as_ptr().addr() as u64, buffer.bytes());
        // SAFETY: the bytes are the buffer's, and advice changes none of them.
        unsafe { self.driver().managed_advise(address, bytes, advice, place) }
    }
}

impl CudaStream {
    /// Brings the pages of a managed buffer to a place, on this stream. Most use it on the stream of the work that needs them there.
    ///
    /// # Errors
    /// [`CudaError::NotManaged`], [`CudaError::NoDevice`], and what the driver says. The buffer comes back with it.
    pub fn prefetch<T: Element>(
        &self,
        buffer: Buffer<T>,
        place: Device,
    ) -> Result<Transfer<Buffer<T>>, TransferError<Buffer<T>>> {
        let checked = expect_managed(&buffer).and_then(|()| number_of(place));
        let order = |buffer: &Buffer<T>| checked.map(|_| !buffer.is_empty());
        begin(self, buffer, order, |buffer| {
            let place = checked?;
            let _current = self.device().enter()?;
            let (address, bytes) = (buffer.as_ptr().addr() as u64, buffer.bytes());
            let driver = self.device().driver();
            // SAFETY: the bytes are the buffer's, which is held until this is done, and stay as they are.
            unsafe { driver.managed_prefetch(address, bytes, place, self.handle()) }
        })
    }
}
