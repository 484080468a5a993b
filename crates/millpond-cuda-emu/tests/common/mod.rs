//! The built library, loaded as a client would find it; and a process of its own for a test that needs other options.
#![allow(dead_code, reason = "each test program uses some of it")]
#![allow(unused_macros, reason = "as above")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Where cargo puts the library when it builds this test.
pub(crate) fn library() -> PathBuf {
    let mut folder = std::env::current_exe().unwrap();
    while folder.pop() {
        let library = folder.join("libmillpond_cuda_emu.so");
        if library.exists() {
            return library;
        }
    }
    panic!("the emulator is not built");
}

/// Loads it by path. Its SONAME is `libcuda.so`, so cudarc's own search ends at it, whatever else is installed.
pub(crate) fn load() -> &'static libloading::os::unix::Library {
    static LIBRARY: OnceLock<libloading::os::unix::Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
        // SAFETY: the emulator does nothing when it is loaded.
        unsafe { Library::open(Some(library()), RTLD_NOW | RTLD_GLOBAL) }.unwrap()
    })
}

const CHILD: &str = "MILLPOND_EMU_TEST";

/// Runs a test's body in a process with these options. `name` is the test's own.
pub(crate) fn with_options(name: &str, options: &str, body: impl FnOnce()) {
    let (fine, text) = run(name, options, body);
    assert!(fine, "{options}:\n{text}");
}

/// The same, answering whether it went well and what it printed. In the child it does not return.
pub(crate) fn run(name: &str, options: &str, body: impl FnOnce()) -> (bool, String) {
    if std::env::var(CHILD).is_ok_and(|child| child == name) {
        load();
        body();
        // The child has done what it is for; what the test makes of it is the parent's.
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

/// Calls a function of the driver.
#[macro_export]
macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        #[allow(clippy::macro_metavars_in_unsafe, reason = "arguments are plain values in every test")]
        // SAFETY: each test passes what the function's documentation asks for, or what it has to refuse.
        let code = unsafe { cudarc::driver::sys::$function($($argument),*) };
        code
    }};
}

/// The same where it has to succeed.
#[macro_export]
macro_rules! ok {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $crate::cu!($function($($argument),*)).result().unwrap()
    };
}
