//! What is held at a moment, by group: the largest, and an honest rest.

use super::groups::{By, COUNT};
use super::shown;
use serde::{Serialize, Serializer};

/// Bytes of blocks, and how many they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// Bytes of the blocks.
    #[serde(serialize_with = "as_shown")]
    pub bytes: u128,
    /// Bytes asked for in them.
    #[serde(serialize_with = "as_shown")]
    pub requested: u128,
    /// How many.
    pub blocks: u64,
}

fn as_shown<S: Serializer>(sum: &u128, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(shown(*sum))
}

impl Sum {
    pub(super) fn add(&mut self, bytes: u64, requested: u64) {
        self.bytes += u128::from(bytes);
        self.requested += u128::from(requested);
        self.blocks += 1;
    }

    pub(super) fn subtract(&mut self, bytes: u64, requested: u64) {
        self.bytes = self.bytes.saturating_sub(u128::from(bytes));
        self.requested = self.requested.saturating_sub(u128::from(requested));
        self.blocks = self.blocks.saturating_sub(1);
    }

    /// Two of them.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            requested: self.requested + other.requested,
            blocks: self.blocks + other.blocks,
        }
    }

    /// Bytes, as they are shown.
    #[must_use]
    pub fn shown(&self) -> u64 {
        shown(self.bytes)
    }

    /// Bytes asked for, as they are shown.
    #[must_use]
    pub fn shown_requested(&self) -> u64 {
        shown(self.requested)
    }
}

/// A group, and what belongs to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// What it holds.
    #[serde(flatten)]
    pub sum: Sum,
    /// When the oldest of its blocks was handed out; none without blocks, and where that was not kept.
    pub oldest: Option<u64>,
}

/// A block that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldBlock {
    /// Its bytes.
    pub bytes: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// Where it is; 0 where that was not recorded.
    pub address: u64,
    /// When it was handed out.
    pub since: u64,
    /// What it is for.
    pub tag: String,
    /// Which function asked for it.
    pub site: String,
    /// The pool it is in.
    pub pool: String,
}

/// What is held at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Held {
    /// When, in nanoseconds since the recording began.
    pub time: u64,
    /// All of it.
    #[serde(flatten)]
    pub sum: Sum,
    /// Bytes of blocks that were given back and wait for streams.
    pub parked_bytes: u64,
    /// Bytes that pools have taken from their sources; none where nothing tells.
    pub reserved_bytes: Option<u64>,
    /// The largest blocks, the largest first.
    pub largest: Vec<HeldBlock>,
    /// By group: those that hold anything, in no order.
    #[serde(skip)]
    pub groups: [Vec<Group>; COUNT],
}

impl Held {
    /// The groups of one way to group, those that hold anything, in no order.
    #[must_use]
    pub fn by(&self, by: By) -> &[Group] {
        &self.groups[by as usize]
    }

    /// The share of reserved bytes that no caller has; none where nothing tells what is reserved.
    #[must_use]
    pub fn fragmentation(&self) -> Option<f64> {
        let reserved = self.reserved_bytes.filter(|bytes| *bytes > 0)?;
        let free = reserved.saturating_sub(self.sum.shown());
        Some(free as f64 / reserved as f64)
    }
}

/// The groups that hold most, and the others as one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Top {
    /// The largest, the largest first.
    pub rows: Vec<Group>,
    /// All others together.
    pub rest: Sum,
    /// How many others there are.
    pub rest_groups: u64,
}

/// The `most` largest of groups by bytes, then by number of blocks, then by name; groups of nothing are left out.
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
