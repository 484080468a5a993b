//! The existing scopes, and the scopes to which a block is charged: the one of its thread and all that enclose it.
//!
//! ```text
//!   live     counts
//!   ended    counts no more, and links to the enclosing scope while blocks of it are live
//! ```
//!
//! A scope that has ended is removed when no live block needs it as a link to the enclosing scope, together with the
//! scopes that ended inside it. So the number of stored scopes is at most the number of active scopes and of ended
//! scopes with live blocks.
//!
//! One lock protects all of this. Nothing is allocated, freed or called under it, because the program's allocator may
//! be an observed pool.

use super::sites::{Figures, Site, Tally};
use crate::ledger::{LeakReport, Ledger, Record};
use crate::scope::{self as place, Charged};
use millpond_os::fork::Participant;
use millpond_os::ranked::{Locked, Rank, Ranked};
use millpond_os::thread::{self, COUNTING};
use std::sync::Arc;

/// The maximum number of scopes at one time. The first place belongs to the profiler.
const MOST: usize = 1024;

/// Invariant: its index is its number modulo [`MOST`], and `blocks` counts the live blocks that were allocated in it or
/// in a scope inside it.
struct Scope {
    number: u32,
    /// The enclosing scope, or 0 for none.
    parent: u32,
    blocks: u64,
    /// The figures, or `None` when it has ended.
    tally: Option<Box<Tally>>,
}

struct Scopes {
    all: [Option<Scope>; MOST],
    /// The last assigned number. A number is reused after 2^32 others.
    last: u32,
    /// The last assigned number of the profiler's scope.
    last_profile: u32,
}

static SCOPES: Ranked<Scopes> = Ranked::new(
    Rank::Scopes,
    Scopes {
        all: [const { None }; MOST],
        last: 0,
        last_profile: 0,
    },
);

static FORKS: Participant = Participant::new(Rank::Scopes, || Box::new(SCOPES.lock()));

fn scopes() -> Locked<'static, Scopes> {
    FORKS.register();
    SCOPES.lock()
}

/// The result of a scope.
pub struct Outcome {
    /// The totals.
    pub figures: Figures,
    /// The places in the program that allocated, largest first.
    pub sites: Vec<Site>,
    /// The accounts that may contain blocks of it.
    pub accounts: Vec<Arc<Ledger>>,
    /// The live blocks of other accounts.
    pub elsewhere: LeakReport,
    /// The numbers of the scope and of scopes inside it, to which its blocks may be charged.
    pub family: Vec<u32>,
}

impl Outcome {
    fn of(tally: &Tally, family: &[u32]) -> Self {
        Self {
            figures: tally.figures(),
            sites: tally.sites(),
            accounts: tally.accounts().to_vec(),
            elsewhere: tally.live_elsewhere(),
            family: family.to_vec(),
        }
    }
}

/// Drops a value that was made while the thread was counting, so it is in no account.
fn discard<T>(made: T) {
    let _inside = thread::enter(COUNTING);
    drop(made);
}

impl Scopes {
    fn find(&mut self, number: u32) -> Option<&mut Scope> {
        let place = self.all[number as usize % MOST].as_mut();
        place.filter(|scope| scope.number == number)
    }

    fn parent_of(&self, number: u32) -> Option<u32> {
        let place = self.all[number as usize % MOST].as_ref();
        Some(place.filter(|scope| scope.number == number)?.parent)
    }

    /// Calls `work` for a scope and for all enclosing scopes.
    fn each(&mut self, number: u32, mut work: impl FnMut(&mut Scope)) {
        let mut next = number;
        while let Some(scope) = self.find(next) {
            work(scope);
            next = scope.parent;
        }
    }

    fn is_inside(&self, number: u32, outer: u32) -> bool {
        let mut next = number;
        while next != outer {
            match self.parent_of(next) {
                Some(parent) => next = parent,
                None => return false,
            }
        }
        true
    }

    /// Removes the scopes that are not needed, from this one outwards.
    fn tidy(&mut self, number: u32) {
        let mut next = number;
        while let Some(scope) = self.find(next) {
            let parent = scope.parent;
            if scope.tally.is_none() && scope.blocks == 0 {
                self.all[next as usize % MOST] = None;
            }
            next = parent;
        }
    }

    fn put(&mut self, number: u32, parent: u32, tally: Box<Tally>) {
        self.all[number as usize % MOST] = Some(Scope {
            number,
            parent,
            blocks: 0,
            tally: Some(tally),
        });
    }

    /// Inserts a scope under the next number whose place is free.
    fn place(&mut self, parent: u32, tally: Box<Tally>) -> Result<u32, Box<Tally>> {
        for _ in 0..MOST {
            self.last = self.last.wrapping_add(1);
            let at = self.last as usize % MOST;
            if at != 0 && self.all[at].is_none() {
                self.put(self.last, parent, tally);
                return Ok(self.last);
            }
        }
        Err(tally)
    }

    /// Ends a scope. Returns its figures and writes the numbers of its family.
    fn end(&mut self, number: u32, family: &mut Vec<u32>) -> Option<Box<Tally>> {
        let tally = self.find(number)?.tally.take()?;
        for at in 0..MOST {
            let here = self.all[at].as_ref().map(|scope| scope.number);
            if let Some(here) = here.filter(|here| self.is_inside(*here, number)) {
                family.push(here);
            }
        }
        let needed = self
            .find(number)
            .is_some_and(|scope| scope.blocks > 0 && scope.parent != 0);
        if !needed {
            for inner in family.iter() {
                let ended = self.find(*inner).is_some_and(|scope| scope.tally.is_none());
                if ended {
                    self.all[*inner as usize % MOST] = None;
                }
            }
        }
        Some(tally)
    }
}

/// Begins a scope inside another, for these pools or all pools, with space for the given number of sites. Returns
/// `None` if there are too many scopes.
pub fn begin(parent: u32, pools: &[u64], sites: usize) -> Option<u32> {
    let _inside = thread::enter(COUNTING);
    let tally = Box::new(Tally::new(pools.into(), sites));
    let placed = scopes().place(parent, tally);
    placed.ok()
}

/// The room for the figures of the profiler's scope. It is allocated before any lock is taken.
pub struct ProfileRoom(Box<Tally>);

impl ProfileRoom {
    /// Allocates room for `sites` places in the program.
    pub fn new(sites: usize) -> Self {
        let _inside = thread::enter(COUNTING);
        Self(Box::new(Tally::new(Box::default(), sites)))
    }

    /// Frees the room of a scope that did not begin.
    pub fn discard(self) {
        discard(self);
    }
}

/// Begins the profiler's scope, and allocates nothing. Returns the room if the scope has begun already.
pub fn begin_profile(room: ProfileRoom) -> Option<ProfileRoom> {
    let mut scopes = scopes();
    if scopes.all[0].is_some() {
        return Some(room);
    }
    scopes.last_profile = scopes.last_profile.wrapping_add(MOST as u32).max(MOST as u32);
    let number = scopes.last_profile;
    scopes.put(number, 0, room.0);
    place::set_profile(number);
    None
}

/// Ends a scope, if it has not ended. Later allocations in it are charged to the enclosing scopes.
pub fn end(number: u32) -> Option<Outcome> {
    let mut ending = Ending::prepare();
    ending.end(number);
    ending.outcome()
}

/// The end of a scope in two steps: [`end`](Self::end) allocates nothing, and [`outcome`](Self::outcome) takes no lock.
pub struct Ending {
    tally: Option<Box<Tally>>,
    family: Vec<u32>,
}

impl Ending {
    /// Allocates the room that the end of a scope needs.
    pub fn prepare() -> Self {
        let _inside = thread::enter(COUNTING);
        Self {
            tally: None,
            family: Vec::with_capacity(MOST),
        }
    }

    /// Ends a scope, if it has not ended.
    pub fn end(&mut self, number: u32) {
        let mut scopes = scopes();
        if place::here().profile == number {
            place::set_profile(0);
        }
        self.tally = scopes.end(number, &mut self.family);
    }

    /// Returns the result of the scope that was ended.
    pub fn outcome(self) -> Option<Outcome> {
        let outcome = self
            .tally
            .as_deref()
            .map(|tally| Outcome::of(tally, &self.family));
        discard(self);
        outcome
    }
}

/// Returns the result of a scope so far.
pub fn so_far(number: u32) -> Option<Outcome> {
    let tally = copy_of(number);
    let outcome = tally.as_deref().map(|tally| Outcome::of(tally, &[number]));
    discard(tally);
    outcome
}

fn copy_of(number: u32) -> Option<Box<Tally>> {
    let _inside = thread::enter(COUNTING);
    let mut room = 0;
    loop {
        let mut copy = Box::new(Tally::new(Box::default(), room));
        let mut scopes = scopes();
        let now = scopes.find(number).and_then(|scope| scope.tally.as_deref());
        match now.map(Tally::room) {
            Some(needed) if needed > room => room = needed,
            Some(_) => {
                now.inspect(|now| now.copy_into(&mut copy));
                return Some(copy);
            }
            None => return None,
        }
    }
}

/// Counts a block that was recorded in an account. This runs before the caller has the block.
#[inline(never)]
pub fn allocated(pool: u64, account: &Arc<Ledger>, record: &Record) {
    place::replace_last((Arc::as_ptr(account).addr(), record.serial));
    let mut scopes = scopes();
    let Charged { scope, profile } = record.charged;
    for number in [scope, profile] {
        scopes.each(number, |scope| {
            scope.blocks += 1;
            let tally = scope.tally.as_deref_mut().filter(|tally| tally.counts(pool));
            if let Some(tally) = tally {
                tally.allocated(account, record);
            }
        });
    }
}

/// Counts a block that was removed from an account. This runs before the block can be reused.
#[inline(never)]
pub fn freed(pool: u64, account: &Arc<Ledger>, record: &Record) {
    let temporary = place::replace_last((0, 0)) == (Arc::as_ptr(account).addr(), record.serial);
    let mut scopes = scopes();
    let Charged { scope, profile } = record.charged;
    for number in [scope, profile] {
        let mut spare = false;
        scopes.each(number, |scope| {
            scope.blocks = scope.blocks.saturating_sub(1);
            match scope.tally.as_deref_mut() {
                Some(tally) if tally.counts(pool) => tally.freed(account, record, temporary),
                Some(_) => {}
                None => spare |= scope.blocks == 0,
            }
        });
        if spare {
            scopes.tidy(number);
        }
    }
}
