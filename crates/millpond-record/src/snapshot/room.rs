//! A buffer for the largest blocks, allocated in advance, and the sums of all others.
//!
//! The buffer is a separate mapping. Adding blocks does not allocate, so it is possible under the locks of a pool or
//! its account, and while memory is short. If the buffer is full, the smaller half of its blocks is added to the sums
//! and removed.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use memmap2::MmapMut;

/// The minimum number of listed blocks that makes a file useful.
const LEAST: usize = 1 << 10;
/// The maximum number of pairs of pool and tag with separate sums.
const GROUPS: usize = 1 << 12;

/// One block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(super) address: u64,
    pub(super) requested: u64,
    pub bytes: u64,
    /// The time of the allocation on the process's clock, if it is known.
    pub(super) time: Option<u64>,
    /// The index of its pool.
    pub(super) pool: u32,
    pub(super) stream: u32,
    pub(super) thread: u32,
    pub(super) tag: u32,
    /// The number of its stack in its account, or 0 without a stack.
    pub(super) stack: u32,
}

/// The stored form of a block.
type Words = [u64; 7];

impl Held {
    fn words(&self) -> Words {
        [
            self.address,
            self.requested,
            self.bytes,
            self.time.map_or(0, |time| time.saturating_add(1)),
            pair(self.pool, self.stream),
            pair(self.thread, self.tag),
            u64::from(self.stack),
        ]
    }

    fn of([address, requested, bytes, time, pool, thread, stack]: Words) -> Self {
        Self {
            address,
            requested,
            bytes,
            time: time.checked_sub(1),
            pool: pool as u32,
            stream: (pool >> 32) as u32,
            thread: thread as u32,
            tag: (thread >> 32) as u32,
            stack: stack as u32,
        }
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn bytes_of(words: &Words) -> u64 {
    let [_, _, bytes, ..] = words;
    *bytes
}

/// The sums of several blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) requested: u64,
    pub(super) bytes: u64,
    pub(super) blocks: u64,
}

impl Sums {
    pub(super) fn add(&mut self, requested: u64, bytes: u64, blocks: u64) {
        self.requested = self.requested.saturating_add(requested);
        self.bytes = self.bytes.saturating_add(bytes);
        self.blocks = self.blocks.saturating_add(blocks);
    }
}

/// The buffer and the sums.
pub(super) struct Room {
    map: MmapMut,
    len: usize,
    /// The maximum number of blocks that are listed at the end.
    most: usize,
    /// The sums of the other blocks, by pool and tag. The map never grows.
    rest: HashMap<(u32, u32), Sums, FixedState>,
}

impl Room {
    /// Makes a buffer for the `most` largest of about `blocks` blocks. It is smaller if memory is short. Returns `None`
    /// if almost no memory is left.
    pub(super) fn new(blocks: u64, most: usize) -> Option<Self> {
        let mut most = most.max(1);
        let blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
        // The reserve covers blocks that are allocated in the meantime.
        let wanted = blocks.saturating_add(blocks / 8).saturating_add(LEAST);
        let mut rest = HashMap::with_hasher(FixedState::default());
        rest.try_reserve(GROUPS).ok()?;
        loop {
            let places = wanted.min(most.saturating_mul(2)).max(2);
            let bytes = places.checked_mul(size_of::<Words>());
            match bytes.and_then(|bytes| MmapMut::map_anon(bytes).ok()) {
                Some(map) => {
                    return Some(Self {
                        map,
                        len: 0,
                        most,
                        rest,
                    });
                }
                None if most > LEAST => most /= 2,
                None => return None,
            }
        }
    }

    fn places(&mut self) -> &mut [Words] {
        let whole = self.map.len() - self.map.len() % size_of::<Words>();
        self.map
            .get_mut(..whole)
            .map_or(&mut [], bytemuck::cast_slice_mut)
    }

    /// Adds a block without allocating.
    pub(super) fn add(&mut self, held: &Held) {
        let places = self.places().len();
        if self.len >= places {
            self.keep_largest(self.most.min(places / 2));
        }
        let at = self.len;
        if let Some(place) = self.places().get_mut(at) {
            *place = held.words();
            self.len += 1;
        }
    }

    /// Moves all blocks except the largest to the sums.
    fn keep_largest(&mut self, most: usize) {
        let len = self.len;
        if len <= most {
            return;
        }
        let Some(kept) = self.places().get_mut(..len) else {
            return;
        };
        kept.select_nth_unstable_by(most - 1, |one, other| {
            bytes_of(other).cmp(&bytes_of(one)).then(one.cmp(other))
        });
        for at in most..len {
            let Some(held) = self.places().get(at).copied().map(Held::of) else {
                continue;
            };
            self.add_up(&held);
        }
        self.len = most;
    }

    fn add_up(&mut self, held: &Held) {
        let mut group = (held.pool, held.tag);
        if self.rest.len() >= GROUPS - 1 && !self.rest.contains_key(&group) {
            group = (held.pool, 0);
            if self.rest.len() >= self.rest.capacity() && !self.rest.contains_key(&group) {
                return;
            }
        }
        let sums = self.rest.entry(group).or_default();
        sums.add(held.requested, held.bytes, 1);
    }

    /// Sorts the largest blocks, the oldest first and those of unknown age last. No more blocks are added afterwards.
    pub(super) fn finish(&mut self) {
        self.keep_largest(self.most);
        let len = self.len;
        if let Some(kept) = self.places().get_mut(..len) {
            kept.sort_unstable_by_key(|words| {
                let [address, _, _, time, pool, ..] = *words;
                (time.wrapping_sub(1), pool as u32, address)
            });
        }
    }

    /// Returns the number of listed blocks.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns one block.
    pub(super) fn get(&self, at: usize) -> Option<Held> {
        let start = at.checked_mul(size_of::<Words>()).filter(|_| at < self.len)?;
        let bytes = self.map.get(start..start + size_of::<Words>())?;
        bytemuck::try_pod_read_unaligned(bytes).ok().map(Held::of)
    }

    /// Returns the sums of the others, by pool and tag.
    pub(super) fn rest(&self) -> impl Iterator<Item = ((u32, u32), Sums)> {
        self.rest.iter().map(|(group, sums)| (*group, *sums))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(number: u64, bytes: u64) -> Held {
        Held {
            address: number << 12,
            requested: bytes - 1,
            bytes,
            time: number.is_multiple_of(3).then_some(number),
            pool: (number % 2) as u32,
            tag: (number % 5) as u32,
            stack: number as u32,
            ..Held::default()
        }
    }

    #[test]
    fn blocks_are_returned_unchanged() {
        let mut room = Room::new(3, 100).expect("memory");
        let blocks = [held(3, 100), held(6, 7), held(4, 1 << 40)];
        blocks.iter().for_each(|block| room.add(block));
        room.finish();
        assert_eq!(
            std::array::from_fn(|at| room.get(at)),
            blocks.map(Some),
            "those of unknown age come last"
        );
        assert_eq!((room.get(3), room.rest().count()), (None, 0));
    }

    /// The largest blocks are kept in any order of arrival, and the sums include all others.
    #[test]
    fn the_largest_blocks_are_kept_and_the_others_are_added_up() {
        let many = 50_000_u64;
        for most in [1, 10, 3_000] {
            let mut room = Room::new(many, most).expect("memory");
            let mut sums = Sums::default();
            for number in 0..many {
                let block = held(number, 1 + number.wrapping_mul(2_654_435_761) % 1_000_003);
                sums.add(block.requested, block.bytes, 1);
                room.add(&block);
            }
            room.finish();
            assert_eq!(room.len(), most);
            let mut sizes: Vec<u64> = (0..many)
                .map(|number| 1 + number.wrapping_mul(2_654_435_761) % 1_000_003)
                .collect();
            sizes.sort_unstable_by(|one, other| other.cmp(one));
            let mut kept: Vec<u64> = (0..most)
                .filter_map(|at| room.get(at))
                .map(|held| held.bytes)
                .collect();
            kept.sort_unstable_by(|one, other| other.cmp(one));
            assert_eq!(kept, sizes[..most]);
            let mut found = Sums::default();
            for at in 0..room.len() {
                let held = room.get(at).expect("one");
                found.add(held.requested, held.bytes, 1);
            }
            for (_, rest) in room.rest() {
                found.add(rest.requested, rest.bytes, rest.blocks);
            }
            assert_eq!(found, sums);
        }
    }

    #[test]
    fn groups_above_the_maximum_are_added_up_together() {
        let mut room = Room::new(1 << 20, 1).expect("memory");
        let many = 3 * GROUPS as u64;
        for number in 0..many {
            let tag = number as u32;
            room.add(&Held {
                tag,
                ..held(number, 64)
            });
        }
        room.finish();
        let blocks: u64 = room.rest().map(|(_, sums)| sums.blocks).sum();
        assert_eq!(blocks + room.len() as u64, many);
        // Each of the two pools has one more.
        assert!(room.rest().count() <= GROUPS + 1);
    }
}
