//! The only place that calls the system about memory: owned maps, and facts about the machine.
//!
//! [`Map`] is a token for addresses that this process has mapped for itself. Its methods are safe because
//! they refuse parts outside the token and because the token lends nothing: whoever turns one of its
//! addresses into a reference does so in an unsafe block of their own, and answers there for what the map's
//! owner may do meanwhile.

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
