//! Frees memory of a set when the system runs low.

use super::Pools;
use super::set::Set;
use millpond_os::device::Device;
use millpond_os::pressure::{Level, Subscription, Turn, Watch, WatchBuilder, WatchCall, WatchError};
use std::sync::{Arc, Weak};

/// Frees unused memory of the pools of a set, or only of those of a device.
fn relieve(set: &Weak<Set>, device: Option<Device>, to: Level) {
    let Some(set) = set.upgrade() else { return };
    let mut pools = Pools { set }.members();
    pools.retain(|pool| device.is_none_or(|device| pool.device() == device));
    for pool in pools {
        match to {
            Level::Critical => drop(pool.compact()),
            Level::High => pool.trim(),
            Level::Low | Level::Medium => {}
        }
    }
}

impl Pools {
    /// Watches memory on a separate thread until the result is dropped. When memory becomes scarce, the pools free unused memory
    /// ([`trim`](Self::trim) at [`Level::High`], [`compact`](Self::compact) at [`Level::Critical`]), and then the callbacks of the
    /// builder are called. All calls are made without a lock, and only when the level changes. For memory that stays scarce, use
    /// [`trim_at_pressure`](millpond_pool::PoolBuilder::trim_at_pressure) as well.
    ///
    /// When a device's memory reaches a level, the set's pool of that device does the same, and waits for the device.
    ///
    /// The watch does not keep the set alive.
    ///
    /// ```
    /// use millpond::{pools, pressure::Watch};
    ///
    /// let told = Watch::builder().tell(|change| eprintln!("memory is {:?}", change.to));
    /// let _watch = pools().watch_pressure(told)?;
    /// # Ok::<(), millpond::pressure::WatchError>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the system cannot create a pipe or a thread.
    pub fn watch_pressure(&self, watch: WatchBuilder) -> Result<Watch, WatchError> {
        let set = Arc::downgrade(&self.set);
        #[cfg(all(feature = "cuda", target_os = "linux"))]
        let watch = {
            let set = Weak::clone(&set);
            watch.trim_device(move |change| relieve(&set, Some(change.device.device), change.to))
        };
        watch.trim(move |change| relieve(&set, None, change.to)).start()
    }

    /// Frees unused memory like [`watch_pressure`](Self::watch_pressure), but with an existing watch, until the result is
    /// dropped.
    ///
    /// ```
    /// use millpond::{Pools, pressure::Watch};
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
            WatchCall::Device(Arc::new(move |change| {
                relieve(&set, Some(change.device.device), change.to);
            }))
        };
        let calls = vec![
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            of_devices,
            WatchCall::Process(Arc::new(move |change| relieve(&set, None, change.to))),
        ];
        watch.subscribe(Turn::Trim, calls)
    }
}
