//! A CUDA driver for tests: the emulated one, or the machine's own if requested.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Returns true if tests may use the machine's own driver.
pub(crate) fn is_real() -> bool {
    std::env::var_os("MILLPOND_TEST_CUDA").is_some_and(|said| said == "real")
}

/// Returns true if tests must run with the driver that `MILLPOND_CUDA_EMU` describes, and tests with a description of
/// their own must not run. `cargo xtask cuda-seeds` runs them in this way for each seed.
pub(crate) fn is_given() -> bool {
    std::env::var_os("MILLPOND_TEST_CUDA").is_some_and(|said| said == "given")
}

/// Returns which of a program's calls of the driver fail in a test: every seventh, or all of them in the long checks.
pub(crate) fn failing(calls: u64) -> impl Iterator<Item = u64> {
    let is_long = std::env::var_os("MILLPOND_TEST_ALL").is_some();
    (1..=calls).step_by(if is_long { 1 } else { 7 })
}

/// Loads the emulated driver into this process, before any code has searched for a driver. Its library is built in the
/// folder of the tests. If it is missing, this prints the reason and returns false.
pub(crate) fn load() -> bool {
    static LOADED: OnceLock<bool> = OnceLock::new();
    is_real()
        || *LOADED.get_or_init(|| {
            let outcome = library().and_then(|path| open(&path));
            if let Err(why) = &outcome {
                eprintln!("skipped: {why}");
            }
            outcome.is_ok()
        })
}

/// Returns the path of the emulated driver's library.
pub(crate) fn library() -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut folders = here.ancestors().skip(1).take(2);
    let name = "libmillpond_cuda_emu.so";
    let found = folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.exists()));
    found.ok_or_else(|| {
        format!(
            "there is no {name} beside {}: build millpond-cuda-emu",
            here.display()
        )
    })
}

/// Creates a folder with a copy of the emulated driver that looks like a real one. It has none of the emulator's own
/// functions except those that stand for the code of kernels.
pub(crate) fn bare() -> PathBuf {
    const OWN: &[u8] = b"millpond_emu_";
    let mut library = std::fs::read(library().expect("it is built")).expect("it can be read");
    for at in 0..library.len() - OWN.len() {
        let (name, rest) = library[at..].split_at_mut(OWN.len());
        let kernels = [&b"register\0"[..], b"read\0", b"write\0"];
        if name == OWN && !kernels.iter().any(|kept| rest.starts_with(kept)) {
            name.copy_from_slice(b"millpond_hid_");
        }
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bare-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    // Both names lead to one file, as with a real driver. Two files would be two drivers.
    std::fs::write(folder.join("libcuda.so.1"), &library).expect("written");
    let _ = std::os::unix::fs::symlink("libcuda.so.1", folder.join("libcuda.so"));
    folder
}

fn open(path: &std::path::Path) -> Result<(), String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: a library of this workspace, which does nothing when it is loaded. It names itself libcuda.so, so a search
    // for that name finds it.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if !library.is_null() {
        return Ok(());
    }
    // SAFETY: it returns a text or null, which lives until the next call on this thread.
    let why = unsafe { libc::dlerror() };
    if why.is_null() {
        return Err(format!("{} cannot be loaded", path.display()));
    }
    // SAFETY: as above.
    let why = unsafe { CStr::from_ptr(why) };
    Err(why.to_string_lossy().into_owned())
}

/// The variable with the name of the test in a process that runs only this test, with a driver according to `options`.
const CHILD: &str = "MILLPOND_TEST_OF_CUDA";

/// Returns true if this process is such a child, for this test.
pub(crate) fn is_child(test: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|child| child == test)
}

/// Runs a test of this program again, in a process with these options. Returns whether it passed, and its output.
pub(crate) fn child(test: &str, options: &str) -> (bool, String) {
    child_with(test, &[("MILLPOND_CUDA_EMU", options)])
}

/// Like [`child`], with these variables.
pub(crate) fn child_with(test: &str, variables: &[(&str, &str)]) -> (bool, String) {
    let here = std::env::current_exe().expect("a program");
    let output = std::process::Command::new(here)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, test)
        // Calls are counted, so none may be made in the background, unless a test requests it.
        .env("MILLPOND_CONF", "trim-every:off")
        .envs(variables.iter().copied())
        .output()
        .expect("it starts");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    // The test runner counts skipped tests in the output of this process only.
    for line in text.lines().filter(|line| line.contains("skipped: ")) {
        eprintln!("{line}");
    }
    (output.status.success(), text)
}

/// Returns whether to skip a test that only the emulated driver can pass. Prints the reason if so.
pub(crate) fn is_left_out(why: &str) -> bool {
    if is_real() {
        eprintln!("skipped: {why}");
    }
    is_real()
}

/// Returns whether a figure of the device is as expected. On a real driver it may differ by the size of the driver's own tables.
pub(crate) fn is_about(found: u64, expected: u64) -> bool {
    const TABLES: u64 = 32 << 20;
    found.abs_diff(expected) <= if is_real() { TABLES } else { 0 }
}

/// Runs the body in a process of its own for each set of options. Every run must pass.
pub(crate) fn in_children(test: &str, options: impl Iterator<Item = String>, body: impl FnOnce()) {
    if is_real() || is_given() || !load() {
        eprintln!("skipped: on an emulated driver of its own only");
        return;
    }
    alone(test, options, body);
}

/// Like [`in_children`], for tests that must pass with any order of work: the orders of `seeds` seeds, or the order of
/// the machine's own driver.
pub(crate) fn in_any_order(test: &str, seeds: u32, body: impl FnOnce()) {
    let options = (0..seeds).map(|seed| format!("streams:seeded,seed:{seed},strict:on"));
    alone(test, options, body);
}

/// Like [`in_children`], for tests that pass with any driver that no other process uses. The machine's own driver, or a
/// given one, is used once.
pub(crate) fn alone(test: &str, options: impl IntoIterator<Item = String>, body: impl FnOnce()) {
    if !load() {
        return;
    }
    if is_child(test) {
        return body();
    }
    if is_real() || is_given() {
        let (passed, text) = child_with(test, &[]);
        assert!(passed, "{text}");
        return;
    }
    for options in options {
        let (passed, text) = child(test, &options);
        assert!(passed, "{options}:\n{text}");
    }
}

/// Returns a function of the driver, or of the emulator, by its name. Returns null if there is none.
fn look_up(name: &CStr) -> *mut c_void {
    // SAFETY: the handle is that of a library that stays loaded, and the name is a C string.
    unsafe { libc::dlsym(driver(), name.as_ptr()) }
}

/// Like `look_up`, but panics if there is no such function.
fn symbol(name: &CStr) -> *mut c_void {
    let found = look_up(name);
    assert!(!found.is_null(), "there is no {name:?}");
    found
}

/// Returns the handle with which functions of the driver are looked up. The emulated driver is loaded with
/// `RTLD_GLOBAL`. The library under test loads the machine's own driver with `RTLD_LOCAL`, so the tests need their own
/// handle to the same library.
fn driver() -> *mut c_void {
    static OWN: OnceLock<usize> = OnceLock::new();
    if !is_real() {
        return libc::RTLD_DEFAULT;
    }
    let own = OWN.get_or_init(|| {
        let names = [c"libcuda.so.1", c"libcuda.so"];
        let mut found = names.iter().map(|name| {
            // SAFETY: loading a driver runs its initialisers and nothing else.
            unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
        });
        let library = found.find(|library| !library.is_null());
        library
            .expect("MILLPOND_TEST_CUDA=real needs a driver")
            .expose_provenance()
    });
    std::ptr::with_exposed_provenance_mut(*own)
}

/// Makes the n-th call of the driver from now on fail, counted from 1. With `None`, no call fails any more.
pub(crate) fn fail(nth: Option<u64>) {
    type Fail = unsafe extern "C" fn(*const c_char) -> c_int;
    // SAFETY: the emulator's function of this name has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Fail>(symbol(c"millpond_emu_fail")) };
    let what = nth.map(|nth| CString::new(format!("@{nth}")).expect("digits"));
    let what = what.as_ref().map_or(std::ptr::null(), |what| what.as_ptr());
    // SAFETY: null or a C string.
    assert_eq!(unsafe { function(what) }, 0);
}

/// Returns how often a function of the driver was called, or the sum of all functions if there is no name. The
/// machine's own driver does not count calls. With it, this returns the calls of the library under test since the
/// first call of this function.
pub(crate) fn calls(name: Option<&CStr>) -> u64 {
    #[cfg(feature = "cuda")]
    if is_real() {
        return own_calls(name);
    }
    type Calls = unsafe extern "C" fn(*const c_char) -> u64;
    // SAFETY: the emulator's function of this name has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Calls>(symbol(c"millpond_emu_calls")) };
    // SAFETY: null or a C string.
    unsafe { function(name.map_or(std::ptr::null(), CStr::as_ptr)) }
}

/// Returns the library's own count of calls of a function, or of all functions.
#[cfg(feature = "cuda")]
fn own_calls(name: Option<&CStr>) -> u64 {
    millpond::cuda::watch_driver_calls(true);
    let plain = |name: &str| name.split("_v").next().unwrap_or(name).to_owned();
    let wanted = name.map(|name| plain(&name.to_string_lossy()));
    let calls = millpond::cuda::driver_calls().expect("a driver");
    let of = calls
        .iter()
        .filter(|of| wanted.as_ref().is_none_or(|name| *name == plain(of.function)));
    of.map(|of| of.calls).sum()
}

/// Returns the errors that strict mode has found. The machine's own driver has no strict mode, so there are none.
pub(crate) fn findings() -> (u64, String) {
    if is_real() {
        return (0, String::new());
    }
    type Report = unsafe extern "C" fn(*mut c_char, usize) -> u64;
    // SAFETY: the emulator's function of this name has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Report>(symbol(c"millpond_emu_report")) };
    let mut text = vec![0u8; 1 << 16];
    // SAFETY: there is this much room.
    let count = unsafe { function(text.as_mut_ptr().cast(), text.len()) };
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(0);
    (count, String::from_utf8_lossy(&text[..end]).into_owned())
}

/// Sets bytes on the device by a direct call of the driver, which the library under test does not see.
pub(crate) fn set_bytes(address: u64, value: u8, bytes: usize, stream: *mut c_void) {
    type Set = unsafe extern "C" fn(u64, u8, usize, *mut c_void) -> u32;
    // SAFETY: the driver's function of this name has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Set>(symbol(c"cuMemsetD8Async")) };
    // SAFETY: the emulator checks addresses itself.
    assert_eq!(unsafe { function(address, value, bytes, stream) }, 0);
}

/// Allocates memory of the device by a direct call of the driver, which the library under test does not see.
pub(crate) fn allocate(bytes: usize) -> u64 {
    type Allocate = unsafe extern "C" fn(*mut u64, usize) -> u32;
    let symbol = symbol(c"cuMemAlloc_v2");
    // SAFETY: the driver's function of this name has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Allocate>(symbol) };
    let mut address = 0;
    let _context = Primary::enter();
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { function(&raw mut address, bytes) }, 0);
    address
}

/// Frees memory that `allocate` returned.
pub(crate) fn free(address: u64) {
    type Free = unsafe extern "C" fn(u64) -> u32;
    // SAFETY: the driver's function of this name has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Free>(symbol(c"cuMemFree_v2")) };
    let _context = Primary::enter();
    // SAFETY: the driver checks addresses itself.
    assert_eq!(unsafe { function(address) }, 0);
}

/// Begins to capture a stream by a direct call of the driver. The capture forbids no calls of other threads.
pub(crate) fn begin_capture(stream: *mut c_void) {
    begin_capture_in(2, stream);
}

/// Begins to capture a stream in a mode. Mode 0 forbids calls that may wait on all threads, 1 on the capturing thread,
/// and 2 on none.
pub(crate) fn begin_capture_in(mode: u32, stream: *mut c_void) {
    type Begin = unsafe extern "C" fn(*mut c_void, u32) -> u32;
    let symbol = symbol(c"cuStreamBeginCapture_v2");
    // SAFETY: the driver's function of this name has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Begin>(symbol) };
    let _context = Primary::enter();
    // SAFETY: the stream is the caller's.
    assert_eq!(unsafe { function(stream, mode) }, 0);
}

/// Ends the capture. Returns true if it has produced a graph, and false if it was invalidated.
pub(crate) fn end_capture(stream: *mut c_void) -> bool {
    type End = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> u32;
    // SAFETY: the driver's function of this name has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, End>(symbol(c"cuStreamEndCapture")) };
    let _context = Primary::enter();
    let mut graph = std::ptr::null_mut();
    // SAFETY: the pointer is to a local. The graph, if there is one, stays until the process ends.
    unsafe { function(stream, &raw mut graph) == 0 }
}

/// Makes the primary context of the first device current on this thread until it is dropped.
struct Primary;

impl Primary {
    fn enter() -> Self {
        type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> u32;
        type Push = unsafe extern "C" fn(*mut c_void) -> u32;
        // SAFETY: the driver's function of this name has this signature.
        let retain =
            unsafe { std::mem::transmute::<*mut c_void, Retain>(symbol(c"cuDevicePrimaryCtxRetain")) };
        // SAFETY: as above.
        let push = unsafe { std::mem::transmute::<*mut c_void, Push>(symbol(c"cuCtxPushCurrent_v2")) };
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is to a local.
        assert_eq!(unsafe { retain(&raw mut context, 0) }, 0);
        // SAFETY: the context was retained just now.
        assert_eq!(unsafe { push(context) }, 0);
        Self
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        type Pop = unsafe extern "C" fn(*mut *mut c_void) -> u32;
        type Release = unsafe extern "C" fn(c_int) -> u32;
        // SAFETY: the driver's function of this name has this signature.
        let pop = unsafe { std::mem::transmute::<*mut c_void, Pop>(symbol(c"cuCtxPopCurrent_v2")) };
        // SAFETY: as above.
        let release =
            unsafe { std::mem::transmute::<*mut c_void, Release>(symbol(c"cuDevicePrimaryCtxRelease_v2")) };
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is to a local.
        let _ = unsafe { pop(&raw mut context) };
        // SAFETY: the context was retained once when this value was made.
        let _ = unsafe { release(0) };
    }
}

/// Makes a library of kernels register them with the emulated driver. Returns their number.
pub(crate) fn register_kernels(library: &std::path::Path) -> c_int {
    type Register = unsafe extern "C" fn(*mut c_void) -> c_int;
    assert!(open(library).is_ok(), "{} cannot be loaded", library.display());
    let function = symbol(c"register_kernels");
    // SAFETY: the library's function of this name has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Register>(function) };
    // SAFETY: it takes the emulator's function of this name.
    unsafe { function(symbol(c"millpond_emu_register")) }
}

/// Advances this thread's modelled time by `nanoseconds`. Returns the modelled time afterwards.
pub(crate) fn host_work(nanoseconds: u64) -> u64 {
    type Work = extern "C" fn(u64) -> u64;
    // SAFETY: the emulator's function of this name has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Work>(symbol(c"millpond_emu_host_work")) };
    function(nanoseconds)
}

/// Returns the bytes of managed memory that are on a device, or on the host (-1), in whole pages of 64 KiB.
pub(crate) fn resident(address: u64, bytes: usize, place: i32) -> u64 {
    type Resident = extern "C" fn(u64, usize, i32) -> u64;
    // SAFETY: the emulator's function of this name has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Resident>(symbol(c"millpond_emu_resident")) };
    function(address, bytes, place)
}

/// Registers a kernel without parameters that only takes `nanoseconds` of modelled time. A real driver has no such function, because the
/// device runs the code of the kernel. In that case this does nothing.
pub(crate) fn register(name: &CStr, nanoseconds: u64) {
    type Body = extern "C" fn(usize, *const *const u8, *const u32) -> c_int;
    type Register =
        unsafe extern "C" fn(*const c_char, *const usize, usize, u64, Option<Body>, usize) -> c_int;
    extern "C" fn nothing(_: usize, _: *const *const u8, _: *const u32) -> c_int {
        0
    }
    if is_real() && look_up(c"millpond_emu_register").is_null() {
        return;
    }
    // SAFETY: the emulator's function of this name has this signature.
    let register = unsafe { std::mem::transmute::<*mut c_void, Register>(symbol(c"millpond_emu_register")) };
    // SAFETY: the name is a C string, there are no parameters, and the function may be called at any time.
    let code = unsafe { register(name.as_ptr(), std::ptr::null(), 0, nanoseconds, Some(nothing), 0) };
    assert_eq!(code, 0);
}

/// Reads memory that CUDA knows. Returns a CUDA error or 0.
pub(crate) fn read(from: u64, to: &mut [u8]) -> c_int {
    type Read = unsafe extern "C" fn(*mut u8, u64, usize) -> c_int;
    // SAFETY: the emulator's function of this name has this signature.
    let read = unsafe { std::mem::transmute::<*mut c_void, Read>(symbol(c"millpond_emu_read")) };
    // SAFETY: there is room for so many bytes.
    unsafe { read(to.as_mut_ptr(), from, to.len()) }
}

/// Creates a stream by a direct call of the driver, which the library under test does not see.
pub(crate) fn create_stream() -> *mut c_void {
    type Create = unsafe extern "C" fn(*mut *mut c_void, u32) -> u32;
    // SAFETY: the driver's function of this name has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Create>(symbol(c"cuStreamCreate")) };
    let _context = Primary::enter();
    let mut stream = std::ptr::null_mut();
    // SAFETY: the pointer is to a local. Flag 1 creates a stream that does not wait for the default stream.
    assert_eq!(unsafe { function(&raw mut stream, 1) }, 0);
    stream
}

/// Destroys a stream that `create_stream` created.
pub(crate) fn destroy_stream(stream: *mut c_void) {
    type Destroy = unsafe extern "C" fn(*mut c_void) -> u32;
    // SAFETY: the driver's function of this name has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Destroy>(symbol(c"cuStreamDestroy_v2")) };
    let _context = Primary::enter();
    // SAFETY: `create_stream` created the stream, and nothing uses it any more.
    assert_eq!(unsafe { function(stream) }, 0);
}

/// Returns two fields of the `CUmemAllocationProp` of physical memory: the types of handles for which it was created,
/// and whether it is for RDMA.
fn properties(address: u64) -> (i32, u8) {
    type Retain = unsafe extern "C" fn(*mut u64, u64) -> u32;
    type Properties = unsafe extern "C" fn(*mut [u32; 8], u64) -> u32;
    type Release = unsafe extern "C" fn(u64) -> u32;
    // SAFETY: the driver's function of this name has this signature.
    let retain =
        unsafe { std::mem::transmute::<*mut c_void, Retain>(symbol(c"cuMemRetainAllocationHandle")) };
    let of = symbol(c"cuMemGetAllocationPropertiesFromHandle");
    // SAFETY: as above.
    let of = unsafe { std::mem::transmute::<*mut c_void, Properties>(of) };
    // SAFETY: as above.
    let release = unsafe { std::mem::transmute::<*mut c_void, Release>(symbol(c"cuMemRelease")) };
    let (mut handle, mut found) = (0, [0; 8]);
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { retain(&raw mut handle, address) }, 0);
    // SAFETY: the structure and the local have 32 bytes.
    assert_eq!(unsafe { of(&raw mut found, handle) }, 0);
    // SAFETY: the handle was retained above.
    assert_eq!(unsafe { release(handle) }, 0);
    // The flags begin at byte 24: compression, RDMA.
    (found[1] as i32, found[6].to_ne_bytes()[1])
}

/// Returns whether the memory at an address can be exported as a file descriptor.
pub(crate) fn can_export(address: u64) -> bool {
    properties(address).0 == 1
}

/// Returns whether the memory at an address was created for GPUDirect RDMA.
pub(crate) fn is_for_rdma(address: u64) -> bool {
    properties(address).1 == 1
}

/// Returns the access that a device has to an address. 3 is read and write.
pub(crate) fn access(address: u64, device: i32) -> u64 {
    type Access = unsafe extern "C" fn(*mut u64, *const [i32; 2], u64) -> u32;
    // SAFETY: the driver's function of this name has this signature.
    let function = unsafe { std::mem::transmute::<*mut c_void, Access>(symbol(c"cuMemGetAccess")) };
    let mut flags = 0;
    // SAFETY: the pointers are to locals. A location is two numbers: a type, where 1 is a device, and the device's number.
    assert_eq!(unsafe { function(&raw mut flags, &[1, device], address) }, 0);
    flags
}
