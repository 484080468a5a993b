//! Finds the first place, in address order, with enough room for a size.
//!
//! Places are grouped into classes by the power of two of their room. Every place of a higher class fits, so only the
//! size's own class needs a search.

use std::collections::BTreeMap;

/// A set of places. Each place has a first address, its room in bytes and an identifier.
#[derive(Debug)]
pub(super) struct FirstFit {
    classes: Vec<BTreeMap<u64, (u64, u32)>>,
}

impl Default for FirstFit {
    fn default() -> Self {
        Self {
            classes: vec![BTreeMap::new(); 64],
        }
    }
}

fn class(room: u64) -> usize {
    room.checked_ilog2().unwrap_or(0) as usize
}

impl FirstFit {
    pub(super) fn insert(&mut self, address: u64, room: u64, name: u32) {
        self.classes[class(room)].insert(address, (room, name));
    }

    pub(super) fn remove(&mut self, address: u64, room: u64) {
        let known = self.classes[class(room)].remove(&address);
        debug_assert!(
            known.is_some_and(|k| k.0 == room),
            "no place of {room} at {address:#x}"
        );
    }

    /// Returns the place with the lowest address whose room is at least `bytes`.
    pub(super) fn first(&self, bytes: u64) -> Option<u32> {
        let own = class(bytes);
        let above = self.classes[own + 1..]
            .iter()
            .filter_map(|places| places.first_key_value())
            .min_by_key(|(address, _)| **address);
        let below = above.map_or(u64::MAX, |(address, _)| *address);
        let here = self.classes[own]
            .range(..below)
            .find(|(_, (room, _))| *room >= bytes);
        here.or(above).map(|(_, (_, name))| *name)
    }

    /// Returns every identifier, unordered.
    pub(super) fn names(&self) -> impl Iterator<Item = u32> + '_ {
        self.classes
            .iter()
            .flat_map(BTreeMap::values)
            .map(|(_, name)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_linear_search(places in proptest::collection::btree_map(0u64..500, 0u64..5000, 0..80), wanted in 1u64..5000) {
            let mut index = FirstFit::default();
            for (address, room) in &places {
                index.insert(*address, *room, *address as u32);
            }
            let walked = places.iter().find(|(_, room)| **room >= wanted).map(|(a, _)| *a as u32);
            prop_assert_eq!(index.first(wanted), walked);
            prop_assert_eq!(index.names().count(), places.len());
        }
    }
}
