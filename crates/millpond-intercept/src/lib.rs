//! Records what any program takes from the CUDA driver.
//!
//! ```text
//!   preload/  the library that is preloaded into the program; it stands in front of the driver's memory functions and writes a log
//!   format    the log
//!   log       reads a log
//!   modules, owner  the library that requested memory
//!   recording, summary  writes a log as a recording, and sums it up
//! ```
//!
//! The preloaded library does not write the recording itself. It only appends records of a few words to a shared mapping of a file. So it
//! needs no thread in the program, no encoder and no memory of the program's allocator. Its records survive if the program is killed, and
//! a call costs nanoseconds. The command that started the program turns the logs into recordings.
//!
//! The crate is a part of the command `millpond`.

#![forbid(unsafe_code)]

pub mod format;
mod log;
mod modules;
mod owner;
mod recording;
mod summary;

pub use log::{Log, LogError};
pub use recording::write;
pub use summary::{Owned, Summary};

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

/// The file name of the library in its folder. Frames of a module with this name are left out of stacks.
pub const LIBRARY: &str = "millpond-preload.so";

/// The environment variables from which the preloaded library reads its settings.
pub mod variable {
    /// The folder for the logs. If it is not set, nothing is recorded.
    pub const FOLDER: &str = "MILLPOND_INTERCEPT";
    /// The bytes of each device.
    pub const LIMIT: &str = "MILLPOND_INTERCEPT_LIMIT";
    /// The bytes of each device that count as used by its context.
    pub const CONTEXT: &str = "MILLPOND_INTERCEPT_CONTEXT";
    /// The most return addresses of a stack.
    pub const FRAMES: &str = "MILLPOND_INTERCEPT_FRAMES";
}

/// The largest value of [`variable::FRAMES`].
pub const MOST_FRAMES: u16 = 64;

/// The library that is preloaded, as `build.rs` built it. It is empty on systems without one.
const PRELOAD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/preload.so"));

/// Writes the library to the new file [`LIBRARY`] in a folder. Only the owner of the file can read and run it.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] if there is no library for this system, [`io::ErrorKind::AlreadyExists`] if the file exists, or the
/// error of the system.
pub fn unpack(folder: &Path) -> io::Result<()> {
    if PRELOAD.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "recording a program needs Linux with the GNU C library, on x86-64 or AArch64",
        ));
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o500);
    options.open(folder.join(LIBRARY))?.write_all(PRELOAD)
}
