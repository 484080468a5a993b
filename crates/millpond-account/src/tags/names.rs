//! The table of tag names.
//!
//! There are two tables of fixed size: names by number, and numbers by the hash of the name, with linear probing. They
//! are zero until used, so most of their pages are never touched. A number is inserted only after its name, and neither
//! is ever changed, so both are read without a lock. A growing table would need a lock and allocate under it, while the
//! allocator may be the pool that looks up a name.

use foldhash::fast::FixedState;
use millpond_os::fork::Participant;
use millpond_os::ranked::{Rank, Ranked};
use millpond_os::thread;
use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The maximum number of names.
const NAMES: usize = 1 << 16;
/// The number of the first name. Lower numbers mean no tag and the others.
const FIRST: u32 = 2;
const NONE: &str = "untagged";
const OTHERS: &str = "other tags";
/// Twice the number of names, so that runs of taken slots stay short.
const SLOTS: usize = 2 * NAMES;
static BY_HASH: [AtomicU32; SLOTS] = [const { AtomicU32::new(0) }; SLOTS];
static BY_NUMBER: [OnceLock<&'static str>; NAMES] = [const { OnceLock::new() }; NAMES];
/// The number of names. Its lock is held while a name is inserted.
static USED: Ranked<usize> = Ranked::new(Rank::Names, 0);

static FORKS: Participant = Participant::new(Rank::Names, || Box::new(USED.lock()));

pub(super) fn name(number: u32) -> &'static str {
    match number {
        0 => NONE,
        1 => OTHERS,
        _ => BY_NUMBER
            .get((number - FIRST) as usize)
            .and_then(OnceLock::get)
            .copied()
            .unwrap_or(OTHERS),
    }
}

pub(super) fn number(name: &str) -> u32 {
    match find(name) {
        Ok(number) => number,
        Err(_) => add(name),
    }
}

/// Returns the number, or the free slot for the name.
fn find(name: &str) -> Result<u32, usize> {
    let mut at = FixedState::with_seed(0).hash_one(name) as usize % SLOTS;
    loop {
        // This pairs with the store in `add`: the name is visible before the number.
        match BY_HASH[at].load(Ordering::Acquire) {
            0 => return Err(at),
            number if self::name(number) == name => return Ok(number),
            _ => at = (at + 1) % SLOTS,
        }
    }
}

#[cold]
fn add(name: &str) -> u32 {
    if name.is_empty() || name == NONE {
        return 0;
    }
    let full = BY_NUMBER.last().is_some_and(|last| last.get().is_some());
    if name == OTHERS || full {
        return 1;
    }
    // The name is kept forever and must not appear as a leak of the caller.
    let _inside = thread::enter(thread::COUNTING);
    // The name is allocated before the lock is taken, because nothing is allocated under the lock.
    let kept: Box<str> = name.into();
    FORKS.register();
    let mut used = USED.lock();
    let at = match find(name) {
        Ok(number) => return number,
        Err(at) => at,
    };
    let Some(place) = BY_NUMBER.get(*used) else {
        return 1;
    };
    let number = *used as u32 + FIRST;
    *used += 1;
    place.get_or_init(|| Box::leak(kept));
    BY_HASH[at].store(number, Ordering::Release);
    number
}
