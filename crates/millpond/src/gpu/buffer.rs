//! Elements on a device.

use super::device::CudaDevice;
use super::error::CudaError;
#[cfg(feature = "cudarc")]
use super::error::insist;
#[cfg(feature = "cudarc")]
use super::later;
use super::pool::{DevicePool, Held};
use super::span::{Span, expect_elements};
use super::stream::CudaStream;
use crate::device::Device;
use crate::dtype::{DType, Element};
use std::fmt;
use std::marker::PhantomData;

/// Elements in a device's memory, which go back to their pool when dropped, from any thread.
///
/// They are not the host's to read: they are copied to and fro. All work on them is put on the buffer's own stream, unless
/// another one is [recorded](Self::record_use).
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

/// Elements that are lent to cudarc. When the loan is dropped, its stream waits on the device for all other streams of cudarc
/// that have used the elements.
#[cfg(feature = "cudarc")]
pub(super) trait Loan: std::any::Any + Send + Sync {}

/// Whose the elements are.
enum Owner {
    /// A pool's, to which the block goes back; there is none where there are no elements.
    Pool(DevicePool, Option<Held>),
    /// Others', who have them back when this is dropped.
    #[cfg(feature = "cudarc")]
    Others {
        address: u64,
        device: CudaDevice,
        keeper: Option<Box<dyn std::any::Any + Send + Sync>>,
    },
}

impl Owner {
    /// The same; what it leaves owns nothing.
    fn take(&mut self) -> Self {
        match self {
            Self::Pool(pool, held) => Self::Pool(pool.clone(), held.take()),
            #[cfg(feature = "cudarc")]
            Self::Others {
                address,
                device,
                keeper,
            } => Self::Others {
                address: std::mem::take(address),
                device: device.clone(),
                keeper: keeper.take(),
            },
        }
    }
}

impl<T: Element> DeviceBuffer<T> {
    pub(super) fn new(pool: &DevicePool, held: Option<Held>, len: usize, stream: &CudaStream) -> Self {
        Self {
            owner: Owner::Pool(pool.clone(), held),
            len,
            stream: stream.clone(),
            uses: Vec::new(),
            #[cfg(feature = "cudarc")]
            loan: None,
            elements: PhantomData,
        }
    }

    /// Elements of others.
    ///
    /// # Safety
    /// The elements are there, on the stream's device, and may be read and written in that stream's order until the keeper is dropped,
    /// which frees them in the same order.
    #[cfg(feature = "cudarc")]
    pub(super) unsafe fn foreign(
        address: u64,
        len: usize,
        stream: &CudaStream,
        keeper: Box<dyn std::any::Any + Send + Sync>,
    ) -> Self {
        Self {
            owner: Owner::Others {
                address,
                device: stream.device().clone(),
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

    /// Its address on the device; 0 where there are no elements. To read or write there by other means takes what every use of
    /// a raw pointer takes, and that the stream is the buffer's or [recorded](Self::record_use).
    #[must_use]
    pub fn address(&self) -> u64 {
        match &self.owner {
            Owner::Pool(_, held) => held.as_ref().map_or(0, |held| held.block.address()),
            #[cfg(feature = "cudarc")]
            Owner::Others { address, .. } => *address,
        }
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the elements.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Their type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// Where they are.
    #[must_use]
    pub fn device(&self) -> Device {
        Device::Cuda(self.on().number())
    }

    /// The pool they are of; none where they came from the [device itself](super::UnpooledDevice), or are memory of others.
    #[must_use]
    pub fn pool(&self) -> Option<&DevicePool> {
        match &self.owner {
            Owner::Pool(pool, _) => Some(pool).filter(|pool| !pool.is_direct()),
            #[cfg(feature = "cudarc")]
            Owner::Others { .. } => None,
        }
    }

    /// The stream they were asked for on.
    #[must_use]
    pub fn stream(&self) -> &CudaStream {
        &self.stream
    }

    /// Says that work on another stream uses the elements: after the buffer is given back the memory is nobody's until what
    /// that stream has to do by then is done.
    ///
    /// # Errors
    /// Where the stream is another device's.
    pub fn record_use(&mut self, stream: &CudaStream) -> Result<(), CudaError> {
        stream.expect_on(self.on())?;
        if *stream != self.stream && !self.uses.contains(stream) {
            self.uses.push(stream.clone());
        }
        Ok(())
    }

    /// Makes all elements zero, on the buffer's stream; does not wait for it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn fill_zero(&mut self) -> Result<(), CudaError> {
        self.span().fill_zero()
    }

    /// Copies the elements of another buffer of the same device here, on this buffer's stream, and does not wait for it. It
    /// comes after what the other's stream has to do by now, and before what is put there later.
    ///
    /// # Errors
    /// Where there are not as many, or on another device, and what the driver says.
    pub fn copy_from(&mut self, other: &Self) -> Result<(), CudaError> {
        self.expect(other.len())?;
        self.span().copy_from(other.span())
    }

    /// Copies elements from the host, as many as there are here, and waits until they are there.
    ///
    /// # Errors
    /// Where there are not as many, and what the driver says.
    pub fn copy_from_host(&mut self, elements: &[T]) -> Result<(), CudaError> {
        self.expect(elements.len())?;
        self.span().write(bytemuck::cast_slice(elements))
    }

    /// Copies the elements to the host, as many as there is room for there, and waits for them.
    ///
    /// # Errors
    /// Where there is not as much room, and what the driver says.
    pub fn copy_to_host(&self, elements: &mut [T]) -> Result<(), CudaError> {
        self.expect(elements.len())?;
        self.span().read(bytemuck::cast_slice_mut(elements))
    }

    /// The elements, copied to the host.
    ///
    /// # Errors
    /// What the driver says.
    pub fn to_vec(&self) -> Result<Vec<T>, CudaError> {
        let mut elements = vec![T::zeroed(); self.len];
        self.copy_to_host(&mut elements)?;
        Ok(elements)
    }

    /// Gives the memory back now.
    pub fn free(self) {}

    /// The elements' bytes.
    pub(crate) fn span(&self) -> Span<'_> {
        // SAFETY: the block has these bytes and is ours in the order of this stream until the drop.
        unsafe { Span::new(self.address(), self.bytes(), &self.stream) }
    }

    /// The buffer, its bytes as elements of another type, as many as there are; what it leaves has none.
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

    /// Has the buffer's stream wait, on the device, for the others that use the elements, which are forgotten then.
    pub(super) fn wait_for_uses(&mut self) -> Result<(), CudaError> {
        let mut uses = self.uses.iter();
        uses.try_for_each(|used| self.stream.wait_for(used))?;
        self.uses.clear();
        Ok(())
    }

    /// Whether to wait for others that use the elements is the business of a capture, of this stream or one of them.
    pub(super) fn would_join(&self) -> bool {
        let mut streams = std::iter::once(&self.stream).chain(&self.uses);
        !self.uses.is_empty() && streams.any(|stream| stream.is_capturing().unwrap_or(true))
    }

    /// Whether cudarc may have the elements.
    pub(super) fn is_lent(&self) -> bool {
        #[cfg(feature = "cudarc")]
        let lent = self.loan.is_some();
        #[cfg(not(feature = "cudarc"))]
        let lent = false;
        lent
    }

    /// Has a stream wait, on the device, for whatever uses the elements by now.
    pub(crate) fn order_before(&self, stream: &CudaStream) -> Result<(), CudaError> {
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

    /// The device.
    pub(super) fn on(&self) -> &CudaDevice {
        match &self.owner {
            Owner::Pool(pool, _) => pool.device(),
            #[cfg(feature = "cudarc")]
            Owner::Others { device, .. } => device,
        }
    }

    fn expect(&self, found: usize) -> Result<(), CudaError> {
        expect_elements(self.len, found)
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
        let uses = std::mem::take(&mut self.uses);
        match &mut self.owner {
            Owner::Pool(pool, held) => {
                if let Some(held) = held.take() {
                    pool.take_back(held, uses);
                }
            }
            #[cfg(feature = "cudarc")]
            Owner::Others { keeper, .. } => {
                // They go by the stream that the elements came with: it comes after all that has used them.
                let ordered = uses.iter().all(|used| {
                    let waits = self.stream.wait_for(used);
                    waits.or_else(|_| insist(|| used.synchronize())).is_ok()
                });
                if ordered {
                    drop(keeper.take());
                } else {
                    // Of a device that is lost: nobody is to have it again.
                    std::mem::forget(keeper.take());
                }
            }
        }
    }
}

impl<T: Element> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("dtype", &self.dtype())
            .field("len", &self.len)
            .field("device", &self.device())
            .finish_non_exhaustive()
    }
}
