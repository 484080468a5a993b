//! Work that a client queues: what it does, and what it waits for.

pub(crate) mod action;
pub(crate) mod queue;
