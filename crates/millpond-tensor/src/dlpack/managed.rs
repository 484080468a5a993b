//! An owned structure, of this crate or of another library.

use super::abi::{DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, READ_ONLY, VERSION};
use super::error::DlpackError;
use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// The forms of a managed tensor: [`DLManagedTensorVersioned`] and the older [`DLManagedTensor`].
pub trait Form: Sized + 'static + sealed::Form {}

impl Form for DLManagedTensor {}
impl Form for DLManagedTensorVersioned {}

pub(super) mod sealed {
    use super::{DLTensor, DlpackError, NonNull, c_void};

    pub trait Form: Sized {
        /// Refuses structures with another layout.
        ///
        /// # Safety
        /// The pointer points to a structure, which may be of a later version.
        unsafe fn check(this: NonNull<Self>) -> Result<(), DlpackError>;

        /// Returns the location and layout of the elements, and the flags.
        ///
        /// # Safety
        /// The pointer points to a structure that was checked.
        unsafe fn parts(this: NonNull<Self>) -> (DLTensor, u64);

        /// Calls the deleter, if there is one.
        ///
        /// # Safety
        /// The pointer points to a structure, which may be of a later version and is no longer used.
        unsafe fn delete(this: NonNull<Self>);

        /// Returns a structure of this form.
        fn new(
            dl_tensor: DLTensor,
            flags: u64,
            manager_ctx: *mut c_void,
            deleter: unsafe extern "C" fn(*mut Self),
        ) -> Self;

        /// Returns the data of the library that made the structure.
        fn manager_ctx(&self) -> *mut c_void;
    }
}

impl sealed::Form for DLManagedTensor {
    unsafe fn check(_: NonNull<Self>) -> Result<(), DlpackError> {
        Ok(())
    }

    unsafe fn parts(this: NonNull<Self>) -> (DLTensor, u64) {
        // SAFETY: the caller guarantees it.
        let this = unsafe { this.as_ref() };
        // This form does not state whether the memory is writable, and many structures have read-only memory.
        (this.dl_tensor, READ_ONLY)
    }

    unsafe fn delete(this: NonNull<Self>) {
        // SAFETY: the caller guarantees it.
        if let Some(deleter) = unsafe { this.as_ref() }.deleter {
            // SAFETY: the structure is no longer used, so the deleter is called once.
            unsafe { deleter(this.as_ptr()) };
        }
    }

    fn new(
        dl_tensor: DLTensor,
        _: u64,
        manager_ctx: *mut c_void,
        deleter: unsafe extern "C" fn(*mut Self),
    ) -> Self {
        Self {
            dl_tensor,
            manager_ctx,
            deleter: Some(deleter),
        }
    }

    fn manager_ctx(&self) -> *mut c_void {
        self.manager_ctx
    }
}

impl sealed::Form for DLManagedTensorVersioned {
    unsafe fn check(this: NonNull<Self>) -> Result<(), DlpackError> {
        // The version is the first field in every version.
        let version = this.as_ptr().cast();
        // SAFETY: the caller guarantees it.
        let found: DLPackVersion = unsafe { *version };
        if found.major == VERSION.major {
            return Ok(());
        }
        Err(DlpackError::Version { found })
    }

    unsafe fn parts(this: NonNull<Self>) -> (DLTensor, u64) {
        // SAFETY: the caller guarantees it.
        let this = unsafe { this.as_ref() };
        (this.dl_tensor, this.flags)
    }

    unsafe fn delete(this: NonNull<Self>) {
        // SAFETY: the caller guarantees it. The deleter has the same offset in every version.
        let deleter = unsafe { &raw const (*this.as_ptr()).deleter };
        // SAFETY: as above.
        if let Some(deleter) = unsafe { *deleter } {
            // SAFETY: the structure is no longer used, so the deleter is called once.
            unsafe { deleter(this.as_ptr()) };
        }
    }

    fn new(
        dl_tensor: DLTensor,
        flags: u64,
        manager_ctx: *mut c_void,
        deleter: unsafe extern "C" fn(*mut Self),
    ) -> Self {
        Self {
            version: VERSION,
            manager_ctx,
            deleter: Some(deleter),
            flags,
            dl_tensor,
        }
    }

    fn manager_ctx(&self) -> *mut c_void {
        self.manager_ctx
    }
}

/// An owned managed tensor. Its deleter is called on drop, unless [`into_raw`](Self::into_raw) has transferred it.
///
/// Invariant: the pointer points to a structure whose deleter was not called and may be called from any thread. After
/// `from_raw` has returned it, the structure has the major version of this crate, and the requirements of `from_raw` hold.
#[must_use = "the memory is freed when this value is dropped"]
pub struct ManagedTensor<F: Form = DLManagedTensorVersioned>(NonNull<F>);

// SAFETY: by the invariant the deleter may be called from any thread. A shared reference gives access to numbers only.
unsafe impl<F: Form> Send for ManagedTensor<F> {}
// SAFETY: as above.
unsafe impl<F: Form> Sync for ManagedTensor<F> {}

impl<F: Form> ManagedTensor<F> {
    /// Takes ownership of a managed tensor.
    ///
    /// # Errors
    /// Returns an error if the pointer is null. Returns an error if the structure has another major version, and calls
    /// its deleter.
    ///
    /// # Safety
    /// A pointer that is not null must point to a managed tensor, or to a structure of another major version with the same
    /// first fields. No other code may delete or change the structure. Until its deleter is called:
    ///
    /// - `shape` and `strides` must have a number for each dimension, unless they are null;
    /// - if the memory is the host's and `data` is not null, the memory from the first element to the last, including the gaps
    ///   between elements, must be initialised and readable from any thread;
    /// - no other code may write to this memory. If the flags lack [`READ_ONLY`], no other code may read it while it is
    ///   written through this value.
    ///
    /// The deleter must be callable from any thread, and must not unwind.
    pub unsafe fn from_raw(pointer: *mut F) -> Result<Self, DlpackError> {
        let pointer = NonNull::new(pointer).ok_or(DlpackError::NoStructure)?;
        // From here the structure is owned, so its deleter is called on every path.
        let this = Self(pointer);
        // SAFETY: the caller guarantees it.
        unsafe { F::check(pointer) }?;
        Ok(this)
    }

    /// Takes ownership of a structure that `export` has made.
    ///
    /// # Safety
    /// The invariant and the requirements of [`from_raw`](Self::from_raw) must hold.
    pub(super) unsafe fn owned(pointer: NonNull<F>) -> Self {
        Self(pointer)
    }

    /// Returns the pointer. The caller must ensure that its deleter is called.
    #[must_use = "the memory is leaked unless the deleter is called"]
    pub fn into_raw(self) -> *mut F {
        ManuallyDrop::new(self).0.as_ptr()
    }

    /// Returns the pointer without transferring ownership.
    #[must_use]
    pub fn as_ptr(&self) -> *const F {
        self.0.as_ptr()
    }

    /// Returns the location and layout of the elements, and the flags.
    pub(super) fn parts(&self) -> (DLTensor, u64) {
        // SAFETY: by the invariant the pointer points to a structure of this major version.
        unsafe { F::parts(self.0) }
    }
}

impl<F: Form> Drop for ManagedTensor<F> {
    fn drop(&mut self) {
        // SAFETY: by the invariant the deleter was not called, and only this value owns the structure.
        unsafe { F::delete(self.0) };
    }
}

impl<F: Form> fmt::Debug for ManagedTensor<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tensor, flags) = self.parts();
        f.debug_struct("ManagedTensor")
            .field("dl_tensor", &tensor)
            .field("flags", &flags)
            .finish()
    }
}
