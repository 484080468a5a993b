//! C++ exceptions, by the functions of the process's own C++ library.
//!
//! PyTorch's own error of memory that ran out is made by its constructor in `libc10.so`, which is found by its name. The name contains the
//! types of the arguments, so a constructor with other arguments is not found, and a `std::runtime_error` is thrown instead.

use libloading::os::unix::{Library, RTLD_LAZY, Symbol};
use std::ffi::{CString, c_char, c_void};
use std::ptr;

const CONSTRUCTOR: &str =
    "_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
const TYPE: &str = "_ZTIN3c1016OutOfMemoryErrorE";
/// `std::__throw_runtime_error(char const*)`.
const THROW_RUNTIME_ERROR: &str = "_ZSt21__throw_runtime_errorPKc";

/// More than the bytes of the error, which has some strings and vectors.
const ERROR_BYTES: usize = 2048;

/// Opens only libraries that the process has already.
const NO_LOAD: i32 = 4;

/// `c10::SourceLocation`.
#[repr(C)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// A `std::string` of libstdc++, whose layout is part of its binary interface.
#[repr(C)]
struct Text {
    bytes: *mut c_char,
    length: usize,
    /// The capacity, or the bytes of a short text.
    local: [usize; 2],
}

type Construct = unsafe extern "C-unwind" fn(*mut c_void, SourceLocation, *mut Text);
type Destructor = unsafe extern "C" fn(*mut c_void);
type AllocateException = unsafe extern "C" fn(usize) -> *mut c_void;
type Throw = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, Option<Destructor>) -> !;
type New = unsafe extern "C-unwind" fn(usize) -> *mut c_void;
type Delete = unsafe extern "C" fn(*mut c_void);

/// The functions that make and throw PyTorch's error.
struct OutOfMemory {
    construct: Symbol<Construct>,
    type_info: *mut c_void,
    allocate: Symbol<AllocateException>,
    throw: Symbol<Throw>,
    new: Symbol<New>,
    delete: Symbol<Delete>,
}

/// Opens a library that the process has already. It stays open.
fn library(name: &str) -> Option<Library> {
    // SAFETY: the library was initialised before, so no code of it runs.
    unsafe { Library::open(Some(name), RTLD_LAZY | NO_LOAD) }.ok()
}

impl OutOfMemory {
    fn find() -> Option<Self> {
        // A search in a library includes the libraries that it needs, such as libstdc++.
        let library = library("libc10.so")?;
        // SAFETY: the names contain the types of the arguments, or are those of the C++ interface for exceptions.
        let found = unsafe {
            Self {
                construct: library.get(CONSTRUCTOR).ok()?,
                type_info: library.get::<*mut c_void>(TYPE).ok()?.into_raw(),
                allocate: library.get("__cxa_allocate_exception").ok()?,
                throw: library.get("__cxa_throw").ok()?,
                new: library.get("_Znwm").ok()?,
                delete: library.get("_ZdlPv").ok()?,
            }
        };
        std::mem::forget(library);
        Some(found)
    }
}

/// Throws PyTorch's `OutOfMemoryError`, or a `std::runtime_error` in a process without PyTorch. Returns if there is no C++ library.
pub(super) fn throw_out_of_memory(text: &str) {
    let Some(found) = OutOfMemory::find() else {
        return throw_runtime_error(text);
    };
    // SAFETY: the constructor gets a place with enough room, and a string that is laid out as libstdc++ does. By the C++ interface, a string
    // argument is passed by its address, the callee takes its bytes, and the caller destroys what is left. The exception is thrown with its
    // own type, and the first entry in the table of its virtual functions is the destructor.
    unsafe {
        let bytes = (found.new)(text.len() + 1).cast::<c_char>();
        bytes.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        bytes.add(text.len()).write(0);
        let mut message = Text {
            bytes,
            length: text.len(),
            local: [text.len(), 0],
        };
        let place = SourceLocation {
            function: c"millpond_torch_alloc".as_ptr(),
            file: c"millpond".as_ptr(),
            line: 0,
        };
        let error = (found.allocate)(ERROR_BYTES);
        (found.construct)(error, place, &raw mut message);
        if !ptr::addr_eq(message.bytes, &raw const message.local) {
            (found.delete)(message.bytes.cast());
        }
        let functions = error.cast::<*const Destructor>().read();
        (found.throw)(error, found.type_info, Some(functions.read()))
    }
}

/// Throws a `std::runtime_error`. Returns if there is no C++ library.
pub(super) fn throw_runtime_error(text: &str) {
    let Some(library) = library("libstdc++.so.6") else {
        return;
    };
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // SAFETY: the name contains the type of the argument. The function copies the text and does not return.
    unsafe {
        let throw = library.get::<unsafe extern "C-unwind" fn(*const c_char) -> !>(THROW_RUNTIME_ERROR);
        let Ok(throw) = throw else { return };
        let throw = throw.into_raw();
        std::mem::forget(library);
        let throw: unsafe extern "C-unwind" fn(*const c_char) -> ! = std::mem::transmute(throw);
        throw(text.as_ptr())
    }
}
