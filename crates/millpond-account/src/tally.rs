//! Tallies: sums of the memory operations of a set of threads. The scopes of `limits` and the
//! profiler are tallies.
//!
//! ```text
//!   scopes    the existing scopes, and the scopes for which a block counts
//!   sites     the figures of one scope, by tag and stack, now and at its peak
//! ```
//!
//! A tally has no account of its own. The account of live blocks stores for each block the scope of its allocating thread, so it
//! makes no difference which thread frees the block. While there is no scope, an observed allocation pays two loads, and a pool
//! without observers pays nothing.

mod scopes;
mod sites;

pub use scopes::{Ending, Outcome, ProfileRoom, allocated, begin, begin_profile, end, freed, so_far};
pub use sites::Site;
pub use sites::{Figures, at_peak, by_place};
