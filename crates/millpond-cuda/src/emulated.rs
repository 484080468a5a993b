//! Kernels of the emulated driver that are closures.
//!
//! The emulated driver does not run a device's code. It calls a function that was registered under the kernel's name, and it reads and
//! writes device memory for this function. A closure runs only in a launch of its kernel. The launch is unsafe: its caller guarantees that
//! the kernel may read and write the memory that it accesses, as for code of a device. The library's own kernels are launched by safe
//! functions, so no closure can replace them.

use super::abi::{Code, LAUNCH_FAILED, SUCCESS};
use super::callback;
use super::driver::{Driver, Emulated};
use super::error::CudaError;
use super::kernel_error::KernelError;
use bytemuck::AnyBitPattern;
use millpond_pool::dtype::Element;
use std::ffi::CString;
use std::fmt;

/// The prefix of the names of the library's own kernels.
const OWN: &str = "millpond_";

fn check(call: &'static str, code: Code) -> Result<(), CudaError> {
    if code == SUCCESS {
        return Ok(());
    }
    Driver::get()?.check(call, code)
}

/// A launch of a kernel that is a closure. It reads and writes device memory by address.
///
/// An address that is not allocated is an error, and nothing is read or written. The work that was queued on the stream before the launch
/// is complete.
///
/// Invariant: the caller of the launch guarantees that the kernel may read and write the memory that it accesses.
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
        // SAFETY: by the invariant.
        let code = unsafe { self.emulated.read(from, bytemuck::cast_slice_mut(to)) };
        check("millpond_emu_read", code)
    }

    /// Copies elements to device memory.
    ///
    /// # Errors
    /// Returns an error if not all of these bytes are allocated.
    pub fn write<T: Element>(&self, to: u64, from: &[T]) -> Result<(), CudaError> {
        // SAFETY: by the invariant.
        let code = unsafe { self.emulated.write(to, bytemuck::cast_slice(from)) };
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
        /// `places` must point to an address for each parameter. The parameter's bytes must be at that address.
        unsafe fn at(places: *const *const u8) -> Self;
    }
}

/// Returns the bytes of a parameter. Parameters of other sizes do not compile.
const fn bytes_of<T>() -> usize {
    let bytes = size_of::<T>();
    assert!(
        bytes > 0 && bytes <= 4096,
        "a parameter of a kernel has 1 to 4096 bytes"
    );
    bytes
}

/// The parameters of a kernel, as a tuple with up to twelve values. A buffer is passed as its address, a [`u64`]. A parameter has at most
/// 4,096 bytes.
pub trait KernelParameters: sealed::Sealed {}

impl sealed::Sealed for () {
    const SIZES: &'static [usize] = &[];

    unsafe fn at(_: *const *const u8) -> Self {}
}

impl KernelParameters for () {}

macro_rules! parameters {
    ($($name:ident $index:literal)*) => {
        impl<$($name: AnyBitPattern),*> sealed::Sealed for ($($name,)*) {
            const SIZES: &'static [usize] = &[$(bytes_of::<$name>()),*];

            unsafe fn at(places: *const *const u8) -> Self {
                let place = |index| {
                    // SAFETY: the caller guarantees an address for each parameter.
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
/// The number must be that of a [`Kernel`] of this type, `places` must point to an address for each parameter, and `shape` to six numbers.
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
    // The result if the closure panics.
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

/// Registers a closure as the kernel of this name on the emulated driver, so that a program with its own kernels can be tested without a
/// GPU. Does nothing on a real driver, which runs the kernel's code.
///
/// The closure runs once for each launch, in the order of the stream, and does the work of all threads. `P` is the tuple of the kernel's
/// parameters. A later call with the same name replaces the closure. Closures are never dropped. An error or a panic of the closure makes
/// the launch fail, as a fault in a device's code does. The closure must use CUDA only through the [`EmulatedLaunch`].
///
/// Register the closure before the kernel is looked up in its module. Only the name of the entry has to be in the module.
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
/// Returns [`KernelError::Reserved`] if the name begins with `millpond_`, [`KernelError::NoEntry`] if it contains a zero, and
/// [`CudaError::NoDriver`] if there is no driver.
pub fn emulate_kernel<P, F>(name: &str, kernel: F) -> Result<(), KernelError>
where
    P: KernelParameters,
    F: Fn(&EmulatedLaunch<'_>, P) -> Result<(), CudaError> + Send + Sync + 'static,
{
    if name.starts_with(OWN) {
        return Err(KernelError::Reserved {
            name: name.to_owned(),
        });
    }
    let name = CString::new(name).map_err(|_| KernelError::NoEntry {
        name: name.to_owned(),
    })?;
    let Some(emulated) = Driver::get()?.emulated() else {
        return Ok(());
    };
    // It is never freed, because a launch may run it at any time.
    let number = Box::into_raw(Box::new(Kernel {
        emulated,
        run: kernel,
    }));
    let number = number.expose_provenance();
    // SAFETY: the function takes the number of a kernel of this type and parameters of these sizes. The closure may run on any thread.
    let code = unsafe { emulated.register(&name, P::SIZES, run::<P, F>, number) };
    Ok(check("millpond_emu_register", code)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = include_str!("kernels/tensor.ptx");

    #[test]
    fn no_closure_replaces_a_kernel_of_the_library() {
        let entries = PTX
            .lines()
            .filter_map(|line| line.strip_prefix(".visible .entry "));
        let mut found = 0;
        for name in entries.map(|entry| entry.trim_end_matches('(')) {
            found += 1;
            let refused = emulate_kernel(name, |_, (): ()| Ok(()));
            assert!(matches!(refused, Err(KernelError::Reserved { .. })), "{name}");
        }
        assert!(found > 30, "{found} entries");
    }
}
