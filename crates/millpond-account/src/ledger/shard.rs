//! One shard of the account, behind one lock: the blocks whose addresses hash to it.

use super::lock;
use super::record::Record;
use super::table::{self, grow, has_room};
use super::wrong::FreedBlock;
use crate::tags::Tag;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;
use millpond_os::ranked::Ranked;

/// The sums of the blocks with one tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) requested: u64,
    pub(super) bytes: u64,
    pub(super) blocks: u64,
}

/// A freed block and the circumstances of its free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Past {
    address: usize,
    pub(super) record: Record,
    pub(super) by: FreedBlock,
}

/// The outcome of a removal.
#[derive(Debug)]
pub(super) enum Removal {
    Done(Record),
    /// The block is in the account, and the caller's size or alignment is wrong.
    Differs(Record),
    /// The block was freed recently.
    Past(Past),
    Unknown,
}

/// The blocks of one shard. Invariant: `tags` has the sums of `live`, and no others.
pub(super) struct Shard {
    live: HashTable<(usize, Record)>,
    tags: HashTable<(Tag, Sums)>,
    /// The last freed blocks. When it is full, `next` is the index of the oldest. It never grows.
    past: Vec<Past>,
    next: usize,
}

fn hash_entry(entry: &(usize, Record)) -> u64 {
    table::hash(entry.0)
}

fn hash_tag(tag: Tag) -> u64 {
    table::hash(tag.number() as usize)
}

fn hash_sums(entry: &(Tag, Sums)) -> u64 {
    hash_tag(entry.0)
}

impl Shard {
    pub(super) fn new(past: usize) -> Self {
        Self {
            live: HashTable::new(),
            tags: HashTable::new(),
            past: Vec::with_capacity(past),
            next: 0,
        }
    }

    /// Records a block. Returns false if memory is short.
    pub(super) fn insert(shard: &Ranked<Self>, hash: u64, address: usize, record: Record) -> bool {
        // Other threads may take the new space first. Then this tries again.
        loop {
            let mut this = lock(shard);
            let (live, tags) = (has_room(&this.live), has_room(&this.tags));
            if live && tags {
                this.enter(hash, address, record);
                return true;
            }
            drop(this);
            let live = live || grow(shard, |this| &mut this.live, hash_entry);
            let tags = tags || grow(shard, |this| &mut this.tags, hash_sums);
            if !live || !tags {
                return false;
            }
        }
    }

    fn enter(&mut self, hash: u64, address: usize, record: Record) {
        match self.live.entry(hash, |entry| entry.0 == address, hash_entry) {
            Slot::Occupied(mut there) => {
                let before = std::mem::replace(&mut there.get_mut().1, record);
                self.subtract(&before);
            }
            Slot::Vacant(slot) => {
                slot.insert((address, record));
            }
        }
        let slot = self
            .tags
            .entry(hash_tag(record.tag), |entry| entry.0 == record.tag, hash_sums);
        let mut slot = slot.or_insert((record.tag, Sums::default()));
        let sums = &mut slot.get_mut().1;
        // The sum wraps if callers report wrong sizes, and is correct again when these are subtracted.
        sums.requested = sums.requested.wrapping_add(record.requested as u64);
        sums.bytes = sums.bytes.wrapping_add(record.bytes as u64);
        sums.blocks += 1;
    }

    /// Returns the entry of a live block.
    pub(super) fn get(&self, hash: u64, address: usize) -> Option<&Record> {
        let found = self.live.find(hash, |entry| entry.0 == address);
        found.map(|entry| &entry.1)
    }

    fn subtract(&mut self, record: &Record) {
        let found = self
            .tags
            .find_entry(hash_tag(record.tag), |entry| entry.0 == record.tag);
        if let Ok(mut entry) = found {
            let sums = &mut entry.get_mut().1;
            sums.requested = sums.requested.wrapping_sub(record.requested as u64);
            sums.bytes = sums.bytes.wrapping_sub(record.bytes as u64);
            sums.blocks -= 1;
            if sums.blocks == 0 {
                entry.remove();
            }
        }
    }

    /// Removes a block if the caller's size and alignment are correct.
    pub(super) fn remove(
        &mut self,
        hash: u64,
        address: usize,
        given: Option<(usize, usize)>,
        by: Option<FreedBlock>,
    ) -> Removal {
        let Ok(entry) = self.live.find_entry(hash, |entry| entry.0 == address) else {
            return match self.last_free(address) {
                Some(past) => Removal::Past(past),
                None => Removal::Unknown,
            };
        };
        let record = entry.get().1;
        if given.is_some_and(|given| given != (record.requested, record.align)) {
            return Removal::Differs(record);
        }
        entry.remove();
        self.subtract(&record);
        if let Some(by) = by {
            self.remember(Past { address, record, by });
        }
        Removal::Done(record)
    }

    /// Removes all blocks without freeing the tables.
    pub(super) fn clear(&mut self) {
        self.live.clear();
        self.tags.clear();
        self.past.clear();
        self.next = 0;
    }

    pub(super) fn note_leaked(&mut self, hash: u64, address: usize) {
        if let Ok(mut entry) = self.live.find_entry(hash, |entry| entry.0 == address) {
            entry.get_mut().1.leaked = true;
        }
    }

    fn remember(&mut self, past: Past) {
        if self.past.len() < self.past.capacity() {
            self.past.push(past);
        } else if let Some(oldest) = self.past.get_mut(self.next) {
            *oldest = past;
            self.next = (self.next + 1) % self.past.len();
        }
    }

    fn last_free(&self, address: usize) -> Option<Past> {
        let (newer, older) = self.past.split_at(self.next);
        let latest_first = newer.iter().rev().chain(older.iter().rev());
        latest_first.copied().find(|past| past.address == address)
    }

    pub(super) fn blocks(&self) -> usize {
        self.live.len()
    }

    pub(super) fn live(&self) -> impl Iterator<Item = &(usize, Record)> {
        self.live.iter()
    }

    pub(super) fn tags(&self) -> impl ExactSizeIterator<Item = (Tag, Sums)> {
        self.tags.iter().copied()
    }

    /// Asserts the invariant.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut sums = std::collections::BTreeMap::<Tag, Sums>::new();
        for (_, record) in &self.live {
            let of = sums.entry(record.tag).or_default();
            of.requested += record.requested as u64;
            of.bytes += record.bytes as u64;
            of.blocks += 1;
        }
        let kept: std::collections::BTreeMap<Tag, Sums> = self.tags().collect();
        assert_eq!(kept, sums);
    }
}
