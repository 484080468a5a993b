//! Loads the built library as a client would find it, and runs tests with other options in a separate process.
#![allow(dead_code, reason = "each test program uses some of it")]
#![allow(unused_macros, reason = "as above")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Calls a function of the driver.
#[macro_export]
macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        #[allow(clippy::macro_metavars_in_unsafe, reason = "arguments are plain values in every test")]
        // SAFETY: each test passes arguments that the function's documentation allows, or that the function must refuse.
        let code = unsafe { cudarc::driver::sys::$function($($argument),*) };
        code
    }};
}

/// Calls a function of the driver that must succeed.
#[macro_export]
macro_rules! ok {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $crate::cu!($function($($argument),*)).result().unwrap()
    };
}

/// Returns whether the tests run on the machine's own driver, as with `cargo xtask card`. They then check that it behaves
/// like the emulated driver.
pub(crate) fn is_real() -> bool {
    std::env::var_os("MILLPOND_TEST_CUDA").is_some_and(|said| said == "real")
}

/// Returns the path where cargo puts the library when it builds this test.
pub(crate) fn library() -> PathBuf {
    if is_real() {
        return "libcuda.so.1".into();
    }
    let mut folder = std::env::current_exe().unwrap();
    while folder.pop() {
        let library = folder.join("libmillpond_cuda_emu.so");
        if library.exists() {
            return library;
        }
    }
    panic!("the emulator is not built");
}

/// Loads the library by its path. Its SONAME is `libcuda.so`, so cudarc's own search finds it, whatever else is installed.
pub(crate) fn load() -> &'static libloading::os::unix::Library {
    static LIBRARY: OnceLock<libloading::os::unix::Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
        // SAFETY: the emulator does nothing when it is loaded.
        unsafe { Library::open(Some(library()), RTLD_NOW | RTLD_GLOBAL) }.unwrap()
    })
}

const CHILD: &str = "MILLPOND_EMU_TEST";

/// Returns whether an option of the emulated driver holds for a real driver with one device. The real driver may be newer.
fn holds(option: &str) -> bool {
    match option.split_once(':') {
        None => option.is_empty(),
        // A correct program runs in each of these orders, and strict mode finds no fault with it.
        Some(("strict" | "streams" | "seed", _)) => true,
        Some(("devices", count)) => count == "1",
        Some(("version", version)) => {
            let mut found = 0;
            ok!(cuDriverGetVersion(&mut found));
            version.parse().is_ok_and(|version: i32| version <= found)
        }
        Some(_) => false,
    }
}

/// Runs a test's body in a process with these options. `name` is the name of the test. A real driver has no options, so it runs the body
/// only if all of them hold for it.
pub(crate) fn with_options(name: &str, options: &str, body: impl FnOnce()) {
    if is_real() {
        load();
        if let Some(option) = options.split(',').find(|option| !holds(option)) {
            println!("skipped: this driver is not as with the option {option}");
            return;
        }
    }
    let (fine, text) = run(name, options, body);
    assert!(fine, "{options}:\n{text}");
}

/// Does the same, and returns whether the process succeeded and its output. In the child, this does not return.
pub(crate) fn run(name: &str, options: &str, body: impl FnOnce()) -> (bool, String) {
    if std::env::var(CHILD).is_ok_and(|child| child == name) {
        load();
        body();
        // The child has run the body. The parent evaluates the result.
        std::process::exit(0);
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, name)
        .env("MILLPOND_CUDA_EMU", options)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}
