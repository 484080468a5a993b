//! Pointers as arguments.

use crate::error::{Answer, Code};
use std::ffi::{CStr, c_char};

/// Where an answer goes. Invariant: null, or valid for writing as many `T` as the function it is an argument of writes; such
/// values exist only as arguments, and the caller of the C interface vouches for them.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes an answer that the caller has to have asked for.
    pub(crate) fn set(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so by the invariant valid for a write; C does not promise alignment.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes an answer if the caller wants it.
    pub(crate) fn offer(self, value: T) {
        let _ = self.set(value);
    }

    /// Fails before anything is done where the answer would have no place to go.
    pub(crate) fn check(self) -> Answer {
        if self.0.is_null() {
            Err(Code::INVALID_VALUE)
        } else {
            Ok(())
        }
    }

    /// Writes several.
    pub(crate) fn fill(self, values: &[T]) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let (from, to) = (values.as_ptr().cast::<u8>(), self.0.cast::<u8>());
        // SAFETY: not null, so by the invariant valid for as many writes as the function makes.
        unsafe { std::ptr::copy_nonoverlapping(from, to, size_of_val(values)) };
        Ok(())
    }

    /// The same place, for another type.
    pub(crate) fn cast<U: Copy>(self) -> Out<U> {
        Out(self.0.cast())
    }

    pub(crate) fn get(self) -> Answer<T> {
        In(self.0.cast_const()).get()
    }
}

/// What the caller hands over. Invariant: null, or valid for reading as many `T` as the function it is an argument of reads.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn address(self) -> usize {
        self.0.expose_provenance()
    }

    pub(crate) fn get(self) -> Answer<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so by the invariant valid for a read; C does not promise alignment.
        Ok(unsafe { self.0.read_unaligned() })
    }

    pub(crate) fn all(self, count: usize) -> Answer<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let read = |index| {
            let at = self.0.wrapping_add(index);
            // SAFETY: by the invariant the caller's array has `count` elements.
            unsafe { at.read_unaligned() }
        };
        Ok((0..count).map(read).collect())
    }

    /// The same place, for another type.
    pub(crate) fn cast<U: Copy>(self) -> In<U> {
        In(self.0.cast())
    }

    /// The same place, to be written. The caller vouches for that as for reading.
    pub(crate) fn as_out(self) -> Out<T> {
        Out(self.0.cast_mut())
    }
}

/// A C string. Invariant: null, or one that ends.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get(self) -> Answer<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so by the invariant a string that ends.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// A pointer that came inside a structure. Its invariant is the structure's: the caller vouches for it as for the others.
pub(crate) fn at<T: Copy>(address: usize) -> In<T> {
    In(std::ptr::with_exposed_provenance(address))
}

/// A place for an answer that nobody wants.
pub(crate) fn nowhere<T>() -> Out<T> {
    Out(std::ptr::null_mut())
}
