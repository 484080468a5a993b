//! Structures of arrays on a device: the fields of `derive(Soa)` as arguments of kernels.

use super::Soa;
use crate::error::AllocError;
use crate::gpu::launch::sealed;
use crate::gpu::{CudaError, CudaStream, DeviceBuffer, DevicePool, KernelArg, KernelArgMut, Launch};
use crate::tensor::TensorError;
use std::fmt;
use std::marker::PhantomData;

/// What each field's address is a multiple of, as that of a buffer is.
const ALIGN: usize = 256;

/// A structure of arrays in a device's memory: one block, in which each field's elements follow one another.
///
/// As an argument of a launch it is a parameter for each field, in the order in which the structure has them: the address of the
/// field's elements. So neighbouring threads read neighbouring bytes, and of the fields that a kernel does not look at none are read.
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
    /// They lie in the block, apart from each other, in the order in which the structure has them.
    fields: Vec<Place>,
    of: PhantomData<fn() -> T>,
}

/// Where a field's elements lie: bytes from the beginning of the block, and how many.
#[derive(Clone, Copy)]
struct Place {
    name: &'static str,
    offset: usize,
    bytes: usize,
}

impl<T: Soa> DeviceSoa<T> {
    /// Arrays copied from the host; they are there when this returns.
    ///
    /// # Errors
    /// When there is no memory for them, and what the driver says.
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
            fields.push(Place {
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

    /// The stream that work on it is put on.
    #[must_use]
    pub fn stream(&self) -> &CudaStream {
        self.bytes.stream()
    }

    /// One field, as an argument to read; none where there is no such.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<DeviceField<'_>> {
        let place = self.fields.iter().find(|field| field.name == name)?;
        Some(DeviceField {
            address: self.address(place),
            len: self.len,
            stream: self.stream(),
        })
    }

    /// Copies all fields from the host, as many elements as there are here, and waits until they are there.
    ///
    /// # Errors
    /// Where there are not as many, and what the driver says.
    pub fn copy_from_host(&mut self, arrays: &T::Vec) -> Result<(), CudaError> {
        self.expect(T::columns(arrays).map(|(_, bytes)| bytes.len()))?;
        for (place, (_, bytes)) in self.fields.iter().zip(T::columns(arrays)) {
            // An implementation may return other columns than before.
            let part = self.bytes.span().part(place.offset, place.bytes);
            if let Some(part) = part.filter(|_| bytes.len() == place.bytes) {
                part.write(bytes)?;
            }
        }
        Ok(())
    }

    /// Copies all fields to the host, to as many elements as there are here, and waits for them.
    ///
    /// # Errors
    /// Where there are not as many, and what the driver says.
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

    fn address(&self, place: &Place) -> u64 {
        match self.bytes.address() {
            0 => 0,
            first => first + place.offset as u64,
        }
    }

    /// Refuses other lengths than the fields have here.
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

/// Each field is a parameter, in the order in which the structure has them.
impl<'a, T: Soa> KernelArg<'a> for &'a DeviceSoa<T> {}

impl<'a, T: Soa> sealed::Arg<'a> for &'a DeviceSoa<T> {
    fn put(self, launch: &mut Launch<'a>) {
        DeviceSoa::put(self, launch);
    }
}

/// The same, of which the kernel may write any.
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
    /// The address of its first element; 0 where there are none.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
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
}

impl<'a> KernelArg<'a> for DeviceField<'a> {}

impl<'a> sealed::Arg<'a> for DeviceField<'a> {
    fn put(self, launch: &mut Launch<'a>) {
        launch.memory(self.address, self.stream);
    }
}
