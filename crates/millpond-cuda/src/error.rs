//! Errors of a CUDA driver and of requests to it.

use millpond_engine::SourceError;
use thiserror::Error;

/// The reason why an operation of CUDA failed. Calls of the driver never panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver on this machine. The stub library of a toolkit does not count as a driver.
    #[error(
        "no CUDA driver was found: the loader finds no libcuda.so.1, or only the stub that the CUDA toolkit provides for linking (error 34); install NVIDIA's driver, remove the toolkit's folder `stubs` from LD_LIBRARY_PATH, or run the program with `millpond cuda-emu -- PROGRAM`"
    )]
    NoDriver,
    /// The driver is older than the function.
    #[error("the CUDA driver has no function {function}: update the driver")]
    Missing {
        /// The function.
        function: &'static str,
    },
    /// The driver is too old for something that was requested.
    #[error(
        "{what} needs a driver for CUDA {}.{} or newer, and this one is for {}.{}: update the driver, or do not request {what}",
        .needed / 1000, .needed % 1000 / 10, .found / 1000, .found % 1000 / 10
    )]
    OldDriver {
        /// The feature that was requested.
        what: &'static str,
        /// The first version of CUDA that supports the feature. 12020 is 12.2.
        needed: u32,
        /// The newest version of CUDA that the driver supports.
        found: u32,
    },
    /// This process was forked from one that used CUDA, whose driver does not work here.
    #[error(
        "CUDA does not work in a process that was forked from one that used it: start a new process instead (spawn, not fork)"
    )]
    Forked,
    /// The thread runs code for the driver, which must not use CUDA: a waker, a function on the host in the order of a stream, or the
    /// closure of an emulated kernel.
    #[error(
        "a waker, a function that a stream runs on the host, or the closure of an emulated kernel cannot use CUDA: use CUDA on another thread, or afterwards"
    )]
    InCallback,
    /// A function that a stream ran on the host has panicked.
    #[error(
        "the function that the stream ran on the host panicked: read its message on standard error, and fix the cause"
    )]
    HostPanicked,
    /// A poll of a transfer has already returned its outcome.
    #[error("a poll of this transfer has already returned its ends: do not wait for it again")]
    AlreadyComplete,
    /// A panic has left the tables of the pool's engine half changed, so the pool cannot be used any more.
    #[error(
        "the pool is broken: its engine panicked. It serves no more requests and returns no memory; buffers that it has already allocated stay valid. Create a new pool, and report the panic"
    )]
    BrokenPool,
    /// There is no such device.
    #[error("there is no CUDA device {number}: devices are numbered from 0, and the driver has {count}")]
    NoDevice {
        /// The number that was requested, from 0.
        number: u32,
        /// The number of devices.
        count: u32,
    },
    /// The two sides of a copy have different lengths.
    #[error("expected {expected} elements, got {found}: both sides of a copy must have the same length")]
    Length {
        /// Elements on the device.
        expected: usize,
        /// Elements on the host.
        found: usize,
    },
    /// A stream or buffer belongs to another device.
    #[error(
        "expected memory or a stream of cuda:{expected}, got one of cuda:{found}: use memory and streams of the same device"
    )]
    OtherDevice {
        /// The device that was expected.
        expected: u32,
        /// The device of the argument.
        found: u32,
    },
    /// The stream is captured already, or takes part in a capture that began on another stream.
    #[error(
        "the stream is already being captured, or takes part in a capture that began on another stream: end the capture, or request memory on the stream on which it began, before other streams join it"
    )]
    Capturing,
    /// A workspace needs more memory while its stream is captured.
    #[error(
        "a workspace cannot allocate memory while its stream is being captured, because the memory would belong to the graph: run the work once before the capture, or set `scratch_bytes`"
    )]
    RoomInCapture,
    /// A stream is being captured, so its work cannot be waited for.
    #[error(
        "a stream that the operation uses is being captured, so its work is recorded and not run, and cannot be waited for: end the capture, and try again"
    )]
    Captured,
    /// The copy function of a staging requested a copy through the same staging.
    #[error(
        "the copy function of a staging cannot copy through the same staging, which waits for the function: use another staging in the function"
    )]
    Reentered,
    /// Memory was requested from a graph's own pool while the graph's stream is not captured.
    #[error(
        "a graph's own pool allocates only on the graph's stream during its capture, because each launch of the graph writes to its memory: use another pool"
    )]
    OfGraph,
    /// The stream is the per-thread default stream, which is a different stream on each thread.
    #[error(
        "this is the per-thread default stream, which is a different stream on each thread: create a stream with `new_stream`"
    )]
    PerThread,
    /// The stream belongs to another library and was retired.
    #[error(
        "the stream was retired, because its creator is about to destroy it: submit the work to another stream"
    )]
    StreamEnded,
    /// The argument belongs to another context than the device's primary one.
    #[error("the context is not the primary context of cuda:{device}: use the primary context")]
    OtherContext {
        /// The device.
        device: u32,
    },
    /// The limit is zero bytes.
    #[error("a pool cannot have a limit of 0 bytes: set a limit above 0, or no limit")]
    NoBytes,
    /// cudarc could not create the events of a slice.
    #[error("cudarc cannot create the events of a slice: the driver refused the call")]
    Cudarc,
    /// An asynchronous copy was requested with memory of the host that the driver has not pinned.
    #[error(
        "the memory on the host is not pinned by the driver: allocate it from a pool over `CudaPinned`, register it with `Registered`, or copy it through a `Staging`"
    )]
    Pageable,
    /// The system cannot create another thread for this process.
    #[error(
        "the system cannot create a thread for the copy: copy on the current thread, or raise the limit on threads (ulimit -u)"
    )]
    NoThread,
    /// A function for managed memory was called with other memory.
    #[error("the memory is not managed: allocate it from a pool over `CudaManaged`")]
    NotManaged,
    /// A device does not support managed memory, or does not allow the host to access it while the device works.
    #[error(
        "cuda:{number} has no managed memory that the host can access while the device works: exclude the device with CUDA_VISIBLE_DEVICES, or use `CudaPinned`"
    )]
    NoManagedMemory {
        /// The device.
        number: u32,
    },
    /// A device cannot access the memory of another device.
    #[error(
        "cuda:{peer} cannot access memory of cuda:{device}: remove it from the peers, and copy the data instead"
    )]
    NoPeer {
        /// The device that has the memory.
        device: u32,
        /// The device that was to access the memory.
        peer: u32,
    },
    /// A device cannot share memory that is mapped by pages in this way.
    #[error(
        "memory of cuda:{device} that is mapped by pages cannot be {sharing}: remove this use from the `CudaSharing`, or choose `CudaMemory::Plain`"
    )]
    NotShared {
        /// The device.
        device: u32,
        /// The kind of sharing that was requested.
        sharing: &'static str,
    },
    /// Sharing was requested for memory that is not mapped by pages.
    #[error(
        "a pool can share only memory that is mapped by pages: use `CudaMemory::Virtual`, or share plain memory with the driver's own calls"
    )]
    SharedByPages,
    /// A call failed.
    #[error("{call} failed: {name} ({code})")]
    Driver {
        /// The function that was called.
        call: &'static str,
        /// The code that the function returned.
        code: u32,
        /// The driver's name of the code.
        name: &'static str,
    },
}

impl CudaError {
    /// Returns whether the device is out of memory.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Driver { code, .. } if *code == super::abi::OUT_OF_MEMORY)
    }

    /// Returns whether the error concerns a capture: the call is not allowed while a stream is captured, or the capture is invalid.
    #[must_use]
    pub fn is_of_capture(&self) -> bool {
        // The codes of stream capture, from `STREAM_CAPTURE_UNSUPPORTED` to `STREAM_CAPTURE_WRONG_THREAD`.
        matches!(self, Self::Captured | Self::Driver { code: 900..=908, .. })
    }

    /// Returns whether the context is unusable. Every later call returns the same error, and the data on the device is lost.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        // The errors after which, according to the driver's header, the context must be recreated or the process restarted. In
        // addition: the driver is shutting down, the context was destroyed, or memory or a link has an uncorrectable error.
        const FATAL: [u32; 17] = [
            4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911,
        ];
        matches!(self, Self::Driver { code, .. } if FATAL.contains(code))
    }
}

/// Converts the error to one for the engine and its callers.
impl From<CudaError> for SourceError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Driver { call, code, .. } => Self::Driver {
                call,
                code: i32::try_from(code).unwrap_or(i32::MAX),
            },
            CudaError::Missing { function } => Self::Unsupported { operation: function },
            CudaError::Forked => Self::Unsupported {
                operation: "work in a process that was forked from one that uses CUDA: start a new process instead",
            },
            CudaError::OtherDevice { .. } => Self::Unsupported {
                operation: "use a stream of another device",
            },
            CudaError::Captured => Self::Held { requested: 0 },
            CudaError::StreamEnded => Self::Unsupported {
                operation: "use a stream that was retired",
            },
            CudaError::Capturing => Self::Unsupported {
                operation: "use a stream in a capture that began on another stream",
            },
            _ => Self::Unsupported {
                operation: "reach its device",
            },
        }
    }
}

/// Runs a call up to three times until it succeeds. This is for calls that should not fail, for example in functions that free memory and
/// cannot report an error. Returns an error only if the driver fails each time or the device is lost.
pub(super) fn insist<T>(mut call: impl FnMut() -> Result<T, CudaError>) -> Result<T, CudaError> {
    let mut outcome = call();
    for _ in 0..2 {
        match outcome {
            Err(error) if !error.is_fatal() => outcome = call(),
            _ => break,
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::driver::sys::CUresult;

    /// The errors whose comments in the driver's header, in versions 12.9 and 13.5, end with "the process must be terminated
    /// and relaunched".
    #[test]
    fn errors_after_which_the_process_must_be_relaunched_are_fatal() {
        let sticky = [
            CUresult::CUDA_ERROR_CONTAINED,
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            CUresult::CUDA_ERROR_ASSERT,
            CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
            CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            CUresult::CUDA_ERROR_INVALID_PC,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK,
            CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED,
            CUresult::CUDA_ERROR_EXTERNAL_DEVICE,
        ];
        let driver = |code| CudaError::Driver {
            call: "cuStreamSynchronize",
            code,
            name: "",
        };
        for code in sticky {
            assert!(driver(code as u32).is_fatal(), "{code:?}");
        }
        for code in [
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            CUresult::CUDA_ERROR_NOT_READY,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        ] {
            assert!(!driver(code as u32).is_fatal(), "{code:?}");
        }
    }

    /// Calls that return memory are not repeated if the device is lost.
    #[test]
    fn a_call_is_not_retried_after_a_fatal_error() {
        for (code, expected) in [(226, 1), (721, 1), (810, 1), (911, 1), (999, 3)] {
            let mut calls = 0;
            let outcome: Result<(), _> = insist(|| {
                calls += 1;
                Err(CudaError::Driver {
                    call: "cuMemUnmap",
                    code,
                    name: "",
                })
            });
            assert!(outcome.is_err());
            assert_eq!(calls, expected, "{code}");
        }
    }

    #[test]
    fn cuda_versions_are_shown_as_major_and_minor() {
        let error = CudaError::OldDriver {
            what: "a limit",
            needed: 12_020,
            found: 11_080,
        };
        assert!(
            error
                .to_string()
                .starts_with("a limit needs a driver for CUDA 12.2 or newer, and this one is for 11.8:")
        );
    }
}
