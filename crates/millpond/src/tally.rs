//! Tallies: what threads do with memory, added up for whoever asked. The scopes of [`limits`](mod@crate::limits) and the
//! [profiler](crate::profiler) are tallies.
//!
//! ```text
//!   scopes    the scopes there are, and which of them a block counts for
//!   sites     the figures of one scope, by tag and stack, and what they were at its peak
//! ```
//!
//! It is no account of its own: the account of live blocks has, with each block, the scope that its thread was in. So who
//! frees a block, and where, makes no difference. While there is no scope it costs a watched allocation two loads, and a
//! pool that nobody watches nothing.

mod scopes;
mod sites;

pub(crate) use scopes::{Ending, Outcome, ProfileRoom, allocated, begin, begin_profile, end, freed, so_far};
pub use sites::Site;
pub(crate) use sites::{Figures, at_peak, by_place};
