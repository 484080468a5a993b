//! Subscribers and accounts of a pool, with the interface of the host's [`Pool`](millpond_pool::Pool).

use super::shared::{Shared, lock};
use super::{ALIGN, DevicePool};
use crate::{fork, later};
use millpond_account::error::AllocError;
use millpond_account::event::{BlockInfo, EventKind, PoolLabel};
use millpond_account::ledger::{Ledger, LedgerBuilder};
#[cfg(feature = "record")]
use millpond_account::session::Sink;
use millpond_account::watchers::Watchers;
use millpond_engine::Block;
#[cfg(feature = "record")]
use millpond_pool::pool::by_a_source;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Shared {
    /// Returns the recording's sink for this pool, if there is a recording.
    #[cfg(feature = "record")]
    pub(super) fn sink(&self) -> Option<Sink> {
        millpond_record::sink_for(self.watchers().pool())
    }

    pub(super) fn watchers(&self) -> Arc<Watchers> {
        Arc::clone(&lock(&self.watchers))
    }

    pub(super) fn label(&self) -> PoolLabel {
        lock(&self.watchers).pool().clone()
    }

    pub(super) fn ledger(&self) -> Option<Arc<Ledger>> {
        lock(&self.watchers).ledger().cloned()
    }

    /// Replaces the watchers.
    pub(super) fn change_watchers<R>(&self, change: impl FnOnce(&Watchers) -> (Watchers, R)) -> R {
        let (before, answer) = {
            let mut now = lock(&self.watchers);
            let (made, answer) = change(&now);
            let number = self.changes.fetch_add(1, Ordering::Relaxed) + 1;
            let before = std::mem::replace(&mut *now, Arc::new(made.of_change(number)));
            self.watched.store(!now.is_empty(), Ordering::Release);
            (before, answer)
        };
        // This may run a subscriber's own code, so no lock is held.
        drop(before);
        answer
    }

    /// Reports the bytes that were taken from the device and given back since the last report.
    #[inline]
    pub(super) fn tell_flow(&self) {
        // No lock is held here. The drops of deferred items may need one.
        later::retry();
        if self.watched.load(Ordering::Acquire) {
            self.tell_watchers_flow();
        }
    }

    #[cold]
    fn tell_watchers_flow(&self) {
        for (kind, bytes) in self.flow.drain() {
            if bytes > 0 {
                let info = BlockInfo {
                    bytes: bytes as usize,
                    ..BlockInfo::default()
                };
                self.watchers().note(kind, &info);
            }
        }
    }

    /// Notifies the watchers of an allocated block.
    #[inline(always)]
    pub(super) fn tell_allocated(&self, block: &Block) {
        if self.watched.load(Ordering::Acquire) {
            self.watchers().allocated(&info(block));
        }
        self.tell_flow();
    }

    /// Counts a refusal and notifies the watchers and the recorder. Returns the error for the caller.
    #[cold]
    pub(super) fn tell_refusal(&self, error: AllocError, bytes: usize) -> AllocError {
        if !fork::is_forked() {
            self.as_it_is().account.refusals += 1;
        }
        if self.watched.load(Ordering::Acquire) {
            self.watchers().note(
                EventKind::Refused,
                &BlockInfo {
                    requested: bytes,
                    align: ALIGN as usize,
                    ..BlockInfo::default()
                },
            );
        }
        self.tell_flow();
        // A source of another pool allocates under the lock of that pool. The refusal of that pool follows and is recorded.
        #[cfg(feature = "record")]
        if !by_a_source() {
            return millpond_record::refused_finally(|| self.label(), bytes as u64, 0, error);
        }
        error
    }

    /// Begins an account of live blocks, or ends it.
    pub(super) fn track(&self, account: Option<LedgerBuilder>) {
        let ledger = account.map(|builder| Arc::new(builder.build()));
        self.change_watchers(|watchers| (watchers.with_ledger(ledger), ()));
    }
}

impl DevicePool {
    fn shared(&self) -> &Shared {
        &self.0
    }
}

millpond_pool::observed_pool!(DevicePool, shared);

pub(super) fn info(block: &Block) -> BlockInfo {
    BlockInfo {
        address: block.address() as usize,
        requested: block.requested() as usize,
        bytes: block.bytes() as usize,
        align: ALIGN as usize,
        stream: block.stream().0,
    }
}
