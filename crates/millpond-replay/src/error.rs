//! Why a recording could not be replayed.

use millpond_engine::{ConfError, display_size, policies::UnknownPolicy};
use thiserror::Error;

/// Bytes that a program may hold at once: 16 TiB.
pub const MOST_HELD: u64 = 1 << 44;

/// Bad input to a replay; each message is one sentence that says what to do.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// No allocation is left to replay.
    #[error("{trace} holds no allocation {}; there is nothing to replay",
            if *.window { "in this time window: widen --time-window" } else { "event" })]
    NothingToReplay {
        /// The recording.
        trace: String,
        /// Whether a time window was asked for.
        window: bool,
    },
    /// It holds more than any device has: policies that map pages would keep a record of each.
    #[error(
        "{trace} holds {} {}, more than any device has and than a replay goes up to ({}): if a number in it was \
         damaged, --time-window can leave it out",
        display_size(*.held),
        .event.map_or("before its first event".to_owned(), |event| format!("at its event {event}")),
        display_size(MOST_HELD)
    )]
    Beyond {
        /// The recording.
        trace: String,
        /// The most bytes held at once.
        held: u64,
        /// The position of the event that reaches it; none where blocks that lived before the first do.
        event: Option<u32>,
    },
    /// A policy's name is not known.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// A setting was refused.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// Every policy asked for maps pages, and the device cannot.
    #[error(
        "{policies} cannot run on this device: a policy that maps pages into reserved addresses needs --paged on"
    )]
    NeedsPages {
        /// The policies.
        policies: String,
    },
    /// The plan that was given is of another program.
    #[error(
        "the plan's step of {allocations} allocations never comes in {trace}: it is the plan of another program, or of \
         other streams; `millpond plan --save` writes this one's"
    )]
    PlanElsewhere {
        /// The recording.
        trace: String,
        /// Allocations of the plan's step.
        allocations: usize,
    },
    /// There is to be a tick for each step, and there is no step.
    #[error(
        "no step of {trace} repeats, so there is none to tick at: write --tick N for a tick after every N calls"
    )]
    NoStep {
        /// The recording.
        trace: String,
    },
    /// The recording cannot be verified.
    #[error("{trace} cannot be verified: {why}")]
    NotVerifiable {
        /// The recording.
        trace: String,
        /// The reason.
        why: String,
    },
}
