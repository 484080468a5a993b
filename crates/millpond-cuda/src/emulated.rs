//! Kernels of the emulated driver that are closures.
//!
//! The emulated driver does not run a device's code. It calls a function that was registered under the kernel's name, and it reads and
//! writes device memory for this function.

use super::abi::{Code, INVALID_VALUE, LAUNCH_FAILED, SUCCESS};
use super::callback;
use super::driver::{Driver, Emulated};
use super::error::CudaError;
use bytemuck::AnyBitPattern;
use millpond_pool::dtype::Element;
use std::ffi::CString;
use std::fmt;

fn check(call: &'static str, code: Code) -> Result<(), CudaError> {
    if code == SUCCESS {
        return Ok(());
    }
    Driver::get()?.check(call, code)
}

/// A launch of a kernel that is a closure. It reads and writes device memory by address.
///
/// Addresses are checked: memory that is not allocated is an error, and nothing is read or written. The work that is queued before the
/// launch is complete.
pub struct EmulatedLaunch<'a> {
    emulated: &'a Emulated,
    grid: [u32; 3],
    block: [u32; 3],
}

impl EmulatedLaunch<'_> {
    /// Returns the number of blocks in each dimension.
    #[must_use]
    pub fn grid(&self) -> [u32; 3] {
        self.grid
    }

    /// Returns the number of threads of a block in each dimension.
    #[must_use]
    pub fn block(&self) -> [u32; 3] {
        self.block
    }

    /// Copies elements from device memory.
    ///
    /// # Errors
    /// Returns an error if not all of these bytes are allocated.
    pub fn read<T: Element>(&self, from: u64, to: &mut [T]) -> Result<(), CudaError> {
        let to = bytemuck::cast_slice_mut::<T, u8>(to);
        // SAFETY: there is room for so many bytes, and all bit patterns are values of `T`.
        let code = unsafe { (self.emulated.read)(to.as_mut_ptr(), from, to.len()) };
        check("millpond_emu_read", code)
    }

    /// Copies elements to device memory.
    ///
    /// # Errors
    /// Returns an error if not all of these bytes are allocated.
    pub fn write<T: Element>(&self, to: u64, from: &[T]) -> Result<(), CudaError> {
        let from = bytemuck::cast_slice::<T, u8>(from);
        // SAFETY: there are so many bytes.
        let code = unsafe { (self.emulated.write)(to, from.as_ptr(), from.len()) };
        check("millpond_emu_write", code)
    }
}

impl fmt::Debug for EmulatedLaunch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmulatedLaunch")
            .field("grid", &self.grid)
            .field("block", &self.block)
            .finish_non_exhaustive()
    }
}

mod sealed {
    pub trait Sealed: Sized {
        /// The bytes of each parameter.
        const SIZES: &'static [usize];

        /// Returns the values of the parameters.
        ///
        /// # Safety
        /// There must be a place for each parameter, and it must have the parameter's bytes.
        unsafe fn at(places: *const *const u8) -> Self;
    }
}

/// The parameters of a kernel, as a tuple with up to twelve values. A buffer is its address, a [`u64`].
pub trait KernelParameters: sealed::Sealed {}

impl sealed::Sealed for () {
    const SIZES: &'static [usize] = &[];

    unsafe fn at(_: *const *const u8) -> Self {}
}

impl KernelParameters for () {}

macro_rules! parameters {
    ($($name:ident $index:literal)*) => {
        impl<$($name: AnyBitPattern),*> sealed::Sealed for ($($name,)*) {
            const SIZES: &'static [usize] = &[$(size_of::<$name>()),*];

            unsafe fn at(places: *const *const u8) -> Self {
                let place = |index| {
                    // SAFETY: the caller guarantees a place for each parameter.
                    unsafe { *places.add(index) }
                };
                ($(
                    // SAFETY: the place has these bytes, and all bit patterns are values of the type.
                    unsafe { place($index).cast::<$name>().read_unaligned() },
                )*)
            }
        }

        impl<$($name: AnyBitPattern),*> KernelParameters for ($($name,)*) {}
    };
}

parameters!(A 0);
parameters!(A 0 B 1);
parameters!(A 0 B 1 C 2);
parameters!(A 0 B 1 C 2 D 3);
parameters!(A 0 B 1 C 2 D 3 E 4);
parameters!(A 0 B 1 C 2 D 3 E 4 F 5);
parameters!(A 0 B 1 C 2 D 3 E 4 F 5 G 6);
parameters!(A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7);
parameters!(A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8);
parameters!(A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8 J 9);
parameters!(A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8 J 9 K 10);
parameters!(A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8 J 9 K 10 L 11);

/// A registered kernel. It stays registered until the process ends.
struct Kernel<F> {
    emulated: Emulated,
    run: F,
}

/// The function that the emulated driver calls.
///
/// # Safety
/// The number must be that of a [`Kernel`] of this type, and there must be a place for each parameter and six numbers.
unsafe extern "C" fn run<P: KernelParameters, F>(
    kernel: usize,
    places: *const *const u8,
    shape: *const u32,
) -> Code
where
    F: Fn(&EmulatedLaunch<'_>, P) -> Result<(), CudaError>,
{
    // SAFETY: the caller guarantees the kernel, which is never freed.
    let kernel = unsafe { &*std::ptr::with_exposed_provenance::<Kernel<F>>(kernel) };
    // SAFETY: the caller guarantees the numbers.
    let [gx, gy, gz, bx, by, bz] = unsafe { shape.cast::<[u32; 6]>().read() };
    let launch = EmulatedLaunch {
        emulated: &kernel.emulated,
        grid: [gx, gy, gz],
        block: [bx, by, bz],
    };
    // What a panic leaves behind.
    let mut code = LAUNCH_FAILED;
    callback::run(|| {
        // SAFETY: the caller guarantees the places, which have the sizes that were registered.
        let parameters = unsafe { P::at(places) };
        code = match (kernel.run)(&launch, parameters) {
            Ok(()) => SUCCESS,
            Err(CudaError::Driver { code, .. }) => code,
            Err(_) => LAUNCH_FAILED,
        };
    });
    code
}

/// Makes a closure the kernel of this name on the emulated driver, so that a program with kernels of its own can be tested without a GPU.
/// Does nothing on a real driver, which runs the kernel's code.
///
/// The closure runs once for each launch, in the order of the stream, and does the work of all threads. `P` is the tuple of the
/// kernel's parameters. A later call with the same name replaces the closure. An error or a panic of the closure makes the launch fail as
/// an error of a device's code does. The closure must not use CUDA except by the [`EmulatedLaunch`].
///
/// Register the closure before the module's kernel is looked up. In the module only the name of the entry counts.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, CudaModule, CudaStream, DevicePool, emulate_kernel};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # const PTX: &str = ".version 7.0\n.target sm_70\n.address_size 64\n
/// #     .visible .entry negate(.param .u64 out, .param .u64 n) {
/// #         .reg .pred %p; .reg .b32 %r<4>; .reg .f32 %f<3>; .reg .b64 %rd<8>;
/// #         ld.param.u64 %rd1, [out]; ld.param.u64 %rd3, [n];
/// #         mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
/// #         mad.wide.u32 %rd4, %r1, %r2, 0; cvt.u64.u32 %rd5, %r3; add.u64 %rd4, %rd4, %rd5;
/// #         setp.ge.u64 %p, %rd4, %rd3; @%p ret;
/// #         shl.b64 %rd4, %rd4, 2; add.u64 %rd1, %rd1, %rd4;
/// #         ld.global.f32 %f2, [%rd1]; neg.f32 %f2, %f2; st.global.f32 [%rd1], %f2; ret;
/// #     }";
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// // What the device does for `extern "C" __global__ void negate(float *x, uint64_t n)`.
/// emulate_kernel("negate", |launch, (x, n): (u64, u64)| {
///     let mut values = vec![0.0f32; n as usize];
///     launch.read(x, &mut values)?;
///     values.iter_mut().for_each(|value| *value = -*value);
///     launch.write(x, &values)
/// })?;
///
/// let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
/// let mut x = pool.alloc_from(&[1.0f32, -2.0], &stream)?;
/// let negate = CudaModule::load(&device, PTX)?.kernel("negate")?;
/// // SAFETY: the arguments are the kernel's parameters.
/// unsafe { negate.launch(&stream).block(2).arg_mut(&mut x).arg(2u64).launch() }?;
/// assert_eq!(x.to_vec()?, [-1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns [`CudaError::NoDriver`] without a driver. Returns an error if the name contains a zero, or if a parameter has no bytes or
/// more than 4,096.
pub fn emulate_kernel<P, F>(name: &str, kernel: F) -> Result<(), CudaError>
where
    P: KernelParameters,
    F: Fn(&EmulatedLaunch<'_>, P) -> Result<(), CudaError> + Send + Sync + 'static,
{
    const CALL: &str = "millpond_emu_register";
    let Some(emulated) = Driver::get()?.emulated() else {
        return Ok(());
    };
    let Ok(name) = CString::new(name) else {
        return check(CALL, INVALID_VALUE);
    };
    let number = Box::into_raw(Box::new(Kernel {
        emulated,
        run: kernel,
    }));
    // SAFETY: the name is a C string, and the slice has its length. The function takes the number of this kernel, which is freed only if
    // it was refused, and parameters of these sizes. The closure may run on any thread.
    let code = unsafe {
        (emulated.register)(
            name.as_ptr(),
            P::SIZES.as_ptr(),
            P::SIZES.len(),
            0,
            Some(run::<P, F>),
            number.expose_provenance(),
        )
    };
    if code != SUCCESS {
        // SAFETY: it was made above, and nobody has it.
        drop(unsafe { Box::from_raw(number) });
    }
    check(CALL, code)
}
