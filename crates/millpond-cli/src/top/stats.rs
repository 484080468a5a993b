//! Parses `/stats`. Missing fields are empty, and unknown fields are ignored.

use serde::Deserialize;

/// The version of the format.
pub(crate) const VERSION: u64 = 1;

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Stats {
    pub(crate) schema: String,
    pub(crate) version: u64,
    #[serde(default)]
    pub(crate) time_ms: u64,
    pub(crate) process: ProcessStats,
    #[serde(default)]
    pub(crate) monitor: MonitorStats,
    #[serde(default)]
    pub(crate) pools: Vec<PoolStats>,
    #[serde(default)]
    pub(crate) budgets: Vec<BudgetStats>,
    #[serde(default)]
    pub(crate) devices: Vec<DeviceStats>,
    #[serde(default)]
    pub(crate) tags: Option<Vec<TagStats>>,
    #[serde(default)]
    pub(crate) warnings: Vec<Warning>,
    #[serde(default)]
    pub(crate) losses: Losses,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ProcessStats {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) host: String,
    pub(crate) rank: Option<String>,
    pub(crate) resident: Option<u64>,
    pub(crate) resident_peak: Option<u64>,
    pub(crate) limit: Option<Limit>,
    pub(crate) pressure: String,
    pub(crate) resident_history: Vec<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Limit {
    pub(crate) kind: String,
    pub(crate) used: u64,
    pub(crate) bytes: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct MonitorStats {
    pub(crate) interval_ms: u64,
    pub(crate) samples: u64,
    pub(crate) elapsed_ms: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PoolStats {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) device: String,
    pub(crate) kind: String,
    pub(crate) allocated: u64,
    pub(crate) allocated_peak: u64,
    pub(crate) reserved: u64,
    pub(crate) limit: Option<u64>,
    pub(crate) allocations: u64,
    pub(crate) hit_rate: f64,
    pub(crate) misses: u64,
    pub(crate) refusals: u64,
    pub(crate) stalls: u64,
    pub(crate) stale: bool,
    pub(crate) allocated_history: Vec<u64>,
    pub(crate) reserved_history: Vec<u64>,
    /// The values are hundredths of a per cent.
    pub(crate) hit_rate_history: Vec<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct BudgetStats {
    pub(crate) path: String,
    pub(crate) measure: String,
    pub(crate) used: u64,
    pub(crate) peak: u64,
    pub(crate) limit: Option<u64>,
    pub(crate) refusals: u64,
    pub(crate) waiting: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DeviceStats {
    pub(crate) device: String,
    pub(crate) name: String,
    pub(crate) total: u64,
    pub(crate) used: u64,
    pub(crate) ours: u64,
    pub(crate) unexplained: u64,
    pub(crate) processes: Option<Vec<DeviceProcess>>,
    pub(crate) used_history: Vec<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DeviceProcess {
    pub(crate) id: u32,
    pub(crate) used: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TagStats {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Warning {
    pub(crate) text: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Losses {
    pub(crate) untracked: u64,
    pub(crate) undelivered: u64,
    pub(crate) subscriber_panics: u64,
    pub(crate) callback_panics: u64,
    pub(crate) samples: u64,
    pub(crate) pools: u64,
    pub(crate) budgets: u64,
    pub(crate) devices: u64,
    pub(crate) series: u64,
}
