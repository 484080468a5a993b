//! Work that a client queues: what it does, and when it runs.

pub(crate) mod action;
pub(crate) mod queue;
pub(crate) mod run;
