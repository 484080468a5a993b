//! A structure that is owned, whoever made it.

use super::abi::{DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, READ_ONLY, VERSION};
use super::error::DlpackError;
use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// The forms a managed tensor has: [`DLManagedTensorVersioned`] and, older, [`DLManagedTensor`].
pub trait Form: Sized + 'static + sealed::Form {}

impl Form for DLManagedTensor {}
impl Form for DLManagedTensorVersioned {}

pub(super) mod sealed {
    use super::{DLTensor, DlpackError, NonNull, c_void};

    pub trait Form: Sized {
        /// Refuses what is laid out otherwise.
        ///
        /// # Safety
        /// The pointer is to a structure, which may be of a later version.
        unsafe fn check(this: NonNull<Self>) -> Result<(), DlpackError>;

        /// Where the elements lie, and the flags.
        ///
        /// # Safety
        /// The pointer is to a structure that was checked.
        unsafe fn parts(this: NonNull<Self>) -> (DLTensor, u64);

        /// Calls the deleter, if there is one.
        ///
        /// # Safety
        /// The pointer is to a structure, which may be of a later version, and nobody uses it any more.
        unsafe fn delete(this: NonNull<Self>);

        /// A structure of this form.
        fn new(
            dl_tensor: DLTensor,
            flags: u64,
            manager_ctx: *mut c_void,
            deleter: unsafe extern "C" fn(*mut Self),
        ) -> Self;

        /// What the maker put in.
        fn manager_ctx(&self) -> *mut c_void;
    }
}

impl sealed::Form for DLManagedTensor {
    unsafe fn check(_: NonNull<Self>) -> Result<(), DlpackError> {
        Ok(())
    }

    unsafe fn parts(this: NonNull<Self>) -> (DLTensor, u64) {
        // SAFETY: the caller's promise.
        let this = unsafe { this.as_ref() };
        // It cannot say that it may be written, and many are made of what may not.
        (this.dl_tensor, READ_ONLY)
    }

    unsafe fn delete(this: NonNull<Self>) {
        // SAFETY: the caller's promise.
        if let Some(deleter) = unsafe { this.as_ref() }.deleter {
            // SAFETY: nobody uses the structure any more, so it is called once.
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
        // The version comes first in every version.
        let version = this.as_ptr().cast();
        // SAFETY: the caller's promise.
        let found: DLPackVersion = unsafe { *version };
        if found.major == VERSION.major {
            return Ok(());
        }
        Err(DlpackError::Version { found })
    }

    unsafe fn parts(this: NonNull<Self>) -> (DLTensor, u64) {
        // SAFETY: the caller's promise.
        let this = unsafe { this.as_ref() };
        (this.dl_tensor, this.flags)
    }

    unsafe fn delete(this: NonNull<Self>) {
        // SAFETY: the caller's promise; the place is the same in every version, whatever comes behind.
        let deleter = unsafe { &raw const (*this.as_ptr()).deleter };
        // SAFETY: as above.
        if let Some(deleter) = unsafe { *deleter } {
            // SAFETY: nobody uses the structure any more, so it is called once.
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

/// A managed tensor that is owned: its deleter is called when this is dropped, unless somebody else has taken it with
/// [`into_raw`](Self::into_raw).
///
/// Invariant: the pointer is to a structure whose deleter was not called and may be from any thread; once it is out of
/// `from_raw`, of this major version, and what was promised there holds.
#[must_use = "dropped it gives the memory back"]
pub struct ManagedTensor<F: Form = DLManagedTensorVersioned>(NonNull<F>);

// SAFETY: by the invariant the deleter may be called from any thread; a shared one lends nothing but numbers.
unsafe impl<F: Form> Send for ManagedTensor<F> {}
// SAFETY: as above.
unsafe impl<F: Form> Sync for ManagedTensor<F> {}

impl<F: Form> ManagedTensor<F> {
    /// Takes over a managed tensor.
    ///
    /// # Errors
    /// Where the pointer is null, and where the structure is of another major version; its deleter is then called.
    ///
    /// # Safety
    /// Where the pointer is not null it is to a managed tensor, or of another major version to one that begins alike, that
    /// nobody else will delete or change. Until its deleter is called:
    ///
    /// - `shape` and `strides` have a number for each dimension, unless they are null;
    /// - from its first element to its last the memory is initialised, where it is the host's and `data` is not null, and may
    ///   be read from any thread. What lies between the elements counts too;
    /// - nobody else writes to it, and where the flags do not say [`READ_ONLY`] nobody else reads it either while it is
    ///   written by way of this.
    ///
    /// The deleter may be called from any thread, and does not unwind.
    pub unsafe fn from_raw(pointer: *mut F) -> Result<Self, DlpackError> {
        let pointer = NonNull::new(pointer).ok_or(DlpackError::NoStructure)?;
        // Owned from here on, so that whatever happens the deleter is called.
        let this = Self(pointer);
        // SAFETY: the caller's promise.
        unsafe { F::check(pointer) }?;
        Ok(this)
    }

    /// What `export` has made.
    ///
    /// # Safety
    /// The invariant, and the promises of [`from_raw`](Self::from_raw).
    pub(super) unsafe fn owned(pointer: NonNull<F>) -> Self {
        Self(pointer)
    }

    /// The pointer, whose deleter has to be called by whoever takes it.
    #[must_use = "memory whose deleter nobody calls is never given back"]
    pub fn into_raw(self) -> *mut F {
        ManuallyDrop::new(self).0.as_ptr()
    }

    /// The pointer. It stays ours.
    #[must_use]
    pub fn as_ptr(&self) -> *const F {
        self.0.as_ptr()
    }

    /// Where the elements lie, and the flags.
    pub(super) fn parts(&self) -> (DLTensor, u64) {
        // SAFETY: by the invariant there is such a structure, of this version.
        unsafe { F::parts(self.0) }
    }
}

impl<F: Form> Drop for ManagedTensor<F> {
    fn drop(&mut self) {
        // SAFETY: by the invariant it was not called, and it is owned here alone.
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
