//! The interface of a set to its pools of host memory and device memory.

use millpond_account::ledger::{Ledger, LedgerBuilder};
use millpond_account::memory::MemoryKind;
use millpond_account::stats::PoolStats;
use millpond_account::watchers::{Context, Subscriber, SubscriptionId};
use millpond_engine::{Compaction, ConfError};
use millpond_os::device::Device;
use millpond_pool::pool::Pool;
use std::sync::Arc;

/// A pool of a set.
pub(crate) trait Member {
    /// Returns a number that no other pool of the process has.
    fn id(&self) -> u64;
    fn name(&self) -> &str;
    fn device(&self) -> Device;
    fn kind(&self) -> MemoryKind;
    fn stats(&self) -> PoolStats;
    fn clear(&self);
    fn trim(&self);
    fn compact(&self) -> Compaction;
    fn collect_garbage(&self);
    fn reset_peak(&self);
    fn configure(&self, text: &str) -> Result<(), ConfError>;
    fn check_change(&self, text: &str) -> Result<(), ConfError>;
    fn subscribe_as(&self, id: SubscriptionId, subscriber: &Arc<dyn Subscriber>);
    fn unsubscribe(&self, id: SubscriptionId);
    fn set_context(&self, context: Option<Context>);
    fn track(&self, account: Option<LedgerBuilder>);
    fn ledger(&self) -> Option<Arc<Ledger>>;
}

macro_rules! member {
    ($of:ty, $device:expr, $kind:expr, $configure:expr, $check:expr) => {
        impl Member for $of {
            fn id(&self) -> u64 {
                self.id()
            }
            fn name(&self) -> &str {
                self.name()
            }
            fn device(&self) -> Device {
                $device(self)
            }
            fn kind(&self) -> MemoryKind {
                $kind(self)
            }
            fn stats(&self) -> PoolStats {
                self.stats()
            }
            fn clear(&self) {
                self.clear();
            }
            fn trim(&self) {
                self.trim();
            }
            fn compact(&self) -> Compaction {
                self.compact()
            }
            fn collect_garbage(&self) {
                self.collect_garbage();
            }
            fn reset_peak(&self) {
                self.reset_peak();
            }
            fn configure(&self, text: &str) -> Result<(), ConfError> {
                $configure(self, text)
            }
            fn check_change(&self, text: &str) -> Result<(), ConfError> {
                $check(self, text)
            }
            fn subscribe_as(&self, id: SubscriptionId, subscriber: &Arc<dyn Subscriber>) {
                self.subscribe_as(id, subscriber);
            }
            fn unsubscribe(&self, id: SubscriptionId) {
                self.unsubscribe(id);
            }
            fn set_context(&self, context: Option<Context>) {
                self.set_context(context);
            }
            fn track(&self, account: Option<LedgerBuilder>) {
                self.track(account);
            }
            fn ledger(&self) -> Option<Arc<Ledger>> {
                self.ledger()
            }
        }
    };
}

member!(
    Pool,
    Pool::device,
    Pool::kind,
    Pool::configure,
    |pool: &Pool, text: &str| pool.heap().check_change(text)
);
#[cfg(feature = "cuda")]
member!(
    millpond_cuda::DevicePool,
    |pool: &millpond_cuda::DevicePool| Device::Cuda(pool.device().number()),
    |_: &millpond_cuda::DevicePool| MemoryKind::Device,
    millpond_cuda::DevicePool::configure_with_others,
    millpond_cuda::DevicePool::check_change
);
