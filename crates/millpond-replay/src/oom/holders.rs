//! The groups that hold memory at one moment, and the ages of their oldest blocks.

use crate::program::{Op, Program};
use crate::tags::tag_group;
use millpond_trace::{Caution, OLDER, Trace, split_tag, tag_site};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;

/// The smallest share of the held bytes for a group in the list by age: one part in this many.
const WORTH: u64 = 100;

/// Bytes held by one group of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The name of the group: a tag without layer numbers and innermost frames, or a call site.
    pub tag: String,
    /// Bytes requested and held.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// Microseconds since its oldest block was allocated. `None` if that was before the recording, or if the
    /// recording has no times.
    pub oldest_us: Option<u64>,
    /// The number of steps that began since its oldest block was allocated. `None` if that was before the
    /// recording, or if the program has no steps.
    pub oldest_steps: Option<u64>,
}

/// The blocks that a program holds after some of its calls.
pub(crate) struct Holding<'a> {
    trace: &'a Trace,
    held: Vec<Op>,
    /// The time of the moment, if the recording has times.
    now: Option<u64>,
    /// The events at which steps began before the moment.
    steps: Vec<u32>,
}

/// The sums of a group while it is added up.
struct Sum {
    bytes: u64,
    blocks: u64,
    /// The event that allocated the oldest block. `None` if that was before the recording.
    oldest: Option<u32>,
}

impl<'a> Holding<'a> {
    /// Looks at the blocks that are held after the first `ops` calls, at the time of the event `now`, or else of the last of these calls.
    /// `starts` are the indices of the calls at which steps begin.
    pub(crate) fn new(
        trace: &'a Trace,
        program: &Program,
        ops: usize,
        now: Option<u32>,
        starts: &[usize],
    ) -> Self {
        let timed = !trace.cautions.iter().any(|c| matches!(c, Caution::NoTimes));
        let before = &program.ops[..ops.min(program.ops.len())];
        let now = now.or_else(|| before.iter().rev().find_map(Op::event));
        let time = now.and_then(|event| trace.events.get(event as usize));
        let begun = starts.iter().take_while(|start| **start < before.len());
        Self {
            trace,
            held: program.held_after(ops),
            now: time.filter(|_| timed).map(|event| event.time_us),
            steps: begun
                .filter_map(|start| before.get(*start).and_then(Op::event))
                .collect(),
        }
    }

    /// Returns the number of blocks and their requested bytes.
    pub(crate) fn total(&self) -> (u64, u64) {
        let bytes = self
            .held
            .iter()
            .fold(0, |sum: u64, op| sum.saturating_add(op.bytes));
        (self.held.len() as u64, bytes)
    }

    /// Returns all groups of tags, the largest first.
    pub(crate) fn by_tag(&self) -> Vec<Holder> {
        self.by(tag_group)
    }

    /// Returns all call sites, the largest first.
    pub(crate) fn by_site(&self) -> Vec<Holder> {
        self.by(|tag| match tag_site(split_tag(tag).1) {
            "" => "(no stack recorded)".to_owned(),
            site => site.to_owned(),
        })
    }

    /// Returns the groups of tags whose oldest block was allocated first. Small groups are left out.
    pub(crate) fn oldest(&self) -> Vec<Holder> {
        let (_, all) = self.total();
        let mut groups = self.sums(tag_group);
        groups.retain(|(_, sum)| sum.bytes.saturating_mul(WORTH) >= all);
        groups.sort_by(|(a_name, a), (b_name, b)| {
            (a.oldest, Reverse(a.bytes), a_name).cmp(&(b.oldest, Reverse(b.bytes), b_name))
        });
        self.named(groups)
    }

    fn by(&self, name: impl Fn(&str) -> String) -> Vec<Holder> {
        let mut groups = self.sums(name);
        groups.sort_by(|(a_name, a), (b_name, b)| b.bytes.cmp(&a.bytes).then_with(|| a_name.cmp(b_name)));
        self.named(groups)
    }

    fn sums(&self, name: impl Fn(&str) -> String) -> Vec<(String, Sum)> {
        let mut by_tag: HashMap<(u32, bool), Sum> = HashMap::new();
        let initial = self.trace.initial_blocks.len();
        for op in &self.held {
            let is_initial = (op.allocation as usize) < initial;
            let tag = match op.event() {
                Some(event) => self.trace.events.get(event as usize).map_or(0, |event| event.tag),
                None => self.tag_before(op),
            };
            let sum = by_tag.entry((tag, is_initial)).or_insert(Sum {
                bytes: 0,
                blocks: 0,
                oldest: op.event(),
            });
            sum.add(op.bytes, 1, op.event());
        }
        let mut groups: HashMap<String, Sum> = HashMap::new();
        for ((tag, is_initial), sum) in by_tag {
            let tag = self.trace.tags.get(tag);
            let name = if is_initial && tag.is_empty() {
                OLDER.to_owned()
            } else {
                name(tag)
            };
            match groups.get_mut(&name) {
                Some(group) => group.add(sum.bytes, sum.blocks, sum.oldest),
                None => {
                    groups.insert(name, sum);
                }
            }
        }
        groups.into_iter().collect()
    }

    /// Returns the tag of a block that lived before the recording or the window.
    fn tag_before(&self, op: &Op) -> u32 {
        let block = self.trace.initial_blocks.get(op.allocation as usize);
        block.map_or(0, |block| block.tag)
    }

    fn named(&self, groups: Vec<(String, Sum)>) -> Vec<Holder> {
        let named = groups.into_iter().map(|(tag, sum)| {
            let time = sum.oldest.and_then(|event| self.trace.events.get(event as usize));
            let since = self.now.zip(time);
            let steps = sum.oldest.filter(|_| !self.steps.is_empty());
            Holder {
                tag,
                bytes: sum.bytes,
                blocks: sum.blocks,
                oldest_us: since.map(|(now, event)| now.saturating_sub(event.time_us)),
                oldest_steps: steps.map(|event| {
                    (self.steps.len() - self.steps.partition_point(|start| *start <= event)) as u64
                }),
            }
        });
        named.collect()
    }
}

impl Sum {
    fn add(&mut self, bytes: u64, blocks: u64, oldest: Option<u32>) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.blocks += blocks;
        // `None` is before the recording, and so the oldest.
        self.oldest = self.oldest.min(oldest);
    }
}

/// Returns the groups that hold the most after the first `ops` calls, the largest first.
#[must_use]
pub fn holders(trace: &Trace, program: &Program, ops: usize, most: usize) -> Vec<Holder> {
    let mut holders = Holding::new(trace, program, ops, None, &[]).by_tag();
    holders.truncate(most);
    holders
}
