//! Work that a client queues: what it does, when it runs, and what time it takes on the modelled card.

pub(crate) mod action;
pub(crate) mod clock;
pub(crate) mod queue;
pub(crate) mod run;
