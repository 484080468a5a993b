//! The figures of one scope, in total and by tag and stack.
//!
//! The bytes of each site at the peak are known without a copy of all sites at each new peak. Changes are numbered, and
//! the number of the peak is stored. A site that changes for the first time since the peak first stores its bytes at
//! the peak.
//!
//! The space for sites is allocated once. When it is full, all other blocks are counted as one additional site, so the
//! sums stay exact.

use crate::ledger::{LeakGroup, LeakReport, Ledger, Places, Record, Stack, StackId};
use crate::tags::Tag;
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::btree_map::{BTreeMap, Entry as Slot};
use std::hash::BuildHasher;
use std::sync::Arc;

/// The maximum number of distinct accounts. Each pool has one.
const ACCOUNTS: usize = 64;

/// The bytes and the number of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub bytes: u64,
    pub blocks: u64,
}

impl Held {
    fn of(record: &Record, weight: u64) -> Self {
        Self {
            bytes: (record.bytes as u64).saturating_mul(weight),
            blocks: weight,
        }
    }

    fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.blocks = self.blocks.saturating_add(other.blocks);
    }

    fn take(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.blocks = self.blocks.saturating_sub(other.blocks);
    }
}

/// The sums of a scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The memory that is still in use.
    pub live: Held,
    /// The live blocks when the most bytes were live.
    pub peak: Held,
    /// All blocks that were ever allocated.
    pub total: Held,
    /// The number of blocks that were freed as the next operation of the allocating thread.
    pub temporary: u64,
}

/// The allocations with one tag at one place.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Site {
    /// The tag.
    pub tag: Tag,
    /// The place, if stacks are stored.
    pub stack: Option<Stack>,
    /// The number of allocated blocks.
    pub allocations: u64,
    /// The bytes of these blocks.
    pub total: u64,
    /// The number of blocks that were freed as the next operation of the allocating thread.
    pub temporary: u64,
    /// The live bytes at the moment when the live bytes of all sites together were highest.
    pub peak_bytes: u64,
    /// The number of live blocks at that moment.
    pub peak_blocks: u64,
    /// The live bytes.
    pub live_bytes: u64,
    /// The number of live blocks.
    pub live_blocks: u64,
    /// The bytes of the largest block.
    pub largest: u64,
    /// The lowest and the highest number of the threads that allocated the blocks.
    pub threads: (u32, u32),
}

impl Site {
    /// Adds the figures of another site with the same tag and place.
    fn join(&mut self, other: &Self) {
        self.allocations += other.allocations;
        self.total = self.total.saturating_add(other.total);
        self.temporary += other.temporary;
        self.peak_bytes = self.peak_bytes.saturating_add(other.peak_bytes);
        self.peak_blocks += other.peak_blocks;
        self.live_bytes = self.live_bytes.saturating_add(other.live_bytes);
        self.live_blocks += other.live_blocks;
        self.largest = self.largest.max(other.largest);
        self.threads = (
            self.threads.0.min(other.threads.0),
            self.threads.1.max(other.threads.1),
        );
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    account: usize,
    tag: Tag,
    stack: Option<StackId>,
}

#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    live: Held,
    /// The live blocks at the peak, if they have changed since.
    at_peak: Held,
    /// The number of its last change.
    changed: u64,
    total: Held,
    temporary: u64,
    largest: u64,
    threads: (u32, u32),
}

/// The figures of a scope. Invariant: the sums of all sites are the figures.
pub(crate) struct Tally {
    /// The pools that are counted. An empty list means all.
    pools: Box<[u64]>,
    figures: Figures,
    /// The number of changes, and the number of the change that made the peak.
    changes: u64,
    peak_at: u64,
    /// The accounts. It never grows.
    accounts: Vec<Arc<Ledger>>,
    /// The sites. It never grows.
    sites: HashTable<Entry>,
    /// The blocks of sites that did not fit.
    others: Entry,
    /// The blocks of accounts that did not fit.
    elsewhere: Entry,
}

fn hash(key: &Key) -> u64 {
    FixedState::with_seed(0).hash_one(key)
}

impl Entry {
    fn new(key: Key) -> Self {
        Self {
            key,
            live: Held::default(),
            at_peak: Held::default(),
            changed: 0,
            total: Held::default(),
            temporary: 0,
            largest: 0,
            threads: (u32::MAX, 0),
        }
    }

    fn others() -> Self {
        Self::new(Key {
            account: usize::MAX,
            tag: Tag::OTHERS,
            stack: None,
        })
    }

    fn live_at(&self, peak_at: u64) -> Held {
        if self.changed <= peak_at {
            self.live
        } else {
            self.at_peak
        }
    }

    /// Begins a change.
    fn change(&mut self, change: u64, peak_at: u64) {
        self.at_peak = self.live_at(peak_at);
        self.changed = change;
    }
}

impl Tally {
    /// Makes a tally of these pools, or of all if the list is empty, with space for the given number of sites.
    pub(crate) fn new(pools: Box<[u64]>, sites: usize) -> Self {
        Self {
            pools,
            figures: Figures::default(),
            changes: 0,
            peak_at: 0,
            accounts: Vec::with_capacity(ACCOUNTS),
            sites: HashTable::with_capacity(sites),
            others: Entry::others(),
            elsewhere: Entry::others(),
        }
    }

    pub(super) fn room(&self) -> usize {
        self.sites.capacity()
    }

    pub(super) fn counts(&self, pool: u64) -> bool {
        self.pools.is_empty() || self.pools.contains(&pool)
    }

    pub(crate) fn figures(&self) -> Figures {
        self.figures
    }

    /// Returns the accounts that may contain its blocks.
    pub(crate) fn accounts(&self) -> &[Arc<Ledger>] {
        &self.accounts
    }

    /// Returns the live blocks of pools whose accounts did not fit.
    pub(crate) fn live_elsewhere(&self) -> LeakReport {
        let Entry {
            live,
            largest,
            threads,
            ..
        } = self.elsewhere;
        let group = (live.blocks > 0).then_some(LeakGroup {
            tag: Tag::OTHERS,
            stack: None,
            bytes: live.bytes,
            blocks: live.blocks,
            largest,
            oldest: None,
            threads,
        });
        LeakReport::of(group)
    }

    /// Adds an allocated block. Does not allocate.
    pub(crate) fn allocated(&mut self, account: &Arc<Ledger>, record: &Record) {
        let held = Held::of(record, account.weight());
        self.changes += 1;
        let (change, peak_at) = (self.changes, self.peak_at);
        let site = self.site(account, record);
        site.change(change, peak_at);
        site.live.add(held);
        site.total.add(held);
        site.largest = site.largest.max(record.bytes as u64);
        site.threads = (
            site.threads.0.min(record.thread),
            site.threads.1.max(record.thread),
        );
        let figures = &mut self.figures;
        figures.live.add(held);
        figures.total.add(held);
        if figures.live.bytes > figures.peak.bytes {
            figures.peak = figures.live;
            self.peak_at = change;
        }
    }

    /// Removes a freed block. Does not allocate.
    pub(crate) fn freed(&mut self, account: &Arc<Ledger>, record: &Record, temporary: bool) {
        let weight = account.weight();
        let held = Held::of(record, weight);
        let temporary = if temporary { weight } else { 0 };
        self.changes += 1;
        let (change, peak_at) = (self.changes, self.peak_at);
        let site = self.site(account, record);
        site.change(change, peak_at);
        site.live.take(held);
        site.temporary += temporary;
        self.figures.live.take(held);
        self.figures.temporary += temporary;
    }

    /// Returns the site of a block. A block that was counted in a combined entry at its allocation is found there at
    /// its free too, because the space never grows.
    fn site(&mut self, account: &Arc<Ledger>, record: &Record) -> &mut Entry {
        let same = |one: &Arc<Ledger>| Arc::ptr_eq(one, account);
        let place = self.accounts.iter().rposition(same).or_else(|| {
            let room = self.accounts.len() < self.accounts.capacity();
            room.then(|| {
                self.accounts.push(Arc::clone(account));
                self.accounts.len() - 1
            })
        });
        let Some(place) = place else {
            return &mut self.elsewhere;
        };
        let key = Key {
            account: place,
            tag: record.tag,
            stack: record.stack,
        };
        let hash_of = hash(&key);
        let same = |entry: &Entry| entry.key == key;
        if self.sites.len() >= self.sites.capacity() {
            return self.sites.find_mut(hash_of, same).unwrap_or(&mut self.others);
        }
        self.sites
            .entry(hash_of, same, |entry| hash(&entry.key))
            .or_insert_with(|| Entry::new(key))
            .into_mut()
    }

    /// Copies everything to an empty tally with the same space. Does not allocate.
    pub(super) fn copy_into(&self, other: &mut Self) {
        other.figures = self.figures;
        (other.changes, other.peak_at) = (self.changes, self.peak_at);
        (other.others, other.elsewhere) = (self.others, self.elsewhere);
        other.accounts.extend(self.accounts.iter().cloned());
        for entry in &self.sites {
            other
                .sites
                .insert_unique(hash(&entry.key), *entry, |entry| hash(&entry.key));
        }
    }

    /// Returns the sites, those with the most bytes at the peak first. The blocks of several pools at one place form
    /// one site.
    pub(crate) fn sites(&self) -> Vec<Site> {
        let mut sites: BTreeMap<(Tag, Option<Vec<usize>>), Site> = BTreeMap::new();
        let others = [&self.others, &self.elsewhere].into_iter();
        let others = others.filter(|entry| entry.total.blocks > 0);
        for entry in self.sites.iter().chain(others) {
            let account = self.accounts.get(entry.key.account);
            let stack = account
                .zip(entry.key.stack)
                .and_then(|(account, id)| account.stack(id));
            let addresses = stack.as_ref().map(|stack| stack.addresses().to_vec());
            let at_peak = entry.live_at(self.peak_at);
            let told = Site {
                tag: entry.key.tag,
                stack,
                allocations: entry.total.blocks,
                total: entry.total.bytes,
                temporary: entry.temporary,
                peak_bytes: at_peak.bytes,
                peak_blocks: at_peak.blocks,
                live_bytes: entry.live.bytes,
                live_blocks: entry.live.blocks,
                largest: entry.largest,
                threads: entry.threads,
            };
            match sites.entry((entry.key.tag, addresses)) {
                Slot::Occupied(mut there) => there.get_mut().join(&told),
                Slot::Vacant(slot) => {
                    slot.insert(told);
                }
            }
        }
        most_at_peak_first(sites.into_values().collect())
    }
}

fn most_at_peak_first(mut sites: Vec<Site>) -> Vec<Site> {
    sites.sort_by_key(|site| Reverse((site.peak_bytes, site.total)));
    sites
}

/// Groups sites by tag and place instead of by tag and stack. Resolves names.
pub fn by_place(sites: &[Site]) -> Vec<Site> {
    let places = Places::of(sites.iter().filter_map(|site| site.stack.as_ref()));
    let mut found = HashMap::new();
    let mut joined: Vec<Site> = Vec::new();
    for site in sites {
        let stack = site.stack.as_ref().map(|stack| places.place_of(stack));
        let place = *found.entry((site.tag, stack.clone())).or_insert(joined.len());
        match joined.get_mut(place) {
            Some(there) => there.join(site),
            None => joined.push(Site {
                stack,
                ..site.clone()
            }),
        }
    }
    most_at_peak_first(joined)
}

/// Returns the contents of these sites at the peak, as one group each.
pub fn at_peak(sites: &[Site]) -> LeakReport {
    let groups = sites.iter().filter(|site| site.peak_blocks > 0);
    LeakReport::of(groups.map(|site| LeakGroup {
        tag: site.tag,
        stack: site.stack.clone(),
        bytes: site.peak_bytes,
        blocks: site.peak_blocks,
        largest: site.largest,
        oldest: None,
        threads: site.threads,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::BlockInfo;
    use crate::ledger::Tracking;
    use crate::memory::MemoryKind;
    use proptest::prelude::*;
    use proptest::sample::Index;

    fn record(account: &Ledger, tag: &str, bytes: usize) -> Record {
        let _scope = crate::tags::tag(tag);
        let info = BlockInfo {
            bytes,
            requested: bytes,
            ..BlockInfo::default()
        };
        account.record(&info, MemoryKind::Host, None)
    }

    /// An allocation, with the number of its tag and its bytes, or the free of one of the live blocks.
    #[derive(Clone, Debug)]
    enum Step {
        Allocate(usize, usize),
        Free(Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let allocate = (0..3usize, 1..100usize).prop_map(|(tag, bytes)| Step::Allocate(tag, bytes));
        let free = any::<Index>().prop_map(Step::Free);
        prop::collection::vec(prop_oneof![allocate, free], 1..60)
    }

    proptest! {
        /// Compares the tally with a copy of everything at each new peak.
        #[test]
        fn the_bytes_of_each_site_at_the_peak_are_exact(steps in steps()) {
            let account = Arc::new(Ledger::new(Tracking::All));
            let mut tally = Tally::new(Box::default(), 8);
            let (mut live, mut at_peak, mut peak) = (Vec::<Record>::new(), Vec::new(), 0);
            for step in steps {
                match step {
                    Step::Allocate(tag, bytes) => {
                        let block = record(&account, ["a", "b", "c"][tag], bytes);
                        tally.allocated(&account, &block);
                        live.push(block);
                    }
                    Step::Free(_) if live.is_empty() => {}
                    Step::Free(index) => {
                        let block = live.swap_remove(index.index(live.len()));
                        tally.freed(&account, &block, false);
                    }
                }
                let bytes: usize = live.iter().map(|block| block.bytes).sum();
                if bytes > peak {
                    (peak, at_peak) = (bytes, live.clone());
                }
            }
            for site in tally.sites() {
                let of = at_peak.iter().filter(|block| block.tag == site.tag);
                let bytes: usize = of.clone().map(|block| block.bytes).sum();
                prop_assert_eq!((site.peak_bytes, site.peak_blocks), (bytes as u64, of.count() as u64));
            }
            prop_assert_eq!(tally.figures().peak.bytes, peak as u64);
        }
    }

    #[test]
    fn sums_stay_exact_when_the_space_for_sites_is_full() {
        let account = Arc::new(Ledger::new(Tracking::All));
        let others: Vec<Arc<Ledger>> = (0..2 * ACCOUNTS)
            .map(|_| Arc::new(Ledger::new(Tracking::All)))
            .collect();
        let mut tally = Tally::new(Box::default(), 4);
        let room = tally.room();
        let blocks: Vec<Record> = (0..100)
            .map(|at| record(&account, &format!("tag {at}"), 10))
            .collect();
        blocks.iter().for_each(|block| tally.allocated(&account, block));
        others.iter().for_each(|other| tally.allocated(other, &blocks[0]));
        assert_eq!(
            (tally.room(), tally.accounts.capacity()),
            (room, ACCOUNTS),
            "nothing has grown"
        );
        let all = 100 + others.len() as u64;
        assert_eq!(
            tally.figures().live,
            Held {
                bytes: 10 * all,
                blocks: all
            }
        );
        let sites = tally.sites();
        assert_eq!(sites.iter().map(|site| site.peak_bytes).sum::<u64>(), 10 * all);
        let elsewhere = others.len() as u64 - (ACCOUNTS as u64 - 1);
        assert_eq!(tally.live_elsewhere().blocks, elsewhere);
        blocks
            .iter()
            .for_each(|block| tally.freed(&account, block, false));
        others
            .iter()
            .for_each(|other| tally.freed(other, &blocks[0], false));
        assert_eq!(tally.figures().live, Held::default());
        assert!(tally.sites().iter().all(|site| site.live_bytes == 0));
    }
}
