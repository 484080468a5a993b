//! A CUDA driver for tests: the emulated one, or the machine's own where that is asked for.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Whether tests may use the machine's own driver.
pub(crate) fn is_real() -> bool {
    std::env::var_os("MILLPOND_TEST_CUDA").is_some_and(|said| said == "real")
}

/// Loads the emulated driver into this process, before anybody has looked for one. Its library is built beside the tests; where
/// it is not, this says so and answers false.
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

fn library() -> Result<PathBuf, String> {
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

fn open(path: &std::path::Path) -> Result<(), String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: a library of this workspace, which does nothing when it is loaded. It names itself libcuda.so, so whoever looks
    // for that finds it.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if !library.is_null() {
        return Ok(());
    }
    // SAFETY: it answers a text or null, which lives until the next call on this thread.
    let why = unsafe { libc::dlerror() };
    if why.is_null() {
        return Err(format!("{} cannot be loaded", path.display()));
    }
    // SAFETY: as above.
    let why = unsafe { CStr::from_ptr(why) };
    Err(why.to_string_lossy().into_owned())
}
