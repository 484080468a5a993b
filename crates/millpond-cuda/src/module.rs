//! Modules: code for a device, loaded from PTX or from a compiled image.

use super::abi::{
    FunctionHandle, INVALID_VALUE, JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES, ModuleHandle, NO_BINARY, NOT_FOUND,
};
use super::captured;
use super::code::Code;
use super::device::CudaDevice;
use super::error::CudaError;
use super::kernel_error::KernelError;
use super::later;
use super::stream::CudaStream;
use super::streams::Streams;
use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The bytes of the buffer for the compiler's messages.
const LOG: usize = 16 << 10;

/// Code on a device. Cloning makes another handle. The code is unloaded with the last handle of the module and its kernels, after the
/// streams on which these were launched have completed their work. It is not unloaded while streams are captured.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, CudaModule, CudaStream, DevicePool};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
/// // The PTX that NVRTC or nvcc make of `extern "C" __global__ void scale(float *out, const float *in, float a, uint64_t n)`.
/// let ptx = ".version 7.0\n.target sm_70\n.address_size 64\n
///     .visible .entry scale(.param .u64 out, .param .u64 in, .param .f32 a, .param .u64 n) {
///         .reg .pred %p; .reg .b32 %r<4>; .reg .f32 %f<3>; .reg .b64 %rd<8>;
///         ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [in]; ld.param.f32 %f1, [a]; ld.param.u64 %rd3, [n];
///         mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
///         mad.wide.u32 %rd4, %r1, %r2, 0; cvt.u64.u32 %rd5, %r3; add.u64 %rd4, %rd4, %rd5;
///         setp.ge.u64 %p, %rd4, %rd3; @%p ret;
///         shl.b64 %rd4, %rd4, 2; add.u64 %rd1, %rd1, %rd4; add.u64 %rd2, %rd2, %rd4;
///         ld.global.f32 %f2, [%rd2]; mul.f32 %f2, %f2, %f1; st.global.f32 [%rd1], %f2; ret;
///     }";
/// let scale = CudaModule::load(&device, ptx)?.kernel("scale")?;
/// let input = pool.alloc_from(&[1.0f32, 2.0, 3.0], &stream)?;
/// let mut output = pool.alloc::<f32>(3, &stream)?;
/// let launch = scale.launch(&stream).block(256).arg_mut(&mut output).arg(&input).arg(0.5f32).arg(3u64);
/// // SAFETY: the arguments are the kernel's parameters, and it touches no more than 3 elements of each buffer.
/// unsafe { launch.launch() }?;
/// assert_eq!(output.to_vec()?, [0.5, 1.0, 1.5]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CudaModule(Arc<Inner>);

struct Inner {
    device: CudaDevice,
    code: Code,
    /// The streams on which its kernels were launched. They are waited for before the code is unloaded.
    streams: Mutex<Streams>,
}

impl Inner {
    fn new(device: &CudaDevice, code: Code) -> Self {
        Self {
            device: device.clone(),
            code,
            streams: Mutex::new(Streams::new(device)),
        }
    }

    /// Unloads the code. Returns `false` if that must be tried later: while this library captures any stream, or another library captures a
    /// stream that the code was launched on. The graph may contain the code, and the stream cannot be waited for.
    fn end(&mut self) -> bool {
        if captured::any() {
            return false;
        }
        let Ok(_current) = self.device.enter_beside() else {
            return true;
        };
        let streams = self.streams.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Streams of other libraries need not live as long as the module. They were marked when kernels of the module were
        // launched on them.
        streams.outlive_others(false);
        let ended = streams.synchronize();
        let ended = ended.and_then(|()| self.code.unload(self.device.driver()));
        // If the driver refuses for another reason, the code stays loaded until the context ends.
        !ended.is_err_and(|error| error.is_of_capture())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.end() {
            let streams = self.streams.get_mut().unwrap_or_else(PoisonError::into_inner);
            let streams = std::mem::replace(streams, Streams::new(&self.device));
            let remains = Self {
                device: self.device.clone(),
                code: Code(self.code.0),
                streams: Mutex::new(streams),
            };
            later::keep(remains, self.device.number(), 0);
        }
    }
}

impl Code {
    /// Loads a text that ends with a zero, or a binary. The context must be current on this thread.
    ///
    /// # Safety
    /// A binary must be a whole image as written by a compiler, because the driver does not receive its length.
    pub(super) unsafe fn load(device: &CudaDevice, image: *const c_void) -> Result<Self, KernelError> {
        let driver = device.driver();
        let mut module = ModuleHandle::NULL;
        let mut log = vec![0_u8; LOG];
        let mut options = [JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES];
        // The driver takes this number in the place of a pointer. The last byte stays zero.
        let mut values = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(LOG - 1)];
        // SAFETY: the caller guarantees the image, there are two options, and the log has at least as many bytes as the second option says.
        let loaded = unsafe {
            driver.module_load(
                &raw mut module,
                image,
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        loaded.map_err(|why| match why {
            CudaError::Driver { code: NO_BINARY, .. } => no_binary(device),
            CudaError::Driver { .. } if !why.is_out_of_memory() => {
                let end = log.iter().position(|byte| *byte == 0).unwrap_or(0);
                let log = String::from_utf8_lossy(&log[..end]).trim().to_owned();
                KernelError::Refused { why, log }
            }
            why => why.into(),
        })?;
        Ok(Self(module))
    }

    /// Returns a function of the module. The context must be current on this thread.
    pub(super) fn function(&self, device: &CudaDevice, name: &str) -> Result<FunctionHandle, KernelError> {
        let missing = || KernelError::NoEntry {
            name: name.to_owned(),
        };
        let text = CString::new(name).map_err(|_| missing())?;
        let mut function = FunctionHandle::NULL;
        // SAFETY: the module is loaded, the name ends with a zero, and the pointer is to a local.
        let found = unsafe {
            device
                .driver()
                .module_function(&raw mut function, self.0, text.as_ptr())
        };
        match found {
            Ok(()) => Ok(function),
            Err(CudaError::Driver { code: NOT_FOUND, .. }) => Err(missing()),
            Err(CudaError::Driver { code: NO_BINARY, .. }) if device.is_emulated() => {
                Err(KernelError::NotEmulated {
                    name: name.to_owned(),
                })
            }
            Err(CudaError::Driver { code: NO_BINARY, .. }) => Err(no_binary(device)),
            Err(why) => Err(why.into()),
        }
    }
}

fn no_binary(device: &CudaDevice) -> KernelError {
    KernelError::NoBinary {
        device: device.number(),
        compute: device.compute_capability(),
    }
}

/// Returns the bytes of each parameter of a function, or `None` if the driver is too old to know them. The context must be current on this
/// thread.
pub(super) fn parameters(
    device: &CudaDevice,
    function: FunctionHandle,
) -> Result<Option<Vec<usize>>, CudaError> {
    let mut sizes = Vec::new();
    loop {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: the function is of a module that is loaded, and the pointers are to locals.
        let told = unsafe {
            device
                .driver()
                .function_parameter(function, sizes.len(), &raw mut offset, &raw mut bytes)
        };
        match told {
            Ok(()) => sizes.push(bytes),
            // There are no more parameters.
            Err(CudaError::Driver {
                code: INVALID_VALUE, ..
            }) => return Ok(Some(sizes)),
            Err(CudaError::Missing { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

impl CudaModule {
    /// Loads PTX, which the driver compiles for the device. The driver waits for all work of the device, so load modules before the work
    /// that must not be interrupted. Dropping the module waits too.
    ///
    /// # Errors
    /// Returns an error with the compiler's messages if the driver cannot load the PTX.
    pub fn load(device: &CudaDevice, ptx: &str) -> Result<Self, KernelError> {
        // A compiled image can be valid UTF-8 too. The driver would read as far as the image's headers say.
        if ptx.starts_with('\u{7f}') {
            return Err(KernelError::Image);
        }
        let text = CString::new(ptx).map_err(|error| KernelError::NoText {
            at: error.nul_position(),
        })?;
        // SAFETY: the text ends with a zero.
        unsafe { Self::load_at(device, text.as_ptr().cast()) }
    }

    /// Loads a compiled image: a cubin, a fatbin, or PTX that ends with a zero.
    ///
    /// # Errors
    /// Returns an error if the image has no code for the device, or if the driver cannot load it.
    ///
    /// # Safety
    /// `image` must be a complete image of this kind. The driver does not receive its length, and reads as far as its headers say.
    pub unsafe fn load_image(device: &CudaDevice, image: &[u8]) -> Result<Self, KernelError> {
        // SAFETY: the caller guarantees the image.
        unsafe { Self::load_at(device, image.as_ptr().cast()) }
    }

    /// # Safety
    /// The requirements of [`Code::load`].
    unsafe fn load_at(device: &CudaDevice, image: *const c_void) -> Result<Self, KernelError> {
        later::retry();
        let _current = device.enter_beside()?;
        // SAFETY: the caller guarantees the image.
        let code = unsafe { Code::load(device, image) }?;
        Ok(Self(Arc::new(Inner::new(device, code))))
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.0.device
    }

    /// Records that a kernel of the module is about to be launched on a stream.
    pub(super) fn note_launch(&self, stream: &CudaStream) {
        let streams = &self.0.streams;
        let mut streams = streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.number_of(stream);
    }

    /// Notes that a kernel of the module was launched on a stream. Another library may end its stream before the module is
    /// unloaded, so the stream is marked now.
    pub(super) fn note_launched(&self, stream: &CudaStream) {
        if !stream.raw().stays() {
            let streams = &self.0.streams;
            let mut streams = streams.lock().unwrap_or_else(PoisonError::into_inner);
            streams.mark_others(stream);
        }
    }

    pub(super) fn code(&self) -> &Code {
        &self.0.code
    }
}

impl fmt::Debug for CudaModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaModule")
            .field("device", &self.device().number())
            .finish_non_exhaustive()
    }
}
