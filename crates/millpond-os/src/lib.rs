//! The operating system as millpond uses it: owned mappings, facts about the machine, forks, clocks, threads, locks with ranks, and
//! memory pressure.
//!
//! This crate is a part of [millpond](https://docs.rs/millpond), which re-exports its public names. Other programs should use millpond,
//! because the names that are only for millpond's own crates change without notice.
//!
//! The modules of mappings make all system calls for memory. A [`Map`] represents addresses that this process has mapped for itself.
//! Its methods are safe because they refuse parts outside the mapping and because it lends no references. Code that converts one of
//! its addresses to a reference does so in its own unsafe block, and is responsible there for everything that the mapping's owner may
//! do in the meantime.

#![cfg_attr(loom, allow(unused, reason = "models take a part of the crate"))]

#[cfg(target_os = "linux")]
mod atfork;
#[cfg(target_os = "linux")]
mod barrier;
#[cfg(target_os = "linux")]
mod exit;
#[cfg(target_os = "linux")]
mod facts;
mod hidden;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
mod listed;
#[cfg(target_os = "linux")]
mod map;
#[cfg(target_os = "linux")]
mod memfd;
#[cfg(target_os = "linux")]
mod say;
#[cfg(target_os = "linux")]
mod stack;

#[cfg(target_os = "linux")]
pub use atfork::around_fork;
#[cfg(all(any(test, feature = "testing"), not(miri), target_os = "linux"))]
pub use atfork::end_of_child;
#[cfg(target_os = "linux")]
pub use barrier::{barrier_everywhere, can_barrier_everywhere};
#[cfg(target_os = "linux")]
pub use exit::{
    at_exit, end_abandoned, end_if_abandoned, has_one_thread, is_abandoned, look_for_last_thread,
};
#[cfg(target_os = "linux")]
pub use facts::{
    address_limit, data_limit, explicit_huge_pages, locked_bytes, locked_limit, machine_memory, mappings,
    mappings_limit, online_nodes, page_bytes, transparent_huge_page,
};
#[cfg(target_os = "linux")]
pub use facts::{resident_bytes, task, task_name};
pub use hidden::spawn_hidden;
#[cfg(target_os = "linux")]
pub use map::{Errno, Map, Part};
#[cfg(target_os = "linux")]
pub use memfd::Memfd;
#[cfg(target_os = "linux")]
pub use say::say;
#[cfg(all(feature = "stacks", target_os = "linux"))]
pub use stack::may_ask_loader;
#[cfg(target_os = "linux")]
pub use stack::{walk, walk_beyond};

#[forbid(unsafe_code)]
pub mod device;
#[forbid(unsafe_code)]
pub mod fork;
#[cfg(target_os = "linux")]
pub mod metadata;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
pub mod pressure;
#[forbid(unsafe_code)]
pub mod ranked;
#[forbid(unsafe_code)]
pub mod reentrancy;
#[forbid(unsafe_code)]
pub mod thread;
#[cfg(target_os = "linux")]
#[forbid(unsafe_code)]
pub mod threads;
#[forbid(unsafe_code)]
pub mod time;
pub mod words;

pub use device::Device;
#[cfg(target_os = "linux")]
pub use pressure::{Pressure, Watch, pressure};
pub use thread::thread_number;
#[cfg(target_os = "linux")]
pub use threads::{set_threads, threads};
pub use time::Time;
