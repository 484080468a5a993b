//! The functions by which PyTorch selects the requests that a private pool serves.

use std::ffi::{c_int, c_void};

/// A `std::function<bool(cudaStream_t)>` of libstdc++, whose layout is part of its binary interface.
#[repr(C)]
struct Function {
    functor: Functor,
    manager: Option<Manager>,
    invoker: Option<Invoker>,
}

type Functor = [usize; 2];
type Manager = unsafe extern "C-unwind" fn(*mut Functor, *const Functor, c_int) -> bool;
type Invoker = unsafe extern "C-unwind" fn(*const Functor, *mut *mut c_void) -> bool;

/// The operations of a manager.
const CLONE: c_int = 2;
const DESTROY: c_int = 3;

/// A copy of a function that returns whether a private pool serves a stream on this thread.
///
/// Invariant: the function is initialised by its manager, and is never moved in memory by its own code, because libstdc++ keeps it in the
/// heap or copies its bytes. Both may be called from any thread, as PyTorch does with its own copy.
pub(super) struct StreamFilter(Option<Function>);

// SAFETY: by the invariant.
unsafe impl Send for StreamFilter {}
// SAFETY: by the invariant.
unsafe impl Sync for StreamFilter {}

impl StreamFilter {
    /// Copies a function. Null and an empty function serve every stream.
    ///
    /// # Safety
    /// The pointer is null or that of such a function.
    pub(super) unsafe fn copy_of(function: *const c_void) -> Self {
        // SAFETY: the caller guarantees it.
        let Some(function) = (unsafe { function.cast::<Function>().as_ref() }) else {
            return Self(None);
        };
        let (Some(manager), Some(invoker)) = (function.manager, function.invoker) else {
            return Self(None);
        };
        let mut functor = [0; 2];
        // SAFETY: the manager is that of the function, and the place is free.
        unsafe { manager(&raw mut functor, &raw const function.functor, CLONE) };
        Self(Some(Function {
            functor,
            manager: Some(manager),
            invoker: Some(invoker),
        }))
    }

    /// Returns whether the private pool serves this stream on this thread.
    pub(super) fn takes(&self, stream: *mut c_void) -> bool {
        let Some((function, invoker)) = self.0.as_ref().and_then(|of| Some((of, of.invoker?))) else {
            return true;
        };
        let mut stream = stream;
        // SAFETY: the invoker is that of the function.
        unsafe { invoker(&raw const function.functor, &raw mut stream) }
    }
}

impl Drop for StreamFilter {
    fn drop(&mut self) {
        if let Some(function) = &mut self.0
            && let Some(manager) = function.manager
        {
            let functor = &raw mut function.functor;
            // SAFETY: the manager is that of the function, which is no longer used.
            unsafe { manager(functor, functor, DESTROY) };
        }
    }
}
