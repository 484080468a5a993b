//! Checked reads and writes through the pointers of the caller.

use crate::status::Failure;
use std::ffi::{CStr, c_char};
use std::ptr::{self, NonNull};

/// The largest size of a structure that a caller may state. Structures of later versions are smaller.
const MOST: usize = 4096;

/// A place for a result.
///
/// Invariant: the pointer is valid for a write of a `T`.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Safety
    /// The pointer is null, misaligned, or valid for a write of a `T` as long as the result lives.
    #[inline]
    pub(crate) unsafe fn new(pointer: *mut T, name: &str) -> Result<Self, Failure> {
        expect_place(pointer, name).map(Self)
    }

    pub(crate) fn set(self, value: T) {
        // SAFETY: by the invariant.
        unsafe { self.0.write(value) };
    }
}

/// Returns the pointer if it is neither null nor misaligned.
#[inline]
fn expect_place<T>(pointer: *mut T, name: &str) -> Result<NonNull<T>, Failure> {
    let place = NonNull::new(pointer).filter(|place| place.is_aligned());
    place.ok_or_else(|| no_place(pointer.addr(), align_of::<T>(), name))
}

#[cold]
fn no_place(address: usize, align: usize, name: &str) -> Failure {
    Failure::argument(match address {
        0 => format!("`{name}` is null: pass the address of a variable"),
        _ => format!(
            "`{name}` is {address:#x}, which is not aligned to {align} bytes: pass the address of a variable of its type"
        ),
    })
}

/// A structure of C that may grow in later versions.
///
/// # Safety
/// The type is `repr(C)`, has no padding, begins with a `usize` that is the size of the structure, and all-zero bytes are a value of it.
pub(crate) unsafe trait Growing: Copy {}

/// Reads a structure. Fields that the caller does not have are zero.
///
/// # Safety
/// The pointer is null, misaligned, or valid for reads of the bytes that its first field says.
pub(crate) unsafe fn read<T: Growing>(pointer: *const T, name: &str) -> Result<T, Failure> {
    let place = expect_place(pointer.cast_mut(), name)?;
    // SAFETY: the first field is a `usize`, by `Growing`, and the caller guarantees that it can be read.
    let size = expect_size::<T>(unsafe { place.cast::<usize>().read() }, name)?;
    let bytes = place.cast::<u8>();
    for at in size_of::<T>()..size {
        // SAFETY: the offset is below the bytes that the caller guarantees.
        let byte = unsafe { bytes.add(at) };
        // SAFETY: as above.
        if unsafe { byte.read() } != 0 {
            return Err(Failure::argument(format!(
                "`{name}` has fields that this version of the library does not know, and they are not zero: update the library, or set them to zero"
            )));
        }
    }
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let (to, known) = (value.as_mut_ptr().cast(), size.min(size_of::<T>()));
    // SAFETY: both have these bytes, and the copy is a local.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, known) };
    // SAFETY: all-zero bytes are a value, by `Growing`, and the caller's bytes are those of a value.
    Ok(unsafe { value.assume_init() })
}

/// A place for a structure.
///
/// Invariant: the pointer is valid for writes of this number of bytes.
pub(crate) struct OutStruct<T>(NonNull<T>, usize);

impl<T: Growing> OutStruct<T> {
    /// # Safety
    /// The pointer is null, misaligned, or valid for reads and writes of the bytes that its first field says, as long as the result lives.
    pub(crate) unsafe fn new(pointer: *mut T, name: &str) -> Result<Self, Failure> {
        let place = expect_place(pointer, name)?;
        // SAFETY: the first field is a `usize`, by `Growing`, and the caller guarantees that it can be read.
        let size = expect_size::<T>(unsafe { place.cast::<usize>().read() }, name)?;
        Ok(Self(place, size))
    }

    /// Writes all fields that the caller has, except the size. Fields that only the caller has become zero.
    pub(crate) fn set(self, value: &T) {
        let Self(place, size) = self;
        let known = size.min(size_of::<T>());
        let (from, to) = (ptr::from_ref(value).cast::<u8>(), place.cast::<u8>().as_ptr());
        let first = size_of::<usize>();
        // SAFETY: the structure has these bytes.
        let from = unsafe { from.add(first) };
        // SAFETY: the caller's structure has at least these bytes, by the invariant.
        let fields = unsafe { to.add(first) };
        // SAFETY: as above, and the caller's structure does not overlap this local.
        unsafe { ptr::copy_nonoverlapping(from, fields, known - first) };
        // SAFETY: `known` is at most `size`.
        let rest = unsafe { to.add(known) };
        // SAFETY: the bytes from `known` to `size` are the caller's, by the invariant.
        unsafe { ptr::write_bytes(rest, 0, size - known) };
    }
}

/// Returns the size that a structure states, if it is valid.
fn expect_size<T>(size: usize, name: &str) -> Result<usize, Failure> {
    // This is the first version of all structures, so none is smaller.
    if (size_of::<T>()..=MOST).contains(&size) {
        return Ok(size);
    }
    Err(Failure::argument(format!(
        "the field `size` of `{name}` is {size}: set it to the size of the structure, {} bytes",
        size_of::<T>()
    )))
}

/// Returns a text.
///
/// # Safety
/// The pointer is null, or points to bytes that end with a zero byte and stay unchanged during the call.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!(
            "`{name}` is null: pass a text that ends with a zero byte"
        )));
    }
    // SAFETY: the caller guarantees it.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map_err(|error| Failure::argument(format!("`{name}` is not UTF-8: {error}")))
}

/// Returns a text, or `None` for a null pointer.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn optional_text<'a>(
    pointer: *const c_char,
    name: &str,
) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller guarantees it.
    unsafe { text(pointer, name) }.map(Some)
}

/// Returns the alignment of a request. 0 stands for the default.
#[inline]
pub(crate) fn alignment(align: usize) -> Result<usize, Failure> {
    match align {
        0 => Ok(DEFAULT_ALIGN),
        align if align.is_power_of_two() => Ok(align),
        align => Err(Failure::argument(format!(
            "the alignment {align} is not a power of two: pass 0 for the default, 64"
        ))),
    }
}

/// The alignment of every block of a host pool.
const DEFAULT_ALIGN: usize = 64;
