//! Structures of arrays on a device: the fields of `derive(Soa)` as arguments of kernels.

use super::Soa;
use crate::TensorError;
use millpond_account::error::AllocError;
pub(crate) use millpond_cuda::launch::sealed;
use millpond_cuda::{CudaError, CudaStream, DeviceBuffer, DevicePool, KernelArg, KernelArgMut, Launch};
use std::fmt;
use std::marker::PhantomData;

/// The alignment of each field's elements, the same as that of a buffer.
const ALIGN: usize = 256;

/// A structure of arrays in a device's memory. It is one block, in which the elements of each field are contiguous.
///
/// As an argument of a launch it passes one parameter for each field, in the order of declaration: the address of the field's
/// elements. So neighbouring threads access neighbouring bytes, and fields that a kernel does not use are not read.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, CudaModule, CudaStream, DevicePool, DeviceSoa};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use millpond::Soa;
///
/// #[derive(Clone, Copy, Soa)]
/// struct Body { height: f32, speed: f32 }
///
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
/// let mut bodies = BodyVec::try_from_slice(&[Body { height: 10.0, speed: -2.0 }; 100])?;
/// let there = DeviceSoa::<Body>::from_arrays(&pool, &bodies, &stream)?;
/// // kernel.launch(&stream).grid(1).block(128).arg_mut(&mut there).arg(0.5f32).arg(100u64)
/// there.copy_to_host(&mut bodies)?;
/// assert_eq!((there.len(), there.field("speed").map(|speed| speed.len())), (100, Some(100)));
/// # Ok(())
/// # }
/// ```
pub struct DeviceSoa<T: Soa> {
    bytes: DeviceBuffer<u8>,
    len: usize,
    /// The fields' ranges in the block, which do not overlap, in the order of declaration.
    fields: Vec<FieldRange>,
    of: PhantomData<fn() -> T>,
}

/// The range of a field's elements: its offset from the beginning of the block, and its bytes.
#[derive(Clone, Copy)]
struct FieldRange {
    name: &'static str,
    offset: usize,
    bytes: usize,
}

impl<T: Soa> DeviceSoa<T> {
    /// Allocates arrays on the device, copies the elements from the host, and waits for the copy.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, or if the driver reports one.
    pub fn from_arrays(pool: &DevicePool, arrays: &T::Vec, stream: &CudaStream) -> Result<Self, TensorError> {
        let mut end = 0_usize;
        let mut len = 0;
        let mut fields = Vec::with_capacity(T::LAYOUT.fields.len());
        for (name, bytes) in T::columns(arrays) {
            let offset = end.checked_next_multiple_of(ALIGN);
            let offset = offset.ok_or(AllocError::UNCOUNTABLE)?;
            end = offset.checked_add(bytes.len()).ok_or(AllocError::UNCOUNTABLE)?;
            let size = T::LAYOUT.field(name).map_or(1, |field| field.bytes.max(1));
            len = bytes.len() / size;
            fields.push(FieldRange {
                name,
                offset,
                bytes: bytes.len(),
            });
        }
        let mut soa = Self {
            bytes: pool.alloc(end, stream)?,
            len,
            fields,
            of: PhantomData,
        };
        soa.copy_from_host(arrays)?;
        Ok(soa)
    }

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

    /// Returns the stream on which work on the arrays is queued.
    #[must_use]
    pub fn stream(&self) -> &CudaStream {
        self.bytes.stream()
    }

    /// Returns one field as a read-only argument, or `None` if the structure has no field of this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<DeviceField<'_>> {
        let place = self.fields.iter().find(|field| field.name == name)?;
        Some(DeviceField {
            address: self.address(place),
            len: self.len,
            stream: self.stream(),
        })
    }

    /// Copies all fields from the host and waits for the copy.
    ///
    /// # Errors
    /// Returns an error if the number of elements differs, or if the driver reports one.
    pub fn copy_from_host(&mut self, arrays: &T::Vec) -> Result<(), CudaError> {
        self.expect(T::columns(arrays).map(|(_, bytes)| bytes.len()))?;
        for (place, (_, bytes)) in self.fields.iter().zip(T::columns(arrays)) {
            // An implementation of the trait may return other columns than in an earlier call.
            let part = self.bytes.span().part(place.offset, place.bytes);
            if let Some(part) = part.filter(|_| bytes.len() == place.bytes) {
                part.write(bytes)?;
            }
        }
        Ok(())
    }

    /// Copies all fields to the host and waits for the copy.
    ///
    /// # Errors
    /// Returns an error if the number of elements differs, or if the driver reports one.
    pub fn copy_to_host(&self, arrays: &mut T::Vec) -> Result<(), CudaError> {
        self.expect(T::columns(arrays).map(|(_, bytes)| bytes.len()))?;
        for (place, (_, bytes)) in self.fields.iter().zip(T::columns_mut(arrays)) {
            let part = self.bytes.span().part(place.offset, place.bytes);
            if let Some(part) = part.filter(|_| bytes.len() == place.bytes) {
                part.read(bytes)?;
            }
        }
        Ok(())
    }

    fn address(&self, place: &FieldRange) -> u64 {
        match self.bytes.address() {
            0 => 0,
            first => first + place.offset as u64,
        }
    }

    /// Returns an error if the bytes of a field differ from those on the device.
    fn expect(&self, found: impl Iterator<Item = usize>) -> Result<(), CudaError> {
        for (place, found) in self.fields.iter().zip(found) {
            if place.bytes != found {
                let size = T::LAYOUT.field(place.name).map_or(1, |field| field.bytes);
                return Err(CudaError::Length {
                    expected: self.len,
                    found: found / size.max(1),
                });
            }
        }
        Ok(())
    }

    fn put<'a>(&'a self, launch: &mut Launch<'a>) {
        for place in &self.fields {
            launch.memory(self.address(place), self.stream());
        }
    }
}

/// Each field is a read-only parameter, in the order of declaration.
impl<'a, T: Soa> KernelArg<'a> for &'a DeviceSoa<T> {}

impl<'a, T: Soa> sealed::Arg<'a> for &'a DeviceSoa<T> {
    fn put(self, launch: &mut Launch<'a>) {
        DeviceSoa::put(self, launch);
    }
}

/// Each field is a parameter that the kernel may write, in the order of declaration.
impl<'a, T: Soa> KernelArgMut<'a> for &'a mut DeviceSoa<T> {}

impl<'a, T: Soa> sealed::ArgMut<'a> for &'a mut DeviceSoa<T> {
    fn put(self, launch: &mut Launch<'a>) {
        DeviceSoa::put(self, launch);
    }
}

impl<T: Soa> fmt::Debug for DeviceSoa<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceSoa")
            .field("of", &T::LAYOUT.name)
            .field("len", &self.len)
            .field("device", &self.bytes.device())
            .finish_non_exhaustive()
    }
}

/// One field of a [`DeviceSoa`], which a kernel may read.
#[derive(Clone, Copy, Debug)]
pub struct DeviceField<'a> {
    address: u64,
    len: usize,
    stream: &'a CudaStream,
}

impl DeviceField<'_> {
    /// Returns the address of the first element, or 0 if there are no elements.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

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
}

impl<'a> KernelArg<'a> for DeviceField<'a> {}

impl<'a> sealed::Arg<'a> for DeviceField<'a> {
    fn put(self, launch: &mut Launch<'a>) {
        launch.memory(self.address, self.stream);
    }
}
