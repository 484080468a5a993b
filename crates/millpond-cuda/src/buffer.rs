//! Buffers of elements on a device.

use super::device::CudaDevice;
use super::error::{CudaError, insist};
#[cfg(feature = "cudarc")]
use super::later;
use super::pool::{DevicePool, DeviceTenant, Held, UnpooledDevice, refused};
use super::span::{Span, elements_on_stream};
use super::stream::CudaStream;
use millpond_account::error::AllocError;
use millpond_pool::dtype::Element;
use std::marker::PhantomData;

/// A buffer of elements in a device's memory. It can be dropped on any thread, and its memory then returns to its pool.
///
/// The host cannot access the elements directly, but copies them. All work on them is queued on the buffer's own stream, unless the use on
/// another stream is [recorded](Self::record_use).
pub struct DeviceBuffer<T: Element> {
    owner: Owner,
    len: usize,
    stream: CudaStream,
    uses: Vec<CudaStream>,
    /// The loan of the elements to cudarc, if there is one. It knows the streams of cudarc that use the elements.
    #[cfg(feature = "cudarc")]
    loan: Option<Box<dyn Loan>>,
    elements: PhantomData<T>,
}

/// A loan of elements to cudarc. When it is dropped, its stream waits on the device for all other streams of cudarc that have used the
/// elements.
#[cfg(feature = "cudarc")]
pub(super) trait Loan: std::any::Any + Send + Sync {}

/// The owner of the elements.
enum Owner {
    /// A pool, to which the block is returned. There is no block if there are no elements.
    Pool(DevicePool, Option<Held>),
    /// Another library, which gets the elements back when this is dropped.
    Others {
        address: u64,
        keeper: Option<Box<dyn std::any::Any + Send + Sync>>,
    },
}

impl Owner {
    /// Takes the owner and leaves one that owns nothing.
    fn take(&mut self) -> Self {
        match self {
            Self::Pool(pool, held) => Self::Pool(pool.clone(), held.take()),
            Self::Others { address, keeper } => Self::Others {
                address: std::mem::take(address),
                keeper: keeper.take(),
            },
        }
    }
}

/// Implements the allocation of buffers. Each type has a method `requests`, which returns the pool and the terms of its requests.
macro_rules! make_device_buffers {
    ($($from:ty)*) => {
        $(impl $from {
            /// Allocates uninitialised elements on the device for use on a stream.
            ///
            /// # Errors
            /// Returns an error if there is not enough memory, if the budget of a tenant refuses, or if its timeout has passed. The
            /// error says how much is free and, if the pool keeps an [account](DevicePool::track), which blocks hold the rest. The
            /// pool stays usable.
            pub fn alloc<T: Element>(
                &self,
                len: usize,
                stream: &CudaStream,
            ) -> Result<DeviceBuffer<T>, AllocError> {
                let (pool, terms) = self.requests();
                let block = pool.allocate(bytes_of::<T>(len)?, stream, terms)?;
                let buffer = DeviceBuffer::of(block, len, stream);
                match pool.clears() {
                    true => buffer.zeroed(),
                    false => Ok(buffer),
                }
            }

            /// Allocates elements and queues their zeroing on the stream.
            ///
            /// # Errors
            /// Returns the errors of [`alloc`](Self::alloc) and those of the driver.
            pub fn alloc_zeroed<T: Element>(
                &self,
                len: usize,
                stream: &CudaStream,
            ) -> Result<DeviceBuffer<T>, AllocError> {
                let (pool, terms) = self.requests();
                let block = pool.allocate(bytes_of::<T>(len)?, stream, terms)?;
                DeviceBuffer::of(block, len, stream).zeroed()
            }

            /// Allocates elements and copies them from the host. The copy is complete when this returns.
            ///
            /// # Errors
            /// Returns the errors of [`alloc`](Self::alloc) and those of the driver.
            pub fn alloc_from<T: Element>(
                &self,
                elements: &[T],
                stream: &CudaStream,
            ) -> Result<DeviceBuffer<T>, AllocError> {
                // The caller sees only these elements, so there is nothing to clear.
                let (pool, terms) = self.requests();
                let block = pool.allocate(bytes_of::<T>(elements.len())?, stream, terms)?;
                let mut buffer = DeviceBuffer::of(block, elements.len(), stream);
                buffer.copy_from_host(elements).map_err(refused)?;
                Ok(buffer)
            }
        })*
    };
}

make_device_buffers!(DevicePool DeviceTenant UnpooledDevice);

/// Returns the bytes of `len` elements.
pub(super) fn bytes_of<T: Element>(len: usize) -> Result<usize, AllocError> {
    match len.checked_mul(size_of::<T>()) {
        Some(bytes) => Ok(bytes),
        None => Err(AllocError::UNCOUNTABLE),
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// Creates the buffer of a pool's block, which is not cleared.
    fn of((pool, held): (DevicePool, Option<Held>), len: usize, stream: &CudaStream) -> Self {
        Self {
            owner: Owner::Pool(pool, held),
            len,
            stream: stream.clone(),
            uses: Vec::new(),
            #[cfg(feature = "cudarc")]
            loan: None,
            elements: PhantomData,
        }
    }

    /// Queues the zeroing of the elements on the stream.
    fn zeroed(mut self) -> Result<Self, AllocError> {
        self.fill_zero().map_err(refused)?;
        Ok(self)
    }

    /// Returns a buffer of elements that belong to another library. They are in no pool. The keeper is dropped with the buffer, after the
    /// buffer's stream was made to wait for all other streams that use the elements.
    ///
    /// ```
    /// use millpond::cuda::{CudaDevice, CudaError, CudaStream, DeviceBuffer, UnpooledDevice};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = match CudaDevice::get(0) {
    ///     Err(CudaError::NoDriver) => return Ok(()),
    ///     device => device?,
    /// };
    /// let stream = CudaStream::new(&device)?;
    /// // The keeper is whatever owns the memory, here a buffer of the device itself.
    /// let owner = UnpooledDevice::new(&device)?.alloc_from(&[1.0f32, 2.0, 3.0], &stream)?;
    /// // SAFETY: the three elements live as long as their owner, which is used for nothing else.
    /// let buffer = unsafe { DeviceBuffer::<f32>::foreign(owner.address(), 3, &stream, Box::new(owner)) };
    /// assert_eq!(buffer.to_vec()?, [1.0, 2.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// The elements must be on the stream's device, at an address that is aligned for them. Until the keeper is dropped, it must be valid
    /// to read and write them in the order of the stream, and no other code may use them. When the keeper is dropped, work that is queued
    /// on the stream may still use them, so the keeper must free them in the order of the stream.
    #[must_use]
    pub unsafe fn foreign(
        address: u64,
        len: usize,
        stream: &CudaStream,
        keeper: Box<dyn std::any::Any + Send + Sync>,
    ) -> Self {
        Self {
            owner: Owner::Others {
                address,
                keeper: Some(keeper),
            },
            len,
            stream: stream.clone(),
            uses: Vec::new(),
            #[cfg(feature = "cudarc")]
            loan: None,
            elements: PhantomData,
        }
    }

    /// Returns the buffer's address on the device, or 0 if there are no elements. Other code that accesses this address must follow the
    /// rules for raw pointers, and must use the buffer's stream or a [recorded](Self::record_use) one.
    #[must_use]
    pub fn address(&self) -> u64 {
        match &self.owner {
            Owner::Pool(_, held) => held.as_ref().map_or(0, |held| held.block.address()),
            Owner::Others { address, .. } => *address,
        }
    }

    /// Returns the pool. Returns `None` if the elements were allocated on the [device itself](super::UnpooledDevice), or belong to another
    /// library.
    #[must_use]
    pub fn pool(&self) -> Option<&DevicePool> {
        match &self.owner {
            Owner::Pool(pool, _) => Some(pool).filter(|pool| !pool.is_direct()),
            Owner::Others { .. } => None,
        }
    }

    /// Declares that work on another stream uses the elements. After the buffer is freed, its memory is reused only when the work that is
    /// queued on that stream by then is complete.
    ///
    /// # Errors
    /// Returns an error if the stream belongs to another device.
    pub fn record_use(&mut self, stream: &CudaStream) -> Result<(), CudaError> {
        stream.expect_on(self.on())?;
        if *stream != self.stream && !self.uses.contains(stream) {
            self.uses.push(stream.clone());
        }
        Ok(())
    }

    /// Frees the buffer now.
    pub fn free(self) {}

    /// Returns the elements' bytes.
    #[doc(hidden)]
    pub fn span(&self) -> Span<'_> {
        // SAFETY: the block has these bytes and is ours in the order of this stream until the drop.
        unsafe { Span::new(self.address(), self.bytes(), &self.stream) }
    }

    /// Moves the memory to a new buffer with elements of another type. This buffer is empty afterwards.
    pub(super) fn take<U: Element>(&mut self) -> DeviceBuffer<U> {
        let bytes = self.bytes();
        self.len = 0;
        DeviceBuffer {
            len: bytes / size_of::<U>(),
            owner: self.owner.take(),
            stream: self.stream.clone(),
            uses: std::mem::take(&mut self.uses),
            #[cfg(feature = "cudarc")]
            loan: self.loan.take(),
            elements: PhantomData,
        }
    }

    /// Returns the same memory as bytes.
    #[doc(hidden)]
    pub fn into_bytes(mut self) -> DeviceBuffer<u8> {
        self.take()
    }

    /// Makes the buffer's stream wait, on the device, for the other streams that use the elements, and then forgets those.
    pub(super) fn wait_for_uses(&mut self) -> Result<(), CudaError> {
        let mut uses = self.uses.iter();
        uses.try_for_each(|used| self.stream.wait_for(used))?;
        self.uses.clear();
        Ok(())
    }

    /// Returns whether waiting for the other streams that use the elements would involve a capture of this stream or one of them.
    pub(super) fn would_join(&self) -> bool {
        let mut streams = std::iter::once(&self.stream).chain(&self.uses);
        !self.uses.is_empty() && streams.any(|stream| stream.is_capturing().unwrap_or(true))
    }

    /// Returns whether the elements are lent to cudarc.
    pub(super) fn is_lent(&self) -> bool {
        #[cfg(feature = "cudarc")]
        let lent = self.loan.is_some();
        #[cfg(not(feature = "cudarc"))]
        let lent = false;
        lent
    }

    /// Makes a stream wait, on the device, for all present uses of the elements.
    #[doc(hidden)]
    pub fn order_before(&self, stream: &CudaStream) -> Result<(), CudaError> {
        let mut users = std::iter::once(&self.stream).chain(&self.uses);
        users.try_for_each(|user| stream.wait_for(user))
    }

    /// Returns the loan of the elements to cudarc, to be set or changed.
    #[cfg(feature = "cudarc")]
    pub(super) fn loan(&mut self) -> &mut Option<Box<dyn Loan>> {
        &mut self.loan
    }

    /// Returns the loan of the elements to cudarc, to be read.
    #[cfg(feature = "cudarc")]
    pub(super) fn lent(&self) -> Option<&dyn Loan> {
        self.loan.as_deref()
    }

    /// Returns the device.
    pub(super) fn on(&self) -> &CudaDevice {
        self.stream.device()
    }
}

/// Returns elements to the library that they came from. The library frees them in the order of `stream`, so `stream` first waits for the
/// other streams.
#[cold]
fn return_to_others(
    keeper: Option<Box<dyn std::any::Any + Send + Sync>>,
    stream: &CudaStream,
    uses: &[CudaStream],
) {
    let ordered = uses.iter().all(|used| {
        let waits = stream.wait_for(used);
        waits.or_else(|_| insist(|| used.synchronize())).is_ok()
    });
    if !ordered {
        // The device is lost, so the elements must not be used again.
        std::mem::forget(keeper);
    }
}

impl<T: Element> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        #[cfg(feature = "cudarc")]
        if self.loan.is_some() {
            // The loan was leaked and never ended. Its stream is one of the streams that use the elements, and it has to wait
            // for the other streams of cudarc. It cannot wait while it is captured, so in that case the buffer is freed later.
            if self
                .uses
                .iter()
                .chain([&self.stream])
                .any(|stream| stream.is_capturing().unwrap_or(true))
            {
                let device = self.on().number();
                later::keep(self.take::<T>(), device, 0);
                return;
            }
            drop(self.loan.take());
        }
        match &mut self.owner {
            Owner::Pool(pool, held) => {
                if let Some(held) = held.take() {
                    let uses = (!self.uses.is_empty()).then(|| std::mem::take(&mut self.uses).into());
                    pool.take_back(held, uses);
                }
            }
            Owner::Others { keeper, .. } => return_to_others(keeper.take(), &self.stream, &self.uses),
        }
    }
}

elements_on_stream!(DeviceBuffer<T>, "DeviceBuffer");
