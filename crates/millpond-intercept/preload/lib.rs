//! The library that `millpond record` preloads into a program. It stands in front of the CUDA driver's memory functions.
//!
//! ```text
//!   lookup   dlsym and cuGetProcAddress, which return the functions of this library
//!   driver   the driver's own functions
//!   calls    the functions of this library, which call those of the driver and record the results
//!   account  the memory that the process holds, and the limit
//!   state    the state of this process, and its lock
//!   log      the file to which events are written
//!   stack    the return addresses of a call, and the code modules
//!   sys      the functions of the system
//! ```
//!
//! The library starts no thread, and holds no lock while it calls the driver or the allocator of the program. A log is a shared mapping
//! of a file, so its records survive if the process is killed. The state lies in pages that are zero in a child of a fork, so a child
//! begins its own log.

#![deny(unsafe_op_in_unsafe_fn)]
// Only the library that `build.rs` builds exports functions. In lint and test builds, nothing calls them.
#![cfg_attr(not(preloaded), allow(dead_code))]

mod account;
mod calls;
mod driver;
#[path = "../src/format.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod format;
mod live;
mod log;
mod lookup;
mod stack;
mod state;
mod sys;

/// Reads the settings before the program can change its environment. A library that the program links may call the driver even earlier.
extern "C" fn begin() {
    state::settings();
}

/// Marks the log as complete. Programs that are killed do not call this.
extern "C" fn end() {
    log::end();
}

#[used]
#[cfg_attr(preloaded, unsafe(link_section = ".init_array"))]
static BEGIN: extern "C" fn() = begin;

#[used]
#[cfg_attr(preloaded, unsafe(link_section = ".fini_array"))]
static END: extern "C" fn() = end;
