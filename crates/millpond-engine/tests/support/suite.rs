//! Tests that every policy must pass.

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

/// The abilities in which policies differ by their rules.
#[derive(Clone, Copy)]
pub(crate) struct Abilities {
    /// Whether the policy keeps freed blocks for reuse.
    pub(crate) caches: bool,
    /// Whether the policy returns memory to the source before it is dropped.
    pub(crate) gives_back: bool,
    /// Whether the policy searches its free blocks again after a wait for the device.
    pub(crate) looks_again: bool,
}

pub(crate) fn abilities(policy: &str) -> Abilities {
    Abilities {
        caches: policy != "none",
        // RMM's pools return memory only when they are destroyed.
        gives_back: !matches!(policy, "rmm-pool" | "rmm-arena"),
        // After its wait, PyTorch only calls the driver again (pytorch#189504).
        looks_again: !policy.starts_with("torch-"),
    }
}

pub(crate) fn unlimited(policy: &str) -> Driver {
    Driver::new(policy, Simulated::new())
}

pub(crate) fn limited(policy: &str, bytes: u64) -> Driver {
    Driver::new(policy, Simulated::new().with_capacity(Some(bytes)))
}
