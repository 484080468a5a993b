//! Makes NumPy allocate the data of its arrays from a pool.
//!
//! NumPy calls four functions of a *handler* for the data of arrays (NEP 49). Each array keeps its handler, so an array can outlive the use of
//! the handler. Each thread and each task of `asyncio` selects its own handler.
//!
//! ```text
//!   Handler        NumPy's structure, in a capsule that arrays hold
//!   Source         the pool and the tag of a handler. It writes a header before the data of each array
//!   NumpyHandler   the handler as a Python object
//! ```

use crate::pools::{self, Pool};
use millpond::{AllocError, Tag};
use pyo3::exceptions::{PyImportError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};
use std::alloc::Layout;
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

/// The name of NumPy's capsules with a handler.
const HANDLER: &CStr = c"mem_handler";

/// The positions of functions in the table of NumPy's C interface, which never change.
const FEATURE_VERSION: usize = 211;
const SET_HANDLER: usize = 304;

/// `PyArray_GetNDArrayCFeatureVersion` and `PyDataMem_SetHandler`.
type FeatureVersion = unsafe extern "C" fn() -> u32;
type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;

/// The first version of NumPy's C interface with handlers, which is that of NumPy 1.22.
const FIRST_VERSION: u32 = 0x0f;

/// The size of the header before the data of an array. The header begins with the size of the data, which NumPy does not always know when
/// it frees data. All data is at a multiple of this number.
const HEAD: usize = 64;

thread_local! {
    /// The last refusal of this thread: the number of the pool, and the text.
    static REFUSAL: Cell<Option<(u64, String)>> = const { Cell::new(None) };
}

/// `PyDataMem_Handler` of NumPy.
///
/// Invariant: `source` is from `Box::into_raw`, and is freed when the handler is dropped. NumPy holds the capsule with the handler while any
/// array has data from it.
#[repr(C)]
struct Handler {
    name: [u8; 127],
    version: u8,
    source: *mut Source,
    malloc: extern "C" fn(&Source, usize) -> *mut c_void,
    calloc: extern "C" fn(&Source, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(&Source, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(&Source, *mut c_void, usize),
}

// SAFETY: the handler owns its source, and the type of the source is `Send` and `Sync`. The other fields are data and functions.
unsafe impl Send for Handler {}

impl Drop for Handler {
    fn drop(&mut self) {
        // SAFETY: by the invariant, and no array has data of the handler any more.
        drop(unsafe { Box::from_raw(self.source) });
    }
}

/// The pool from which arrays are allocated, and their tag.
struct Source {
    pool: millpond::Pool,
    tag: Tag,
    /// Live blocks are listed through the objects of pools, so a pool's object lives as long as its arrays.
    #[expect(dead_code, reason = "held for its drop")]
    object: Py<Pool>,
}

impl Source {
    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes.checked_add(HEAD)?, HEAD).ok()
    }

    /// Returns the address of data, or null after a refusal. `make` allocates the block, or grows it.
    fn data(
        &self,
        bytes: usize,
        make: impl FnOnce(Layout) -> Result<NonNull<[u8]>, AllocError>,
    ) -> *mut c_void {
        let _tag = self.tag.enter();
        let made = Self::layout(bytes).ok_or(AllocError::UNCOUNTABLE).and_then(make);
        match made {
            Ok(block) => {
                let block = block.cast::<u8>();
                // SAFETY: the block has at least `HEAD` bytes and is aligned to them.
                unsafe { block.cast::<usize>().write(bytes) };
                // SAFETY: as above.
                unsafe { block.add(HEAD) }.as_ptr().cast()
            }
            Err(error) => {
                pools::REFUSED.fetch_add(1, Ordering::Relaxed);
                let text = pools::without_places(&error.to_string());
                REFUSAL.set(Some((self.pool.id(), text)));
                ptr::null_mut()
            }
        }
    }

    /// Returns the block of data, and its layout.
    ///
    /// # Safety
    /// `data` is from [`data`](Self::data) of this source and was not freed since.
    unsafe fn block(data: NonNull<c_void>) -> (NonNull<u8>, Layout) {
        // SAFETY: the data follows the header of its block.
        let block = unsafe { data.cast::<u8>().sub(HEAD) };
        // SAFETY: the header begins with the number of bytes.
        let bytes = unsafe { block.cast::<usize>().read() };
        // SAFETY: the layout was valid when the block was allocated.
        let layout = unsafe { Layout::from_size_align_unchecked(bytes + HEAD, HEAD) };
        (block, layout)
    }
}

extern "C" fn malloc(source: &Source, bytes: usize) -> *mut c_void {
    source.data(bytes, |layout| source.pool.allocate(layout))
}

extern "C" fn calloc(source: &Source, count: usize, bytes: usize) -> *mut c_void {
    let bytes = count.saturating_mul(bytes);
    source.data(bytes, |layout| source.pool.allocate_zeroed(layout))
}

/// # Safety
/// `data` is null, or data of this source that was not freed since.
unsafe extern "C" fn realloc(source: &Source, data: *mut c_void, bytes: usize) -> *mut c_void {
    let Some(data) = NonNull::new(data) else {
        return malloc(source, bytes);
    };
    source.data(bytes, |layout| {
        // SAFETY: by the contract of this function.
        let (block, before) = unsafe { Source::block(data) };
        // SAFETY: the block has this layout. After success NumPy uses the new address only.
        unsafe { source.pool.resize(block, before, layout) }
    })
}

/// # Safety
/// `data` is null, or data of this source that was not freed since and that nothing uses any more.
unsafe extern "C" fn free(source: &Source, data: *mut c_void, _: usize) {
    let Some(data) = NonNull::new(data) else { return };
    // SAFETY: by the contract of this function.
    let (block, layout) = unsafe { Source::block(data) };
    // SAFETY: as above.
    unsafe { source.pool.deallocate(block, layout) };
}

/// A handler of NumPy that allocates from a pool.
#[pyclass(frozen, module = "millpond._millpond")]
pub(crate) struct NumpyHandler {
    capsule: Py<PyCapsule>,
}

#[pymethods]
impl NumpyHandler {
    #[new]
    fn new(pool: &Bound<'_, Pool>, tag: &str) -> PyResult<Self> {
        let source = Source {
            pool: pool.get().host()?.clone(),
            tag: Tag::new(tag),
            object: pool.clone().unbind(),
        };
        let mut name = [0; 127];
        name[..8].copy_from_slice(b"millpond");
        let handler = Handler {
            name,
            version: 1,
            source: Box::into_raw(Box::new(source)),
            malloc,
            calloc,
            realloc,
            free,
        };
        let capsule = PyCapsule::new_with_value(pool.py(), handler, HANDLER)?;
        Ok(Self {
            capsule: capsule.unbind(),
        })
    }

    /// Makes NumPy use this handler in this thread or task. Returns the handler that was in use.
    fn enter<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        set_handler(self.capsule.bind(py).as_any())
    }
}

/// Forgets the last refusal of memory to NumPy in this thread, and returns its text if this pool has refused.
#[pyfunction]
pub(crate) fn take_numpy_refusal(pool: &Bound<'_, Pool>) -> Option<String> {
    let (number, text) = REFUSAL.take()?;
    let pool = pool.get().host().ok()?;
    (number == pool.id()).then_some(text)
}

/// Makes NumPy use a handler in this thread or task. Returns the handler that was in use.
#[pyfunction]
pub(crate) fn set_numpy_handler<'py>(handler: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    set_handler(handler)
}

fn set_handler<'py>(handler: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = handler.py();
    if !handler
        .cast::<PyCapsule>()
        .is_ok_and(|capsule| capsule.is_valid_checked(Some(HANDLER)))
    {
        return Err(PyTypeError::new_err(
            "the object is not a memory handler of NumPy",
        ));
    }
    let table = py
        .import("numpy._core._multiarray_umath")
        .or_else(|_| py.import("numpy.core._multiarray_umath"))?
        .getattr("_ARRAY_API")?
        .cast_into::<PyCapsule>()?;
    let table = table.pointer_checked(None)?;
    // SAFETY: the table of every version of NumPy has more entries.
    let version = unsafe { table.cast::<FeatureVersion>().add(FEATURE_VERSION) };
    // SAFETY: this entry is this function.
    let version = unsafe { version.read() };
    // SAFETY: the function has no requirements.
    if unsafe { version() } < FIRST_VERSION {
        return Err(PyImportError::new_err("memory handlers need NumPy 1.22 or later"));
    }
    // SAFETY: the table of these versions has more entries.
    let set = unsafe { table.cast::<SetHandler>().add(SET_HANDLER) };
    // SAFETY: this entry is this function.
    let set = unsafe { set.read() };
    // SAFETY: the interpreter is attached, and the object is a capsule with a handler.
    let before = unsafe { set(handler.as_ptr()) };
    // SAFETY: the function returns a new reference, or null after an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, before) }
}
