//! The return addresses of a call, and the code modules in which they are.
//!
//! Unwinding takes about a hundred nanoseconds for each frame. Most calls repeat an earlier call, with the same frames at the same
//! addresses. So the positions of the return addresses on the stack are kept. If each position still has its return address, the stack is
//! the same.

use crate::format::kind;
use crate::state::{self, Inner};
use crate::sys;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

mod c {
    use super::{c_char, c_int, c_void};

    /// The state of the unwinder in a frame.
    #[repr(C)]
    pub(super) struct Context {
        _private: [u8; 0],
    }

    #[repr(C)]
    pub(super) struct ProgramHeader {
        pub(super) kind: u32,
        pub(super) flags: u32,
        pub(super) offset: u64,
        pub(super) address: u64,
        pub(super) physical: u64,
        pub(super) file_bytes: u64,
        pub(super) bytes: u64,
        pub(super) align: u64,
    }

    #[repr(C)]
    pub(super) struct Loaded {
        pub(super) base: u64,
        pub(super) name: *const c_char,
        pub(super) headers: *const ProgramHeader,
        pub(super) count: u16,
        pub(super) adds: u64,
    }

    unsafe extern "C" {
        pub(super) fn _Unwind_Backtrace(
            each: extern "C" fn(*mut Context, *mut c_void) -> c_int,
            data: *mut c_void,
        ) -> c_int;
        pub(super) fn _Unwind_GetIP(context: *mut Context) -> usize;
        pub(super) fn _Unwind_GetCFA(context: *mut Context) -> usize;
        pub(super) fn dl_iterate_phdr(
            each: extern "C" fn(*mut Loaded, usize, *mut c_void) -> c_int,
            data: *mut c_void,
        ) -> c_int;
    }
}

/// The most frames of a stack: those that a user can request, and those of this library.
const MOST: usize = 72;
/// The most frames of this library on a stack.
const OWN: usize = 8;
/// The number of sets of kept stacks. Each set has [`WAYS`] stacks.
const SETS: usize = 64;
const WAYS: usize = 8;
/// The most modules whose names are written.
const MODULES: usize = 8192;

/// A stack: return addresses, and the places where they are.
#[repr(C)]
struct Kept {
    /// The address of a variable of the innermost frame, or 0 if there is no stack here.
    marker: usize,
    number: u32,
    len: u32,
    addresses: [usize; MOST],
    places: [usize; MOST],
}

/// The known stacks and modules. Zeros mean that there are none.
///
/// # Invariant
/// `kept` is null or points to `SETS * WAYS` stacks in a mapping that is never removed, for which zeros are valid.
pub(crate) struct Stacks {
    kept: *mut Kept,
    next_way: usize,
    number: u32,
    /// The loader's count of loaded libraries when the modules were written.
    adds: u64,
    modules: usize,
    known: [u64; MODULES],
}

impl Stacks {
    fn set(&mut self, marker: usize) -> &mut [Kept] {
        if self.kept.is_null() {
            let Some(kept) = sys::zeroed(SETS * WAYS * size_of::<Kept>()) else {
                return &mut [];
            };
            self.kept = kept.cast();
        }
        let set = (marker >> 4).wrapping_mul(0x9e37_79b9) >> 8 & (SETS - 1);
        // SAFETY: the index is below `SETS * WAYS`, so by the invariant the result is in the mapping.
        let first = unsafe { self.kept.add(set * WAYS) };
        // SAFETY: by the invariant these are valid stacks, and the borrow of `self` makes this use the only one.
        unsafe { std::slice::from_raw_parts_mut(first, WAYS) }
    }

    /// Returns the number of the stack with this innermost frame if it is known and still the same.
    fn find(&mut self, marker: usize) -> Option<u32> {
        let same = |kept: &&mut Kept| kept.marker == marker && kept.is_there();
        self.set(marker).iter_mut().find(same).map(|kept| kept.number)
    }
}

impl Kept {
    fn is_there(&self) -> bool {
        let all = self.places.iter().zip(&self.addresses).take(self.len as usize);
        all.into_iter().all(|(place, address)| {
            // SAFETY: the places go from the innermost frame outwards, and all inner ones have the return addresses of that stack. So their
            // callers are the same functions, and the place is in a frame of this thread. If a function has a frame of varying size, the
            // place may be in another frame, but it is still on the stack.
            let found = unsafe { ptr::with_exposed_provenance::<usize>(*place).read_volatile() };
            found == *address
        })
    }
}

/// A stack while it is unwound.
struct Unwound {
    most: usize,
    len: usize,
    addresses: [usize; MOST],
    places: [usize; MOST],
}

extern "C" fn frame(context: *mut c::Context, data: *mut c_void) -> c_int {
    // SAFETY: the unwinder passes the pointer that `unwind` gave it.
    let unwound = unsafe { &mut *data.cast::<Unwound>() };
    // SAFETY: the unwinder passes a valid context.
    let address = unsafe { c::_Unwind_GetIP(context) };
    // SAFETY: as above.
    let place = unsafe { c::_Unwind_GetCFA(context) }.wrapping_sub(size_of::<usize>());
    if address == 0 || unwound.len == unwound.most {
        return 5;
    }
    unwound.addresses[unwound.len] = address;
    unwound.places[unwound.len] = place;
    unwound.len += 1;
    0
}

/// Returns the number of the stack of the caller, or 0 if stacks are not recorded. The caller must not hold the lock of the state.
#[inline(never)]
pub(crate) fn capture() -> u32 {
    let frames = state::settings().map_or(0, |settings| settings.frames);
    if frames == 0 {
        return 0;
    }
    let here = 0_u8;
    let marker = ptr::from_ref(std::hint::black_box(&here)).expose_provenance();
    match state::with(|state| state.stacks.find(marker)) {
        None => 0,
        Some(Some(number)) => number,
        Some(None) => unwind(marker, frames),
    }
}

/// Unwinds the stack of `capture` and keeps it.
#[cold]
#[inline(never)]
fn unwind(marker: usize, frames: usize) -> u32 {
    let mut unwound = Unwound {
        most: (frames + OWN).min(MOST),
        len: 0,
        addresses: [0; MOST],
        places: [0; MOST],
    };
    // SAFETY: the callback takes this pointer, and is not called after the call returns.
    unsafe { c::_Unwind_Backtrace(frame, (&raw mut unwound).cast()) };
    define_modules();
    // The first two addresses are in `unwind` and in `capture`. The places of both change with each call.
    let first = 2.min(unwound.len);
    let (addresses, places) = (
        &unwound.addresses[first..unwound.len],
        &unwound.places[first..unwound.len],
    );
    // On processors other than x86-64, return addresses may be at other positions.
    let has_places = addresses.iter().zip(places).all(|(address, place)| {
        // SAFETY: the place is in a frame of this thread's stack that has not returned.
        let found = unsafe { ptr::with_exposed_provenance::<usize>(*place).read_volatile() };
        found == *address
    });
    state::with(|state| {
        state.stacks.number += 1;
        let number = state.stacks.number;
        let mut words = [0; MOST + 1];
        words[0] = u64::from(number);
        for (word, address) in words[1..].iter_mut().zip(addresses) {
            *word = *address as u64;
        }
        state.log.words(kind::STACK, &words[..=addresses.len()]);
        if has_places {
            state.stacks.next_way = (state.stacks.next_way + 1) % WAYS;
            let way = state.stacks.next_way;
            if let Some(kept) = state.stacks.set(marker).get_mut(way) {
                kept.marker = marker;
                kept.number = number;
                kept.len = addresses.len() as u32;
                kept.addresses[..addresses.len()].copy_from_slice(addresses);
                kept.places[..places.len()].copy_from_slice(places);
            }
        }
        number
    })
    .unwrap_or(0)
}

/// Writes the modules that were loaded since the last call.
fn define_modules() {
    extern "C" fn each(loaded: *mut c::Loaded, _bytes: usize, first: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid structure.
        let loaded = unsafe { &*loaded };
        // SAFETY: the pointer is to the variable below.
        let is_first = unsafe { &mut *first.cast::<bool>() };
        let is_known =
            state::with(|state| std::mem::replace(&mut state.stacks.adds, loaded.adds) == loaded.adds);
        if std::mem::replace(is_first, false) && is_known != Some(false) {
            return 1;
        }
        let _ = state::with(|state| define(state, loaded));
        0
    }
    let mut is_first = true;
    // SAFETY: the callback takes this pointer, and is not called after the call returns.
    unsafe { c::dl_iterate_phdr(each, (&raw mut is_first).cast()) };
}

/// Writes the code of a module with its build id.
fn define(state: &mut Inner, loaded: &c::Loaded) {
    const LOAD: u32 = 1;
    const NOTE: u32 = 4;
    const EXECUTABLE: u32 = 1;
    const PAGE: u64 = 4096;
    if loaded.headers.is_null() || loaded.name.is_null() {
        return;
    }
    // SAFETY: the loader keeps the program headers and the name while it calls this.
    let headers = unsafe { std::slice::from_raw_parts(loaded.headers, usize::from(loaded.count)) };
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(loaded.name) }.to_bytes();
    let key = name.iter().fold(loaded.base ^ 1, |hash, byte| {
        hash.wrapping_mul(0x100_0000_01b3) ^ u64::from(*byte)
    });
    let stacks = &mut state.stacks;
    if stacks.modules == MODULES || stacks.known[..stacks.modules].contains(&key) {
        return;
    }
    stacks.known[stacks.modules] = key;
    stacks.modules += 1;
    let notes = headers.iter().filter(|header| header.kind == NOTE).map(|header| {
        let at = ptr::with_exposed_provenance::<u8>(loaded.base.wrapping_add(header.address) as usize);
        // SAFETY: the notes are part of the loaded module.
        unsafe { std::slice::from_raw_parts(at, header.bytes as usize) }
    });
    let id = notes.filter_map(build_id).next().unwrap_or(&[]);
    for header in headers
        .iter()
        .filter(|header| header.kind == LOAD && header.flags & EXECUTABLE != 0)
    {
        let before = header.address % PAGE;
        let numbers = [
            loaded.base.wrapping_add(header.address - before),
            header.bytes + before,
            loaded
                .base
                .wrapping_add(header.address)
                .wrapping_sub(header.offset),
            id.len() as u64,
            name.len() as u64,
        ];
        state.log.text(kind::MODULE, &numbers, &[id, name]);
    }
}

/// Finds the build id in a sequence of notes.
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const BUILD_ID: usize = 3;
    let word = |notes: &[u8], at: usize| -> Option<usize> {
        let bytes = notes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes) as usize)
    };
    loop {
        let (name, value, kind) = (word(notes, 0)?, word(notes, 4)?, word(notes, 8)?);
        let start = 12 + name.next_multiple_of(4);
        let found = notes.get(start..start.checked_add(value)?)?;
        if kind == BUILD_ID && notes.get(12..12 + name) == Some(b"GNU\0") {
            return Some(found);
        }
        notes = notes.get(start + value.next_multiple_of(4)..)?;
    }
}
