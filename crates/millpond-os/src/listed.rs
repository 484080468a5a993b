//! The list of maps that are closed in the child of a fork.

use crate::ranked::{Locked, Rank, Ranked};
use crate::reentrancy::{Inside, inside};
use std::collections::BTreeMap;

/// First address to bytes. A map is unmapped and its entry removed under one lock.
static MAPS: Ranked<BTreeMap<usize, usize>> = Ranked::new(Rank::Maps, BTreeMap::new());

/// The locked list. A fork waits until it is unlocked.
pub(crate) struct Listed {
    maps: Locked<'static, BTreeMap<usize, usize>>,
    /// Makes allocations of the list bypass the program's pool, because the pool's source may wait for the lock.
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
