//! What every policy must do, whatever its rules.

pub(crate) mod account;
pub(crate) mod compaction;
pub(crate) mod exhaustion;
pub(crate) mod faults;
pub(crate) mod placement;
pub(crate) mod repeats;
pub(crate) mod streams;

use super::driver::Driver;
use millpond_engine::Simulated;

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// What a policy does not do by its own rules.
#[derive(Clone, Copy)]
pub(crate) struct Abilities {
    /// Keeps freed blocks for reuse.
    pub(crate) caches: bool,
    /// Gives memory back to the source before it ends.
    pub(crate) gives_back: bool,
    /// Looks again at its free blocks after waiting for the device.
    pub(crate) looks_again: bool,
}

pub(crate) fn abilities(policy: &str) -> Abilities {
    Abilities {
        caches: policy != "none",
        // RMM's pools return memory when they are destroyed and not before.
        gives_back: !matches!(policy, "rmm-pool" | "rmm-arena"),
        // pytorch#189504: PyTorch waits, and asks only the driver again.
        looks_again: !policy.starts_with("torch-"),
    }
}

pub(crate) fn unlimited(policy: &str) -> Driver {
    Driver::new(policy, Simulated::new())
}

pub(crate) fn limited(policy: &str, bytes: u64) -> Driver {
    Driver::new(policy, Simulated::new().with_capacity(Some(bytes)))
}
