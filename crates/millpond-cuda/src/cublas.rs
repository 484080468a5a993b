//! cuBLAS: products of matrices by NVIDIA's library, if it is installed. It is loaded with the first product. Without it, and for products
//! that it does not support, this library's own kernel is used.

use super::abi::StreamHandle;
use super::captured;
use super::cublas_error::CublasError;
use super::library::{self, functions};
use libloading::Library;
use millpond_pool::dtype::DType;
use std::ffi::{c_int, c_longlong, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// The environment variable with the path of the library, or `off`.
const VARIABLE: &str = "MILLPOND_CUBLAS";
const NAMES: &[&str] = &[
    "libcublas.so.13",
    "libcublas.so.12",
    "libcublas.so",
    "cublas64_13.dll",
    "cublas64_12.dll",
];

/// `cublasHandle_t`.
type Raw = *mut c_void;
/// `cublasStatus_t`.
type Status = c_int;

functions! {
    Functions (Status) {
        create = "cublasCreate_v2"(handle: *mut Raw);
        destroy = "cublasDestroy_v2"(handle: Raw);
        version = "cublasGetVersion_v2"(handle: Raw, version: *mut c_int);
        set_stream = "cublasSetStream_v2"(handle: Raw, stream: StreamHandle);
        set_workspace = "cublasSetWorkspace_v2"(handle: Raw, at: *mut c_void, bytes: usize);
        set_math_mode = "cublasSetMathMode"(handle: Raw, mode: c_int);
        gemm = "cublasGemmEx"(
            handle: Raw, left: c_int, right: c_int, m: c_int, n: c_int, k: c_int, alpha: *const c_void,
            a: *const c_void, a_type: c_int, a_leading: c_int,
            b: *const c_void, b_type: c_int, b_leading: c_int, beta: *const c_void,
            c: *mut c_void, c_type: c_int, c_leading: c_int, compute: c_int, algorithm: c_int,
        );
        gemm_batched = "cublasGemmStridedBatchedEx"(
            handle: Raw, left: c_int, right: c_int, m: c_int, n: c_int, k: c_int, alpha: *const c_void,
            a: *const c_void, a_type: c_int, a_leading: c_int, a_apart: c_longlong,
            b: *const c_void, b_type: c_int, b_leading: c_int, b_apart: c_longlong, beta: *const c_void,
            c: *mut c_void, c_type: c_int, c_leading: c_int, c_apart: c_longlong,
            many: c_int, compute: c_int, algorithm: c_int,
        );
    } {}
}

/// The library, loaded once in a process.
struct Cublas {
    functions: Functions,
    _library: Library,
}

impl Cublas {
    fn get(emulated: bool) -> Result<&'static Self, CublasError> {
        static CUBLAS: OnceLock<Result<Cublas, String>> = OnceLock::new();
        match std::env::var_os(VARIABLE).filter(|said| !said.is_empty()) {
            Some(said) if said == "off" => return Err(CublasError::Off),
            None if emulated => return Err(CublasError::Emulated),
            _ => {}
        }
        let loaded = CUBLAS.get_or_init(Self::load).as_ref();
        loaded.map_err(|why| CublasError::Missing { why })
    }

    fn load() -> Result<Self, String> {
        let library = library::open(VARIABLE, NAMES)?;
        // SAFETY: cuBLAS's header has these signatures. The library is stored with them.
        let functions = unsafe { Functions::of(&library) };
        let functions = functions.map_err(|name| format!("the library that was found has no {name}"))?;
        Ok(Self {
            functions,
            _library: library,
        })
    }
}

/// A batch of products `c = left * right` by cuBLAS, which uses column-major matrices. Each factor can be transposed. The matrices of a
/// batch are at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemm {
    /// Whether each factor is transposed.
    pub transposed: [bool; 2],
    /// The rows of the product.
    pub rows: i32,
    /// The columns of the product.
    pub columns: i32,
    /// The length of the inner dimension: the number of terms that are added for each element.
    pub inner: i32,
    /// The address of the first element of the left factor, of the right factor and of the product.
    pub addresses: [u64; 3],
    /// The leading dimension of each factor and of the product, in elements.
    pub leading: [i32; 3],
    /// The distance between the matrices of a batch, for each factor and the product, in elements.
    pub apart: [i64; 3],
    /// The number of matrices in the batch.
    pub many: i32,
}

/// The type of the elements, and the type in which they are added: `cudaDataType_t` and `cublasComputeType_t`.
#[derive(Clone, Copy)]
struct Kind {
    data: c_int,
    compute: c_int,
}

impl Kind {
    fn of(dtype: DType) -> Result<Self, CublasError> {
        let (data, compute) = match dtype {
            DType::F64 => (1, 70),
            DType::F32 => (0, 68),
            DType::F16 => (2, 68),
            DType::BF16 => (14, 68),
            _ => return Err(CublasError::Type { dtype }),
        };
        Ok(Self { data, compute })
    }
}

/// Checks that cuBLAS supports products of a type.
pub(crate) fn takes(dtype: DType) -> Result<(), CublasError> {
    Kind::of(dtype).map(|_| ())
}

/// The modes of computation. `EXACT` adds half-precision numbers entirely in single precision
/// (`CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`). `TF32` rounds factors of single precision to 11 bits.
const EXACT: c_int = 16;
const TF32: c_int = 3;

/// The workspace of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workspace {
    pub(super) address: u64,
    pub(super) bytes: usize,
}

/// A handle of cuBLAS on a device. Its owner destroys it in the context in which it was made. Invariant: `raw` is a live handle of cuBLAS
/// that this value owns.
pub(crate) struct Handle {
    of: &'static Cublas,
    raw: Raw,
    version: u32,
}

// SAFETY: cuBLAS accepts a handle on any thread, but on one thread at a time. Calls that change or use it take `&mut`.
unsafe impl Send for Handle {}

impl Handle {
    /// Creates a handle. The context must be current on this thread, and nothing may be captured, because cuBLAS allocates memory of the
    /// device.
    pub(super) fn new(emulated: bool) -> Result<Self, CublasError> {
        let of = Cublas::get(emulated)?;
        let mut handle = Self {
            of,
            raw: null_mut(),
            version: 0,
        };
        // SAFETY: the pointer is to a local.
        check("cublasCreate_v2", unsafe {
            (of.functions.create)(&raw mut handle.raw)
        })?;
        let mut version = 0;
        // SAFETY: the handle is live, and the pointer is to a local.
        let told = unsafe { (of.functions.version)(handle.raw, &raw mut version) };
        if let Err(error) = check("cublasGetVersion_v2", told) {
            handle.end();
            return Err(error);
        }
        handle.version = version.unsigned_abs();
        Ok(handle)
    }

    /// Returns the version. 120804 is 12.8.4.
    pub(super) fn version(&self) -> u32 {
        self.version
    }

    /// Destroys the handle. The context must be current on this thread, and nothing may be captured.
    pub(super) fn end(self) {
        // SAFETY: the handle is live by the invariant, and it is not used any more. If cuBLAS refuses, the handle ends with the context.
        let _ = unsafe { (self.of.functions.destroy)(self.raw) };
    }

    /// Queues products on a stream. The context must be current on this thread.
    ///
    /// # Safety
    /// The matrices must be of this type, and they and the workspace must be in live blocks. Other code may use them only in the order of
    /// the stream, and the caller must have exclusive access to the products.
    pub(super) unsafe fn multiply(
        &mut self,
        stream: StreamHandle,
        workspace: Workspace,
        (dtype, tf32): (DType, bool),
        calls: &[Gemm],
    ) -> Result<(), CublasError> {
        let kind = Kind::of(dtype)?;
        let Functions {
            set_stream,
            set_workspace,
            set_math_mode,
            ..
        } = self.of.functions;
        // cuBLAS resets the workspace whenever its stream is set.
        // SAFETY: the handle is live, and the caller guarantees the stream.
        check("cublasSetStream_v2", unsafe { set_stream(self.raw, stream) })?;
        let at = std::ptr::with_exposed_provenance_mut(workspace.address as usize);
        // SAFETY: the caller guarantees the workspace.
        let set = unsafe { set_workspace(self.raw, at, workspace.bytes) };
        check("cublasSetWorkspace_v2", set)?;
        let mode = if tf32 { EXACT | TF32 } else { EXACT };
        // SAFETY: the handle is live.
        check("cublasSetMathMode", unsafe { set_math_mode(self.raw, mode) })?;
        for call in calls {
            // SAFETY: the caller guarantees the matrices.
            unsafe { self.gemm(kind, call) }?;
        }
        Ok(())
    }

    /// # Safety
    /// The requirements of [`multiply`](Self::multiply).
    unsafe fn gemm(&mut self, Kind { data, compute }: Kind, call: &Gemm) -> Result<(), CublasError> {
        const DEFAULT: c_int = -1;
        let [left, right] = call.transposed.map(c_int::from);
        let [a, b, c] = call
            .addresses
            .map(|at| std::ptr::with_exposed_provenance_mut::<c_void>(at as usize));
        let [a_leading, b_leading, c_leading] = call.leading;
        let [a_apart, b_apart, c_apart] = call.apart;
        // The factors of the product and of the previous content, in the type in which terms are added.
        let (doubles, singles) = ([1.0f64, 0.0], [1.0f32, 0.0]);
        let factors: [*const c_void; 2] = if compute == 70 {
            [0, 1].map(|at| (&raw const doubles[at]).cast())
        } else {
            [0, 1].map(|at| (&raw const singles[at]).cast())
        };
        let [alpha, beta] = factors;
        let (m, n, k) = (call.rows, call.columns, call.inner);
        let Functions {
            gemm, gemm_batched, ..
        } = self.of.functions;
        if call.many == 1 {
            // SAFETY: the caller guarantees the matrices. The two factors are of the type of the computation, and are read before the call
            // returns.
            let done = unsafe {
                gemm(
                    self.raw, left, right, m, n, k, alpha, a, data, a_leading, b, data, b_leading, beta, c,
                    data, c_leading, compute, DEFAULT,
                )
            };
            return check("cublasGemmEx", done);
        }
        // SAFETY: as above.
        let done = unsafe {
            gemm_batched(
                self.raw, left, right, m, n, k, alpha, a, data, a_leading, a_apart, b, data, b_leading,
                b_apart, beta, c, data, c_leading, c_apart, call.many, compute, DEFAULT,
            )
        };
        check("cublasGemmStridedBatchedEx", done)
    }
}

/// The device's handle of cuBLAS, or the reason why there is none. The reason is kept as long as the device is open, except that a failed
/// call is retried.
#[derive(Default)]
pub(super) struct OfDevice(Option<Result<Handle, CublasError>>);

impl OfDevice {
    /// Returns the handle. The first call creates it, unless work is captured. The context must be current on this thread.
    pub(super) fn handle(
        &mut self,
        emulated: bool,
        is_captured: impl FnOnce() -> Result<bool, CublasError>,
    ) -> Result<&mut Handle, CublasError> {
        let found = match self.0.take() {
            Some(found) => found,
            None if is_captured()? => return Err(CublasError::Capturing),
            None => Handle::new(emulated),
        };
        if let Err(why @ (CublasError::Failed { .. } | CublasError::Cuda(_))) = found {
            // Another attempt may succeed.
            return Err(why);
        }
        self.0.insert(found).as_mut().map_err(|why| *why)
    }

    pub(super) fn is_made(&self) -> bool {
        matches!(self.0, Some(Ok(_)))
    }

    /// Destroys the handle. The context must be current on this thread.
    pub(super) fn end(&mut self) {
        // Destroying the handle waits for the device, which is not allowed during a capture. In that case the handle ends with the context.
        if let Some(Ok(handle)) = self.0.take()
            && !captured::any()
        {
            handle.end();
        }
    }
}

fn check(call: &'static str, status: Status) -> Result<(), CublasError> {
    let name = match status {
        0 => return Ok(()),
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        7 => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        11 => "CUBLAS_STATUS_MAPPING_ERROR",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        15 => "CUBLAS_STATUS_NOT_SUPPORTED",
        16 => "CUBLAS_STATUS_LICENSE_ERROR",
        _ => "an unknown status",
    };
    Err(CublasError::Failed { call, status, name })
}
