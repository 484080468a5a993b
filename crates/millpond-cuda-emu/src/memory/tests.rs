//! Tests random programs of memory calls against models that predict each result.

use super::heap::Pending;
use super::pool::Asker;
use super::{GRANULE, Memory};
use crate::access::Origin;
use crate::clock::{Clock, Stamp};
use crate::error::Code;
use crate::options::Options;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};

/// The number of granules of the device.
const DEVICE: u64 = 12;

fn memory() -> Memory {
    let options = Options {
        memory: DEVICE * GRANULE,
        ..Options::default()
    };
    Memory::new(&options).unwrap()
}

/// One call. Small numbers choose among existing objects.
#[derive(Clone, Copy, Debug)]
enum Call {
    Reserve(u64),
    Unreserve(usize, bool),
    Create(u64),
    Release(usize),
    Retain(usize, u64),
    Map(usize, u64, usize, u64),
    Unmap(usize, u64, u64),
    Access(usize, u64, u64, bool),
    Write(usize, u64, u8),
}

fn call() -> impl Strategy<Value = Call> {
    let (which, page, pages) = (0usize..4, 0u64..6, 1u64..5);
    prop_oneof![
        (0u64..7).prop_map(Call::Reserve),
        (which.clone(), any::<bool>()).prop_map(|(r, whole)| Call::Unreserve(r, whole)),
        (0u64..6).prop_map(Call::Create),
        which.clone().prop_map(Call::Release),
        (which.clone(), page.clone()).prop_map(|(r, p)| Call::Retain(r, p)),
        (which.clone(), page.clone(), which.clone(), pages.clone())
            .prop_map(|(r, p, h, n)| Call::Map(r, p, h, n)),
        (which.clone(), page.clone(), pages.clone()).prop_map(|(r, p, n)| Call::Unmap(r, p, n)),
        (which.clone(), page.clone(), pages, any::<bool>())
            .prop_map(|(r, p, n, on)| Call::Access(r, p, n, on)),
        (which, page, any::<u8>()).prop_map(|(r, p, value)| Call::Write(r, p, value)),
    ]
}

/// Physical memory in the model: a byte for each granule.
#[derive(Debug)]
struct Physical {
    token: u64,
    bytes: Vec<Option<u8>>,
    handles: u32,
}

/// A granule of addresses in the model: its memory and granule, whether it may be accessed, and whether a mapping begins.
#[derive(Clone, Copy, Debug)]
struct Seen {
    physical: usize,
    granule: usize,
    access: bool,
    first: bool,
}

#[derive(Debug, Default)]
struct Model {
    reserved: Vec<(u64, u64)>,
    physical: Vec<Physical>,
    maps: BTreeMap<u64, Seen>,
}

impl Model {
    fn lives(&self, index: usize) -> bool {
        self.physical[index].handles > 0 || self.maps.values().any(|seen| seen.physical == index)
    }

    fn free(&self) -> u64 {
        let used = (0..self.physical.len()).filter(|index| self.lives(*index));
        DEVICE
            - used
                .map(|index| self.physical[index].bytes.len() as u64)
                .sum::<u64>()
    }

    /// Returns a range of granules in a reservation, if it lies inside.
    fn range(&self, which: usize, page: u64, pages: u64) -> Option<(u64, Vec<u64>)> {
        let (base, len) = *self.reserved.get(which).filter(|reserved| page < reserved.1)?;
        let at = base + page * GRANULE;
        let pages = (page + pages <= len).then(|| (0..pages).map(|p| at + p * GRANULE).collect());
        Some((at, pages.unwrap_or_default()))
    }

    /// Returns whether a range consists of whole mappings.
    fn whole(&self, pages: &[u64]) -> bool {
        let mapped = !pages.is_empty() && pages.iter().all(|page| self.maps.contains_key(page));
        let begins = |page: u64| self.maps.get(&page).is_none_or(|seen| seen.first);
        mapped && begins(pages[0]) && begins(pages[pages.len() - 1] + GRANULE)
    }
}

fn run(calls: &[Call]) {
    let mut memory = memory();
    let mut model = Model::default();
    for &call in calls {
        step(&mut memory, &mut model, call);
        assert_eq!(memory.info(0).unwrap().0, model.free() * GRANULE, "{call:?}");
        for (at, seen) in &model.maps {
            let found = memory.resolve(*at + 7, 1);
            if !seen.access {
                assert_eq!(found, Err(Code::ILLEGAL_ADDRESS), "{call:?}");
            } else if let Some(byte) = model.physical[seen.physical].bytes[seen.granule] {
                assert_eq!(found.unwrap()[0].read(), [byte], "{call:?}");
            }
        }
    }
}

fn step(memory: &mut Memory, model: &mut Model, call: Call) {
    match call {
        Call::Reserve(pages) => {
            let answer = memory.reserve(pages * GRANULE, 0, 0, Origin::default());
            assert_eq!(answer.is_ok(), pages > 0);
            if let Ok(at) = answer
                && model.reserved.len() < 4
            {
                model.reserved.push((at, pages));
            }
        }
        Call::Unreserve(which, whole) => {
            let Some(&(at, pages)) = model.reserved.get(which) else {
                return;
            };
            let empty = (0..pages).all(|page| !model.maps.contains_key(&(at + page * GRANULE)));
            let len = if whole { pages } else { pages + 1 } * GRANULE;
            assert_eq!(memory.unreserve(at, len).is_ok(), empty && whole);
            if empty && whole {
                model.reserved.remove(which);
            }
        }
        Call::Create(granules) => {
            let answer = memory.create(0, granules * GRANULE, false);
            let expected = match granules {
                0 => Err(Code::INVALID_VALUE),
                _ if granules > model.free() => Err(Code::OUT_OF_MEMORY),
                _ => Ok(()),
            };
            assert_eq!(answer.map(|_| ()), expected);
            if let Ok(token) = answer {
                model.physical.push(Physical {
                    token,
                    bytes: vec![None; granules as usize],
                    handles: 1,
                });
            }
        }
        Call::Release(which) => {
            let Some(physical) = model.physical.get_mut(which) else {
                return;
            };
            assert_eq!(memory.release(physical.token).is_ok(), physical.handles > 0);
            physical.handles = physical.handles.saturating_sub(1);
        }
        Call::Retain(which, page) => {
            let Some((at, _)) = model.range(which, page, 1) else {
                return;
            };
            let seen = model.maps.get(&at).map(|seen| seen.physical);
            let answer = memory.retain(at + 3);
            assert_eq!(answer.ok(), seen.map(|index| model.physical[index].token));
            if let Some(index) = seen {
                model.physical[index].handles += 1;
            }
        }
        Call::Map(which, page, index, pages) => {
            let Some((at, range)) = model.range(which, page, pages) else {
                return;
            };
            let Some(physical) = model.physical.get(index) else {
                return;
            };
            let free = range.iter().all(|page| !model.maps.contains_key(page));
            let fits = pages <= physical.bytes.len() as u64;
            let possible = !range.is_empty() && free && fits && physical.handles > 0;
            assert_eq!(
                memory.map(at, pages * GRANULE, physical.token).is_ok(),
                possible,
                "{call:?}"
            );
            if possible {
                for (granule, page) in range.into_iter().enumerate() {
                    let seen = Seen {
                        physical: index,
                        granule,
                        access: false,
                        first: granule == 0,
                    };
                    model.maps.insert(page, seen);
                }
            }
        }
        Call::Unmap(which, page, pages) => {
            let Some((at, range)) = model.range(which, page, pages) else {
                return;
            };
            let possible = model.whole(&range);
            assert_eq!(memory.unmap(at, pages * GRANULE).is_ok(), possible, "{call:?}");
            if possible {
                model.maps.retain(|page, _| !range.contains(page));
            }
        }
        Call::Access(which, page, pages, on) => {
            let Some((at, range)) = model.range(which, page, pages) else {
                return;
            };
            let possible = model.whole(&range);
            assert_eq!(
                memory.set_access(at, pages * GRANULE, 0, on).is_ok(),
                possible,
                "{call:?}"
            );
            if possible {
                range
                    .iter()
                    .filter_map(|page| model.maps.get_mut(page).map(|seen| seen.access = on))
                    .count();
            }
        }
        Call::Write(which, page, value) => {
            let Some((at, _)) = model.range(which, page, 1) else {
                return;
            };
            if let Some(seen) = model.maps.get(&at).filter(|seen| seen.access) {
                memory.resolve(at + 7, 1).unwrap()[0].write(&[value]);
                model.physical[seen.physical].bytes[seen.granule] = Some(value);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn virtual_memory_behaves_like_the_model(calls in prop::collection::vec(call(), 1..60)) {
        run(&calls);
    }

    /// Blocks of a pool never overlap while they are in use, and all memory is free again at the end.
    #[test]
    fn pool_blocks_do_not_overlap(calls in prop::collection::vec((1u64..3_000_000, 0u64..3, any::<bool>()), 1..60)) {
        let mut memory = memory();
        let pool = memory.default_pool(0).unwrap();
        let mut held: Vec<(u64, u64)> = Vec::new();
        let mut pending: Vec<(u64, u64, Pending)> = Vec::new();
        let mut done = HashSet::new();
        let clock = Clock::default();
        for (task, (bytes, stream, take)) in calls.into_iter().enumerate() {
            let task = task as u64 + 1;
            if take {
                let asker = Asker { stream, clock: &clock, done: &|task| done.contains(&task) };
                let Ok((at, waits)) = memory.pool_allocate(pool, bytes, &asker, Origin::default()) else { continue };
                let meets = |other: &(u64, u64)| at < other.0 + other.1 && other.0 < at + bytes;
                prop_assert!(!held.iter().any(meets));
                for (other, len, freed) in &pending {
                    let free = done.contains(&freed.task) || freed.stamp.stream == stream || waits == Some(*freed);
                    prop_assert!(free || !meets(&(*other, *len)), "still in use by stream {}", freed.stamp.stream);
                }
                // The new block comes after the work that was pending in its bytes. The rest of the pending block stays
                // pending.
                let rest = |(other, len, freed): (u64, u64, Pending)| {
                    let (end, taken_end) = (other + len, at + bytes.next_multiple_of(512));
                    let left = (other, end.min(at).saturating_sub(other), freed);
                    let from = other.max(taken_end);
                    [left, (from, end.saturating_sub(from), freed)]
                };
                pending = pending.into_iter().flat_map(rest).filter(|part| part.1 > 0).collect();
                held.push((at, bytes));
            } else if !held.is_empty() {
                let (at, len) = held.swap_remove(bytes as usize % held.len());
                let stamp = Stamp { stream, place: task };
                memory.pool_free(at, task, stamp).unwrap();
                pending.push((at, len, Pending { task, stamp }));
                if bytes % 2 == 0 {
                    done.insert(task);
                }
            }
        }
        for (at, _) in held {
            memory.pool_free(at, 0, Stamp::default()).unwrap();
        }
        memory.synchronised(&|_| true);
        prop_assert_eq!(memory.info(0).unwrap(), (DEVICE * GRANULE, DEVICE * GRANULE));
    }

    #[test]
    fn plain_blocks_do_not_overlap(calls in prop::collection::vec((1u64..3_000_000, any::<bool>()), 1..60)) {
        let mut memory = memory();
        let mut held: Vec<(u64, u64)> = Vec::new();
        for (bytes, take) in calls {
            if take {
                let Ok(at) = memory.allocate(0, bytes, Origin::default()) else { continue };
                prop_assert_eq!(at % 512, 0);
                prop_assert!(!held.iter().any(|(other, len)| at < other + len && *other < at + bytes));
                prop_assert!(memory.resolve(at, bytes).is_ok());
                held.push((at, bytes));
            } else if !held.is_empty() {
                let (at, _) = held.swap_remove(bytes as usize % held.len());
                memory.free(at).unwrap();
                prop_assert_eq!(memory.free(at).err(), Some(Code::INVALID_VALUE));
            }
        }
        for (at, _) in held {
            memory.free(at).unwrap();
        }
        prop_assert_eq!(memory.info(0).unwrap(), (DEVICE * GRANULE, DEVICE * GRANULE));
    }
}
