//! Budgets: charges, refusals, waiting requests, and messages.

mod budgets {
    pub(crate) mod charges;
    pub(crate) mod executor;
    pub(crate) mod lines;
    pub(crate) mod model;
    pub(crate) mod pool;
    pub(crate) mod refusals;
    pub(crate) mod softs;
    pub(crate) mod stress;
}
