//! Live blocks as values.

use super::record::Record;
use super::shard::{Shard, Sums};
use super::stack::Stack;
use super::stacks::StackId;
use super::{Ledger, lock};
use crate::scope::Charged;
use crate::tags::Tag;
use millpond_os::ranked::Ranked;
use millpond_os::thread::thread_number;
use millpond_os::time::Time;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A live block. It is a leak if the program does not intend to free it. It dereferences to its [`Record`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Leak {
    /// The address.
    pub address: usize,
    /// The entry of the block.
    pub record: Record,
    /// The age of the block, if times are stored.
    pub age: Option<Duration>,
    stack: Option<Stack>,
}

impl Leak {
    /// Returns the stack of the allocation, if stacks are stored. The frames are resolved on request.
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

/// A moment in the account's history. It separates later allocations from earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    serial: u64,
    thread: Option<u32>,
}

impl Mark {
    /// Limits the mark to allocations of this thread. A test that runs at the same time as other tests needs this.
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

/// The sums of the blocks with one tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagTotal {
    /// The tag.
    pub tag: Tag,
    /// The requested bytes.
    pub requested: u64,
    /// The bytes of the blocks.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// Each block is reported in its state at some moment of the call. If blocks are allocated and freed concurrently, the
/// result is not a snapshot of one moment; otherwise it is exact. With sampling, lists contain the sampled blocks, and
/// sums are estimates, multiplied by [`weight`](Ledger::weight).
impl Ledger {
    /// Returns all live blocks in the order of their allocation.
    #[must_use]
    pub fn leaks(&self) -> Vec<Leak> {
        self.list(|_| true, |entry| entry.1.serial)
    }

    /// Returns a mark. [`leaks_since`](Self::leaks_since) returns the blocks that were allocated after it.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark {
            serial: self.serial.load(Ordering::Relaxed),
            thread: None,
        }
    }

    /// Returns the live blocks that were allocated after the mark, in the order of their allocation.
    #[must_use]
    pub fn leaks_since(&self, mark: &Mark) -> Vec<Leak> {
        self.list(|record| mark.covers(record), |entry| entry.1.serial)
    }

    /// Returns the `n` largest live blocks, the largest first.
    #[must_use]
    pub fn largest(&self, n: usize) -> Vec<Leak> {
        let mut kept: Vec<(usize, Record)> = Vec::new();
        for shard in &self.shards {
            // If `n` blocks are already kept, only larger ones than the smallest of them are copied.
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

    /// Returns the live blocks that are larger than the given bytes, the largest first.
    #[must_use]
    pub fn larger_than(&self, bytes: usize) -> Vec<Leak> {
        let large = |record: &Record| record.bytes > bytes;
        self.list(large, |entry| Reverse(size_of(&entry.1)))
    }

    /// Returns the sums of the live blocks of each tag, the largest bytes first.
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

    /// Returns the live blocks that are charged to one of these scopes, in the order of their allocation. A profiler's
    /// number also counts as a scope.
    pub(crate) fn leaks_of(&self, scopes: &[u32]) -> Vec<Leak> {
        let counts = |record: &Record| {
            let Charged { scope, profile } = record.charged;
            scopes.contains(&scope) || (profile != 0 && scopes.contains(&profile))
        };
        self.list(counts, |entry| entry.1.serial)
    }

    /// Returns a stack by its number in this ledger.
    pub(crate) fn stack(&self, id: StackId) -> Option<Stack> {
        self.stacks.get(id)
    }

    /// Returns the stack of a block or of a free, if it is stored.
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

    /// Converts entries to leaks. Each distinct stack is copied once and shared.
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

/// Returns the sort key. Of blocks of one size, the oldest counts as the largest.
fn size_of(record: &Record) -> (usize, Reverse<u64>) {
    (record.bytes, Reverse(record.serial))
}

/// Copies entries. The memory for them is allocated while the lock is not held.
fn copy(shard: &Ranked<Shard>, keep: &impl Fn(&Record) -> bool, into: &mut Vec<(usize, Record)>) {
    let kept = |entry: &&(usize, Record)| keep(&entry.1);
    loop {
        let count = lock(shard).live().filter(kept).count();
        // The reserve covers blocks that are recorded in the meantime.
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
