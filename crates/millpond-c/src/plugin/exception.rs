//! C++ exceptions, by the functions of the process's own C++ library.
//!
//! PyTorch's own out-of-memory error is created by its constructor in `libc10.so`, which is looked up by its name. The name contains the
//! types of the arguments, so a constructor with other arguments is not found, and a `std::runtime_error` is thrown instead.

use libloading::os::unix::{Library, RTLD_LAZY, Symbol};
use std::ffi::{CString, c_char, c_void};
use std::ptr;

const CONSTRUCTOR: &str =
    "_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
const TYPE: &str = "_ZTIN3c1016OutOfMemoryErrorE";
/// `std::__throw_runtime_error(char const*)`.
const THROW_RUNTIME_ERROR: &str = "_ZSt21__throw_runtime_errorPKc";

/// An upper bound on the size of the error, which has some strings and vectors.
const ERROR_BYTES: usize = 2048;

/// The flag to open only libraries that the process has already loaded.
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
        // SAFETY: the name contains the types of the arguments.
        let construct = unsafe { library.get(CONSTRUCTOR) }.ok()?;
        // SAFETY: the symbol is a variable, and only its address is used.
        let type_info = unsafe { library.get::<*mut c_void>(TYPE) }.ok()?.into_raw();
        // SAFETY: this is the type of the function in the C++ interface for exceptions.
        let allocate = unsafe { library.get("__cxa_allocate_exception") }.ok()?;
        // SAFETY: as above.
        let throw = unsafe { library.get("__cxa_throw") }.ok()?;
        // SAFETY: `operator new(unsigned long)`.
        let new = unsafe { library.get("_Znwm") }.ok()?;
        // SAFETY: `operator delete(void*)`.
        let delete = unsafe { library.get("_ZdlPv") }.ok()?;
        let found = Self {
            construct,
            type_info,
            allocate,
            throw,
            new,
            delete,
        };
        std::mem::forget(library);
        Some(found)
    }
}

fn in_c(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// Throws PyTorch's `OutOfMemoryError`, or a `std::runtime_error` in a process without PyTorch. Returns if there is no C++ library.
pub(super) fn throw_out_of_memory(text: &str) {
    let Some(found) = OutOfMemory::find() else {
        return throw_runtime_error(text);
    };
    let text = in_c(text);
    let given = text.as_bytes_with_nul();
    // SAFETY: `operator new` returns this many bytes, or throws.
    let bytes = unsafe { (found.new)(given.len()) }.cast::<c_char>();
    // SAFETY: the new bytes have room for the text.
    unsafe { bytes.copy_from_nonoverlapping(given.as_ptr().cast(), given.len()) };
    let mut message = Text {
        bytes,
        length: given.len() - 1,
        local: [given.len() - 1, 0],
    };
    let place = SourceLocation {
        function: c"millpond_torch_alloc".as_ptr(),
        file: c"millpond".as_ptr(),
        line: 0,
    };
    // SAFETY: it returns this many bytes, or ends the process.
    let error = unsafe { (found.allocate)(ERROR_BYTES) };
    // SAFETY: the place has room for the error. By the C++ interface, a string is passed by its address, and the callee takes its bytes.
    unsafe { (found.construct)(error, place, &raw mut message) };
    if !ptr::addr_eq(message.bytes, &raw const message.local) {
        // SAFETY: the constructor has not taken the bytes, and the caller frees what is left.
        unsafe { (found.delete)(message.bytes.cast()) };
    }
    // SAFETY: an object with virtual functions begins with the address of their table.
    let functions = unsafe { error.cast::<*const Destructor>().read() };
    // SAFETY: the destructor is the first virtual function of an exception.
    let destructor = unsafe { functions.read() };
    // SAFETY: the exception has this type, and no other code refers to it.
    unsafe { (found.throw)(error, found.type_info, Some(destructor)) }
}

/// Throws a `std::runtime_error`. Returns if there is no C++ library.
pub(super) fn throw_runtime_error(text: &str) {
    let Some(library) = library("libstdc++.so.6") else {
        return;
    };
    let text = in_c(text);
    // SAFETY: the name contains the type of the argument.
    let found =
        unsafe { library.get::<unsafe extern "C-unwind" fn(*const c_char) -> !>(THROW_RUNTIME_ERROR) };
    let Ok(throw) = found else { return };
    // The library must stay open, because the exception leaves this function.
    std::mem::forget(library);
    // SAFETY: the function copies the text.
    unsafe { throw(text.as_ptr()) }
}
