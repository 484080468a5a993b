//! What is live, as a person wants to read it.

use super::Ledger;
use super::leak::{Leak, Mark};
use super::places::Places;
use super::stack::{Frame, Stack};
use crate::tag::Tag;
use millpond_engine::display_size;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// Groups and frames that are written out; the rest is added up.
const GROUPS: usize = 10;
const FRAMES: usize = 8;

/// Live blocks with one tag, from one place: the same frames of the program, by function and line, whichever way the library took
/// from there. Where names are not known, the same addresses.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeakGroup {
    /// The tag.
    pub tag: Tag,
    /// Where they were allocated, if stacks are kept: the stack of one of them.
    pub stack: Option<Stack>,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of the largest.
    pub largest: u64,
    /// How long the oldest has lived, if times are kept.
    pub oldest: Option<Duration>,
    /// The threads that allocated them: the lowest number and the highest.
    pub threads: (u32, u32),
}

/// The live blocks by tag and place, largest first. Making it looks up the names on their stacks, if these are kept; writing it
/// looks up those that it shows.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeakReport {
    /// Bytes of all blocks.
    pub bytes: u64,
    /// How many there are.
    pub blocks: u64,
    /// By tag and place, most bytes first.
    pub groups: Vec<LeakGroup>,
    /// Allocations for which one entry stands; figures are estimates where it is more than 1.
    pub weight: u64,
    /// Blocks that could not be entered.
    pub lost: u64,
    /// Bytes of blocks that were leaked on purpose, which are in none of the figures above.
    pub meant_bytes: u64,
    /// How many of them there are.
    pub meant: u64,
}

impl Ledger {
    /// All live blocks, by tag and place.
    #[must_use]
    pub fn leak_report(&self) -> LeakReport {
        self.report(&self.leaks())
    }

    /// Live blocks that were allocated after the mark, by tag and place.
    #[must_use]
    pub fn leak_report_since(&self, mark: &Mark) -> LeakReport {
        self.report(&self.leaks_since(mark))
    }

    /// Live blocks that count for one of these scopes.
    pub(crate) fn leak_report_of(&self, scopes: &[u32]) -> LeakReport {
        self.report(&self.leaks_of(scopes))
    }

    fn report(&self, leaks: &[Leak]) -> LeakReport {
        LeakReport::new(leaks, self.weight(), self.lost())
    }
}

impl LeakGroup {
    /// With the blocks of another one of the same tag and place.
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

    /// Of these groups.
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

    /// Of several pools' in one: what has one tag and one place is one group.
    pub(crate) fn all(reports: impl IntoIterator<Item = Self>) -> Self {
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

    /// Without the groups that `leave_out` names.
    pub(crate) fn without(self, leave_out: impl Fn(&LeakGroup) -> bool) -> Self {
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

    /// Whether nothing is live but what was leaked on purpose.
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
            write!(f, "\nbesides, {bytes} in {blocks} leaked on purpose")?;
        }
        if self.weight > 1 {
            write!(
                f,
                "\nestimated: one allocation in {} was looked at, and each block found stands for so many",
                self.weight
            )?;
        }
        if self.lost > 0 {
            let blocks = Count(self.lost, "block");
            write!(
                f,
                "\nincomplete: {blocks} could not be entered for want of memory"
            )?;
        }
        Ok(())
    }
}

/// What has one tag and one place is one group, where the first of them is.
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

/// One line.
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

/// So many of something, in words.
struct Count(u64, &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}
