//! Compilation of a program's own CUDA C, and the choice of the architecture.

use super::device::CudaDevice;
use super::kernel_error::KernelError;
use super::module::CudaModule;
use super::nvrtc::Nvrtc;
use std::ffi::CString;
use std::path::Path;

/// The options with which [`CudaModule::compile_with`] compiles CUDA C.
///
/// The compiler is NVRTC, which is loaded on first use: `libnvrtc.so` from the loader's path, or the library that the environment variable
/// `MILLPOND_NVRTC` names. Unless an option says otherwise, it compiles for the device's compute capability, or for the newest lower one
/// that it knows. If several versions are installed, one that is no newer than the driver is preferred. A driver refuses PTX of a newer
/// compiler, so a newer compiler compiles to a binary for the device instead. Nothing is stored on disk.
///
/// ```
/// use millpond::cuda::CompileOptions;
///
/// let options = CompileOptions::new().name("step.cu").define("WIDTH", 128).option("--use_fast_math");
/// assert_eq!(options.arguments(), ["--define-macro=WIDTH=128", "--use_fast_math"]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompileOptions {
    name: Option<String>,
    arguments: Vec<String>,
}

impl CompileOptions {
    /// Creates empty options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the name of the source in errors. The default is `kernel.cu`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Defines a macro.
    #[must_use]
    pub fn define(self, name: impl std::fmt::Display, value: impl std::fmt::Display) -> Self {
        self.option(format!("--define-macro={name}={value}"))
    }

    /// Adds a folder in which `#include` searches.
    #[must_use]
    pub fn include(self, folder: impl AsRef<Path>) -> Self {
        self.option(format!("--include-path={}", folder.as_ref().display()))
    }

    /// Adds any other option of NVRTC, such as `--std=c++17`.
    #[must_use]
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.arguments.push(option.into());
        self
    }

    /// Returns the options that the compiler receives after the architecture.
    #[must_use]
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// Compiles a source to PTX for a device.
    ///
    /// # Errors
    /// Returns the errors of [`CudaModule::compile`], except those of the driver.
    pub fn to_ptx(&self, device: &CudaDevice, source: &str) -> Result<String, KernelError> {
        let nvrtc = Nvrtc::get()?;
        let architecture = architecture(device.compute_capability(), &nvrtc.architectures());
        let options = self.options(&format!("compute_{architecture}"))?;
        nvrtc.compile(&self.source_name()?, &text(source)?, &options)
    }

    /// Compiles a source to a binary for a device if the compiler is newer than the driver, which may then refuse the
    /// compiler's PTX. Returns `None` if the compiler is not known to be newer, if the options name an architecture, or if the
    /// compiler cannot make a binary for the device.
    fn to_binary(&self, device: &CudaDevice, source: &str) -> Result<Option<Vec<u8>>, KernelError> {
        let nvrtc = Nvrtc::get()?;
        let driver = CudaDevice::driver_version()?;
        if nvrtc.version().is_none_or(|version| version <= driver) || !nvrtc.makes_binaries() {
            return Ok(None);
        }
        let made = binary_architecture(device.compute_capability(), &nvrtc.architectures());
        let Some(architecture) = made.filter(|_| !self.says_architecture()) else {
            return Ok(None);
        };
        let options = self.options(&format!("sm_{architecture}"))?;
        let binary = nvrtc.compile_binary(&self.source_name()?, &text(source)?, &options)?;
        Ok(Some(binary))
    }

    fn says_architecture(&self) -> bool {
        let chosen = ["--gpu-architecture", "-arch"];
        let said = |option: &String| chosen.iter().any(|name| option.starts_with(name));
        self.arguments.iter().any(said)
    }

    /// Returns the options for the compiler. They name `architecture` unless the arguments name another one.
    fn options(&self, architecture: &str) -> Result<Vec<CString>, KernelError> {
        let own = (!self.says_architecture()).then(|| format!("--gpu-architecture={architecture}"));
        own.iter()
            .chain(&self.arguments)
            .map(|option| text(option))
            .collect()
    }

    fn source_name(&self) -> Result<CString, KernelError> {
        text(self.name.as_deref().unwrap_or("kernel.cu"))
    }
}

/// Returns a device's compute capability, or the newest lower one that the compiler knows, because newer devices also run its code. If the
/// compiler knows no such architecture, this returns the device's own, and the compiler reports the error.
fn architecture((major, minor): (u32, u32), known: &[u32]) -> u32 {
    let own = major * 10 + minor;
    let older = known.iter().copied().filter(|known| *known <= own);
    older.max().unwrap_or(own)
}

/// Returns the newest architecture known to the compiler whose binaries run on the device. It has the major version of the
/// device and no newer minor version.
fn binary_architecture((major, minor): (u32, u32), known: &[u32]) -> Option<u32> {
    let own = known.iter().copied();
    own.filter(|known| known / 10 == major && known % 10 <= minor)
        .max()
}

fn text(text: &str) -> Result<CString, KernelError> {
    CString::new(text).map_err(|error| KernelError::NoText {
        at: error.nul_position(),
    })
}

impl CudaModule {
    /// Compiles CUDA C for the device, and loads it. Kernels must be declared `extern "C" __global__`, so that their names are not mangled.
    ///
    /// ```
    /// use millpond::cuda::{CudaDevice, CudaError, CudaModule, CudaStream, DevicePool, KernelError};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let source = r#"
    ///     extern "C" __global__ void scale(float *out, const float *in, float a, unsigned long long n) {
    ///         unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    ///         if (i < n) out[i] = a * in[i];
    ///     }
    /// "#;
    /// let device = match CudaDevice::get(0) {
    ///     Err(CudaError::NoDriver) => return Ok(()),
    ///     device => device?,
    /// };
    /// let module = match CudaModule::compile(&device, source) {
    ///     Err(KernelError::NoCompiler { .. }) => return Ok(()),
    ///     module => module?,
    /// };
    /// let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
    /// let input = pool.alloc_from(&[1.0f32, 2.0, 3.0], &stream)?;
    /// let mut output = pool.alloc::<f32>(3, &stream)?;
    /// let scale = module.kernel("scale")?;
    /// let launch = scale.launch(&stream).block(256).arg_mut(&mut output).arg(&input).arg(0.5f32).arg(3u64);
    /// // SAFETY: the arguments are the kernel's parameters, and it touches no more than 3 elements of each buffer.
    /// unsafe { launch.launch() }?;
    /// assert_eq!(output.to_vec()?, [0.5, 1.0, 1.5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`KernelError::NoCompiler`] if NVRTC is not installed, [`KernelError::Compile`] with the compiler's log if the source has
    /// errors, and the errors of [`load`](Self::load).
    pub fn compile(device: &CudaDevice, source: &str) -> Result<Self, KernelError> {
        Self::compile_with(device, source, &CompileOptions::new())
    }

    /// Compiles CUDA C with options, and loads it.
    ///
    /// # Errors
    /// Returns the errors of [`compile`](Self::compile), and [`KernelError::Compiler`] if the compiler does not know an option.
    pub fn compile_with(
        device: &CudaDevice,
        source: &str,
        options: &CompileOptions,
    ) -> Result<Self, KernelError> {
        match options.to_binary(device, source)? {
            // SAFETY: the image is the complete binary that the compiler has made.
            Some(binary) => unsafe { Self::load_image(device, &binary) },
            None => Self::load(device, &options.to_ptx(device, source)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_architecture_that_the_compiler_and_device_support_is_chosen() {
        let known = [50, 75, 80, 86, 90];
        assert_eq!(architecture((8, 6), &known), 86);
        assert_eq!(architecture((8, 9), &known), 86, "a newer device runs it");
        assert_eq!(architecture((12, 0), &known), 90);
        assert_eq!(
            architecture((3, 5), &known),
            35,
            "the compiler says that it has none"
        );
        assert_eq!(architecture((7, 0), &[]), 70, "too old to be asked");
    }

    #[test]
    fn a_binary_has_the_major_version_of_the_device() {
        let known = [50, 75, 80, 86, 90, 120];
        assert_eq!(binary_architecture((8, 9), &known), Some(86));
        assert_eq!(binary_architecture((8, 0), &known), Some(80));
        assert_eq!(binary_architecture((12, 0), &known), Some(120));
        assert_eq!(binary_architecture((10, 0), &known), None);
    }
}
