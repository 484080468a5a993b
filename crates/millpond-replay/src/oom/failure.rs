//! The refusal of a policy in a replay.

use super::{Cause, Holder};
use serde::Serialize;

/// The request at which a policy ran out of memory, and the reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// Position of the event in the recording. `None` for a block that lived before it.
    pub event: Option<u32>,
    /// Requested bytes.
    pub bytes: u64,
    /// The stream, as recorded.
    pub stream: u64,
    /// The tag or stack of the allocation.
    pub tag: String,
    /// Bytes requested and held at that moment.
    pub held_bytes: u64,
    /// Bytes that the device still had free.
    pub free_bytes: u64,
    /// The policy's largest contiguous free block.
    pub largest_hole_bytes: u64,
    /// Bytes that the policy held from the device.
    pub reserved_bytes: u64,
    /// Bytes that the policy held and that no block used.
    pub cached_bytes: u64,
    /// The groups that held the most, the largest first.
    pub holders: Vec<Holder>,
    /// The reason.
    pub cause: Cause,
    /// The reason in one sentence, with its figures.
    pub why: String,
}
