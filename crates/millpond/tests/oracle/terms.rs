//! The configurations of a program.

use millpond::engine::{CallKind, Failure, Faulty, When};
use millpond::{Budget, Host, Pool, Tenant, budget::Measure};
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) policy: &'static str,
    pub(crate) threads: usize,
    /// The number of programs of `steps` steps, which run one after the other. Each has new threads, and between them
    /// no thread runs.
    pub(crate) rounds: usize,
    pub(crate) steps: usize,
    pub(crate) limit: Option<u64>,
    pub(crate) moving_limit: bool,
    /// Blocks are zeroed before they are handed out.
    pub(crate) cleared: bool,
    /// Some blocks are charged to one of two tenants.
    pub(crate) tenants: bool,
    /// The pool is charged to a budget.
    pub(crate) budget: bool,
    /// Some requests wait.
    pub(crate) waiting: bool,
    /// The source maps pages at a second address instead of moving them.
    pub(crate) aliases: bool,
    /// The probability that a call of the source fails.
    pub(crate) faults: f64,
}

impl Terms {
    pub(crate) fn plenty() -> Self {
        Self {
            policy: "millpond",
            threads: 4,
            rounds: 3,
            steps: 250,
            limit: None,
            moving_limit: false,
            cleared: false,
            tenants: false,
            budget: false,
            waiting: false,
            aliases: false,
            faults: 0.0,
        }
    }

    /// Returns true if a request may be refused.
    pub(crate) fn is_scarce(&self) -> bool {
        self.limit.is_some() || self.faults > 0.0
    }
}

/// A pool of a configuration, and its users.
pub(crate) struct Place {
    pub(crate) pool: Pool,
    /// The parent of the pool's own budget.
    pub(crate) budget: Option<Budget>,
    pub(crate) tenants: Vec<Tenant>,
    pub(crate) patient: Tenant,
}

impl Place {
    pub(crate) fn new(terms: &Terms, seed: u64) -> Self {
        let mut builder = Pool::builder()
            .policy(terms.policy)
            .trim_every(None)
            .zero_on_reuse(terms.cleared);
        if let Some(limit) = terms.limit {
            builder = builder.limit(limit);
        }
        let mut budget = None;
        if terms.budget {
            let process = Budget::builder("process").build().expect("a budget");
            let allocated = process.child_builder("allocated").measure(Measure::Allocated);
            let allocated = allocated.build().expect("a budget");
            builder = builder.budget(&allocated);
            budget = Some(allocated);
        }
        let host = Host::builder().page_bytes(64 << 10).aliases(terms.aliases);
        let host = host.build().expect("a source");
        let mut source = Faulty::new(host);
        if terms.faults > 0.0 {
            let (probability, oom) = (terms.faults, Failure::OutOfMemory);
            source = source
                .failing(CallKind::Commit, When::Chance { probability, seed }, oom)
                .failing(
                    CallKind::Move,
                    When::Chance { probability, seed },
                    Failure::Driver(7),
                )
                .failing(CallKind::Alias, When::Chance { probability, seed }, oom)
                .failing(CallKind::Take, When::Chance { probability, seed }, oom);
        }
        let pool = builder.over(Box::new(source)).expect("a pool");
        let tenants = if terms.tenants { 2 } else { 0 };
        let tenants = (0..tenants).map(|tenant| {
            let budget = Budget::builder(format!("tenant {tenant}")).measure(Measure::Allocated);
            // If no request waits, none is refused either.
            let limit = if terms.waiting { 8 << 20 } else { 1 << 40 };
            let budget = budget.limit(limit).build().expect("a budget");
            pool.tenant(&budget).expect("allocated bytes")
        });
        Self {
            tenants: tenants.collect(),
            patient: pool.waiting(Duration::from_millis(3)),
            budget,
            pool,
        }
    }
}
