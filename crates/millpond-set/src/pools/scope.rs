//! Scopes: periods in which another set is the current one of a thread.
//!
//! A thread's scopes are a linked list from the innermost outwards. A scope that ends before an inner one is marked, and leaves the
//! list when it becomes the innermost. In whatever order scopes end, the current one is therefore the last that was entered and has
//! not ended.

use super::{Pools, here};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::rc::Rc;

/// A scope that was entered.
struct Entered {
    pools: Pools,
    /// The enclosing scope. It is taken when this one leaves the list, so that dropping a long list does not recurse.
    around: Cell<Option<Rc<Entered>>>,
    left: Cell<bool>,
}

thread_local! {
    /// This has neither lazy initialisation nor a destructor, so that scopes can be used at the very end of a thread. A guard that
    /// is forgotten keeps its set forever.
    static INNERMOST: Cell<Option<ManuallyDrop<Rc<Entered>>>> = const { Cell::new(None) };
}

fn take() -> Option<Rc<Entered>> {
    INNERMOST.take().map(ManuallyDrop::into_inner)
}

fn set(entered: Option<Rc<Entered>>) {
    INNERMOST.set(entered.map(ManuallyDrop::new));
}

/// Returns the set of this thread's innermost scope.
pub(super) fn innermost() -> Option<Pools> {
    let entered = take()?;
    let pools = entered.pools.clone();
    set(Some(entered));
    Some(pools)
}

/// Removes ended scopes from the inner end of the list.
fn leave() {
    while let Some(entered) = take() {
        if !entered.left.get() {
            return set(Some(entered));
        }
        set(entered.around.take());
        // The scope is dropped after the list is consistent again, because its pools may close, and their observers may call
        // `pools()`.
        drop(entered);
    }
}

/// A guard of a scope. Its set is the current one of this thread while it lives. See [`Pools::enter`].
///
/// It cannot be sent to another thread:
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

    /// Returns the set of the scope.
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
    /// Makes this set the current one of this thread until the result is dropped: at the end of a block, explicitly, or by a panic.
    /// Then the previous set is current again, and this set is [cleared](Self::clear). Buffers may outlive the scope. The remaining
    /// memory is freed when the last handle of the set and the last buffer are dropped.
    ///
    /// A scope belongs to one thread. Threads that are spawned in it begin with the process's default set. They can
    /// [join](Self::join) or enter this set. Scopes may end in any order: the current one is the last that was entered and lives.
    /// On an executor that runs several tasks on one thread, do not hold a scope across an `await`, because it would apply to the
    /// other tasks too.
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

    /// Like [`enter`](Self::enter), for a thread that shares the work of a set. The end of the scope does not clear the set.
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

    /// Runs `work` while this set is the current one of this thread, as with [`enter`](Self::enter).
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
