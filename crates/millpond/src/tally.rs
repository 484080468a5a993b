//! Tallies: what threads do with memory, added up for whoever asked. The scopes of [`limits`](mod@crate::limits) and the
//! [profiler](crate::profiler) are tallies.
//!
//! ```text
//!   place     which scope this thread is in, and what it allocated last
//!   scopes    the scopes there are, and which of them a block counts for
//!   sites     the figures of one scope, by tag and stack, and what they were at its peak
//!   accounts  the accounts of live blocks that all of this reads
//! ```
//!
//! It is no account of its own: the account of live blocks has, with each block, the scope that its thread was in. So who
//! frees a block, and where, makes no difference. While there is no scope it costs a watched allocation two loads, and a
//! pool that nobody watches nothing.

#[cfg(target_os = "linux")]
mod accounts;
mod place;
mod scopes;
mod sites;

#[cfg(all(feature = "cuda", target_os = "linux"))]
pub(crate) use accounts::AnyPool;
#[cfg(target_os = "linux")]
pub(crate) use accounts::{Watching, are_wanted, each_pool, sampled};
pub(crate) use place::{Charged, Entered, current, enter, here};
pub(crate) use scopes::{Outcome, allocated, begin, begin_profile, end, freed, so_far};
pub use sites::Site;
pub(crate) use sites::{Figures, at_peak, by_place};
