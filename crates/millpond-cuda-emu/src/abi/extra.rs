//! Functions for tests and tools that the real driver does not have. `dlsym` finds them, and `cuGetProcAddress` does not.

use super::args::{In, Out, Text};
use crate::calls;
use crate::driver::Driver;
use crate::error::{Answer, Code};
use crate::kernels::{self, Kernel};
use crate::memory::os;
use crate::options::Fault;
use crate::thread;

/// A client's kernel. Its arguments are its own data, the addresses of the parameters, and grid and block as six numbers. It
/// returns a CUDA error or 0.
type ClientKernel = unsafe extern "C" fn(usize, *const *const u8, *const u32) -> i32;

fn code(answer: Answer) -> i32 {
    answer.map_or_else(|code| code.0, |()| 0)
}

/// Finds memory that CUDA knows, for reading, or for writing if `write` is true.
fn resolve(driver: &Driver, at: u64, bytes: usize, write: bool) -> Answer<Vec<os::Span>> {
    let mut state = driver.state();
    state.memory.touch(at, bytes as u64, 0, write);
    state.memory.resolve(at, bytes as u64)
}

/// Registers a function as the kernel of this name. `sizes` contains the size of each of its `count` parameters in bytes.
/// `data` is passed back to the function. `nanoseconds` is the duration of a launch on the modelled card. Returns a CUDA error
/// or 0.
///
/// # Safety
/// `name` must be a C string. `sizes` must have `count` elements. `function` must be callable on any thread as long as the
/// process lives.
#[unsafe(no_mangle)]
unsafe extern "C" fn millpond_emu_register(
    name: Text,
    sizes: In<usize>,
    count: usize,
    nanoseconds: u64,
    function: Option<ClientKernel>,
    data: usize,
) -> i32 {
    let register = || -> Answer {
        let driver = calls::started().ok_or(Code::NOT_INITIALIZED)?;
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let (name, sizes) = (name.get()?, sizes.all(count)?);
        Code::INVALID_VALUE.when(sizes.iter().any(|size| *size == 0 || *size > 4096))?;
        let run = move |call: &kernels::Call<'_>| {
            let launch = call.launch;
            let places: Vec<*const u8> = launch.params.0.iter().map(Vec::as_ptr).collect();
            let [gx, gy, gz] = launch.grid;
            let [bx, by, bz] = launch.block;
            let shape = [gx, gy, gz, bx, by, bz];
            // SAFETY: the client that registered the function is responsible for it. Its arguments live until it returns.
            match unsafe { function(data, places.as_ptr(), shape.as_ptr()) } {
                0 => Ok(()),
                error => Err(Code(error)),
            }
        };
        driver
            .state()
            .kernels
            .register(&name, Kernel::new(&sizes, nanoseconds, Box::new(run)));
        Ok(())
    };
    code(register())
}

/// Reads memory that CUDA knows, inside a kernel or outside, with or without strict mode. It is not ordered with any work.
///
/// # Safety
/// `to` must have room for `bytes` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn millpond_emu_read(to: Out<u8>, from: u64, bytes: usize) -> i32 {
    let read = || -> Answer {
        let driver = calls::started().ok_or(Code::NOT_INITIALIZED)?;
        let _held = driver.shared.hold();
        let spans = resolve(driver, from, bytes, false)?;
        let all: Vec<u8> = spans.iter().flat_map(|span| span.read()).collect();
        to.fill(&all)
    };
    code(read())
}

/// Writes memory that CUDA knows, like `millpond_emu_read`.
///
/// # Safety
/// `from` must point to `bytes` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn millpond_emu_write(to: u64, from: In<u8>, bytes: usize) -> i32 {
    let write = || -> Answer {
        let driver = calls::started().ok_or(Code::NOT_INITIALIZED)?;
        let all = from.all(bytes)?;
        let _held = driver.shared.hold();
        let spans = resolve(driver, to, bytes, true)?;
        let source = all.as_ptr().expose_provenance();
        // SAFETY: the vector lives until the copy is complete, and is only read.
        os::copy(&spans, &[unsafe { os::Span::host(source, bytes) }]);
        Ok(())
    };
    code(write())
}

/// Returns the number of misuses that strict mode has found. Writes their texts into `text`, one per line, as far as they fit,
/// with a final zero.
///
/// # Safety
/// `text` must be null or have room for `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn millpond_emu_report(text: Out<u8>, room: usize) -> u64 {
    let Some(driver) = calls::started() else { return 0 };
    let state = driver.state();
    let findings = state.strict.findings();
    if room > 0 && !text.is_null() {
        let mut all = findings.join("\n").into_bytes();
        all.truncate(room - 1);
        all.push(0);
        let _ = text.fill(&all);
    }
    findings.len() as u64
}

/// Returns how often a function was called. The name may include the version or not. If it is null, returns the number of all
/// calls.
///
/// # Safety
/// `name` must be null or a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn millpond_emu_calls(name: Text) -> u64 {
    calls::count(super::all(), name.get().ok().as_deref())
}

/// Makes a later call fail once. The format is that of the option `fail`: `NAME`, `NAME@N` or `@N`, optionally followed by
/// `=CODE`, counted from now on. Null cancels faults that have not occurred. Returns a CUDA error or 0.
///
/// # Safety
/// `what` must be null or a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn millpond_emu_fail(what: Text) -> i32 {
    let Ok(what) = what.get() else {
        calls::forget_faults();
        return 0;
    };
    match Fault::parse(&what) {
        Ok(fault) => {
            calls::fail_later(fault);
            0
        }
        Err(why) => {
            eprintln!("millpond-cuda-emu: '{what}': {why}");
            Code::INVALID_VALUE.0
        }
    }
}

/// Returns the bytes of a managed range that are at a device or at the host (-1), in whole pages of 64 KiB. Returns `u64::MAX`
/// if the range is not managed.
#[unsafe(no_mangle)]
unsafe extern "C" fn millpond_emu_resident(at: u64, bytes: usize, place: i32) -> u64 {
    let Some(driver) = calls::started() else {
        return u64::MAX;
    };
    driver
        .state()
        .memory
        .resident(at, bytes as u64, place)
        .unwrap_or(u64::MAX)
}

/// Advances the modelled time of the calling thread by host work other than CUDA calls, such as reading a file or copying
/// memory. Such work takes no modelled time unless it is reported here. With `pace:on` it also takes that much real time.
/// Returns the thread's modelled time, in nanoseconds from the first call. With 0, it only returns the time.
#[unsafe(no_mangle)]
extern "C" fn millpond_emu_host_work(nanoseconds: u64) -> u64 {
    let Some(driver) = calls::started() else { return 0 };
    if driver.shared.options.pace {
        std::thread::sleep(std::time::Duration::from_nanos(nanoseconds));
    }
    let mut state = driver.state();
    state.time.host_works(thread::number(), nanoseconds);
    state.time.host(thread::number())
}
