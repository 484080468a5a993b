//! Tags: names for the purpose of memory.

use crate::arguments::text;
use crate::status::{Failure, guard, millpond_status};
use millpond::Tag;
use millpond::ledger::TagScope;
use std::cell::RefCell;
use std::ffi::c_char;

thread_local! {
    /// The scopes of this thread, the innermost last.
    static SCOPES: RefCell<Vec<TagScope>> = const { RefCell::new(Vec::new()) };
}

/// Tags all later allocations of this thread, in every pool, until `millpond_tag_pop`. Scopes nest, and the innermost tag counts. Names are
/// kept for the life of the process, so a name should not contain a counter.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT`.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_tag_push(name: *const c_char) -> millpond_status {
    guard(|| {
        // SAFETY: the caller guarantees it.
        let name = unsafe { text(name, "name") }?;
        SCOPES
            .try_with(|scopes| scopes.borrow_mut().push(Tag::new(name).enter()))
            .map_err(|_| ended())
    })
}

/// Ends the innermost tag of this thread.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` if this thread has none.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_tag_pop() -> millpond_status {
    guard(|| {
        let scope = SCOPES
            .try_with(|scopes| scopes.borrow_mut().pop())
            .map_err(|_| ended())?;
        scope.map(drop).ok_or_else(|| {
            Failure::argument("this thread has no tag: call millpond_tag_pop once for each millpond_tag_push, on the same thread")
        })
    })
}

fn ended() -> Failure {
    Failure::argument("this thread is ending and has no tags any more")
}
