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

use crate::cards::{Card, cards};
use crate::edit::Growing;
use crate::tags::tag_group;
use crate::web::text::Count;
pub(crate) use event::{moment, time_us};
pub(crate) use explain::{Own, failure, recorded_device};
pub(crate) use layout::Look;
use millpond_engine::{Fidelity, display_size};
pub(crate) use rules::Rules;
use serde::Serialize;

/// The bytes of a device are compared with those of known cards only from this number on. Tests and parts of cards have less.
const LEAST_CARD: u64 = 1 << 30;

/// A remedy is preferred if at least one part in this many of the device stays free.
const SPARE: u64 = 100;

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
    /// The device, or -1 for host memory.
    pub device: i32,
    /// Whether the program handled the refusal and went on. Such a request is not replayed, so no remedies are known.
    pub was_handled: bool,
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
    /// The largest group that grows from step to step, if there is one.
    pub growing: Option<Growing>,
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
        let on = match self.device {
            ..=0 => String::new(),
            device => format!(" on device {device}"),
        };
        let end = match self.was_handled {
            true => ". The program went on without them.",
            false => ".",
        };
        let by = match request.tag.as_str() {
            "" => String::new(),
            tag => format!(" for {}", tag_group(tag)),
        };
        let mut sentences = vec![
            format!(
                "{who} {place}{on}: {} were requested{by}{end}",
                display_size(request.bytes)
            ),
            self.why.clone(),
        ];
        sentences.extend(self.elsewhere());
        sentences.extend(self.grows());
        sentences.extend(self.advice());
        sentences.extend(self.largest());
        sentences
    }

    /// Returns a sentence about memory of the device that the program could not have.
    fn elsewhere(&self) -> Option<String> {
        if self.origin == OomOrigin::Replayed || self.device < 0 || self.cause == Cause::Elsewhere {
            return None;
        }
        if let Some(others) = self.others_bytes {
            // The program itself is the reason if the others held little.
            let is_much = others >= self.request.bytes && others >= self.device_bytes? / 4;
            return is_much.then(|| {
                format!(
                    "If the program ran on this device, other processes, libraries or contexts held {} of it.",
                    display_size(others)
                )
            });
        }
        let had = self.device_bytes.filter(|had| *had >= LEAST_CARD)?;
        // A part of a card is not for the program, and some cards report a little less than they are named for.
        let is_of_card = |card: &Card| (card.total / 20 * 17..=card.total / 20 * 22).contains(&had);
        (self.cause == Cause::NothingFree && !cards().iter().any(is_of_card)).then(|| {
            format!(
                "No known card has {}: if the device has more, something else held the rest, or a limit was set. `millpond replay` takes \
                 the size of the device as `--device`.",
                display_size(had)
            )
        })
    }

    /// Returns a sentence about the group that grows from step to step.
    fn grows(&self) -> Option<String> {
        let growing = self.growing.as_ref()?;
        Some(format!(
            "{} grows from step to step: it holds {} in {}, left by {} forward and backward passes. A smaller batch only delays the \
             error.",
            growing.tag,
            display_size(growing.bytes),
            blocks(growing.blocks),
            Count(growing.passes)
        ))
    }

    /// Returns a sentence about the largest holder, if the program must hold less and no remedy is known.
    fn largest(&self) -> Option<String> {
        let is_alone = self
            .device_bytes
            .is_some_and(|device| self.request.bytes >= device);
        let is_only_hint = self.cause == Cause::NothingFree
            && self.remedies.is_empty()
            && self.growing.is_none()
            && !is_alone;
        let most = self.holders.first();
        let most = most.filter(|most| is_only_hint && !most.tag.starts_with('('))?;
        let part = match most.bytes > self.held_bytes / 2 {
            true => "Most of it",
            false => "The largest part of it",
        };
        Some(format!(
            "{part}, {} in {}, was held by {}.",
            display_size(most.bytes),
            blocks(most.blocks),
            most.tag
        ))
    }

    /// Returns one sentence about the remedies, if there is anything to say.
    fn advice(&self) -> Option<String> {
        // If nothing is known of later requests, a remedy that leaves nothing free may only move the error to the next one.
        let is_end = self.origin == OomOrigin::Recorded;
        let least = if is_end {
            self.device_bytes.unwrap_or(0) / SPARE
        } else {
            0
        };
        let has_spare = |remedy: &&Remedy| remedy.spare_bytes >= least;
        if let Some(best) = self.remedies.iter().find(has_spare).or(self.remedies.first()) {
            if best.kind == RemedyKind::Change {
                return Some(match is_end {
                    true => format!("With {}, the request would have been served.", best.text),
                    false => format!("With {}, the program finishes.", best.text),
                });
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
                "None of the {} settings, allocators and changes of the program that were tried would have served it.",
                self.tried
            )),
            _ => None,
        }
    }
}

fn blocks(count: u64) -> String {
    match count {
        1 => "1 block".to_owned(),
        some => format!("{} blocks", Count(some)),
    }
}
