//! The list of maps that are closed in the child of a fork.

use crate::ranked::{Locked, Rank, Ranked};
use crate::reentrancy::{Inside, inside};
use std::collections::BTreeMap;

/// First address to bytes. An entry exists as long as its map, and both end while the lock is held.
static MAPS: Ranked<BTreeMap<usize, usize>> = Ranked::new(Rank::Maps, BTreeMap::new());

/// The list, locked. [`Memfd`](crate::Memfd) has forks wait for the lock.
pub(crate) struct Listed {
    maps: Locked<'static, BTreeMap<usize, usize>>,
    /// The list is not allocated from the program's pool, whose source may wait for the lock.
    _inside: Inside,
}

impl Listed {
    pub(crate) fn lock() -> Self {
        Self {
            _inside: inside(),
            maps: MAPS.lock(),
        }
    }

    pub(crate) fn add(&mut self, address: usize, bytes: usize) {
        self.maps.insert(address, bytes);
    }

    pub(crate) fn remove(&mut self, address: usize) {
        self.maps.remove(&address);
    }

    /// Returns the address and the bytes of each map.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.maps.iter().map(|(address, bytes)| (*address, *bytes))
    }
}
