//! Code that the tests of sources share.
#![allow(dead_code, reason = "each test binary uses a part")]

#[cfg(target_os = "linux")]
pub(crate) mod child;
#[cfg(target_os = "linux")]
pub(crate) mod emulator;
#[cfg(target_endian = "little")]
pub(crate) mod forbid;
pub(crate) mod memory;
pub(crate) mod model;
#[cfg(all(feature = "cuda", target_os = "linux"))]
pub(crate) mod packed;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod suite;
