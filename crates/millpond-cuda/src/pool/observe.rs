//! Subscribers and accounts of a pool, with the interface of the host's [`Pool`](millpond_pool::Pool).

use super::DevicePool;
use super::shared::Shared;
use millpond_account::ledger::LedgerBuilder;
use std::sync::Arc;

impl Shared {
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
