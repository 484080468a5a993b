//! The primitives that the models check, from the standard library or from `loom`, and the fork handling of budgets.

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

/// Returns the guarded value even after a panic elsewhere, because no operation that can panic leaves it partly
/// changed.
#[cfg(all(test, loom))]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(not(all(test, loom)))]
mod held {
    use super::super::line::ChargeQueue;
    use millpond_os::fork::{Participant, Resting};
    use millpond_os::ranked::{InTurn, Rank, Shared};
    use std::ops::{Deref, DerefMut};
    use std::sync::{Mutex, MutexGuard, PoisonError, RwLockReadGuard, Weak};

    /// Every lock of a budget is taken while this one is held for reading. A fork takes it for writing, so no lock of a
    /// budget is held then. It contains the lines that any request has ever joined.
    static LINES: Shared<Vec<Weak<ChargeQueue>>> = Shared::new(Rank::Budgets, Vec::new());

    type Read = InTurn<RwLockReadGuard<'static, Vec<Weak<ChargeQueue>>>>;
    type Write = InTurn<std::sync::RwLockWriteGuard<'static, Vec<Weak<ChargeQueue>>>>;

    /// A lock of a budget, held.
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

    /// Returns the guarded value even after a panic elsewhere, because no operation that can panic leaves it partly
    /// changed.
    pub(in crate::budget) fn lock<T>(mutex: &Mutex<T>) -> Locked<'_, T> {
        FORKS.register();
        Locked {
            _at_work: LINES.read(),
            guard: mutex.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Registers a line for cleanup in the child of a fork. Returns false if the memory for it could not be allocated.
    #[cfg(target_os = "linux")]
    pub(in crate::budget) fn enter(line: &std::sync::Arc<ChargeQueue>) -> bool {
        FORKS.register();
        // The list must not use the program's pool, whose source may wait for a budget.
        let _inside = millpond_os::reentrancy::inside();
        let mut lines = LINES.write();
        lines.retain(|line| line.strong_count() > 0);
        let room = lines.try_reserve(1).is_ok();
        if room {
            lines.push(std::sync::Arc::downgrade(line));
        }
        room
    }

    static FORKS: Participant = Participant::new(Rank::Budgets, || Box::new(NoBudgets(LINES.write())));

    /// While this is held, around a fork, no other thread holds a lock of a budget.
    struct NoBudgets(Write);

    impl Resting for NoBudgets {
        /// Removes the requests of threads that do not exist in the child.
        fn forget_others(&mut self) {
            self.0
                .iter()
                .filter_map(Weak::upgrade)
                .for_each(|line| line.forget_others());
        }
    }
}

/// Registers a line for cleanup in the child of a fork. Returns false if the memory for it could not be allocated.
#[cfg(all(target_os = "linux", not(all(test, loom))))]
pub(super) use held::enter;

#[cfg(any(not(target_os = "linux"), all(test, loom)))]
pub(super) fn enter(_: &std::sync::Arc<super::line::ChargeQueue>) -> bool {
    true
}
