//! The figures of one scope, in all and by tag and stack.
//!
//! What each site held at the peak is known without a copy of all sites at each new peak: changes are numbered, the peak
//! was at one of them, and a site that is to change for the first time since then notes first what it holds.
//!
//! Room for sites is made once. What comes when they are used up is added up as one site more: sums stay exact.

use crate::ledger::{LeakGroup, LeakReport, Ledger, Places, Record, Stack, StackId};
use crate::tag::Tag;
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::btree_map::{BTreeMap, Entry as Slot};
use std::hash::BuildHasher;
use std::sync::Arc;

/// Accounts that are told apart, which is one for each pool.
const ACCOUNTS: usize = 64;

/// Bytes of blocks, and how many they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
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
pub(crate) struct Figures {
    pub(crate) live: Held,
    /// When most bytes were live.
    pub(crate) peak: Held,
    /// Everything that was ever allocated.
    pub(crate) total: Held,
    pub(crate) temporary: u64,
}

/// What was allocated with one tag at one place.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Site {
    /// The tag.
    pub tag: Tag,
    /// Where, if stacks are kept.
    pub stack: Option<Stack>,
    /// Blocks that were allocated.
    pub allocations: u64,
    /// Bytes of all of them.
    pub total: u64,
    /// Those that were freed as the very next thing that their thread did.
    pub temporary: u64,
    /// Bytes that were live when most were, of all sites together.
    pub peak_bytes: u64,
    /// In so many blocks.
    pub peak_blocks: u64,
    /// Bytes that are live.
    pub live_bytes: u64,
    /// In so many blocks.
    pub live_blocks: u64,
    /// Bytes of the largest block.
    pub largest: u64,
    /// The threads that allocated them: the lowest number and the highest.
    pub threads: (u32, u32),
}

impl Site {
    /// With what another one of the same tag and place comes to.
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
    /// What was live at the peak, if it has changed since.
    at_peak: Held,
    /// The last change of it.
    changed: u64,
    total: Held,
    temporary: u64,
    largest: u64,
    threads: (u32, u32),
}

/// See the module. Invariant: the sums of all sites are the figures.
pub(crate) struct Tally {
    /// The pools that count; none: all.
    pools: Box<[u64]>,
    figures: Figures,
    /// Changes so far, and which of them made the peak.
    changes: u64,
    peak_at: u64,
    /// Never grows.
    accounts: Vec<Arc<Ledger>>,
    /// Never grows.
    sites: HashTable<Entry>,
    /// What there was no room for.
    others: Entry,
    /// The same of accounts.
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
    /// Of these pools, or of all where there are none, with room for so many sites.
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

    /// Its accounts: those that may have blocks of it.
    pub(crate) fn accounts(&self) -> &[Arc<Ledger>] {
        &self.accounts
    }

    /// What is live of pools whose accounts it does not know.
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

    /// Adds a block that was allocated. Allocates nothing.
    pub(super) fn allocated(&mut self, account: &Arc<Ledger>, record: &Record) {
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

    /// Takes one off that comes back. Allocates nothing.
    pub(super) fn freed(&mut self, account: &Arc<Ledger>, record: &Record, temporary: bool) {
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

    /// The site of a block. One that was not told apart when it came is not either when it goes: there is never more room.
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

    /// Copies all of it into one that is empty and has as much room. Allocates nothing.
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

    /// The sites, those first that held most bytes at the peak. What several pools have at one place is one site.
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

/// These sites by tag and [place](crate::ledger::Places) instead of by tag and stack. Looks up names.
pub(crate) fn by_place(sites: &[Site]) -> Vec<Site> {
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

/// What these sites held at the peak, a group each.
pub(crate) fn at_peak(sites: &[Site]) -> LeakReport {
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
    use crate::event::Facts;
    use crate::ledger::Tracking;
    use crate::memory::MemoryKind;
    use proptest::prelude::*;
    use proptest::sample::Index;

    fn record(account: &Ledger, tag: &str, bytes: usize) -> Record {
        let _scope = crate::tag::tag(tag);
        let facts = Facts {
            bytes,
            requested: bytes,
            ..Facts::default()
        };
        account.record(&facts, MemoryKind::Host, None)
    }

    /// A block that is allocated, with the number of its tag and its bytes; or one of those that are live, and freed.
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
        /// Against a copy of everything at each new peak.
        #[test]
        fn what_each_site_held_at_the_peak_is_exact(steps in steps()) {
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
    fn sums_stay_exact_where_there_is_no_room_for_sites() {
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
