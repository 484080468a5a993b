//! Work that a client queues: its action, and its dependencies.

pub(crate) mod action;
pub(crate) mod queue;
