//! A few free blocks of similar size, sorted, in one cache line.

use super::Entry;
use super::chunks::Chunks;
use crate::space::BlockId;

/// Number of entries held in place.
const IN_PLACE: usize = 2;

const NOTHING: Entry = Entry {
    bytes: 0,
    address: 0,
    id: BlockId::NONE,
};

/// Invariant: the first `count` entries in place ascend, and every entry of `more` is above them. `more` exists only
/// while the places are full, and then it is not empty.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Bin {
    places: [Entry; IN_PLACE],
    count: u8,
    more: Option<Box<Chunks>>,
}

impl Default for Bin {
    fn default() -> Self {
        Self {
            places: [NOTHING; IN_PLACE],
            count: 0,
            more: None,
        }
    }
}

impl Bin {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    fn held(&self) -> &[Entry] {
        &self.places[..usize::from(self.count).min(IN_PLACE)]
    }

    /// Returns the number of entries in place below a key.
    #[inline]
    fn rank(&self, key: (u64, u64)) -> usize {
        self.held().iter().filter(|e| e.key() < key).count()
    }

    #[inline]
    pub(super) fn insert(&mut self, entry: Entry) {
        let at = self.rank(entry.key());
        let count = usize::from(self.count);
        if count < IN_PLACE {
            if at == 0 {
                self.places[1] = self.places[0];
            }
            self.places[at] = entry;
            self.count += 1;
            return;
        }
        let more = self.more.get_or_insert_default();
        if at == IN_PLACE {
            more.insert(entry);
        } else {
            more.insert(self.places[IN_PLACE - 1]);
            if at == 0 {
                self.places[1] = self.places[0];
            }
            self.places[at] = entry;
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, key: (u64, u64)) -> bool {
        let at = self.rank(key);
        match self.held().get(at) {
            Some(entry) if entry.key() == key => {
                self.close(at);
                true
            }
            Some(_) => false,
            None => {
                let found = self.more.as_mut().is_some_and(|more| more.remove(key));
                self.drop_if_empty();
                found
            }
        }
    }

    /// Removes and returns the first entry at or above a key.
    #[inline]
    pub(super) fn take_at_or_above(&mut self, key: (u64, u64)) -> Option<Entry> {
        let at = self.rank(key);
        if let Some(entry) = self.held().get(at).copied() {
            self.close(at);
            return Some(entry);
        }
        let entry = self.more.as_mut()?.take_at_or_above(key);
        self.drop_if_empty();
        entry
    }

    /// Returns the first entry at or above a key.
    #[inline]
    pub(super) fn at_or_above(&self, key: (u64, u64)) -> Option<Entry> {
        let here = self.held().get(self.rank(key)).copied();
        here.or_else(|| self.more.as_ref()?.at_or_above(key))
    }

    /// Returns the last entry below a key.
    pub(super) fn below(&self, key: (u64, u64)) -> Option<Entry> {
        let behind = self.more.as_ref().and_then(|more| more.below(key));
        behind.or_else(|| self.held().get(self.rank(key).checked_sub(1)?).copied())
    }

    pub(super) fn last(&self) -> Option<Entry> {
        let behind = self.more.as_ref().and_then(|more| more.last());
        behind.or_else(|| self.held().last().copied())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.held()
            .iter()
            .copied()
            .chain(self.more.iter().flat_map(|more| more.iter()))
    }

    pub(super) fn check(&self) {
        assert!(
            self.more.is_none() || usize::from(self.count) == IN_PLACE,
            "entries behind empty places"
        );
        if let Some(more) = &self.more {
            more.check();
            assert!(more.iter().next().is_some(), "empty chunks kept");
        }
    }

    /// Closes the gap that a removed entry leaves in place.
    #[inline]
    fn close(&mut self, at: usize) {
        if at == 0 {
            self.places[0] = self.places[1];
        }
        match self.more.as_mut().and_then(|more| more.take_at_or_above((0, 0))) {
            Some(next) => {
                self.places[IN_PLACE - 1] = next;
                self.drop_if_empty();
            }
            None => self.count -= 1,
        }
    }

    #[inline]
    fn drop_if_empty(&mut self) {
        if self.more.as_ref().is_some_and(|more| more.is_empty()) {
            self.more = None;
        }
    }
}
