//! What can be wrong with modules and launches.

use super::error::CudaError;
use thiserror::Error;

/// Why a module could not be loaded, or a kernel of it not be launched.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A call failed for a reason that has nothing to do with kernels.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A text with a zero in it, at which whoever reads it would stop.
    #[error(
        "byte {at} of the text is 0: give source, PTX and options without, and what is no text to `load_image`"
    )]
    NoText {
        /// Where it is.
        at: usize,
    },
    /// What was to be loaded as PTX is an image that a compiler has made.
    #[error("this is no PTX but an image that was made of it: load it with `load_image`")]
    Image,
    /// CUDA C was to be compiled, and there is no compiler.
    #[error(
        "no NVRTC here to compile CUDA C ({why}): `pip install nvidia-cuda-nvrtc-cu12` and set MILLPOND_NVRTC to its libnvrtc.so.12, or install the CUDA toolkit"
    )]
    NoCompiler {
        /// What was looked for.
        why: String,
    },
    /// The compiler found errors in the source.
    #[error("{name} cannot be compiled{}", said(.log))]
    Compile {
        /// What the source is called.
        name: String,
        /// What the compiler said, with the numbers of lines.
        log: String,
    },
    /// The compiler failed for another reason than the source.
    #[error("{call} failed: {name} ({code}){}", said(.log))]
    Compiler {
        /// The function that was called.
        call: &'static str,
        /// What it answered.
        code: i32,
        /// NVRTC's name for that.
        name: String,
        /// What the compiler said; empty where it said nothing.
        log: String,
    },
    /// The driver could not make code of it.
    #[error("the module cannot be loaded: {why}{}", said(.log))]
    Refused {
        /// What the driver answered.
        why: CudaError,
        /// What its compiler said; empty where it said nothing.
        log: String,
    },
    /// There is code, and none for this device.
    #[error(
        "there is no code for cuda:{device}, which is of compute capability {}.{}: compile to PTX of at most that, or for just that",
        .compute.0, .compute.1
    )]
    NoBinary {
        /// The device's number.
        device: u32,
        /// Its compute capability.
        compute: (u32, u32),
    },
    /// The module has no such entry.
    #[error(
        "the module has no entry {name:?}: declare the kernel `extern \"C\" __global__`, so that its name stays as it is"
    )]
    NoEntry {
        /// The name.
        name: String,
    },
    /// A kernel has another number of parameters than it was given.
    #[error("{kernel} has {expected} parameters, and {found} were given")]
    Parameters {
        /// The kernel.
        kernel: String,
        /// Parameters it has.
        expected: usize,
        /// Arguments it was given.
        found: usize,
    },
    /// A parameter is of another size than what was given for it.
    #[error("parameter {index} of {kernel} is of {expected} bytes, and {found} were given")]
    Parameter {
        /// The kernel.
        kernel: String,
        /// Which one, from 0.
        index: usize,
        /// Bytes it has.
        expected: usize,
        /// Bytes it was given.
        found: usize,
    },
    /// The device does not take a grid, or blocks, of this shape.
    #[error(
        "{kernel} cannot be launched with a grid of {grid:?} blocks of {block:?} threads and {shared} bytes of shared memory each: {why}"
    )]
    Shape {
        /// The kernel.
        kernel: String,
        /// Blocks along each of three dimensions.
        grid: [u32; 3],
        /// Threads of a block, the same way.
        block: [u32; 3],
        /// Bytes of dynamic shared memory of a block.
        shared: u32,
        /// What the driver answered.
        why: CudaError,
    },
}

fn said(log: &str) -> String {
    if log.is_empty() {
        return String::new();
    }
    format!(":\n{log}")
}
