//! The blocks that are held at a moment, by group: the largest groups, and the exact sum of the rest.

use super::groups::{By, COUNT, NO_STACK};
use super::shown;
use serde::{Serialize, Serializer};

/// The bytes and the number of some blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// Bytes of the blocks.
    #[serde(serialize_with = "as_shown")]
    pub bytes: u128,
    /// Bytes requested for these blocks.
    #[serde(serialize_with = "as_shown")]
    pub requested: u128,
    /// The number of blocks.
    pub blocks: u64,
}

fn as_shown<S: Serializer>(sum: &u128, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(shown(*sum))
}

impl Sum {
    pub(super) fn add(&mut self, other: Self) {
        *self = self.and(other);
    }

    pub(super) fn subtract(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.requested = self.requested.saturating_sub(other.requested);
        self.blocks = self.blocks.saturating_sub(other.blocks);
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            requested: self.requested + other.requested,
            blocks: self.blocks + other.blocks,
        }
    }

    /// Returns the bytes, limited to 64 bits.
    #[must_use]
    pub fn shown(&self) -> u64 {
        shown(self.bytes)
    }

    /// Returns the requested bytes, limited to 64 bits.
    #[must_use]
    pub fn shown_requested(&self) -> u64 {
        shown(self.requested)
    }
}

/// A group and its blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// The bytes and blocks that it holds. If only a sample of the blocks was recorded with stacks, the bytes of a site are an
    /// estimate, and the blocks are those of the sample.
    #[serde(flatten)]
    pub sum: Sum,
    /// The time at which the oldest of its blocks was allocated. `None` if it has no blocks or the time was
    /// not kept.
    pub oldest: Option<u64>,
}

/// A held block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldBlock {
    /// Its bytes.
    pub bytes: u64,
    /// Requested bytes.
    pub requested: u64,
    /// Its address, or 0 if it was not recorded.
    pub address: u64,
    /// The time at which it was allocated.
    pub since: u64,
    /// The tag of the block.
    pub tag: String,
    /// The function that allocated it.
    pub site: String,
    /// The pool it is in.
    pub pool: String,
}

/// The blocks that are held at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Held {
    /// The moment, in nanoseconds since the recording began.
    pub time: u64,
    /// The sum of all held blocks.
    #[serde(flatten)]
    pub sum: Sum,
    /// Bytes of freed blocks that wait for streams.
    pub parked_bytes: u64,
    /// Bytes that pools have taken from their sources. `None` if they are not recorded.
    pub reserved_bytes: Option<u64>,
    /// Bytes of blocks from before the recording, which it does not list: see
    /// [`History::allocated_before`](millpond_trace::history::History::allocated_before).
    pub unlisted_bytes: u64,
    /// The largest blocks, the largest first.
    pub largest: Vec<HeldBlock>,
    /// The groups that hold anything, in no order.
    #[serde(skip)]
    pub groups: [Vec<Group>; COUNT],
}

impl Held {
    /// Returns the groups of one property that hold anything, in no order.
    #[must_use]
    pub fn by(&self, by: By) -> &[Group] {
        &self.groups[by as usize]
    }

    /// Returns the share of reserved bytes that no block holds. `None` if reserved bytes are not recorded.
    #[must_use]
    pub fn fragmentation(&self) -> Option<f64> {
        let reserved = self.reserved_bytes.filter(|bytes| *bytes > 0)?;
        let held = self.sum.shown().saturating_add(self.unlisted_bytes);
        let free = reserved.saturating_sub(held);
        Some(free as f64 / reserved as f64)
    }
}

/// Scales the estimates of groups so that they add up to the sum of all blocks. If there are no estimates, one group has all
/// blocks.
pub(super) fn scale(mut groups: Vec<Group>, all: Sum) -> Vec<Group> {
    if groups.is_empty() && all.blocks > 0 {
        groups.push(Group {
            name: NO_STACK.to_owned(),
            sum: all,
            oldest: None,
        });
    }
    scale_to(
        groups.iter_mut().map(|group| &mut group.sum.bytes).collect(),
        all.bytes,
    );
    let requested = groups.iter_mut().map(|group| &mut group.sum.requested);
    scale_to(requested.collect(), all.requested);
    groups
}

/// Scales numbers so that they add up to `sum`, if they are not all 0.
fn scale_to(numbers: Vec<&mut u128>, sum: u128) {
    let total: u128 = numbers.iter().map(|number| **number).sum();
    let (mut before, mut given) = (0, 0);
    for number in numbers {
        before += *number;
        // The last quotient is 1, so the numbers add up.
        let share = before as f64 / total.max(1) as f64;
        let scaled = ((sum as f64 * share) as u128).min(sum);
        *number = scaled.saturating_sub(given);
        given = given.max(scaled);
    }
}

/// The groups that hold most, and the sum of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Top {
    /// The largest groups, the largest first.
    pub rows: Vec<Group>,
    /// The sum of all other groups.
    pub rest: Sum,
    /// The number of other groups.
    pub rest_groups: u64,
}

/// Returns the `most` largest groups by bytes, then by number of blocks, then by name. Empty groups are left
/// out.
#[must_use]
pub fn top(groups: &[Group], most: usize) -> Top {
    let mut rows: Vec<&Group> = groups.iter().filter(|group| group.sum.blocks > 0).collect();
    rows.sort_by(|a, b| {
        let size = |group: &Group| (group.sum.bytes, group.sum.blocks);
        size(b).cmp(&size(a)).then_with(|| a.name.cmp(&b.name))
    });
    let rest = rows.get(most..).unwrap_or_default();
    Top {
        rest: rest.iter().fold(Sum::default(), |sum, group| sum.and(group.sum)),
        rest_groups: rest.len() as u64,
        rows: rows.into_iter().take(most).cloned().collect(),
    }
}
