//! The only module that makes system calls for memory: owned mappings, and facts about the machine.
//!
//! A [`Map`] represents addresses that this process has mapped for itself. Its methods are safe because they refuse parts outside
//! the mapping and because it lends no references. Code that converts one of its addresses to a reference does so in its own
//! unsafe block, and is responsible there for everything that the mapping's owner may do in the meantime.

mod barrier;
mod exit;
mod facts;
mod fork;
mod map;
mod say;
mod stack;

pub(crate) use barrier::{barrier_everywhere, can_barrier_everywhere};
pub(crate) use exit::at_exit;
pub(crate) use facts::{
    address_limit, explicit_huge_pages, locked_bytes, locked_limit, machine_memory, mappings, mappings_limit,
    online_nodes, page_bytes, transparent_huge_page,
};
#[cfg(feature = "record")]
pub(crate) use facts::{resident_bytes, task, task_name};
pub(crate) use fork::around_fork;
#[cfg(all(test, not(miri)))]
pub(crate) use fork::end_of_child;
pub(crate) use map::{Errno, Map, Part};
pub(crate) use say::say;
#[cfg(feature = "stacks")]
pub(crate) use stack::{may_ask_loader, walk};
