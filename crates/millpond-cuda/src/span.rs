//! Bytes on a device, and the operations on them, for all owners.

use super::error::CudaError;
use super::stream::CudaStream;

/// Bytes on a device, and the stream on which work on them is queued.
///
/// Invariant: the bytes exist, and may be read and written in the order of the stream, for as long as the borrow lasts. Only a caller with
/// exclusive access writes them.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    address: u64,
    bytes: usize,
    stream: &'a CudaStream,
}

impl<'a> Span<'a> {
    /// # Safety
    /// The invariant must hold for `'a`.
    pub(crate) unsafe fn new(address: u64, bytes: usize, stream: &'a CudaStream) -> Self {
        Self {
            address,
            bytes,
            stream,
        }
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the stream on which work on the bytes is queued.
    pub fn stream(&self) -> &'a CudaStream {
        self.stream
    }

    /// Returns a part of the bytes, or `None` if it is not inside them.
    pub fn part(self, offset: usize, bytes: usize) -> Option<Self> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        inside.then(|| Self {
            address: self.address + offset as u64,
            bytes,
            stream: self.stream,
        })
    }

    /// Queues the zeroing of all bytes, and does not wait for it.
    pub(crate) fn fill_zero(self) -> Result<(), CudaError> {
        if self.bytes == 0 {
            return Ok(());
        }
        let device = self.stream.device();
        let _current = self.stream.enter()?;
        // SAFETY: by the invariant. The caller has the bytes exclusively.
        unsafe {
            device
                .driver()
                .set_bytes(self.address, 0, self.bytes, self.stream.handle())
        }
    }

    /// Copies the same number of bytes of the same device to this span, and does not wait for it. The copy comes after the work that is
    /// queued on the other span's stream now, and before work that is queued there later.
    pub(crate) fn copy_from(self, other: Span<'_>) -> Result<(), CudaError> {
        debug_assert_eq!(self.bytes, other.bytes);
        let device = self.stream.device();
        other.stream.expect_on(device)?;
        if self.bytes == 0 {
            return Ok(());
        }
        self.stream.wait_for(other.stream)?;
        let copied = {
            let _current = self.stream.enter()?;
            // SAFETY: by the invariants of both spans. The other span's stream waits for this one below.
            unsafe {
                device
                    .driver()
                    .copy_on_device(self.address, other.address, self.bytes, self.stream.handle())
            }
        };
        // If the other stream cannot wait, this thread waits.
        let ordered = other.stream.wait_for(self.stream);
        ordered.or_else(|_| self.stream.synchronize()).and(copied)
    }

    /// Copies the same number of bytes from the host, and waits until the copy is complete.
    pub fn write(self, bytes: &[u8]) -> Result<(), CudaError> {
        debug_assert_eq!(self.bytes, bytes.len());
        if bytes.is_empty() {
            return Ok(());
        }
        let device = self.stream.device();
        let _current = self.stream.enter()?;
        // SAFETY: both have these bytes. The host's are borrowed until the stream has been waited for below.
        let copied = unsafe {
            device.driver().copy_to_device(
                self.address,
                bytes.as_ptr().cast(),
                bytes.len(),
                self.stream.handle(),
            )
        };
        // The wait is needed even if the driver refused, because the copy may have begun.
        self.stream.wait().and(copied)
    }

    /// Copies the bytes to the host, and waits until the copy is complete.
    pub fn read(self, bytes: &mut [u8]) -> Result<(), CudaError> {
        debug_assert_eq!(self.bytes, bytes.len());
        if bytes.is_empty() {
            return Ok(());
        }
        let device = self.stream.device();
        let _current = self.stream.enter()?;
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: both have these bytes. The host's are borrowed until the stream has been waited for below.
        let copied = unsafe {
            device
                .driver()
                .copy_to_host(to, self.address, bytes.len(), self.stream.handle())
        };
        self.stream.wait().and(copied)
    }
}

/// Returns an error if the number of elements is not the expected one.
pub(crate) fn expect_elements(expected: usize, found: usize) -> Result<(), CudaError> {
    if expected == found {
        return Ok(());
    }
    Err(CudaError::Length { expected, found })
}

/// Implements the methods of a type that holds elements of type `T` on a device, in the order of a stream. The type must have the fields
/// `len` and `stream` and the method `span`. The name is for `Debug`.
macro_rules! elements_on_stream {
    ($elements:ty, $name:literal) => {
        const _: () = {
            use crate::error::CudaError;
            use crate::span::expect_elements;
            use crate::stream::CudaStream;
            use millpond_os::device::Device;
            use millpond_pool::dtype::DType;
            use std::fmt;

            impl<T: Element> $elements {
                /// Returns the number of elements.
                #[must_use]
                pub fn len(&self) -> usize {
                    self.len
                }

                /// Returns whether there are no elements.
                #[must_use]
                pub fn is_empty(&self) -> bool {
                    self.len == 0
                }

                /// Returns the size of the elements in bytes.
                #[must_use]
                pub fn bytes(&self) -> usize {
                    self.len * size_of::<T>()
                }

                /// Returns the type of the elements.
                #[must_use]
                pub fn dtype(&self) -> DType {
                    T::DTYPE
                }

                /// Returns the device.
                #[must_use]
                pub fn device(&self) -> Device {
                    Device::Cuda(self.stream.device().number())
                }

                /// Returns the stream that the elements were allocated on, and on which work on them is queued.
                #[must_use]
                pub fn stream(&self) -> &CudaStream {
                    &self.stream
                }

                /// Queues the zeroing of all elements on their stream, and does not wait for it.
                ///
                /// # Errors
                /// Returns the errors of the driver.
                pub fn fill_zero(&mut self) -> Result<(), CudaError> {
                    self.span().fill_zero()
                }

                /// Copies the elements of a buffer of the same device to these, on their stream, and does not wait for it.
                /// The copy comes after the work that is queued on the buffer's stream now, and before work that is queued
                /// there later.
                ///
                /// # Errors
                /// Returns an error if the lengths or the devices differ, and the errors of the driver.
                pub fn copy_from(&mut self, other: &DeviceBuffer<T>) -> Result<(), CudaError> {
                    expect_elements(self.len, other.len())?;
                    self.span().copy_from(other.span())
                }

                /// Copies elements from the host, and waits until the copy is complete.
                ///
                /// # Errors
                /// Returns an error if the lengths differ, and the errors of the driver.
                pub fn copy_from_host(&mut self, elements: &[T]) -> Result<(), CudaError> {
                    expect_elements(self.len, elements.len())?;
                    self.span().write(bytemuck::cast_slice(elements))
                }

                /// Copies the elements to the host, and waits until the copy is complete.
                ///
                /// # Errors
                /// Returns an error if the lengths differ, and the errors of the driver.
                pub fn copy_to_host(&self, elements: &mut [T]) -> Result<(), CudaError> {
                    expect_elements(self.len, elements.len())?;
                    self.span().read(bytemuck::cast_slice_mut(elements))
                }

                /// Returns a copy of the elements on the host.
                ///
                /// # Errors
                /// Returns the errors of the driver.
                pub fn to_vec(&self) -> Result<Vec<T>, CudaError> {
                    let mut elements = vec![T::zeroed(); self.len];
                    self.copy_to_host(&mut elements)?;
                    Ok(elements)
                }
            }

            impl<T: Element> fmt::Debug for $elements {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.debug_struct($name)
                        .field("dtype", &self.dtype())
                        .field("len", &self.len)
                        .field("device", &self.device())
                        .finish_non_exhaustive()
                }
            }
        };
    };
}

pub(crate) use elements_on_stream;
