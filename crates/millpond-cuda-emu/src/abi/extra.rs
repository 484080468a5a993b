//! What the real driver does not have: functions for tests and tools. `dlsym` finds them; `cuGetProcAddress` does not know them.

use super::args::{In, Out, Text};
use crate::calls;
use crate::driver::Driver;
use crate::error::{Answer, Code};
use crate::kernels::{self, Kernel};
use crate::memory::os;
use crate::options::Fault;
use crate::thread;

/// A kernel of a client: its own data, the parameters' places, and grid and block as six numbers. It answers a CUDA error or 0.
type ClientKernel = unsafe extern "C" fn(usize, *const *const u8, *const u32) -> i32;

fn code(answer: Answer) -> i32 {
    answer.map_or_else(|code| code.0, |()| 0)
}

/// Finds memory that CUDA knows, to be read, or written where `write` says so.
fn resolve(driver: &Driver, at: u64, bytes: usize, write: bool) -> Answer<Vec<os::Span>> {
    let mut state = driver.state();
    state.memory.touch(at, bytes as u64, 0, write);
    state.memory.resolve(at, bytes as u64)
}

/// Registers a function as the kernel of this name. `sizes` are the bytes of its `count` parameters, `data` is handed back to it,
/// `nanoseconds` is what a launch takes on the modelled card. Answers a CUDA error or 0.
///
/// # Safety
/// `name` is a C string, `sizes` has `count` elements, and `function` may be called on any thread as long as the process lives.
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
        if sizes.iter().any(|size| *size == 0 || *size > 4096) {
            return Err(Code::INVALID_VALUE);
        }
        let run = move |call: &kernels::Call<'_>| {
            let launch = call.launch;
            let places: Vec<*const u8> = launch.params.0.iter().map(Vec::as_ptr).collect();
            let [gx, gy, gz] = launch.grid;
            let [bx, by, bz] = launch.block;
            let shape = [gx, gy, gz, bx, by, bz];
            // SAFETY: whoever registered the function vouches for it; what it is given lives until it returns.
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

/// Reads memory that CUDA knows, from inside a kernel or not, strict mode or not. Orders nothing.
///
/// # Safety
/// `to` has room for `bytes`.
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

/// Writes memory that CUDA knows, as `millpond_emu_read` reads it.
///
/// # Safety
/// `from` has `bytes` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn millpond_emu_write(to: u64, from: In<u8>, bytes: usize) -> i32 {
    let write = || -> Answer {
        let driver = calls::started().ok_or(Code::NOT_INITIALIZED)?;
        let all = from.all(bytes)?;
        let _held = driver.shared.hold();
        let spans = resolve(driver, to, bytes, true)?;
        let source = all.as_ptr().expose_provenance();
        // SAFETY: the vector lives until the copy is done, and is only read.
        os::copy(&spans, &[unsafe { os::Span::host(source, bytes) }]);
        Ok(())
    };
    code(write())
}

/// How many misuses strict mode has found; their texts, one a line, into `text` as far as they fit, ended by a zero.
///
/// # Safety
/// `text` is null or has room for `room` bytes.
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

/// How often a function was called, by its name with or without its version; all calls where the name is null.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn millpond_emu_calls(name: Text) -> u64 {
    calls::count(super::all(), name.get().ok().as_deref())
}

/// Makes a later call fail once: `NAME`, `NAME@N` or `@N`, `=CODE` after it or not, as the option `fail`, counted from now on. Null
/// takes back what has not happened. Answers a CUDA error or 0.
///
/// # Safety
/// `what` is null or a C string.
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

/// Bytes of a managed range that are at a device, or at the host (-1), in whole pages of 64 KiB; `u64::MAX` where it is not managed.
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

/// The calling thread works for so many modelled nanoseconds: what it does besides calling CUDA, such as reading a file or copying
/// memory, takes none of the modelled time unless it is told here. With `pace:on` it takes as much real time too. Answers the
/// thread's modelled time, in nanoseconds from the first call; asked with 0, it only answers.
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
