//! The path of every call: counting, injected faults, a lost device and panics. Also the table entries of all
//! functions.

use crate::access::Origin;
use crate::driver::context::Context;
use crate::driver::stream::Stream;
use crate::driver::{Driver, State};
use crate::error::{Answer, Code};
use crate::options::{Fault, Options, VARIABLE};
use crate::{thread, visible};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The feature that a call requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing. The call works before `cuInit` and after the device is lost.
    Nothing,
    /// An initialised driver.
    Driver,
    /// Virtual memory management.
    Vmm,
    /// Stream-ordered pools.
    Pools,
}

/// A function of the C interface.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The symbol.
    pub(crate) name: &'static str,
    /// The version of CUDA that introduced it.
    pub(crate) since: i32,
    pub(crate) needs: Needs,
    pub(crate) legacy: Address,
    /// The variant that uses each thread's own default stream, and the suffix of its name.
    pub(crate) per_thread: Option<(Address, &'static str)>,
    pub(crate) count: AtomicU64,
}

/// The address of a function, which is only returned to clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address(pub(crate) *const ());

// SAFETY: the address of a function is a number that any thread may hold. Nothing is read through it here.
unsafe impl Sync for Address {}

/// A call in progress.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) driver: &'static Driver,
    pub(crate) per_thread: bool,
    pub(crate) thread: u64,
    /// The code of an injected fault, for a call that still has its effect. The call returns this code in any case.
    pub(crate) fault: Option<Code>,
    origin: Origin,
}

/// The process's driver, and the reason why `cuInit` fails, if it does.
struct Process {
    driver: Answer<Driver>,
    refused: Option<Code>,
}

static PROCESS: OnceLock<Process> = OnceLock::new();
static INITIALISED: AtomicBool = AtomicBool::new(false);
static ALL_CALLS: AtomicU64 = AtomicU64::new(0);
/// The code that calls return after the device is lost. It is empty until then.
static LOST: OnceLock<Code> = OnceLock::new();

/// Faults that were requested at run time, and how many matching calls remain until each occurs.
static FAULTS: Mutex<Vec<(Fault, u64)>> = Mutex::new(Vec::new());

/// Returns the process's driver. The first call creates it.
fn driver() -> Answer<&'static Driver> {
    PROCESS.get_or_init(start).driver.as_ref().map_err(|code| *code)
}

fn start() -> Process {
    let text = std::env::var_os(VARIABLE).unwrap_or_default();
    match Options::parse(&text.to_string_lossy()) {
        Ok(options) => Process {
            driver: Driver::new(options),
            refused: None,
        },
        Err(error) => {
            eprintln!("millpond-cuda-emu: {error}");
            // Calls that need no initialisation still work, so that the client can report what happened.
            Process {
                driver: Driver::new(Options::default()),
                refused: Some(Code::INVALID_VALUE),
            }
        }
    }
}

/// Returns the driver if it has been initialised.
pub(crate) fn started() -> Option<&'static Driver> {
    if INITIALISED.load(Ordering::Acquire) {
        driver().ok()
    } else {
        None
    }
}

/// Implements `cuInit`.
pub(crate) fn initialise() -> Answer {
    let driver = driver()?;
    if let Some(code) = PROCESS.get().and_then(|process| process.refused) {
        return Err(code);
    }
    let seen = driver.shared.visible.get_or_init(|| {
        let all = 0..driver.shared.options.devices;
        match std::env::var(visible::VARIABLE) {
            Ok(list) => visible::visible(&list, &all.map(visible::uuid_text).collect::<Vec<_>>()),
            Err(_) => all.collect(),
        }
    });
    Code::NO_DEVICE.when(seen.is_empty())?;
    INITIALISED.store(true, Ordering::Release);
    Ok(())
}

/// Runs a function of the C interface and returns its result code. Never unwinds.
pub(crate) fn enter(entry: &'static Entry, per_thread: bool, body: impl FnOnce(&Call) -> Answer) -> i32 {
    let number = ALL_CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    let own = entry.count.fetch_add(1, Ordering::Relaxed) + 1;
    let run = || -> Answer {
        if entry.needs == Needs::Nothing {
            // These calls do not use the driver, but `Call` has to contain one.
            let driver = driver()?;
            fault(entry, driver, own, number)?;
            return body(&call(entry, driver, per_thread, number, None));
        }
        Code::NOT_PERMITTED.when(thread::is_in_callback())?;
        let Some(driver) = started() else {
            return Err(Code::NOT_INITIALIZED);
        };
        {
            let mut state = driver.state();
            state.activity += 1;
            state
                .time
                .host_works(thread::number(), driver.shared.options.call_cost);
        }
        if let Some((nth, code)) = driver.shared.options.lost
            && number >= nth
        {
            LOST.get_or_init(|| code);
        }
        if let Some(code) = LOST.get() {
            return Err(*code);
        }
        Code::NOT_SUPPORTED.when(!entry.there(&driver.shared.options))?;
        let fault = fault(entry, driver, own, number);
        match fault {
            Err(code) if !entry.acts_when_it_fails() => Err(code),
            _ => body(&call(entry, driver, per_thread, number, fault.err())),
        }
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

fn call(
    entry: &'static Entry,
    driver: &'static Driver,
    per_thread: bool,
    number: u64,
    fault: Option<Code>,
) -> Call {
    let context = thread::current().unwrap_or(0);
    let origin = Origin {
        call: entry.name,
        number,
        stream: 0,
        context,
    };
    Call {
        driver,
        per_thread,
        thread: thread::number(),
        fault,
        origin,
    }
}

fn fault(entry: &Entry, driver: &Driver, own: u64, number: u64) -> Answer {
    for fault in &driver.shared.options.fail {
        let (named, count) = match &fault.name {
            Some(name) => (entry.is_called(name), own),
            None => (true, number),
        };
        if named && fault.nth.is_none_or(|nth| nth == count) {
            return Err(fault.code);
        }
    }
    let mut faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut failed = None;
    faults.retain_mut(|(fault, left)| {
        if failed.is_some() || !fault.name.as_ref().is_none_or(|name| entry.is_called(name)) {
            return true;
        }
        *left -= 1;
        if *left == 0 {
            failed = Some(fault.code);
        }
        *left > 0
    });
    failed.map_or(Ok(()), Err)
}

/// Makes the n-th call of a function, or of any function, fail once, counted from now on. Without a number,
/// the first call fails.
pub(crate) fn fail_later(fault: Fault) {
    let left = fault.nth.unwrap_or(1);
    FAULTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push((fault, left));
}

/// Cancels the faults that `fail_later` requested and that have not occurred. Returns their number.
pub(crate) fn forget_faults() -> u64 {
    let mut faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    let left = faults.len() as u64;
    faults.clear();
    left
}

/// Returns the number of calls so far, of one function among `entries` or of all.
pub(crate) fn count(entries: impl Iterator<Item = &'static Entry>, name: Option<&str>) -> u64 {
    match name {
        None => ALL_CALLS.load(Ordering::Relaxed),
        Some(name) => {
            let of = entries.filter(|entry| entry.is_called(name));
            of.map(|entry| entry.count.load(Ordering::Relaxed)).sum()
        }
    }
}

impl Entry {
    /// Returns whether this is the function's name, with or without its version.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.base() == name
    }

    /// Returns the function's name without its version.
    pub(crate) fn base(&self) -> &'static str {
        match self.name.rsplit_once("_v") {
            Some((base, version)) if version.bytes().all(|b| b.is_ascii_digit()) => base,
            _ => self.name,
        }
    }

    /// Returns whether the call has its effect even if it returns an error. `cuStreamEndCapture` ends a capture in any case.
    fn acts_when_it_fails(&self) -> bool {
        self.name == "cuStreamEndCapture"
    }

    /// Returns whether the emulated driver contains this function.
    pub(crate) fn there(&self, options: &Options) -> bool {
        let group = match self.needs {
            Needs::Vmm => options.vmm,
            Needs::Pools => options.pools,
            Needs::Nothing | Needs::Driver => true,
        };
        group && self.since <= options.version
    }
}

impl Call {
    pub(crate) fn options(&self) -> &'static Options {
        &self.driver.shared.options
    }

    /// Returns the origin of work that this call queues.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the current context, or the error if its work has failed.
    pub(crate) fn context(&self) -> Answer<u64> {
        let context = thread::current().ok_or(Code::INVALID_CONTEXT)?;
        let healthy = self.driver.state().healthy(context).map(|_| context);
        match healthy {
            Ok(context) => Ok(context),
            Err(Code::INVALID_CONTEXT) => Err(self.unknown(context, Code::CONTEXT_IS_DESTROYED)),
            Err(code) => Err(code),
        }
    }

    /// Reports the use of an unknown handle, and returns the code.
    pub(crate) fn unknown(&self, handle: u64, code: Code) -> Code {
        self.driver.state().unknown(handle, code, self.origin)
    }

    /// Checks that a handle exists, and otherwise reports its use.
    fn known<T>(&self, handle: u64, find: impl FnOnce(&State, u64) -> Answer<&T>) -> Answer<u64> {
        let known = find(&self.driver.state(), handle).map(|_| handle);
        known.map_err(|code| self.unknown(handle, code))
    }

    /// Returns a context that a client passed, if it exists.
    pub(crate) fn known_context(&self, handle: u64) -> Answer<u64> {
        self.known(handle, State::context)
    }

    /// Returns a context that a client passed to make it current, if it exists. The handle of a primary context is valid even while the
    /// context is not retained.
    pub(crate) fn settable_context(&self, handle: u64) -> Answer<u64> {
        let primary = self.driver.state().is_primary(handle);
        if primary {
            Ok(handle)
        } else {
            self.known_context(handle)
        }
    }

    /// Returns an event that a client passed, if it exists.
    pub(crate) fn event(&self, handle: u64) -> Answer<u64> {
        self.known(handle, State::event)
    }

    /// Returns a stream that a client created, whatever the state of its context.
    pub(crate) fn named_stream(&self, handle: u64) -> Answer<u64> {
        self.known(handle, State::stream)
    }

    /// Reads the current context.
    pub(crate) fn of_context<T>(&self, read: impl FnOnce(&Context) -> T) -> Answer<T> {
        let context = self.context()?;
        self.driver.state().context(context).map(read)
    }

    /// Changes the current context.
    pub(crate) fn change_context<T>(&self, change: impl FnOnce(&mut Context) -> T) -> Answer<T> {
        let context = self.context()?;
        let mut state = self.driver.state();
        let context = state.contexts.get_mut(&context).ok_or(Code::INVALID_CONTEXT)?;
        Ok(change(context))
    }

    /// Reads the stream that a handle means in this call.
    pub(crate) fn of_stream<T>(&self, handle: u64, read: impl FnOnce(&Stream) -> T) -> Answer<T> {
        let stream = self.stream(handle)?;
        self.driver.state().stream(stream).map(read)
    }

    /// Returns the device of the current context.
    pub(crate) fn device(&self) -> Answer<u32> {
        let context = self.context()?;
        Ok(self.driver.state().healthy(context)?.device)
    }

    /// Returns the stream that a handle means in this call.
    pub(crate) fn stream(&self, handle: u64) -> Answer<u64> {
        let context = match handle {
            0..=2 => self.context()?,
            _ => thread::current().unwrap_or(0),
        };
        let mut state = self.driver.state();
        let found = state.find_stream(handle, context, self.per_thread, self.thread);
        found.map_err(|code| state.unknown(handle, code, self.origin))
    }

    /// Returns a device by its number.
    pub(crate) fn known_device(&self, device: i32) -> Answer<u32> {
        let known = u32::try_from(device)
            .ok()
            .filter(|device| (*device as usize) < self.devices().len());
        known.ok_or(Code::INVALID_DEVICE)
    }

    /// Returns the number on the machine of each device that the process sees.
    pub(crate) fn devices(&self) -> &'static [u32] {
        self.driver.shared.visible.get().map_or(&[], Vec::as_slice)
    }

    /// Returns a device's number on the machine, on which its identity depends.
    pub(crate) fn on_machine(&self, device: u32) -> u32 {
        self.devices().get(device as usize).copied().unwrap_or(device)
    }
}
