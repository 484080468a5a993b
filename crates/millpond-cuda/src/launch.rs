//! Kernels and their launches.
//!
//! A launch is queued on one stream, and its buffers may belong to others. The launch's stream first waits, on the device, for the work
//! that is queued on the buffers' streams, and these then wait for the launch. Work that is queued on them later, such as the next use of
//! the block, comes after it. Recording the use on the buffer would only order the next use of its memory, and not the next work on the
//! buffer itself.

use super::abi::{FunctionHandle, INVALID_VALUE};
use super::buffer::DeviceBuffer;
use super::device::CudaDevice;
use super::error::CudaError;
use super::kernel_error::KernelError;
use super::module::{CudaModule, parameters};
use super::span::Span;
use super::stream::CudaStream;
use bytemuck::NoUninit;
use millpond_pool::dtype::{DType, Element};
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

/// A kernel of a [`CudaModule`]. Cloning makes another handle; each keeps the module loaded.
#[derive(Clone)]
pub struct CudaKernel {
    module: CudaModule,
    name: Arc<str>,
    function: FunctionHandle,
    parameters: Option<Arc<[usize]>>,
}

impl CudaModule {
    /// Returns a kernel of the module by the name of its entry.
    ///
    /// # Errors
    /// Returns an error if the module has no such entry, or no code for the device.
    pub fn kernel(&self, name: &str) -> Result<CudaKernel, KernelError> {
        let device = self.device();
        let _current = device.enter_beside()?;
        let function = self.code().function(device, name)?;
        let parameters = parameters(device, function)?;
        Ok(CudaKernel {
            module: self.clone(),
            name: name.into(),
            function,
            parameters: parameters.map(Into::into),
        })
    }
}

impl CudaKernel {
    /// Returns the name of the kernel's entry.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the module that contains the kernel.
    #[must_use]
    pub fn module(&self) -> &CudaModule {
        &self.module
    }

    /// Returns the bytes of each parameter, or `None` if the driver is too old to know them (before CUDA 12.4).
    #[must_use]
    pub fn parameters(&self) -> Option<&[usize]> {
        self.parameters.as_deref()
    }

    /// Begins the description of a launch on a stream. The default is one block of one thread.
    pub fn launch<'a>(&'a self, stream: &'a CudaStream) -> Launch<'a> {
        Launch {
            kernel: self,
            stream,
            shape: Shape::default(),
            arguments: Arguments::default(),
            others: Vec::new(),
        }
    }

    /// Checks the number and sizes of the arguments, if the driver knows those of the parameters.
    fn check(&self, arguments: &Arguments) -> Result<(), KernelError> {
        let Some(expected) = self.parameters() else {
            return Ok(());
        };
        let kernel = || self.name().to_owned();
        if expected.len() != arguments.sizes.len() {
            return Err(KernelError::Parameters {
                kernel: kernel(),
                expected: expected.len(),
                found: arguments.sizes.len(),
            });
        }
        let mut both = expected.iter().copied().zip(arguments.sizes.iter().copied());
        match both.position(|(expected, found)| expected != found) {
            Some(index) => Err(KernelError::Parameter {
                kernel: kernel(),
                index,
                expected: expected[index],
                found: arguments.sizes[index],
            }),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for CudaKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaKernel")
            .field("name", &self.name)
            .field("parameters", &self.parameters)
            .finish_non_exhaustive()
    }
}

/// The blocks, threads and shared memory of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The blocks of the grid, by dimension.
    pub grid: [u32; 3],
    /// The threads of a block, by dimension.
    pub block: [u32; 3],
    /// The bytes of dynamic shared memory of each block.
    pub shared: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            grid: [1; 3],
            block: [1; 3],
            shared: 0,
        }
    }
}

/// The number of threads of a block of this crate's kernels.
pub const THREADS: u32 = 256;
/// The maximum number of blocks of a launch over elements. Kernels process the remaining elements in a loop.
pub const BLOCKS: usize = 1 << 16;

impl Shape {
    /// Returns a shape with one thread for each element, up to the maximum.
    pub fn each(len: usize) -> Self {
        Self {
            grid: [len.div_ceil(THREADS as usize).clamp(1, BLOCKS) as u32, 1, 1],
            block: [THREADS, 1, 1],
            shared: 0,
        }
    }
}

/// The values of the parameters, one after another.
#[derive(Default)]
pub struct Arguments {
    bytes: Vec<u8>,
    sizes: Vec<usize>,
}

impl Arguments {
    /// Adds an argument.
    pub fn push<T: NoUninit>(&mut self, value: T) {
        self.push_bytes(bytemuck::bytes_of(&value));
    }

    /// Adds an argument by its bytes.
    pub fn push_bytes(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.sizes.push(value.len());
    }
}

/// Launches a function. The driver copies the arguments before it returns.
///
/// # Safety
/// The function must belong to a module that stays loaded until it has run, the arguments must be its parameters, and the context must be
/// current on this thread. The memory that it reads and writes must be used in the order of the stream, and no other code may use it
/// meanwhile.
pub(super) unsafe fn launch(
    stream: &CudaStream,
    function: FunctionHandle,
    shape: Shape,
    arguments: &mut Arguments,
) -> Result<(), CudaError> {
    let Shape { grid, block, shared } = shape;
    let mut rest = arguments.bytes.as_mut_slice();
    let mut places: Vec<*mut c_void> = Vec::with_capacity(arguments.sizes.len());
    for size in &arguments.sizes {
        let (value, others) = rest.split_at_mut(*size);
        places.push(value.as_mut_ptr().cast());
        rest = others;
    }
    let driver = stream.device().driver();
    // SAFETY: the caller guarantees the launch. There is a place for each parameter, and the stream lives.
    unsafe {
        driver.launch(
            function,
            grid[0],
            grid[1],
            grid[2],
            block[0],
            block[1],
            block[2],
            shared,
            stream.handle(),
            places.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    }
}

/// Queues work on a stream that uses memory of other streams. The work comes after the work that is queued on them now, and before work
/// that is queued there later.
pub(super) fn among<E: From<CudaError>>(
    stream: &CudaStream,
    others: &[&CudaStream],
    work: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    for other in others {
        stream.wait_for(other)?;
    }
    let done = work();
    let mut ordered = Ok(());
    for other in others {
        // If the other stream cannot wait, this thread waits.
        let waits = other.wait_for(stream).or_else(|_| stream.wait());
        ordered = ordered.and(waits);
    }
    done.and(ordered.map_err(E::from))
}

/// The description of a launch: its shape, and an argument for each parameter, in order.
#[must_use = "nothing is launched until `launch` is called"]
pub struct Launch<'a> {
    kernel: &'a CudaKernel,
    stream: &'a CudaStream,
    shape: Shape,
    arguments: Arguments,
    /// The streams of buffers among the arguments, except the launch's own.
    others: Vec<&'a CudaStream>,
}

/// A kernel argument that is read: a number, or a buffer or tensor, which is passed as the address of its first element.
pub trait KernelArg<'a>: sealed::Arg<'a> {}

/// A kernel argument that is written: a buffer, or a view of a tensor.
pub trait KernelArgMut<'a>: sealed::ArgMut<'a> {}

/// Elements on a device that are contiguous in memory, with any owner: a [`DeviceBuffer`], a rented buffer, the rows of a chunk of a data
/// set, or a [`DeviceSlice`](super::DeviceSlice). Tensors can view them.
pub trait DeviceElements: sealed::Elements {}

/// Traits that only this crate implements.
pub mod sealed {
    use crate::span::Span;
    use millpond_pool::dtype::DType;

    /// Elements on a device. A `&mut` reference gives exclusive access to them.
    pub trait Elements {
        /// Returns the bytes of the elements, and the type of the elements.
        fn elements(&self) -> (Span<'_>, DType);
    }

    /// An argument that a kernel reads.
    pub trait Arg<'a> {
        /// Adds the argument to a launch.
        fn put(self, launch: &mut super::Launch<'a>);
    }

    /// An argument that a kernel writes.
    pub trait ArgMut<'a> {
        /// Adds the argument to a launch.
        fn put(self, launch: &mut super::Launch<'a>);
    }
}

impl<T: Element> DeviceElements for DeviceBuffer<T> {}

impl<T: Element> sealed::Elements for DeviceBuffer<T> {
    fn elements(&self) -> (Span<'_>, DType) {
        (self.span(), T::DTYPE)
    }
}

impl<'a, T: Element> KernelArgMut<'a> for &'a mut DeviceBuffer<T> {}

impl<'a, T: Element> sealed::ArgMut<'a> for &'a mut DeviceBuffer<T> {
    fn put(self, launch: &mut Launch<'a>) {
        launch.memory(self.address(), self.stream());
    }
}

impl<'a, T: Element> KernelArg<'a> for &'a DeviceBuffer<T> {}

impl<'a, T: Element> sealed::Arg<'a> for &'a DeviceBuffer<T> {
    fn put(self, launch: &mut Launch<'a>) {
        launch.memory(self.address(), self.stream());
    }
}

macro_rules! numbers {
    ($($type:ty)*) => {
        $(
            impl<'a> KernelArg<'a> for $type {}

            impl<'a> sealed::Arg<'a> for $type {
                fn put(self, launch: &mut Launch<'a>) {
                    launch.arguments.push(self);
                }
            }
        )*
    };
}

numbers! { f64 f32 i8 i16 i32 i64 u8 u16 u32 u64 [f32; 2] [f64; 2] bool }

#[cfg(feature = "half")]
numbers! { half::f16 half::bf16 }

impl<'a> Launch<'a> {
    /// Sets the number of blocks along each of up to three dimensions: `4`, `[4, 2]` or `[4, 2, 1]`.
    pub fn grid(mut self, blocks: impl Into<Extent>) -> Self {
        self.shape.grid = blocks.into().0;
        self
    }

    /// Sets the number of threads of a block along each of up to three dimensions.
    pub fn block(mut self, threads: impl Into<Extent>) -> Self {
        self.shape.block = threads.into().0;
        self
    }

    /// Sets the bytes of dynamic shared memory of each block. The default is 0.
    pub fn shared(mut self, bytes: u32) -> Self {
        self.shape.shared = bytes;
        self
    }

    /// Adds the next argument: a number, or a buffer or tensor that the kernel only reads.
    pub fn arg(mut self, argument: impl KernelArg<'a>) -> Self {
        argument.put(&mut self);
        self
    }

    /// Adds the next argument: a buffer that the kernel writes, or the `view_mut` of a tensor.
    pub fn arg_mut(mut self, argument: impl KernelArgMut<'a>) -> Self {
        argument.put(&mut self);
        self
    }

    /// Adds the next argument: a structure that the kernel takes by value.
    pub fn arg_value<T: NoUninit>(mut self, value: T) -> Self {
        self.arguments.push(value);
        self
    }

    #[doc(hidden)]
    pub fn memory(&mut self, address: u64, stream: &'a CudaStream) {
        self.arguments.push(address);
        if stream != self.stream && !self.others.contains(&stream) {
            self.others.push(stream);
        }
    }

    /// Launches the kernel, and does not wait for it. It comes after all work that is queued on the buffers' streams now, and before all
    /// work that is queued there later.
    ///
    /// # Errors
    /// Returns an error if the arguments do not fit the kernel's parameters as far as the driver knows them, if buffers are on another
    /// device, or if the driver refuses. If an error occurs after the launch, this waits for the kernel.
    ///
    /// # Safety
    /// The kernel is foreign code that receives addresses and numbers. The caller must ensure that:
    ///
    /// * the arguments match the parameters in number, order and type. Their number and sizes are checked if the driver knows them;
    ///   their types are never checked;
    /// * the kernel accesses no memory beyond the buffers that are passed to it, and writes only to those that are passed by
    ///   [`arg_mut`](Self::arg_mut);
    /// * the kernel reads only memory that was written before. New buffers contain arbitrary bytes; every bit pattern is a valid
    ///   element, because buffers exist only for such types;
    /// * the kernel's threads do not race among themselves, and the kernel ends.
    pub unsafe fn launch(mut self) -> Result<(), KernelError> {
        let device: &CudaDevice = self.kernel.module.device();
        self.stream.expect_on(device)?;
        for other in &self.others {
            other.expect_on(device)?;
        }
        self.kernel.check(&self.arguments)?;
        let _current = device.enter()?;
        let (kernel, stream, shape) = (self.kernel, self.stream, self.shape);
        let arguments = &mut self.arguments;
        kernel.module.note_launch(stream);
        among(stream, &self.others, || {
            // SAFETY: the module is loaded for as long as the kernel exists, and it waits for the stream before it is unloaded.
            // The streams were ordered above. The caller guarantees the rest.
            let launched = unsafe { launch(stream, kernel.function, shape, arguments) };
            kernel.module.note_launched(stream);
            launched.map_err(|why| kernel.refused(shape, why))
        })
    }
}

impl CudaKernel {
    fn refused(&self, Shape { grid, block, shared }: Shape, why: CudaError) -> KernelError {
        match why {
            CudaError::Driver {
                code: INVALID_VALUE, ..
            } => KernelError::Shape {
                kernel: self.name().to_owned(),
                grid,
                block,
                shared,
                why,
            },
            why => why.into(),
        }
    }
}

impl fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("kernel", &self.kernel.name)
            .field("shape", &self.shape)
            .field("arguments", &self.arguments.sizes.len())
            .finish_non_exhaustive()
    }
}

/// The extent along each of three dimensions. It is made from one, two or three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent([u32; 3]);

impl From<u32> for Extent {
    fn from(x: u32) -> Self {
        Self([x, 1, 1])
    }
}

impl From<[u32; 2]> for Extent {
    fn from([x, y]: [u32; 2]) -> Self {
        Self([x, y, 1])
    }
}

impl From<[u32; 3]> for Extent {
    fn from(all: [u32; 3]) -> Self {
        Self(all)
    }
}
