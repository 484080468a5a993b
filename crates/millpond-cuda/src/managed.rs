//! Managed memory, which the driver moves between the host and devices.

use super::abi::{DeviceNumber, PLACE_HOST, advice};
use super::device::CudaDevice;
use super::error::CudaError;
use super::host_function::HostFunctions;
use super::segments::{Segments, Way, source_of_segments};
use super::slice::DeviceSlice;
use super::stream::CudaStream;
use super::stream::mark::expect_uncaptured;
use super::transfer::{Transfer, begin};
use super::transfer_error::TransferError;
use millpond_account::MemoryKind;
use millpond_engine::{Event, Range, Segment, SourceError};
use millpond_os::device::Device;
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::Element;
use millpond_pool::memory::MemorySource;
use std::sync::Arc;

/// Managed memory. It has one address for the host and every device, and the driver moves pages to the processor that accesses them.
///
/// It is a source of plain segments for any [`Pool`](millpond_pool::Pool). If a device of the machine does not allow the host to access
/// managed memory while the device works, the source cannot be created, because buffers are read and written at any time. The caller orders
/// the accesses of kernels: it keeps the buffer, and does not touch the data that a kernel writes, until the kernel is complete.
///
/// [`CudaDevice::advise`] sets the preferred place of pages, and [`CudaStream::prefetch`] moves them there. Both apply to whole pages (4 to
/// 64 KiB). Advice stays with the pages of a pool, and so applies to the next block there. With [`Unpooled`](millpond_pool::Unpooled), each
/// buffer has pages of its own.
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
    /// Creates a source. The driver is called through this device, and all devices may use the memory.
    ///
    /// # Errors
    /// Returns [`CudaError::NoManagedMemory`] if a device does not support this, and other errors of the driver.
    pub fn new(device: &CudaDevice) -> Result<Self, CudaError> {
        if let Some(number) = CudaDevice::without_managed_memory()? {
            return Err(CudaError::NoManagedMemory { number });
        }
        Ok(Self {
            segments: Segments::new(device, Way::Managed),
        })
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

fn nothing(_address: u64, _bytes: u64) {}

source_of_segments!(CudaManaged, nothing, nothing);

// SAFETY: 1, 2: by the invariant of `Segments` each segment is the driver's memory, which this process may read and write at any time:
// there is no source if that does not hold for every device. The memory lives until it is given back, which only `give` and the drop do.
// Tokens that are not ours are refused by address and size. 3: pages move, contents do not change. 4: nothing is promised. 5, 6: nothing is
// done. 7: segments begin at a multiple of the page.
unsafe impl MemorySource for CudaManaged {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Managed
    }

    fn fresh_is_zero(&self) -> bool {
        false
    }
}

/// Advice on managed memory, and its withdrawal. It changes neither the contents of the memory nor which code may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// The memory is read much more often than it is written. Each device may keep a copy until the memory is written.
    ReadMostly,
    /// Withdraws [`ReadMostly`](Self::ReadMostly).
    NotReadMostly,
    /// The pages should be in this place, and stay there as long as possible.
    Prefer(Device),
    /// Withdraws [`Prefer`](Self::Prefer).
    PreferNowhere,
    /// The processor in this place can access the pages without a fault, wherever they are.
    AccessedBy(Device),
    /// Withdraws [`AccessedBy`](Self::AccessedBy).
    NotAccessedBy(Device),
}

impl Advice {
    /// Returns the driver's number of the advice and of its place. If the place has no meaning, it is the host.
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

/// Returns the driver's number of a place.
fn number_of(place: Device) -> Result<DeviceNumber, CudaError> {
    let Some(number) = place.cuda_number() else {
        return Ok(PLACE_HOST);
    };
    let count = CudaDevice::count()?;
    let found = DeviceNumber::try_from(number).ok().filter(|_| number < count);
    found.ok_or(CudaError::NoDevice { number, count })
}

fn expect_managed<T: Element>(buffer: &Buffer<T>) -> Result<(), CudaError> {
    if buffer.kind() == MemoryKind::Managed {
        Ok(())
    } else {
        Err(CudaError::NotManaged)
    }
}

impl CudaDevice {
    /// Gives advice on the pages that contain a managed buffer.
    ///
    /// # Errors
    /// Returns [`CudaError::NotManaged`] for other memory, [`CudaError::NoDevice`] if the device does not exist, and the errors of the
    /// driver.
    pub fn advise<T: Element>(&self, buffer: &Buffer<T>, advice: Advice) -> Result<(), CudaError> {
        expect_managed(buffer)?;
        let (advice, place) = advice.raw()?;
        if buffer.is_empty() {
            return Ok(());
        }
        let _current = self.enter_beside()?;
        let (address, bytes) = (buffer.as_ptr().addr() as u64, buffer.bytes());
        // SAFETY: the bytes are the buffer's, and advice does not change them.
        unsafe { self.driver().managed_advise(address, bytes, advice, place) }
    }
}

impl CudaStream {
    /// Lends a managed buffer to work on this stream, and waits for the work. `work` gets the elements as an argument for
    /// [kernels](super::CudaKernel) and as memory that tensors can view. The host cannot access the buffer meanwhile.
    ///
    /// ```
    /// use millpond::cuda::{CudaDevice, CudaError, CudaManaged, CudaStream, DevicePool, DeviceTensorMut};
    /// use millpond::{Device, Unpooled};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = match CudaDevice::get(0) {
    ///     Err(CudaError::NoDriver) => return Ok(()),
    ///     device => device?,
    /// };
    /// let stream = CudaStream::new(&device)?;
    /// let queue = DevicePool::new(&device)?.on(&stream)?;
    /// let managed = Unpooled::over(Box::new(CudaManaged::new(&device)?));
    /// let table = managed.alloc_from(&[1.0f32, 2.0, 3.0])?;
    /// let mut table = stream.prefetch(table, Device::Cuda(0))?.wait()?;
    /// stream.lend(&mut table, |table| DeviceTensorMut::from_buffer(&queue, table, [3])?.scal(2.0))??;
    /// let table = stream.prefetch(table, Device::Host)?.wait()?;
    /// assert_eq!(table[..], [2.0, 4.0, 6.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`CudaError::NotManaged`] for other memory, [`CudaError::Captured`] if the stream is captured,
    /// [`CudaError::HostPanicked`] if a function that [ran on the host](DeviceSlice::run_on_host) panicked, and the errors of the driver.
    pub fn lend<T: Element, R>(
        &self,
        buffer: &mut Buffer<T>,
        work: impl FnOnce(&mut DeviceSlice<'_, T>) -> R,
    ) -> Result<R, CudaError> {
        /// Ends the loan when it is dropped, also after a panic.
        struct End<'a>(&'a CudaStream, Arc<HostFunctions>);

        impl End<'_> {
            fn wait(&self) -> Result<(), CudaError> {
                // If the device is lost, only functions of the host may still run.
                let waited = self.0.wait();
                let ended = self.1.end();
                waited.and(ended)
            }
        }

        impl Drop for End<'_> {
            fn drop(&mut self) {
                let _ = self.wait();
            }
        }

        expect_managed(buffer)?;
        expect_uncaptured(self)?;
        let (address, len) = match buffer.is_empty() {
            true => (0, 0),
            false => (buffer.as_mut_ptr().expose_provenance() as u64, buffer.len()),
        };
        let end = End(self, Arc::default());
        // SAFETY: the elements are at this address on every device. The buffer is borrowed until the stream has been waited for, and
        // other streams that use the elements are ordered with it.
        let slice = unsafe { DeviceSlice::new(address, len, self) };
        // SAFETY: the memory is managed, and is borrowed until the functions have ended.
        let mut slice = unsafe { slice.on_host_too(Arc::clone(&end.1)) };
        let result = work(&mut slice);
        end.wait()?;
        Ok(result)
    }

    /// Moves the pages of a managed buffer to a place, on this stream. Most programs use the stream of the work that needs them.
    ///
    /// # Errors
    /// Returns [`CudaError::NotManaged`] for other memory, [`CudaError::NoDevice`] if the device does not exist, and the errors of the
    /// driver. The error contains the buffer.
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
            // SAFETY: the bytes are the buffer's, which is held until this is complete, and they do not change.
            unsafe { driver.managed_prefetch(address, bytes, place, self.handle()) }
        })
    }
}
