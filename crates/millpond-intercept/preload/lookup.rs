//! Answers lookups of the driver's functions with those of this library.
//!
//! A program that is linked with the driver gets the functions of this library, because this library is loaded first. Other programs look
//! functions up with `dlsym` or with the driver's `cuGetProcAddress`. `dlvsym` is not replaced: the driver's functions have no versions.

use crate::calls::{self, Hook};
use crate::{state, sys};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

type Lookup = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The `dlsym` of the C library.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

fn real() -> Option<Lookup> {
    let mut at = REAL.load(Ordering::Relaxed);
    if at.is_null() {
        // The first version with this function on each processor. Every later C library still has it.
        let version = if cfg!(target_arch = "x86_64") {
            c"GLIBC_2.2.5"
        } else {
            c"GLIBC_2.17"
        };
        at = sys::versioned(c"dlsym", version)?;
        REAL.store(at, Ordering::Relaxed);
    }
    // SAFETY: the function has this type.
    Some(unsafe { std::mem::transmute::<*mut c_void, Lookup>(at) })
}

/// Looks up a function in a library with the C library's `dlsym`.
pub(crate) fn in_library(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the handle is one of the loader, or `NEXT`. The name is a C string.
    let found = unsafe { real()?(handle, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The decision of `dlsym`: it returns `found`, or jumps to `real` if `found` is null.
#[repr(C)]
pub(crate) struct Decision {
    found: *mut c_void,
    real: *mut c_void,
}

/// Decides a lookup.
///
/// # Safety
/// The arguments are those of `dlsym`.
unsafe extern "C" fn decide(handle: *mut c_void, name: *const c_char) -> Decision {
    let real = real().map_or(ptr::null_mut(), |real| real as *mut c_void);
    // SAFETY: the name is not null, so by the contract it is a C string.
    let found = (!name.is_null())
        .then(|| unsafe { CStr::from_ptr(name) })
        .and_then(|name| answer(handle, name));
    Decision {
        found: found.unwrap_or(ptr::null_mut()),
        real,
    }
}

/// Returns this library's replacement for a function, if the library that the program searches has the driver's function.
fn answer(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    if !name.to_bytes().starts_with(b"cu") || handle.is_null() || handle == sys::NEXT {
        return None;
    }
    let hook = calls::hook(name)?;
    state::settings()?;
    let found = in_library(handle, name)?;
    let path = sys::file_of(found.addr())?;
    let file = path.to_bytes().rsplit(|byte| *byte == b'/').next()?;
    if !file.starts_with(b"libcuda.so") {
        return None;
    }
    if hook.slot.keep(found) {
        // This handle is never closed, so the driver stays loaded. Otherwise a program could close the driver and load it again at
        // another address.
        sys::loaded(path);
    }
    Some(hook.function.cast_mut().cast())
}

/// Looks up a symbol. If this library does not replace it, jumps to the C library's `dlsym` with the caller's registers and return address, because
/// the answer for `RTLD_NEXT` depends on the caller.
///
/// # Safety
/// The arguments are those of the C library's function.
#[cfg(all(preloaded, target_arch = "x86_64"))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {decide}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "jmp rdx",
        "2:",
        "ret",
        decide = sym decide,
    )
}

/// Looks up a symbol, like the function for the other processor.
///
/// # Safety
/// The arguments are those of the C library's function.
#[cfg(all(preloaded, target_arch = "aarch64"))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, -32]!",
        "stp x0, x1, [sp, 16]",
        "bl {decide}",
        "mov x9, x0",
        "mov x10, x1",
        "ldp x0, x1, [sp, 16]",
        "ldp x29, x30, [sp], 32",
        "cbnz x9, 2f",
        "br x10",
        "2:",
        "mov x0, x9",
        "ret",
        decide = sym decide,
    )
}

/// Replaces a function that `cuGetProcAddress` returned by the function of this library.
pub(crate) fn replace(name: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64) {
    if name.is_null() || function.is_null() {
        return;
    }
    // SAFETY: the driver has read the name, which is a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    // SAFETY: the driver has written to this place.
    let found = unsafe { function.read() };
    if found.is_null() {
        return;
    }
    let mut named = calls::hooks().filter(|hook| hook.is_called(name));
    let same = named.clone().find(|hook| hook.slot.get() == Some(found));
    // A driver may return another address than that in its symbol table. Then the name and the version determine the variant.
    if let Some(hook) = same.or_else(|| named.find(|hook| hook.is_variant(version, flags))) {
        hook.slot.keep(found);
        // SAFETY: as above.
        unsafe { function.write(hook.function.cast_mut().cast()) };
    }
}

impl Hook {
    /// Returns whether a program may look up this function by this name: its full name, or the name without the suffixes `_v2` and `_ptsz`.
    fn is_called(&self, name: &[u8]) -> bool {
        let full = self.slot.name.to_bytes();
        let plain = full.strip_suffix(b"_ptsz").unwrap_or(full);
        let plain = plain.strip_suffix(b"_v2").unwrap_or(plain);
        name == plain || name == full
    }

    /// Returns whether this function is the variant for a version of CUDA and the flags of the lookup.
    fn is_variant(&self, version: c_int, flags: u64) -> bool {
        let name = self.slot.name.to_bytes();
        let is_second = name.strip_suffix(b"_ptsz").unwrap_or(name).ends_with(b"_v2");
        let since = match name {
            b"cuGetProcAddress_v2" | b"cuGetProcAddress" => 12_000,
            b"cuGraphAddNode_v2" | b"cuGraphAddNode" => 12_030,
            _ => 6_050,
        };
        let has_second =
            calls::hooks().any(|hook| hook.slot.name.to_bytes().strip_suffix(b"_v2") == Some(name));
        let has_twin = calls::hooks().any(|hook| {
            let twin = hook.slot.name.to_bytes().strip_suffix(b"_ptsz");
            twin == Some(name)
        });
        let wants_twin = flags & 2 != 0;
        let is_other = has_second && version >= since || is_second && version < since;
        !is_other
            && if name.ends_with(b"_ptsz") {
                wants_twin
            } else {
                !(wants_twin && has_twin)
            }
    }
}
