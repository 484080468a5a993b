//! A set that gives memory back when the system has little left.

use super::Pools;
use super::set::Set;
#[cfg(all(feature = "cuda", target_os = "linux"))]
use crate::device::Device;
#[cfg(all(feature = "cuda", target_os = "linux"))]
use crate::pressure::DeviceChange;
use crate::pressure::{Change, Level, Subscription, Turn, Watch, WatchBuilder, WatchCall, WatchError};
use std::sync::{Arc, Weak};

fn relieve(set: &Weak<Set>, change: &Change<'_>) {
    let Some(set) = set.upgrade() else { return };
    let pools = Pools { set };
    match change.to {
        Level::Critical => drop(pools.compact()),
        Level::High => pools.trim(),
        Level::Low | Level::Medium => {}
    }
}

/// The same of one device's pool.
#[cfg(all(feature = "cuda", target_os = "linux"))]
fn relieve_device(set: &Weak<Set>, change: &DeviceChange<'_>) {
    let Some(set) = set.upgrade() else { return };
    let mut pools = set.devices.pools();
    pools.retain(|pool| Device::Cuda(pool.device().number()) == change.device.device);
    for pool in pools {
        match change.to {
            Level::Critical => drop(pool.compact()),
            Level::High => pool.trim(),
            Level::Low | Level::Medium => {}
        }
    }
}

impl Pools {
    /// Watches memory from a thread of its own, until the answer is dropped: when it gets scarce the pools give back what no
    /// block uses ([trimmed](Self::trim) at [`Level::High`], [compacted](Self::compact) at [`Level::Critical`]), and then
    /// whoever the builder names is told. All are called outside every lock, and only when the level changes: for memory
    /// that stays scarce there is [`trim_at_pressure`](crate::PoolBuilder::trim_at_pressure) as well.
    ///
    /// A level that a device's memory comes to has the set's pool of that device do so; it waits for the device then.
    ///
    /// The watch does not keep the set alive.
    ///
    /// ```
    /// use millpond::{Watch, pools};
    ///
    /// let told = Watch::builder().tell(|change| eprintln!("memory is {:?}", change.to));
    /// let _watch = pools().watch_pressure(told)?;
    /// # Ok::<(), millpond::pressure::WatchError>(())
    /// ```
    ///
    /// # Errors
    /// When the system gives no pipe or no thread.
    pub fn watch_pressure(&self, watch: WatchBuilder) -> Result<Watch, WatchError> {
        let set = Arc::downgrade(&self.set);
        #[cfg(all(feature = "cuda", target_os = "linux"))]
        let watch = {
            let set = Weak::clone(&set);
            watch.trim_device(move |change| relieve_device(&set, change))
        };
        watch.trim(move |change| relieve(&set, change)).start()
    }

    /// The same with a watch that runs already, as long as the answer lives.
    ///
    /// ```
    /// use millpond::{Pools, Watch};
    ///
    /// let watch = Watch::builder().start()?;
    /// let set = Pools::new();
    /// let _heeds = set.heed(&watch);
    /// # Ok::<(), millpond::pressure::WatchError>(())
    /// ```
    pub fn heed(&self, watch: &Watch) -> Subscription {
        let set = Arc::downgrade(&self.set);
        #[cfg(all(feature = "cuda", target_os = "linux"))]
        let of_devices = {
            let set = Weak::clone(&set);
            WatchCall::Device(Arc::new(move |change| relieve_device(&set, change)))
        };
        let calls = vec![
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            of_devices,
            WatchCall::Process(Arc::new(move |change| relieve(&set, change))),
        ];
        watch.subscribe(Turn::Trim, calls)
    }
}
