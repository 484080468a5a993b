//! Errors of modules and launches.

use super::error::CudaError;
use thiserror::Error;

/// The reason why a module could not be loaded, or why one of its kernels could not be launched.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A call failed for a reason that has nothing to do with kernels.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The text contains a zero byte, at which the driver would stop reading.
    #[error(
        "byte {at} of the text is 0: remove it from source, PTX and options, and load binaries with `load_image`"
    )]
    NoText {
        /// The position of the zero byte.
        at: usize,
    },
    /// The text is an image that a compiler has made, and not PTX.
    #[error("this is not PTX but a compiled image: load it with `load_image`")]
    Image,
    /// CUDA C cannot be compiled, because no compiler was found.
    #[error(
        "cannot compile CUDA C without NVRTC ({why}): run `pip install nvidia-cuda-nvrtc-cu12` and set MILLPOND_NVRTC to its libnvrtc.so.12, or install the CUDA toolkit"
    )]
    NoCompiler {
        /// The reason why no compiler was loaded.
        why: String,
    },
    /// The compiler found errors in the source.
    #[error("{name} cannot be compiled{}", said(.log))]
    Compile {
        /// The name of the source.
        name: String,
        /// The compiler's messages, with line numbers.
        log: String,
    },
    /// The compiler failed for a reason other than the source.
    #[error("{call} failed: {name} ({code}){}", said(.log))]
    Compiler {
        /// The function that was called.
        call: &'static str,
        /// The code that it returned.
        code: i32,
        /// NVRTC's name of the code.
        name: String,
        /// The compiler's messages, which may be empty.
        log: String,
    },
    /// The driver could not load the code.
    #[error("the module cannot be loaded: {why}{}", said(.log))]
    Refused {
        /// The driver's error.
        why: CudaError,
        /// The messages of the driver's compiler, which may be empty.
        log: String,
    },
    /// The image contains code, but none for this device.
    #[error(
        "the image has no code for cuda:{device}, whose compute capability is {}.{}: compile to PTX for at most this capability, or to a binary for this capability",
        .compute.0, .compute.1
    )]
    NoBinary {
        /// The device's number.
        device: u32,
        /// Its compute capability.
        compute: (u32, u32),
    },
    /// The emulated driver does not know what this kernel does.
    #[error(
        "the emulated driver cannot run the code of the kernel {name:?}: define what the kernel does with `emulate_kernel` before you look it up"
    )]
    NotEmulated {
        /// The name.
        name: String,
    },
    /// The name of an emulated kernel is one of the library's own.
    #[error(
        "the kernel name {name:?} is reserved for this library: choose a name that does not begin with `millpond_`"
    )]
    Reserved {
        /// The name.
        name: String,
    },
    /// The module does not have this entry.
    #[error(
        "the module has no entry {name:?}: declare the kernel `extern \"C\" __global__`, so that its name stays as it is"
    )]
    NoEntry {
        /// The name.
        name: String,
    },
    /// The number of arguments differs from that of the kernel's parameters.
    #[error("{kernel} has {expected} parameters, but {found} arguments were passed")]
    Parameters {
        /// The kernel.
        kernel: String,
        /// The number of parameters.
        expected: usize,
        /// The number of arguments.
        found: usize,
    },
    /// The size of an argument differs from that of the parameter.
    #[error("parameter {index} of {kernel} has {expected} bytes, but the argument has {found}")]
    Parameter {
        /// The kernel.
        kernel: String,
        /// The index of the parameter, from 0.
        index: usize,
        /// The bytes of the parameter.
        expected: usize,
        /// The bytes of the argument.
        found: usize,
    },
    /// The device does not support a grid or blocks of this shape.
    #[error(
        "{kernel} cannot be launched with a grid of {grid:?} blocks of {block:?} threads and {shared} bytes of shared memory each: {why}"
    )]
    Shape {
        /// The kernel.
        kernel: String,
        /// The number of blocks along each of three dimensions.
        grid: [u32; 3],
        /// The number of threads of a block along each of three dimensions.
        block: [u32; 3],
        /// The bytes of dynamic shared memory of a block.
        shared: u32,
        /// The driver's error.
        why: CudaError,
    },
}

fn said(log: &str) -> String {
    if log.is_empty() {
        return String::new();
    }
    format!(":\n{log}")
}
