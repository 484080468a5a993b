//! Scopes: stretches of a thread's time in which another set holds.
//!
//! A thread's scopes are a chain from the innermost outwards. A scope that ends while one inside of it goes on is marked,
//! and leaves the chain when it has come to be the innermost: so whatever the order in which they end, what holds is a
//! scope that was entered and not left, the last one entered of these.

use super::{Pools, here};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::rc::Rc;

/// A scope that was entered.
struct Entered {
    pools: Pools,
    /// The one around it; taken when this one leaves the chain, so that a long chain is not dropped as one.
    around: Cell<Option<Rc<Entered>>>,
    left: Cell<bool>,
}

thread_local! {
    /// Without a first use and without a destructor: scopes may be asked for, entered and left at a thread's very end. A
    /// guard that was forgotten keeps its set for ever.
    static INNERMOST: Cell<Option<ManuallyDrop<Rc<Entered>>>> = const { Cell::new(None) };
}

fn take() -> Option<Rc<Entered>> {
    INNERMOST.take().map(ManuallyDrop::into_inner)
}

fn set(entered: Option<Rc<Entered>>) {
    INNERMOST.set(entered.map(ManuallyDrop::new));
}

/// The set of this thread's innermost scope.
pub(super) fn innermost() -> Option<Pools> {
    let entered = take()?;
    let pools = entered.pools.clone();
    set(Some(entered));
    Some(pools)
}

/// Takes the scopes that were left off the end of the chain.
fn leave() {
    while let Some(entered) = take() {
        if !entered.left.get() {
            return set(Some(entered));
        }
        set(entered.around.take());
        // Dropped with the chain whole again: its pools may close now, and whoever hears of it may ask for `pools()`.
        drop(entered);
    }
}

/// While it lives, a set holds in this thread. See [`Pools::enter`].
///
/// It stays on its thread:
///
/// ```compile_fail
/// let scope = millpond::Pools::new().enter();
/// std::thread::spawn(move || drop(scope));
/// ```
#[must_use = "the scope ends when it is dropped"]
pub struct PoolsScope {
    entered: Rc<Entered>,
    clears: bool,
}

impl std::fmt::Debug for PoolsScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolsScope")
            .field("pools", &self.entered.pools)
            .finish_non_exhaustive()
    }
}

impl PoolsScope {
    fn new(pools: Pools, clears: bool) -> Self {
        let entered = Rc::new(Entered {
            pools,
            around: Cell::new(None),
            left: Cell::new(false),
        });
        entered.around.set(take());
        set(Some(Rc::clone(&entered)));
        here::moved();
        Self { entered, clears }
    }

    /// The set that holds in it.
    #[must_use]
    pub fn pools(&self) -> &Pools {
        &self.entered.pools
    }
}

impl Drop for PoolsScope {
    fn drop(&mut self) {
        self.entered.left.set(true);
        leave();
        here::moved();
        if self.clears {
            self.entered.pools.clear();
        }
    }
}

impl Pools {
    /// Has this set hold in this thread until the answer is dropped, by the end of a block, by hand, or by a panic: then
    /// what held before holds again, and the set is [cleared](Self::clear). Buffers may outlive the scope; with the last
    /// handle of the set and the last buffer all its memory is gone.
    ///
    /// A scope is one thread's. What a scope's work spawns begins with the process's default, and enters the set or
    /// [joins](Self::join) it by itself. Scopes end as they will: what holds is the last that was entered and lives. On an
    /// executor that runs several tasks in one thread, do not hold one across an `await`: the tasks would be in it too.
    ///
    /// ```
    /// use millpond::{Pools, pools};
    ///
    /// let set = Pools::new();
    /// {
    ///     let _scope = set.enter();
    ///     assert!(pools().is_same(&set));
    ///     drop(millpond::alloc_zeroed::<f32>(1 << 20)?);
    ///     assert!(set.stats().total.cached() >= 4 << 20);
    /// }
    /// assert!(!pools().is_same(&set));
    /// assert_eq!(set.stats().total.reserved.current, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn enter(&self) -> PoolsScope {
        PoolsScope::new(self.clone(), true)
    }

    /// The same, for a thread that works with others on what a set is for: when it leaves, nothing is cleared.
    ///
    /// ```
    /// use millpond::{Pools, pools};
    ///
    /// let set = Pools::new();
    /// let _scope = set.enter();
    /// std::thread::scope(|threads| {
    ///     threads.spawn(|| {
    ///         assert!(!pools().is_same(&set));
    ///         let _scope = set.join();
    ///         assert!(pools().is_same(&set));
    ///     });
    /// });
    /// ```
    pub fn join(&self) -> PoolsScope {
        PoolsScope::new(self.clone(), false)
    }

    /// Runs `work` with this set in force, as [`enter`](Self::enter) does.
    ///
    /// ```
    /// let sum = millpond::Pools::new().scope(|| {
    ///     let ramp = millpond::alloc_from_fn(100, |at| at as f32)?;
    ///     Ok::<f32, millpond::AllocError>(ramp.iter().sum())
    /// })?;
    /// assert_eq!(sum, 4950.0);
    /// # Ok::<(), millpond::AllocError>(())
    /// ```
    pub fn scope<R>(&self, work: impl FnOnce() -> R) -> R {
        let _scope = self.enter();
        work()
    }
}
