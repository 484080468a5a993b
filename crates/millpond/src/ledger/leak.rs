//! What is live, as values.

use super::record::Record;
use super::shard::{Shard, Sums};
use super::stack::Stack;
use super::stacks::StackId;
use super::{Ledger, lock};
use crate::ranked::Ranked;
use crate::scope::Charged;
use crate::tag::Tag;
use crate::thread::thread_number;
use crate::time::Time;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A block that is live: a leak, if nobody means to free it. Reads like its [`Record`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Leak {
    /// Where it is.
    pub address: usize,
    /// What is known of it.
    pub record: Record,
    /// How long it has lived, if times are kept.
    pub age: Option<Duration>,
    stack: Option<Stack>,
}

impl Leak {
    /// Where it was allocated, if stacks are kept. Frames are named when the stack is asked for them.
    #[must_use]
    pub fn stack(&self) -> Option<&Stack> {
        self.stack.as_ref()
    }
}

impl Deref for Leak {
    type Target = Record;
    fn deref(&self) -> &Record {
        &self.record
    }
}

/// A moment in the account's history: what was allocated after it can be told from what was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    serial: u64,
    thread: Option<u32>,
}

impl Mark {
    /// Only what this thread allocates after it, as a test needs it that runs beside others.
    #[must_use]
    pub fn on_this_thread(self) -> Self {
        Self {
            thread: Some(thread_number()),
            ..self
        }
    }

    pub(super) fn covers(&self, record: &Record) -> bool {
        record.serial > self.serial && self.thread.is_none_or(|thread| thread == record.thread)
    }
}

/// What blocks of one tag come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagTotal {
    /// The tag.
    pub tag: Tag,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

/// Each block is told as it was at some moment of the call; with blocks that come and go meanwhile the answer is of no one
/// moment, at rest it is exact. Where allocations are sampled, the lists hold the blocks that were picked, and sums are
/// estimates, multiplied by [`weight`](Ledger::weight).
impl Ledger {
    /// All live blocks, in the order in which they were allocated.
    #[must_use]
    pub fn leaks(&self) -> Vec<Leak> {
        self.list(|_| true, |entry| entry.1.serial)
    }

    /// A mark: [`leaks_since`](Self::leaks_since) answers what was allocated after it.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark {
            serial: self.serial.load(Ordering::Relaxed),
            thread: None,
        }
    }

    /// Live blocks that were allocated after the mark, in that order.
    #[must_use]
    pub fn leaks_since(&self, mark: &Mark) -> Vec<Leak> {
        self.list(|record| mark.covers(record), |entry| entry.1.serial)
    }

    /// The largest live blocks, largest first, at most `n`.
    #[must_use]
    pub fn largest(&self, n: usize) -> Vec<Leak> {
        let mut kept: Vec<(usize, Record)> = Vec::new();
        for shard in &self.shards {
            // Once there are so many, only what is larger than the least of them.
            let least = kept.get(n.wrapping_sub(1)).map(|entry| size_of(&entry.1));
            copy(
                &shard.0,
                &|record| least.is_none_or(|least| size_of(record) > least),
                &mut kept,
            );
            kept.sort_unstable_by_key(|entry| Reverse(size_of(&entry.1)));
            kept.truncate(n);
        }
        self.told(kept)
    }

    /// Live blocks of more bytes than that, largest first.
    #[must_use]
    pub fn larger_than(&self, bytes: usize) -> Vec<Leak> {
        let large = |record: &Record| record.bytes > bytes;
        self.list(large, |entry| Reverse(size_of(&entry.1)))
    }

    /// What each tag's live blocks come to, most bytes first.
    #[must_use]
    pub fn by_tag(&self) -> Vec<TagTotal> {
        let weight = self.weight();
        let mut sums: BTreeMap<Tag, Sums> = BTreeMap::new();
        let mut some: Vec<(Tag, Sums)> = Vec::new();
        for shard in &self.shards {
            some.clear();
            copy_tags(&shard.0, &mut some);
            for (tag, part) in &some {
                let of = sums.entry(*tag).or_default();
                let add = |sum: &mut u64, part: u64| *sum = sum.saturating_add(part.saturating_mul(weight));
                add(&mut of.requested, part.requested);
                add(&mut of.bytes, part.bytes);
                add(&mut of.blocks, part.blocks);
            }
        }
        let total = |(tag, sums): (Tag, Sums)| TagTotal {
            tag,
            requested: sums.requested,
            bytes: sums.bytes,
            blocks: sums.blocks,
        };
        let mut totals: Vec<TagTotal> = sums.into_iter().map(total).collect();
        totals.sort_by_key(|of| Reverse(of.bytes));
        totals
    }

    /// Live blocks that count for one of these scopes, or for the profiler's of this number, in the order in which they were
    /// allocated.
    pub(crate) fn leaks_of(&self, scopes: &[u32]) -> Vec<Leak> {
        let counts = |record: &Record| {
            let Charged { scope, profile } = record.charged;
            scopes.contains(&scope) || (profile != 0 && scopes.contains(&profile))
        };
        self.list(counts, |entry| entry.1.serial)
    }

    /// A stack by its number here.
    pub(crate) fn stack(&self, id: StackId) -> Option<Stack> {
        self.stacks.get(id)
    }

    /// The stack of a block or of a free, if it is kept.
    #[must_use]
    pub fn stack_of(&self, record: &Record) -> Option<Stack> {
        self.stacks.get(record.stack?)
    }

    fn list<K: Ord>(
        &self,
        keep: impl Fn(&Record) -> bool,
        order: impl Fn(&(usize, Record)) -> K,
    ) -> Vec<Leak> {
        let mut entries = Vec::new();
        for shard in &self.shards {
            copy(&shard.0, &keep, &mut entries);
        }
        entries.sort_unstable_by_key(order);
        self.told(entries)
    }

    /// Each distinct stack is copied once, and shared.
    fn told(&self, entries: Vec<(usize, Record)>) -> Vec<Leak> {
        let now = self.settings.times.then(Time::now);
        let mut stacks: HashMap<StackId, Option<Stack>> = HashMap::new();
        let tell = |(address, record): (usize, Record)| {
            let stack = |id| stacks.entry(id).or_insert_with(|| self.stacks.get(id)).clone();
            Leak {
                address,
                record,
                age: now.zip(record.time).map(|(now, time)| now.since(time)),
                stack: record.stack.and_then(stack),
            }
        };
        entries.into_iter().map(tell).collect()
    }
}

/// Among blocks of one size the oldest counts as the largest.
fn size_of(record: &Record) -> (usize, Reverse<u64>) {
    (record.bytes, Reverse(record.serial))
}

/// Copies entries out; room for them is made while the lock is not held.
fn copy(shard: &Ranked<Shard>, keep: &impl Fn(&Record) -> bool, into: &mut Vec<(usize, Record)>) {
    let kept = |entry: &&(usize, Record)| keep(&entry.1);
    loop {
        let count = lock(shard).live().filter(kept).count();
        // Some more may come meanwhile.
        into.reserve(count + count / 8 + 8);
        let shard = lock(shard);
        if shard.live().filter(kept).count() <= into.capacity() - into.len() {
            into.extend(shard.live().filter(kept));
            return;
        }
    }
}

fn copy_tags(shard: &Ranked<Shard>, into: &mut Vec<(Tag, Sums)>) {
    loop {
        let count = lock(shard).tags().len();
        into.reserve(count + 8);
        let shard = lock(shard);
        if shard.tags().len() <= into.capacity() {
            into.extend(shard.tags());
            return;
        }
    }
}
