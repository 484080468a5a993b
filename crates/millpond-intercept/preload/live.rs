//! A table of the memory that the process holds. It is valid when it is all zeros, and it never calls the allocator of the program.

use crate::format::Memory;
use crate::sys;

/// What a key of the table means. Addresses and handles of different kinds may be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Space {
    /// The address of memory of a device or of managed memory.
    Device = 1,
    /// The address of the host's memory.
    Host = 2,
    /// The handle of physical memory.
    Handle = 3,
    /// The address at which physical memory is mapped. `bytes` are those of the mapping, and `owner` is its handle.
    Mapping = 4,
    /// The handle of an array.
    Array = 5,
}

/// Memory that the process holds, or a mapping of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) key: u64,
    pub(crate) space: Space,
    pub(crate) memory: Memory,
    pub(crate) device: i32,
    /// The number of handles and mappings that keep physical memory.
    pub(crate) users: u32,
    pub(crate) bytes: u64,
    pub(crate) requested: u64,
    /// The context, the pool or the handle to which the memory belongs.
    pub(crate) owner: u64,
}

/// An open-addressing table with linear probing. An empty slot is `None`.
pub(crate) struct Live {
    slots: *mut Option<Held>,
    capacity: usize,
    len: usize,
}

const FIRST: usize = 1 << 10;

fn hash(space: Space, key: u64) -> u64 {
    (key ^ (space as u64) << 56)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}

impl Live {
    fn slots(&mut self) -> &mut [Option<Held>] {
        if self.capacity == 0 {
            return &mut [];
        }
        // SAFETY: `grow` mapped this many slots and initialized each of them. Only this table uses them.
        unsafe { std::slice::from_raw_parts_mut(self.slots, self.capacity) }
    }

    /// Doubles the table. Returns false if there is no memory.
    fn grow(&mut self) -> bool {
        let capacity = (self.capacity * 2).max(FIRST);
        let Some(slots) = sys::zeroed(capacity * size_of::<Option<Held>>()) else {
            return false;
        };
        let slots: *mut Option<Held> = slots.cast();
        for at in 0..capacity {
            // SAFETY: the mapping has `capacity` slots, and a mapping is aligned to a page.
            let slot = unsafe { slots.add(at) };
            // SAFETY: the slot is in the mapping, which nothing else uses.
            unsafe { slot.write(None) };
        }
        let mut larger = Self {
            slots,
            capacity,
            len: 0,
        };
        for held in self.slots().iter().flatten() {
            larger.insert(*held);
        }
        // The smaller table is not unmapped: all smaller tables together are no larger than this one.
        *self = larger;
        true
    }

    fn place(&mut self, space: Space, key: u64) -> Option<usize> {
        let mask = self.capacity.checked_sub(1)?;
        let mut at = hash(space, key) as usize & mask;
        let slots = self.slots();
        while let Some(held) = slots.get(at)?.as_ref() {
            if held.key == key && held.space == space {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Adds an entry, or replaces the one with the same key. Drops the entry if there is no memory for a larger table.
    pub(crate) fn insert(&mut self, held: Held) {
        if let Some(at) = self.place(held.space, held.key) {
            self.slots()[at] = Some(held);
            return;
        }
        if self.len * 2 >= self.capacity && !self.grow() {
            return;
        }
        let mask = self.capacity - 1;
        let mut at = hash(held.space, held.key) as usize & mask;
        while self.slots()[at].is_some() {
            at = (at + 1) & mask;
        }
        self.slots()[at] = Some(held);
        self.len += 1;
    }

    /// Returns an entry.
    pub(crate) fn get(&mut self, space: Space, key: u64) -> Option<&mut Held> {
        let at = self.place(space, key)?;
        self.slots()[at].as_mut()
    }

    /// Removes an entry, and moves the entries after it so that they are found.
    pub(crate) fn remove(&mut self, space: Space, key: u64) -> Option<Held> {
        let mut empty = self.place(space, key)?;
        let mask = self.capacity - 1;
        let removed = self.slots()[empty].take();
        self.len -= 1;
        let mut at = (empty + 1) & mask;
        while let Some(held) = self.slots()[at] {
            let home = hash(held.space, held.key) as usize & mask;
            // The entry may move back to the empty slot if that is not before its home.
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(empty) & mask {
                self.slots()[empty] = Some(held);
                self.slots()[at] = None;
                empty = at;
            }
            at = (at + 1) & mask;
        }
        removed
    }

    /// Returns the first slot from `from` on with an entry for which the condition holds, and the entry.
    ///
    /// The entry may be removed and the search continued from its slot: a removal moves entries only back, or around the end from the first slots,
    /// which were searched already.
    pub(crate) fn find(&mut self, from: usize, holds: impl Fn(&Held) -> bool) -> Option<(usize, Held)> {
        let mut entries = self.slots().iter().enumerate().skip(from);
        entries.find_map(|(at, held)| Some((at, (*held).filter(&holds)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_table_agrees_with_a_map() {
        let mut live = Live {
            slots: std::ptr::null_mut(),
            capacity: 0,
            len: 0,
        };
        let mut map = BTreeMap::new();
        let mut random = 1_u64;
        for _ in 0..200_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = (random >> 33) % 3000 * 512;
            let space = if random >> 40 & 1 == 0 {
                Space::Device
            } else {
                Space::Host
            };
            if random >> 60 < 8 {
                let held = Held {
                    key,
                    space,
                    memory: Memory::Device,
                    device: 0,
                    users: 1,
                    bytes: random,
                    requested: 0,
                    owner: 0,
                };
                live.insert(held);
                map.insert((space as u8, key), random);
            } else {
                let removed = live.remove(space, key).map(|held| held.bytes);
                assert_eq!(removed, map.remove(&(space as u8, key)));
            }
        }
        assert!(map.len() > 1000, "{}", map.len());
        for ((space, key), bytes) in map {
            let space = if space == 1 { Space::Device } else { Space::Host };
            assert_eq!(live.get(space, key).map(|held| held.bytes), Some(bytes));
        }
    }
}
