//! The reasons why a recording cannot be replayed.

use millpond_engine::{ConfError, display_size, policies::UnknownPolicy};
use thiserror::Error;

/// The most bytes that a program may hold at once: 16 TiB.
pub const MOST_HELD: u64 = 1 << 44;

/// Invalid input to a replay. Each message says what to do.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The recording or the time window contains no allocation.
    #[error("{trace} holds no allocation {}; there is nothing to replay",
            if *.window { "in this time window: widen --time-window" } else { "event" })]
    NothingToReplay {
        /// The recording.
        trace: String,
        /// Whether a time window was requested.
        window: bool,
    },
    /// The program holds more than [`MOST_HELD`]. Policies that map pages keep a record of each page, so a
    /// replay needs a limit.
    #[error(
        "{trace} holds {} {}, more than the limit of a replay ({}): if the recording is damaged there, exclude that part \
         with --time-window",
        display_size(*.held),
        .event.map_or("before its first event".to_owned(), |event| format!("at its event {event}")),
        display_size(MOST_HELD)
    )]
    Beyond {
        /// The recording.
        trace: String,
        /// The most bytes held at once.
        held: u64,
        /// The position of the event that reaches this amount. `None` if blocks that lived before the first
        /// event reach it.
        event: Option<u32>,
    },
    /// The name of a policy is unknown.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// A setting was refused.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// Every requested policy maps pages, and the device cannot.
    #[error(
        "{policies} cannot run on this device: a policy that maps pages into reserved addresses needs --paged on"
    )]
    NeedsPages {
        /// The policies.
        policies: String,
    },
    /// The given plan belongs to another program.
    #[error(
        "the plan's step of {allocations} allocations never comes in {trace}: it is the plan of another program, or \
         of other streams; use `millpond plan --save` to make a plan for this program"
    )]
    PlanElsewhere {
        /// The recording.
        trace: String,
        /// The number of allocations in the plan's step.
        allocations: usize,
    },
    /// A tick for each step was requested, but no step repeats.
    #[error(
        "no step of {trace} repeats, so no tick can follow a step: use --tick N for a tick after every N calls"
    )]
    NoStep {
        /// The recording.
        trace: String,
    },
    /// The work was interrupted by [`Threads::interrupt`](crate::Threads::interrupt).
    #[error("interrupted")]
    Interrupted,
    /// The recording cannot be verified.
    #[error("{trace} cannot be verified: {why}")]
    NotVerifiable {
        /// The recording.
        trace: String,
        /// The reason.
        why: String,
    },
}
