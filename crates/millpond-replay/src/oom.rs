//! Explains why memory ran out, and proves with replays which remedies would have served the request.
//!
//! ```text
//!   event.rs      the requests that a recorded allocator refused
//!   explain.rs    collects an explanation
//!   failure.rs    the refusal of each policy of a replay
//!   recorded.rs   the memory of the recorded allocator at the event
//!   layout.rs     the memory of a replayed policy at its refusal
//!   rules.rs      the rules by which a free range serves a request
//!   cause.rs      the cause, from the free ranges and the device
//!   holders.rs    the groups that hold memory, and their ages
//!   remedy.rs     settings and policies that serve it, and the replays that prove them
//!   changes.rs    the same for changes of the program
//! ```

mod cause;
mod changes;
mod event;
mod explain;
mod failure;
mod holders;
mod layout;
mod recorded;
mod remedy;
mod rules;

pub use cause::Cause;
pub use event::refused_requests;
pub use failure::Failure;
pub use holders::{Holder, holders};
pub use layout::{CacheState, HoleClass};
pub use remedy::{Remedy, RemedyKind};

use crate::tags::tag_group;
use crate::web::text::Count;
pub(crate) use event::{moment, time_us};
pub(crate) use explain::{Own, failure, recorded_device};
pub(crate) use layout::Look;
use millpond_engine::{Fidelity, display_size};
pub(crate) use rules::Rules;
use serde::Serialize;

/// The origin of an out-of-memory event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OomOrigin {
    /// The recorded program ran out of memory.
    Recorded,
    /// A replay on a device of limited size ran out of memory.
    Replayed,
}

/// A request that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedRequest {
    /// Position of the event in the recording. `None` for a block that lived before it.
    pub event: Option<u32>,
    /// Microseconds since the first event. `None` if the recording has no times.
    pub time_us: Option<u64>,
    /// Requested bytes. PyTorch records them as rounded by its allocator.
    pub bytes: u64,
    /// The stream, as recorded.
    pub stream: u64,
    /// The private pool, as recorded. `None` for the default pool.
    pub pool: Option<(u64, u64)>,
    /// The tag or the stack of the request.
    pub tag: String,
}

/// The explanation of an out-of-memory event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutOfMemory {
    /// The origin of the event: the recording or a replay.
    pub origin: OomOrigin,
    /// The policy that refused the request. For a recorded event, the name of the policy that the recorded
    /// allocator follows.
    pub policy: String,
    /// The number of requests that were refused.
    pub refused: u64,
    /// The first refused request, if there are several.
    pub first: Option<RefusedRequest>,
    /// The last refused request. All later fields describe it.
    pub request: RefusedRequest,
    /// The text of the error, if the recording contains it. Only recordings of this library do.
    pub error: Option<String>,
    /// Bytes that were available to the program: the reserved ones and those that the device had free. `None`
    /// if they are not recorded.
    pub device_bytes: Option<u64>,
    /// Bytes that the device had free. `None` if they are not recorded.
    pub device_free_bytes: Option<u64>,
    /// Bytes of the replay's device that were not available to the recorded program, because other processes,
    /// libraries or contexts held them. `None` if unknown.
    pub others_bytes: Option<u64>,
    /// Requested bytes that the program held.
    pub held_bytes: u64,
    /// The number of blocks that the program held.
    pub held_blocks: u64,
    /// The allocator's memory before it released its cache. `None` if it is not recorded.
    pub before: Option<CacheState>,
    /// The allocator's memory when it refused the request. `None` if it is not recorded.
    pub after: Option<CacheState>,
    /// The groups of tags that held the most, the largest first.
    pub holders: Vec<Holder>,
    /// The call sites that held the most, the largest first.
    pub sites: Vec<Holder>,
    /// The groups of tags with the oldest blocks, the oldest first.
    pub oldest: Vec<Holder>,
    /// The reason.
    pub cause: Cause,
    /// The reason in one sentence.
    pub why: String,
    /// Whether a replay of the same allocator on a device of the same size is refused the request too. `None`
    /// if no replay was made.
    pub reproduced: Option<bool>,
    /// The number of other settings, other policies and changes of the program that were replayed.
    pub tried: u32,
    /// The settings, changes and policies that serve the request on a device of the same size, each proved by a replay
    /// of the whole recording. The best is first.
    pub remedies: Vec<Remedy>,
}

impl OutOfMemory {
    /// Returns two to four sentences: the request, the cause, the best remedy, and the largest holder if no remedy is known.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let request = &self.request;
        let place = match request.event {
            Some(event) => moment(event, request.time_us),
            None => "before the first event".to_owned(),
        };
        let who = match (self.origin, self.refused) {
            (OomOrigin::Replayed, _) => format!("{} runs out of memory", self.policy),
            (OomOrigin::Recorded, ..=1) => "The program ran out of memory".to_owned(),
            (OomOrigin::Recorded, some) => {
                format!("The program ran out of memory {} times, last", Count(some))
            }
        };
        let by = match request.tag.as_str() {
            "" => String::new(),
            tag => format!(" for {}", tag_group(tag)),
        };
        let mut sentences = vec![
            format!(
                "{who} {place}: {} were requested{by}.",
                display_size(request.bytes)
            ),
            self.why.clone(),
        ];
        sentences.extend(self.advice());
        sentences.extend(self.largest());
        sentences
    }

    /// Returns a sentence about the largest holder, if the program must hold less and no remedy is known.
    fn largest(&self) -> Option<String> {
        let is_only_hint = self.cause == Cause::NothingFree && self.remedies.is_empty();
        let most = self.holders.first();
        let most = most.filter(|most| is_only_hint && !most.tag.starts_with('('))?;
        let blocks = match most.blocks {
            1 => "1 block".to_owned(),
            some => format!("{} blocks", Count(some)),
        };
        Some(format!(
            "Most of it, {} in {blocks}, was held by {}.",
            display_size(most.bytes),
            most.tag
        ))
    }

    /// Returns one sentence about the remedies, if there is anything to say.
    fn advice(&self) -> Option<String> {
        if let Some(best) = self.remedies.first() {
            if best.kind == RemedyKind::Change {
                return Some(format!("With {}, the program would have finished.", best.text));
            }
            return Some(match best.fidelity == Fidelity::Estimate.as_str() {
                true => format!("By an estimate, {} would have served it.", best.text),
                false => format!("{} would have served it.", best.text),
            });
        }
        match self.reproduced {
            Some(false) => Some(format!(
                "A replay under {} from the start of the recording serves the request, so no remedy could be verified.",
                self.policy
            )),
            Some(true) if self.tried > 0 => Some(format!(
                "None of the {} other settings, policies and changes that were replayed lets the program finish.",
                self.tried
            )),
            _ => None,
        }
    }
}
