//! The codes of errors, and the text of the last one.

use millpond::AllocError;
use millpond::budget::BudgetError;
use millpond::cuda::{CudaError, DevicePoolError};
use millpond::record::RecordError;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The outcome of a call. The numbers never change, and later versions may add others.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum millpond_status {
    /// The call succeeded.
    MILLPOND_OK = 0,
    /// An argument is wrong: a null or misaligned pointer, a text that is not UTF-8, an unknown flag or setting, an alignment that is not a
    /// power of two.
    MILLPOND_INVALID_ARGUMENT = 1,
    /// A handle is null, was destroyed, or is of another kind.
    MILLPOND_INVALID_HANDLE = 2,
    /// No live block of the pool begins at the pointer, or the block is smaller than the call says. Nothing was changed.
    MILLPOND_INVALID_POINTER = 3,
    /// There is not enough memory now, or a budget has no room. The call may succeed after memory was freed.
    MILLPOND_OUT_OF_MEMORY = 4,
    /// The request is larger than the limit of the pool or of a budget. It never succeeds below this limit.
    MILLPOND_TOO_LARGE = 5,
    /// The process has a recording already.
    MILLPOND_IN_USE = 6,
    /// The CUDA driver is missing or returned an error.
    MILLPOND_CUDA_ERROR = 7,
    /// The operating system returned an error, for example for a file.
    MILLPOND_SYSTEM_ERROR = 8,
    /// An earlier failure has broken the pool. Its blocks stay valid, and it serves no more requests.
    MILLPOND_BROKEN = 9,
    /// The library has a defect. Report the text.
    MILLPOND_INTERNAL = 10,
    /// The buffer is too small for the text. It contains the beginning of the text.
    MILLPOND_TRUNCATED = 11,
}

use millpond_status::*;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// An error that a function of C returns.
#[derive(Debug)]
pub(crate) struct Failure {
    status: millpond_status,
    text: String,
}

impl Failure {
    pub(crate) fn new(status: millpond_status, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { status, text }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(MILLPOND_INVALID_ARGUMENT, text)
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// Makes this the last error of the thread, and returns its code.
    #[cold]
    fn tell(self) -> millpond_status {
        let text = CString::new(self.text.replace('\0', "\u{fffd}")).unwrap_or_default();
        // At the end of a thread, the storage for the text no longer exists.
        let _ = LAST.try_with(|last| last.replace(text));
        self.status
    }
}

/// Returns a function that converts an error to a failure with its text and this code.
fn of(status: millpond_status) -> impl Fn(&dyn Display) -> Failure {
    move |error| Failure::new(status, error.to_string())
}

impl From<AllocError> for Failure {
    fn from(error: AllocError) -> Self {
        let status = match &error {
            error if error.is_out_of_memory() => MILLPOND_OUT_OF_MEMORY,
            AllocError::TooLarge { .. } => MILLPOND_TOO_LARGE,
            AllocError::Budget(refused) if matches!(**refused, BudgetError::TooLarge(_)) => {
                MILLPOND_TOO_LARGE
            }
            AllocError::Alignment { .. } | AllocError::Budget(_) => MILLPOND_INVALID_ARGUMENT,
            AllocError::Cuda(_) => MILLPOND_CUDA_ERROR,
            AllocError::Broken { .. } => MILLPOND_BROKEN,
            _ => MILLPOND_SYSTEM_ERROR,
        };
        of(status)(&error)
    }
}

impl From<millpond::PoolError> for Failure {
    fn from(error: millpond::PoolError) -> Self {
        match error {
            millpond::PoolError::Start(error) => error.into(),
            millpond::PoolError::Source(_) => of(MILLPOND_SYSTEM_ERROR)(&error),
            error => of(MILLPOND_INVALID_ARGUMENT)(&error),
        }
    }
}

impl From<DevicePoolError> for Failure {
    fn from(error: DevicePoolError) -> Self {
        match error {
            DevicePoolError::Start(error) => error.into(),
            DevicePoolError::Cuda(error) => error.into(),
            error => of(MILLPOND_INVALID_ARGUMENT)(&error),
        }
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Self {
        let status = match error {
            CudaError::OtherDevice { .. } | CudaError::PerThread | CudaError::NoBytes => {
                MILLPOND_INVALID_ARGUMENT
            }
            _ => MILLPOND_CUDA_ERROR,
        };
        of(status)(&error)
    }
}

impl From<BudgetError> for Failure {
    fn from(error: BudgetError) -> Self {
        of(MILLPOND_INVALID_ARGUMENT)(&error)
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        let status = match error {
            RecordError::Recording { .. } => MILLPOND_IN_USE,
            RecordError::NoMemory { .. } => MILLPOND_OUT_OF_MEMORY,
            _ => MILLPOND_SYSTEM_ERROR,
        };
        of(status)(&error)
    }
}

/// Runs the work of an entry point. No panic leaves it.
#[inline]
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Failure>) -> millpond_status {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => MILLPOND_OK,
        Ok(Err(failure)) => failure.tell(),
        Err(panic) => panicked(panic),
    }
}

#[cold]
fn panicked(panic: Box<dyn Any + Send>) -> millpond_status {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    let text = format!(
        "the library panicked, which is a defect of it: {}",
        text.unwrap_or("without a text")
    );
    // The drop of a panic's value may panic again.
    std::mem::forget(panic);
    Failure::new(MILLPOND_INTERNAL, text).tell()
}

/// Returns the text of this thread's last error.
pub(crate) fn last_error() -> String {
    let text = LAST.try_with(|last| last.borrow().to_string_lossy().into_owned());
    text.unwrap_or_default()
}

/// Returns the text of this thread's last error, or an empty text. It says what happened and what to do. If memory ran out, it is the
/// report on the memory that is held. It is valid until a call of this thread fails. A call that succeeds does not change it.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// Returns the name of a code, such as "MILLPOND_OUT_OF_MEMORY", or "unknown".
#[unsafe(no_mangle)]
pub extern "C" fn millpond_status_name(status: i32) -> *const c_char {
    let name = match status {
        0 => c"MILLPOND_OK",
        1 => c"MILLPOND_INVALID_ARGUMENT",
        2 => c"MILLPOND_INVALID_HANDLE",
        3 => c"MILLPOND_INVALID_POINTER",
        4 => c"MILLPOND_OUT_OF_MEMORY",
        5 => c"MILLPOND_TOO_LARGE",
        6 => c"MILLPOND_IN_USE",
        7 => c"MILLPOND_CUDA_ERROR",
        8 => c"MILLPOND_SYSTEM_ERROR",
        9 => c"MILLPOND_BROKEN",
        10 => c"MILLPOND_INTERNAL",
        11 => c"MILLPOND_TRUNCATED",
        _ => c"unknown",
    };
    name.as_ptr()
}

/// Returns the version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn millpond_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn a_panic_becomes_a_code_and_a_text() {
        let status = guard(|| panic!("of a test"));
        assert_eq!(status, MILLPOND_INTERNAL);
        // SAFETY: the text is valid until the next error of this thread.
        let text = unsafe { CStr::from_ptr(millpond_last_error()) };
        assert!(text.to_string_lossy().contains("of a test"));
    }
}
