//! Live blocks as a readable report.

use super::Ledger;
use super::leak::{Leak, Mark};
use super::places::Places;
use super::stack::{Frame, Stack};
use crate::post_mortem::Count;
use crate::tags::Tag;
use millpond_engine::display_size;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// The maximum number of groups and frames that are written. The others are added up.
const GROUPS: usize = 10;
const FRAMES: usize = 8;

/// Live blocks with one tag from one place. A place is a list of the program's frames by function and line, independent
/// of the path within the library. Without names, it is a list of addresses.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeakGroup {
    /// The tag.
    pub tag: Tag,
    /// The stack of one of the blocks, if stacks are stored.
    pub stack: Option<Stack>,
    /// The bytes of the blocks.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// The bytes of the largest block.
    pub largest: u64,
    /// The age of the oldest block, if times are stored.
    pub oldest: Option<Duration>,
    /// The lowest and the highest number of the threads that allocated the blocks.
    pub threads: (u32, u32),
}

/// Live blocks by tag and place, the largest groups first. Making a report resolves the names of stored stacks.
/// Formatting it resolves the names that it prints.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeakReport {
    /// The bytes of all blocks.
    pub bytes: u64,
    /// The number of all blocks.
    pub blocks: u64,
    /// The groups by tag and place, the largest bytes first.
    pub groups: Vec<LeakGroup>,
    /// The number of allocations that one entry represents. If it is more than 1, the figures are estimates.
    pub weight: u64,
    /// The number of blocks that could not be recorded.
    pub lost: u64,
    /// The bytes of blocks that were leaked on purpose. No other figure includes them.
    pub meant_bytes: u64,
    /// The number of blocks that were leaked on purpose.
    pub meant: u64,
}

impl Ledger {
    /// Returns all live blocks by tag and place.
    #[must_use]
    pub fn leak_report(&self) -> LeakReport {
        self.report(&self.leaks())
    }

    /// Returns the live blocks that were allocated after the mark, by tag and place.
    #[must_use]
    pub fn leak_report_since(&self, mark: &Mark) -> LeakReport {
        self.report(&self.leaks_since(mark))
    }

    /// Returns the live blocks that are charged to one of these scopes.
    #[doc(hidden)]
    pub fn leak_report_of(&self, scopes: &[u32]) -> LeakReport {
        self.report(&self.leaks_of(scopes))
    }

    fn report(&self, leaks: &[Leak]) -> LeakReport {
        LeakReport::new(leaks, self.weight(), self.lost())
    }
}

impl LeakGroup {
    /// Adds the blocks of another group with the same tag and place.
    fn join(&mut self, other: &Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.largest = self.largest.max(other.largest);
        self.oldest = self.oldest.max(other.oldest);
        self.threads = (
            self.threads.0.min(other.threads.0),
            self.threads.1.max(other.threads.1),
        );
    }
}

impl LeakReport {
    pub(super) fn new(leaks: &[Leak], weight: u64, lost: u64) -> Self {
        let bytes = |leak: &Leak| (leak.bytes as u64).saturating_mul(weight);
        let meant = leaks.iter().filter(|leak| leak.leaked);
        let live = leaks.iter().filter(|leak| !leak.leaked);
        let places = Places::of(live.clone().filter_map(Leak::stack));
        let groups = live.map(|leak| LeakGroup {
            tag: leak.tag,
            stack: leak.stack().cloned(),
            bytes: bytes(leak),
            blocks: weight,
            largest: leak.bytes as u64,
            oldest: leak.age,
            threads: (leak.thread, leak.thread),
        });
        Self {
            weight,
            lost,
            meant_bytes: meant.clone().map(bytes).fold(0, u64::saturating_add),
            meant: (meant.count() as u64).saturating_mul(weight),
            ..Self::of(by_place(&places, groups))
        }
    }

    /// Makes a report of groups.
    pub(crate) fn of(groups: impl IntoIterator<Item = LeakGroup>) -> Self {
        let mut groups: Vec<LeakGroup> = groups.into_iter().collect();
        groups.sort_by_key(|group| Reverse(group.bytes));
        Self {
            bytes: sum(&groups, |group| group.bytes),
            blocks: sum(&groups, |group| group.blocks),
            groups,
            weight: 1,
            lost: 0,
            meant_bytes: 0,
            meant: 0,
        }
    }

    /// Merges the reports of several pools. Groups with the same tag and place become one.
    #[doc(hidden)]
    pub fn all(reports: impl IntoIterator<Item = Self>) -> Self {
        let mut groups: Vec<LeakGroup> = Vec::new();
        let mut sums = Self::of([]);
        for report in reports {
            sums.weight = sums.weight.max(report.weight);
            sums.lost += report.lost;
            sums.meant_bytes = sums.meant_bytes.saturating_add(report.meant_bytes);
            sums.meant = sums.meant.saturating_add(report.meant);
            groups.extend(report.groups);
        }
        let places = Places::of(groups.iter().filter_map(|group| group.stack.as_ref()));
        let groups = by_place(&places, groups);
        sums.with_groups(groups)
    }

    /// Removes the groups that `leave_out` selects.
    #[doc(hidden)]
    pub fn without(self, leave_out: impl Fn(&LeakGroup) -> bool) -> Self {
        let kept: Vec<LeakGroup> = self
            .groups
            .iter()
            .filter(|group| !leave_out(group))
            .cloned()
            .collect();
        self.with_groups(kept)
    }

    fn with_groups(self, groups: Vec<LeakGroup>) -> Self {
        Self {
            weight: self.weight,
            lost: self.lost,
            meant_bytes: self.meant_bytes,
            meant: self.meant,
            ..Self::of(groups)
        }
    }

    /// Returns true if all live blocks were leaked on purpose.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    pub(super) fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        frames: &dyn Fn(&Stack) -> Vec<Frame>,
    ) -> fmt::Result {
        if self.is_empty() {
            f.write_str("no live blocks")?;
        } else {
            let about = if self.weight > 1 { "about " } else { "" };
            let (bytes, blocks) = (display_size(self.bytes), Count(self.blocks, "block"));
            write!(f, "{about}{bytes} live in {blocks}")?;
        }
        for group in self.groups.iter().take(GROUPS) {
            write!(f, "\n{group}")?;
            let frames = group.stack.as_ref().map(frames).unwrap_or_default();
            for frame in frames.iter().take(FRAMES) {
                write!(f, "\n            at {frame}")?;
            }
            if let Some(more) = frames.len().checked_sub(FRAMES + 1) {
                write!(f, "\n            and {}", Count(more as u64 + 1, "more frame"))?;
            }
        }
        if let Some(rest) = self.groups.get(GROUPS..).filter(|rest| !rest.is_empty()) {
            let bytes = display_size(sum(rest, |group| group.bytes)).to_string();
            let blocks = Count(sum(rest, |group| group.blocks), "block");
            let places = Count(rest.len() as u64, "more place");
            write!(f, "\n{bytes:>9} in {blocks} from {places}")?;
        }
        if self.meant > 0 {
            let (bytes, blocks) = (display_size(self.meant_bytes), Count(self.meant, "block"));
            write!(f, "\nin addition, {bytes} in {blocks} leaked on purpose")?;
        }
        if self.weight > 1 {
            write!(
                f,
                "\nestimated: one allocation in {} was sampled, and each block counts that many times",
                self.weight
            )?;
        }
        if self.lost > 0 {
            let blocks = Count(self.lost, "block");
            write!(
                f,
                "\nincomplete: {blocks} could not be recorded for lack of memory"
            )?;
        }
        Ok(())
    }
}

/// Merges groups with the same tag and place, at the position of the first of them.
fn by_place(places: &Places, groups: impl IntoIterator<Item = LeakGroup>) -> Vec<LeakGroup> {
    let mut found = HashMap::new();
    let mut joined: Vec<LeakGroup> = Vec::new();
    for mut group in groups {
        group.stack = group.stack.map(|stack| places.place_of(&stack));
        let place = *found
            .entry((group.tag, group.stack.clone()))
            .or_insert(joined.len());
        match joined.get_mut(place) {
            Some(there) => there.join(&group),
            None => joined.push(group),
        }
    }
    joined
}

fn sum(groups: &[LeakGroup], of: impl Fn(&LeakGroup) -> u64) -> u64 {
    groups.iter().map(of).fold(0, u64::saturating_add)
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &Stack::user_frames)
    }
}

/// Writes one line.
impl fmt::Display for LeakGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = display_size(self.bytes).to_string();
        write!(f, "{bytes:>9} in {}: {}", Count(self.blocks, "block"), self.tag)?;
        if self.blocks > 1 {
            write!(f, ", largest {}", display_size(self.largest))?;
        }
        if let Some(oldest) = self.oldest {
            let word = if self.blocks > 1 { "oldest" } else { "age" };
            write!(f, ", {word} {oldest:.1?}")?;
        }
        match self.threads {
            (one, other) if one == other => write!(f, ", thread {one}"),
            (first, last) => write!(f, ", threads {first} to {last}"),
        }
    }
}
