//! Pointer arguments.

use crate::error::{Answer, Code};
use std::ffi::{CStr, c_char};

/// A pointer to an output. Invariant: it is null, or valid for as many writes of `T` as its function makes. Such values exist
/// only as arguments, and the caller of the C interface is responsible for them.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes a required output.
    pub(crate) fn set(self, value: T) -> Answer {
        self.check()?;
        // SAFETY: the pointer is not null, so by the invariant it is valid for a write. C does not guarantee alignment.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes an output unless the pointer is null.
    pub(crate) fn offer(self, value: T) {
        let _ = self.set(value);
    }

    /// Fails if the output pointer is null, before the call has an effect.
    pub(crate) fn check(self) -> Answer {
        Code::INVALID_VALUE.when(self.0.is_null())
    }

    /// Checks the output pointer, and then makes the value and writes it.
    pub(crate) fn make(self, value: impl FnOnce() -> Answer<T>) -> Answer {
        self.check()?;
        self.set(value()?)
    }

    /// Writes several values.
    pub(crate) fn fill(self, values: &[T]) -> Answer {
        self.check()?;
        let (from, to) = (values.as_ptr().cast::<u8>(), self.0.cast::<u8>());
        // SAFETY: the pointer is not null, so by the invariant it is valid for as many writes as the function makes.
        unsafe { std::ptr::copy_nonoverlapping(from, to, size_of_val(values)) };
        Ok(())
    }

    /// Returns the same pointer with another type.
    pub(crate) fn cast<U: Copy>(self) -> Out<U> {
        Out(self.0.cast())
    }

    pub(crate) fn get(self) -> Answer<T> {
        In(self.0.cast_const()).get()
    }
}

/// A pointer to an input. Invariant: it is null, or valid for as many reads of `T` as its function makes.
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
        Code::INVALID_VALUE.when(self.0.is_null())?;
        // SAFETY: the pointer is not null, so by the invariant it is valid for a read. C does not guarantee alignment.
        Ok(unsafe { self.0.read_unaligned() })
    }

    pub(crate) fn all(self, count: usize) -> Answer<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        Code::INVALID_VALUE.when(self.0.is_null())?;
        let read = |index| {
            let at = self.0.wrapping_add(index);
            // SAFETY: by the invariant the caller's array has `count` elements.
            unsafe { at.read_unaligned() }
        };
        Ok((0..count).map(read).collect())
    }

    /// Returns the same pointer with another type.
    pub(crate) fn cast<U: Copy>(self) -> In<U> {
        In(self.0.cast())
    }

    /// Returns the same pointer for writing. The caller is responsible for writes as for reads.
    pub(crate) fn as_out(self) -> Out<T> {
        Out(self.0.cast_mut())
    }
}

/// A C string. Invariant: it is null or ends with a zero.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get(self) -> Answer<String> {
        Code::INVALID_VALUE.when(self.0.is_null())?;
        // SAFETY: the pointer is not null, so by the invariant the string ends with a zero.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// Returns a pointer that was in a structure. The caller is responsible for it as for other arguments.
pub(crate) fn at<T: Copy>(address: usize) -> In<T> {
    In(std::ptr::with_exposed_provenance(address))
}

/// Returns an output that is not wanted.
pub(crate) fn nowhere<T>() -> Out<T> {
    Out(std::ptr::null_mut())
}
