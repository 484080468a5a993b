//! The primitives that the models check: from the standard library, or from `loom`. And what a fork needs of budgets.

#[cfg(not(all(test, loom)))]
pub(super) use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
};

#[cfg(all(test, loom))]
pub(super) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
};

#[cfg(not(all(test, loom)))]
pub(super) use held::lock;
#[cfg(all(target_os = "linux", not(all(test, loom))))]
pub(crate) use held::{NoBudgets, no_budgets};

/// The guarded value, also after a panic elsewhere: nothing that can panic changes it half.
#[cfg(all(test, loom))]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(not(all(test, loom)))]
mod held {
    use super::super::line::Line;
    use crate::ranked::{InTurn, Rank, Shared};
    use std::ops::{Deref, DerefMut};
    use std::sync::{Mutex, MutexGuard, PoisonError, RwLockReadGuard, Weak};

    /// Read by whoever takes a lock of a budget, so that a fork takes this one and finds all of them at rest. In it are the
    /// lines that anybody ever stood in.
    static LINES: Shared<Vec<Weak<Line>>> = Shared::new(Rank::Budgets, Vec::new());

    type Read = InTurn<RwLockReadGuard<'static, Vec<Weak<Line>>>>;
    #[cfg(target_os = "linux")]
    type Write = InTurn<std::sync::RwLockWriteGuard<'static, Vec<Weak<Line>>>>;

    /// A budget's lock, held.
    pub(in crate::budget) struct Locked<'a, T> {
        guard: MutexGuard<'a, T>,
        _at_work: Read,
    }

    impl<T> Deref for Locked<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.guard
        }
    }

    impl<T> DerefMut for Locked<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.guard
        }
    }

    /// The guarded value, also after a panic elsewhere: nothing that can panic changes it half.
    pub(in crate::budget) fn lock<T>(mutex: &Mutex<T>) -> Locked<'_, T> {
        watch_forks();
        Locked {
            _at_work: LINES.read(),
            guard: mutex.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Before a lock is taken: a fork in between would leave the child one that nobody lets go of.
    fn watch_forks() {
        #[cfg(target_os = "linux")]
        crate::pool::watch_forks();
    }

    /// Has a line looked after in the child of a fork; false where there is no memory to note it.
    #[cfg(target_os = "linux")]
    pub(in crate::budget) fn enter(line: &std::sync::Arc<Line>) -> bool {
        watch_forks();
        // The list is not the program's pool's, whose source may wait for a budget.
        let _inside = crate::global::inside();
        let mut lines = LINES.write();
        lines.retain(|line| line.strong_count() > 0);
        let room = lines.try_reserve(1).is_ok();
        if room {
            lines.push(std::sync::Arc::downgrade(line));
        }
        room
    }

    /// As long as it is held no lock of a budget is: taken around a fork.
    #[cfg(target_os = "linux")]
    pub(crate) struct NoBudgets(Write);

    #[cfg(target_os = "linux")]
    pub(crate) fn no_budgets() -> NoBudgets {
        NoBudgets(LINES.write())
    }

    #[cfg(target_os = "linux")]
    impl NoBudgets {
        /// In a child of a fork: requests of other threads, which it does not have, wait no more.
        pub(crate) fn forget_others(&self) {
            self.0
                .iter()
                .filter_map(Weak::upgrade)
                .for_each(|line| line.forget_others());
        }
    }
}

/// Has a line looked after in the child of a fork; false where there is no memory to note it.
#[cfg(all(target_os = "linux", not(all(test, loom))))]
pub(super) use held::enter;

#[cfg(any(not(target_os = "linux"), all(test, loom)))]
pub(super) fn enter(_: &std::sync::Arc<super::line::Line>) -> bool {
    true
}

/// The models have no forks.
#[cfg(all(target_os = "linux", test, loom))]
pub(crate) struct NoBudgets;

#[cfg(all(target_os = "linux", test, loom))]
impl NoBudgets {
    pub(crate) fn forget_others(&self) {}
}

#[cfg(all(target_os = "linux", test, loom))]
pub(crate) fn no_budgets() -> NoBudgets {
    NoBudgets
}
