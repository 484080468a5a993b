//! The shared state of a set: its pools, and the creation of pools.

use super::builder::PoolsBuilder;
use super::default::at_work;
use super::here;
use super::observe::Watching;
use millpond_account::memory::MemoryKind;
use millpond_account::registry::LivePool;
use millpond_engine::{ConfError, MillpondConf};
use millpond_os::device::Device;
use millpond_os::ranked::{Rank, Ranked};
use millpond_os::reentrancy::inside;
use millpond_os::thread::thread_number;
use millpond_pool::pool::{Pool, PoolError};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The device and kind of a pool in the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PoolPlace {
    pub(super) device: Device,
    pub(super) kind: MemoryKind,
}

impl PoolPlace {
    fn of(pool: &Pool) -> Self {
        Self {
            device: pool.device(),
            kind: pool.kind(),
        }
    }
}

impl fmt::Display for PoolPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            MemoryKind::Host => write!(f, "{}", self.device),
            MemoryKind::Device => write!(f, "{}, of the device", self.device),
            kind => f.write_str(kind.name()),
        }
    }
}

enum Slot {
    /// A thread creates it. In the child of a fork, the thread may not exist.
    Making {
        process: u32,
        thread: u32,
    },
    Ready(Pool),
}

#[derive(Default)]
struct SetState {
    slots: BTreeMap<PoolPlace, Slot>,
    /// The settings for pools that are created later, in this order.
    told: Vec<Arc<str>>,
    /// The observers.
    watching: Watching,
}

/// The shared state of a set, as described at the top of the file.
pub(super) struct Set {
    pub(super) rules: PoolsBuilder,
    /// Accessed only by [`Set::with`].
    state: Ranked<SetState>,
    #[cfg(feature = "cuda")]
    pub(super) devices: super::devices::Devices,
}

/// The result of a lookup of a pool.
enum Found {
    Ready(Pool),
    /// This thread has to create it.
    Ours,
    /// This thread is already creating it.
    Reentered,
    Theirs,
}

impl Set {
    pub(super) fn new(rules: PoolsBuilder) -> Self {
        Self {
            rules,
            state: Ranked::new(Rank::Set, SetState::default()),
            #[cfg(feature = "cuda")]
            devices: super::devices::Devices::default(),
        }
    }

    /// Reads or changes the state. `work` calls no callback and drops no value of the caller. Its allocations do not come from
    /// the program's pool, so no observer is called under the lock.
    fn with<R>(&self, work: impl FnOnce(&mut SetState) -> R) -> R {
        let _inside = inside();
        let _at_work = at_work();
        work(&mut self.state.lock())
    }

    /// Returns the existing pools.
    pub(super) fn pools(&self) -> Vec<Pool> {
        self.with(|state| {
            let ready = state.slots.values().filter_map(|slot| match slot {
                Slot::Ready(pool) => Some(pool.clone()),
                Slot::Making { .. } => None,
            });
            ready.collect()
        })
    }

    pub(super) fn insert(&self, pool: Pool) -> Option<Pool> {
        let place = PoolPlace::of(&pool);
        let before = self.with(|state| state.slots.insert(place, Slot::Ready(pool)));
        here::changed();
        match before {
            Some(Slot::Ready(before)) => Some(before),
            // A thread that creates a pool finds this one when it has finished.
            Some(Slot::Making { .. }) | None => None,
        }
    }

    pub(super) fn remove(&self, place: PoolPlace) -> Option<Pool> {
        let removed = self.with(|state| match state.slots.get(&place) {
            Some(Slot::Ready(_)) => state.slots.remove(&place),
            _ => None,
        });
        here::changed();
        match removed {
            Some(Slot::Ready(pool)) => Some(pool),
            _ => None,
        }
    }

    pub(super) fn pool(&self, place: PoolPlace) -> Result<Pool, PoolError> {
        let mut pause = Duration::from_micros(50);
        loop {
            match self.find(place) {
                Found::Ready(pool) => return Ok(pool),
                Found::Ours => return self.make(place),
                Found::Reentered => {
                    let name = self.rules.name_of(place);
                    return Err(PoolError::Reentered { name });
                }
                // The wait takes a fraction of a millisecond, and happens only when a pool is created. Unlike a condition
                // variable, a sleep needs no reset in the child of a fork.
                Found::Theirs => thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }

    fn find(&self, place: PoolPlace) -> Found {
        let here = thread_number();
        self.with(|state| match state.slots.get(&place) {
            Some(Slot::Ready(pool)) => Found::Ready(pool.clone()),
            Some(Slot::Making { process, thread }) if *process == std::process::id() => {
                if *thread == here {
                    Found::Reentered
                } else {
                    Found::Theirs
                }
            }
            _ => {
                let process = std::process::id();
                let thread = here;
                state.slots.insert(place, Slot::Making { process, thread });
                Found::Ours
            }
        })
    }

    /// Creates a pool and puts it into its slot.
    fn make(&self, place: PoolPlace) -> Result<Pool, PoolError> {
        let making = Making { set: self, place };
        let pool = self.rules.make(place)?;
        let mut before = None;
        loop {
            // These settings may change while the pool is created or while they are applied.
            let (told, watching) = self.with(|state| (state.told.clone(), state.watching.clone()));
            told.iter().try_for_each(|text| pool.configure(text))?;
            watching.tell(&pool.heap(), before.as_ref());
            let found = self.with(|state| {
                if let Some(Slot::Ready(inserted)) = state.slots.get(&place) {
                    return Some(inserted.clone());
                }
                let same = state.watching.change == watching.change
                    && state.told.len() == told.len()
                    && state.told.iter().zip(&told).all(|(a, b)| Arc::ptr_eq(a, b));
                same.then(|| {
                    state.slots.insert(place, Slot::Ready(pool.clone()));
                    pool.clone()
                })
            });
            if let Some(pool) = found {
                drop(making);
                return Ok(pool);
            }
            before = Some(watching);
        }
    }

    /// Changes the observers of pools that are created later. Returns the removed ones, so that they are dropped outside the lock.
    pub(super) fn watch<R>(&self, change: impl FnOnce(&mut Watching) -> R) -> R {
        self.with(|state| {
            state.watching.change += 1;
            change(&mut state.watching)
        })
    }

    /// Applies the existing settings and observers to a pool.
    #[cfg(feature = "cuda")]
    pub(super) fn tell_cuda(&self, pool: &millpond_cuda::DevicePool) -> Result<(), ConfError> {
        let (told, watching) = self.with(|state| (state.told.clone(), state.watching.clone()));
        watching.tell(pool, None);
        told.iter().try_for_each(|text| LivePool::configure(pool, text))
    }

    /// Changes settings of all pools: of `members`, and of those created later.
    pub(super) fn configure(&self, text: &str, members: &[Box<dyn LivePool>]) -> Result<(), ConfError> {
        self.rules.check_change(text)?;
        members.iter().try_for_each(|pool| pool.check_change(text))?;
        let keys = keys(text)?;
        let text: Arc<str> = text.into();
        let before = self.with(|state| {
            // A text that sets all keys of an earlier one replaces it, so that the list stays short.
            let replaced =
                |old: &Arc<str>| self::keys(old).is_ok_and(|old| old.iter().all(|key| keys.contains(key)));
            let (gone, mut kept): (Vec<_>, Vec<_>) = state.told.drain(..).partition(replaced);
            kept.push(Arc::clone(&text));
            state.told = kept;
            gone
        });
        drop(before);
        members.iter().try_for_each(|pool| pool.configure(&text))
    }
}

/// Returns the keys of a settings text.
fn keys(text: &str) -> Result<HashSet<String>, ConfError> {
    let mut keys = HashSet::new();
    MillpondConf::parse_with(text, "", |key, _| {
        keys.insert(if key == "cache-size" { "high-water" } else { key }.to_owned());
        Ok(true)
    })?;
    Ok(keys)
}

/// A guard that exists while this thread creates a pool. When it is dropped, other threads no longer wait for the pool.
struct Making<'a> {
    set: &'a Set,
    place: PoolPlace,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.set.with(|state| {
            if let Some(Slot::Making { .. }) = state.slots.get(&self.place) {
                state.slots.remove(&self.place);
            }
        });
    }
}
