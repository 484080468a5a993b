//! The table of live handles.
//!
//! A handle of C is a number in the form of a pointer, and never an address. It consists of a mark, the kind of its object, a generation
//! and the number of a slot. A slot that is used again has another generation, so a handle that was destroyed stays invalid. A slot whose
//! generations are used up is not used again.
//!
//! The lookup of a host pool takes no lock, because the slot has a pointer to an entry that is never freed. An entry is small, and the pool
//! behind it keeps its tables for the life of the process too.

use crate::open_device::OpenDevicePool;
use crate::status::{Failure, millpond_status};
use millpond::{Budget, Pool, Recorder};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A pool of host memory or of a device's memory. All functions may be called from any thread.
pub struct millpond_pool {
    _private: [u8; 0],
}

/// A limit on the memory of several pools together.
pub struct millpond_budget {
    _private: [u8; 0],
}

/// A recording of all pools of the process to a file, which the command `millpond` reads.
pub struct millpond_recording {
    _private: [u8; 0],
}

/// Numbers with this mark are not valid addresses, so an access through one faults.
const MARK: usize = 0xD1 << 56;
const KIND_SHIFT: u32 = 52;
const GENERATION_SHIFT: u32 = 24;
const GENERATIONS: usize = 1 << (KIND_SHIFT - GENERATION_SHIFT);
const SLOTS: usize = 1 << GENERATION_SHIFT;
const CHUNK: usize = 1 << 12;

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pool = 1,
    Budget = 2,
    Recording = 3,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Budget => "budget",
            Self::Recording => "recording",
        }
    }

    fn of(handle: usize) -> Option<Self> {
        if handle >> 56 != MARK >> 56 {
            return None;
        }
        let kinds = [Self::Pool, Self::Budget, Self::Recording];
        kinds
            .into_iter()
            .find(|kind| *kind as usize == handle >> KIND_SHIFT & 0xF)
    }
}

/// A host pool with its handle.
pub(crate) struct HostPool {
    handle: usize,
    pub(crate) pool: Pool,
    /// Whether the program has destroyed the pool. Its blocks can still be freed.
    pub(crate) destroyed: AtomicBool,
    /// The entry that the slot had before. It keeps all entries reachable, so a leak checker does not report them.
    #[expect(dead_code, reason = "held for leak checkers")]
    before: Option<&'static HostPool>,
}

/// The object of a handle.
#[derive(Clone)]
pub(crate) enum Object {
    Host(&'static HostPool),
    Device(Arc<OpenDevicePool>),
    Budget(Budget),
    Recording(Arc<Mutex<Option<Recorder>>>),
}

impl Object {
    fn kind(&self) -> Kind {
        match self {
            Self::Host(_) | Self::Device(_) => Kind::Pool,
            Self::Budget(_) => Kind::Budget,
            Self::Recording(_) => Kind::Recording,
        }
    }
}

#[derive(Default)]
struct Slot {
    /// The entry of a host pool, or null.
    ///
    /// Invariant: the entry is never freed.
    host: AtomicPtr<HostPool>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The handle that is valid now, or 0.
    handle: usize,
    generation: usize,
    object: Option<Object>,
    last: Option<&'static HostPool>,
}

/// Slots without an object.
struct Vacant {
    /// The first slot that was never used.
    next: usize,
    slots: Vec<usize>,
}

static CHUNKS: [OnceLock<Box<[Slot]>>; SLOTS / CHUNK] = [const { OnceLock::new() }; SLOTS / CHUNK];
static VACANT: Mutex<Vacant> = Mutex::new(Vacant {
    next: 0,
    slots: Vec::new(),
});

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held, so its data is complete.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the slot of a handle, if it was ever used.
#[inline]
fn slot_of(handle: usize) -> Option<&'static Slot> {
    let slot = handle & (SLOTS - 1);
    CHUNKS[slot / CHUNK].get().map(|chunk| &chunk[slot % CHUNK])
}

/// Adds an object, and returns its handle.
fn add(kind: Kind, object: impl FnOnce(usize, &State) -> Object) -> Result<usize, Failure> {
    let number = {
        let mut vacant = lock(&VACANT);
        match vacant.slots.pop() {
            Some(slot) => slot,
            None if vacant.next == SLOTS => {
                return Err(Failure::new(
                    millpond_status::MILLPOND_SYSTEM_ERROR,
                    format!("the process has {SLOTS} handles, which is the most: destroy some"),
                ));
            }
            None => {
                vacant.next += 1;
                vacant.next - 1
            }
        }
    };
    let new = || (0..CHUNK).map(|_| Slot::default()).collect();
    let slot = &CHUNKS[number / CHUNK].get_or_init(new)[number % CHUNK];
    let mut state = lock(&slot.state);
    state.generation += 1;
    let handle = MARK | (kind as usize) << KIND_SHIFT | state.generation << GENERATION_SHIFT | number;
    let object = object(handle, &state);
    if let Object::Host(entry) = object {
        state.last = Some(entry);
        slot.host
            .store(ptr::from_ref(entry).cast_mut(), Ordering::Release);
    }
    state.handle = handle;
    state.object = Some(object);
    Ok(handle)
}

pub(crate) fn add_host(pool: Pool) -> Result<usize, Failure> {
    add(Kind::Pool, |handle, state| {
        Object::Host(Box::leak(Box::new(HostPool {
            handle,
            pool,
            destroyed: AtomicBool::new(false),
            before: state.last,
        })))
    })
}

pub(crate) fn add_object(object: Object) -> Result<usize, Failure> {
    add(object.kind(), |_, _| object)
}

/// Returns the host pool of a handle. This is the fast path.
#[inline]
pub(crate) fn host_pool(handle: usize) -> Result<&'static HostPool, Failure> {
    if let Some(slot) = slot_of(handle) {
        // SAFETY: the pointer is null or that of an entry, which is never freed, by the invariant.
        let entry = unsafe { slot.host.load(Ordering::Acquire).as_ref() };
        if let Some(entry) = entry.filter(|entry| entry.handle == handle) {
            return Ok(entry);
        }
    }
    Err(no_host_pool(handle))
}

#[cold]
fn no_host_pool(handle: usize) -> Failure {
    match find(handle, Kind::Pool) {
        Ok(_) => Failure::new(
            millpond_status::MILLPOND_INVALID_HANDLE,
            "the pool has memory of a device, and this function needs a pool of host memory: use the function for devices",
        ),
        Err(failure) => failure,
    }
}

/// Returns the object of a handle.
pub(crate) fn find(handle: usize, kind: Kind) -> Result<Object, Failure> {
    if Kind::of(handle) == Some(kind)
        && let Some(slot) = slot_of(handle)
    {
        let state = lock(&slot.state);
        if state.handle == handle
            && let Some(object) = &state.object
        {
            return Ok(object.clone());
        }
    }
    Err(wrong(handle, kind))
}

/// Makes a handle invalid, and returns its object. Only one thread gets it.
pub(crate) fn remove(handle: usize, kind: Kind) -> Result<Object, Failure> {
    let slot = slot_of(handle).filter(|_| Kind::of(handle) == Some(kind));
    let slot = slot.ok_or_else(|| wrong(handle, kind))?;
    let mut state = lock(&slot.state);
    if state.handle != handle {
        return Err(wrong(handle, kind));
    }
    state.handle = 0;
    let object = state.object.take().ok_or_else(|| wrong(handle, kind))?;
    slot.host.store(ptr::null_mut(), Ordering::Release);
    let is_used_up = state.generation + 1 == GENERATIONS;
    drop(state);
    if !is_used_up {
        lock(&VACANT).slots.push(handle & (SLOTS - 1));
    }
    Ok(object)
}

#[cold]
fn wrong(handle: usize, kind: Kind) -> Failure {
    let name = kind.name();
    let text = match Kind::of(handle) {
        None if handle == 0 => {
            format!("the {name} is null: pass the handle that the function which creates it has returned")
        }
        None => format!("{handle:#x} is not a handle of this library: pass a {name}"),
        Some(other) if other != kind => format!("the handle is that of a {}: pass a {name}", other.name()),
        Some(_) => format!("the {name} was destroyed before: do not use its handle any more"),
    };
    Failure::new(millpond_status::MILLPOND_INVALID_HANDLE, text)
}

/// Returns the failure of a request to a pool that was destroyed and has live blocks.
#[cold]
pub(crate) fn closed() -> Failure {
    Failure::new(
        millpond_status::MILLPOND_INVALID_HANDLE,
        "the pool was destroyed: its handle is only for freeing the blocks that are live",
    )
}

/// Makes the handle of a destroyed host pool invalid if no block is live.
#[cold]
pub(crate) fn end_if_empty(pool: *mut millpond_pool, entry: &HostPool) {
    let stats = entry.pool.stats();
    if stats.allocations == stats.frees {
        // Another thread may have freed the last block at the same time.
        let _ = remove(pool.addr(), Kind::Pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> usize {
        let budget = Budget::builder("of a test").build().expect("a budget");
        add_object(Object::Budget(budget)).expect("a handle")
    }

    #[test]
    fn a_handle_stays_wrong_when_its_slot_is_used_again() {
        let first = budget();
        assert!(find(first, Kind::Budget).is_ok());
        assert!(find(first, Kind::Pool).is_err());
        assert!(remove(first, Kind::Budget).is_ok());
        let mut used = false;
        for _ in 0..100 {
            let next = budget();
            used |= next & (SLOTS - 1) == first & (SLOTS - 1);
            assert!(find(first, Kind::Budget).is_err());
            assert!(remove(first, Kind::Budget).is_err());
            assert!(remove(next, Kind::Budget).is_ok());
        }
        assert!(used, "the slot was never used again");
    }

    #[test]
    fn only_one_thread_removes_a_handle() {
        let handle = budget();
        let removed = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| remove(handle, Kind::Budget).is_ok()))
                .collect();
            threads
                .into_iter()
                .filter_map(|thread| thread.join().ok())
                .filter(|is| *is)
                .count()
        });
        assert_eq!(removed, 1);
    }
}
