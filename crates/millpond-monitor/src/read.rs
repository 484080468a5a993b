//! Takes a [`Snapshot`] without holding a lock while pools are read. The lists are bounded.

use super::snapshot::{
    BudgetReading, DeviceProcess, DeviceReading, LimitReading, Losses, PoolReading, Snapshot, TagReading,
};
use millpond_account::budget::{Budget, Measure};
use millpond_account::ledger::Ledger;
use millpond_account::registry::{Look, live_pools};
use millpond_account::watchers::Watchers;
use millpond_os::device::open_devices;
use millpond_os::pressure::{Limit, LimitKind, Pressure, Readings, Thresholds};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

/// The maximum number of listed pools, and of listed budgets.
const MOST: usize = 256;
/// The maximum number of listed tags.
const TAGS: usize = 16;

/// Takes snapshots, and remembers the last figures of pools that may be busy.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Budgets that are sampled even if no pool is charged to them.
    pub(super) budgets: Vec<Budget>,
    /// The last figures of each pool that may be busy.
    last: HashMap<u64, Look>,
}

impl Snapshot {
    /// Takes a snapshot now. This takes some hundreds of microseconds. For frequent snapshots, start a
    /// [`Monitor`](super::Monitor).
    #[must_use]
    pub fn take() -> Self {
        Reader::default().read()
    }
}

/// The data that is collected from the pools.
#[derive(Default)]
struct Gathered {
    pools: Vec<PoolReading>,
    roots: Vec<Budget>,
    ledgers: Vec<Arc<Ledger>>,
    losses: Losses,
}

impl Gathered {
    fn note(&mut self, budgets: impl Iterator<Item = Budget>, watchers: &Watchers) {
        for budget in budgets {
            let root = std::iter::successors(Some(budget), Budget::parent).last();
            if let Some(root) = root.filter(|root| !self.roots.iter().any(|other| other.is_same(root))) {
                self.roots.push(root);
            }
        }
        self.losses.undelivered += watchers.undelivered();
        self.losses.subscriber_panics += watchers.panics();
        if let Some(ledger) = watchers.ledger() {
            self.losses.untracked += ledger.lost();
            self.ledgers.push(Arc::clone(ledger));
        }
    }
}

impl Reader {
    pub(super) fn read(&mut self) -> Snapshot {
        let mut gathered = Gathered::default();
        self.read_pools(&mut gathered);
        for budget in &self.budgets {
            if !gathered.roots.iter().any(|root| root.is_same(budget)) {
                gathered.roots.push(budget.clone());
            }
        }
        let Gathered {
            mut pools,
            roots,
            ledgers,
            mut losses,
        } = gathered;
        let devices = read_devices(&pools, &mut losses);
        losses.pools = pools.len().saturating_sub(MOST) as u64;
        if losses.pools > 0 {
            pools.sort_by_key(|pool| Reverse(pool.stats.reserved.current));
            pools.truncate(MOST);
        }
        pools.sort_by_key(|pool| pool.id);
        let budgets = budgets_of(&roots, &mut losses);
        let pressure = Readings::system().of_process(&Thresholds::default());
        let [resident, resident_peak] = resident();
        Snapshot {
            time: SystemTime::now(),
            resident,
            resident_peak,
            limit: pressure.limit().map(limit_reading),
            cgroup: cgroup(&pressure),
            pressure: pressure.level(),
            pools,
            budgets,
            devices,
            tags: (!ledgers.is_empty()).then(|| tags_of(&ledgers)),
            losses,
        }
    }

    fn read_pools(&mut self, gathered: &mut Gathered) {
        let pools = live_pools();
        let mut last = HashMap::new();
        for pool in pools.iter().filter(|pool| !pool.is_closed()) {
            let label = pool.label();
            let read = pool.look();
            let look = read.or(self.last.get(&label.id).copied()).unwrap_or_default();
            last.insert(label.id, look);
            gathered.note(pool.budgets().into_iter(), &pool.watchers());
            gathered.pools.push(PoolReading {
                id: label.id,
                name: label.name.to_string(),
                device: pool.device(),
                kind: label.kind,
                policy: look.policy.to_owned(),
                stats: look.stats,
                stalls: look.stalls,
                limit: pool.limit(),
                stale: read.is_none(),
            });
        }
        self.last = last;
    }
}

fn read_devices(pools: &[PoolReading], losses: &mut Losses) -> Vec<DeviceReading> {
    let mut devices = Vec::new();
    for of in open_devices() {
        let Some((free, total)) = of.memory() else {
            losses.devices += 1;
            continue;
        };
        let device = of.device();
        let on_it = pools.iter().filter(|pool| pool.device == device);
        devices.push(DeviceReading {
            device,
            name: of.name().to_owned(),
            free,
            total,
            ours: on_it.map(|pool| pool.stats.reserved.current).sum(),
            processes: of.processes().map(sorted),
        });
    }
    devices
}

/// Sorts the processes of a device by their bytes, the largest first.
fn sorted(mut processes: Vec<(u32, Option<u64>)>) -> Vec<DeviceProcess> {
    processes.sort_by_key(|(id, used)| (Reverse(*used), *id));
    let process = |(id, used)| DeviceProcess { id, used };
    processes.into_iter().map(process).collect()
}

fn limit_reading(limit: &Limit) -> LimitReading {
    LimitReading {
        kind: limit.kind,
        used: limit.used.saturating_sub(limit.reclaimable),
        bytes: limit.bytes,
    }
}

fn cgroup(pressure: &Pressure) -> Option<LimitReading> {
    let of_cgroup = |limit: &&Limit| matches!(limit.kind, LimitKind::CgroupMax | LimitKind::CgroupV1);
    let limits = pressure.limits().iter().filter(of_cgroup);
    limits.min_by_key(|limit| limit.available()).map(limit_reading)
}

/// Returns the bytes of the process in main memory, and their peak.
fn resident() -> [Option<u64>; 2] {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return [None; 2];
    };
    ["VmRSS:", "VmHWM:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    })
}

fn budgets_of(roots: &[Budget], losses: &mut Losses) -> Vec<BudgetReading> {
    let mut readings = Vec::new();
    let mut seen: HashMap<String, u32> = HashMap::new();
    for root in roots {
        let mut ahead = vec![root.clone()];
        while let Some(budget) = ahead.pop() {
            if readings.len() >= MOST {
                losses.budgets += 1;
                continue;
            }
            ahead.extend(budget.children().into_iter().rev());
            readings.push(budget_reading(&budget, &mut seen));
        }
    }
    readings
}

fn budget_reading(budget: &Budget, seen: &mut HashMap<String, u32>) -> BudgetReading {
    let mut path = budget.path().as_str().to_owned();
    let times = seen.entry(path.clone()).or_default();
    *times += 1;
    if *times > 1 {
        path = format!("{path} ({times})");
    }
    BudgetReading {
        path,
        measure: match budget.measure() {
            Measure::Reserved => "reserved",
            Measure::Allocated => "allocated",
        },
        used: budget.used(),
        peak: budget.peak(),
        limit: budget.limit(),
        refusals: budget.refusals(),
        waiting: budget.waiting() as u64,
    }
}

fn tags_of(ledgers: &[Arc<Ledger>]) -> Vec<TagReading> {
    let mut sums: HashMap<&'static str, TagReading> = HashMap::new();
    for total in ledgers.iter().flat_map(|ledger| ledger.by_tag()) {
        let name = total.tag.name();
        let sum = sums.entry(name).or_insert_with(|| TagReading {
            name: name.to_owned(),
            requested: 0,
            bytes: 0,
            blocks: 0,
        });
        sum.requested += total.requested;
        sum.bytes += total.bytes;
        sum.blocks += total.blocks;
    }
    let mut tags: Vec<TagReading> = sums.into_values().filter(|tag| tag.blocks > 0).collect();
    tags.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    tags.truncate(TAGS);
    tags
}
