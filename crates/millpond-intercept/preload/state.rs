//! The state of this process, its lock, and the settings.

use crate::account::Account;
use crate::log::Log;
use crate::stack::Stacks;
use crate::sys;
use std::cell::{Cell, UnsafeCell};
use std::ffi::OsString;
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The settings, which `millpond record` passes in the environment.
pub(crate) struct Settings {
    /// The folder for the logs.
    pub(crate) folder: PathBuf,
    /// The bytes of each device, of which `context` are in use before the first allocation. `None` if they are not limited.
    pub(crate) limit: Option<u64>,
    /// The bytes that count as used by the context.
    pub(crate) context: u64,
    /// The most return addresses of a stack.
    pub(crate) frames: usize,
}

impl Settings {
    /// Returns the path of a log.
    pub(crate) fn log(&self, process: u32, number: u32) -> PathBuf {
        self.folder.join(format!("{process}.{number}.log"))
    }
}

static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();

/// Returns the settings, or `None` if this process is not recorded. The first call reads them from the environment.
pub(crate) fn settings() -> Option<&'static Settings> {
    let read = || {
        let folder = std::env::var_os("MILLPOND_INTERCEPT")?;
        let number = |name: &str| -> Option<u64> {
            let value: OsString = std::env::var_os(name)?;
            value.to_str()?.parse().ok()
        };
        Some(Settings {
            folder: folder.into(),
            limit: number("MILLPOND_INTERCEPT_LIMIT"),
            context: number("MILLPOND_INTERCEPT_CONTEXT").unwrap_or(0),
            frames: number("MILLPOND_INTERCEPT_FRAMES").map_or(32, |frames| frames.min(64) as usize),
        })
    };
    SETTINGS.get_or_init(read).as_ref()
}

/// The state of this process. All zeros are a valid state: nothing is held, and there is no log.
///
/// # Invariant
/// It lies in pages that are zeros when they are mapped, and again in a child of a fork. `State` has only fields for which zeros are
/// valid. Only the thread that has set `lock` uses `inner`.
struct State {
    lock: AtomicU32,
    inner: UnsafeCell<Inner>,
}

/// The data that the lock protects.
pub(crate) struct Inner {
    pub(crate) log: Log,
    pub(crate) account: Account,
    pub(crate) stacks: Stacks,
}

static STATE: AtomicPtr<State> = AtomicPtr::new(ptr::null_mut());

fn state() -> Option<&'static State> {
    let mut at = STATE.load(Ordering::Acquire);
    if at.is_null() {
        let fresh = sys::zeroed_in_children(size_of::<State>())?.cast();
        at = match STATE.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(other) => other,
        };
    }
    // SAFETY: the mapping is never removed, is aligned to a page, and holds a valid state by the invariant of `State`.
    Some(unsafe { &*at })
}

/// Releases the lock.
struct Unlock<'a>(&'a AtomicU32);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Locks the state and calls a function with it. The function must not call the driver. Returns `None` if there is no memory for a state.
pub(crate) fn with<R>(work: impl FnOnce(&mut Inner) -> R) -> Option<R> {
    let state = state()?;
    let mut tries = 0_u32;
    while state
        .lock
        .compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed)
        .is_err()
    {
        tries += 1;
        if tries.is_multiple_of(64) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
    let _unlock = Unlock(&state.lock);
    // SAFETY: this thread has set the lock, so by the invariant of `State` no other thread uses it.
    Some(work(unsafe { &mut *state.inner.get() }))
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A call that is recorded. While this value exists, further calls of the thread are not recorded, because the driver or this library
/// makes them.
pub(crate) struct Inside(());

impl Inside {
    /// Returns `None` if the thread is inside a call already, or if this process is not recorded.
    #[inline]
    pub(crate) fn enter() -> Option<Self> {
        settings()?;
        (!INSIDE.replace(true)).then_some(Self(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}
