//! Events of a pool as events of `tracing`.

use super::{Event, EventKind, Subscriber};
use crate::ledger::WrongFree;
use ::tracing::{Level, event};

/// Tells `tracing` of every event, with the target `millpond`: allocations and frees at level `TRACE`, memory that comes
/// from the source or goes back at `DEBUG`, refusals at `WARN`, wrong frees at `ERROR`. The current span is `tracing`'s own
/// business. Where nobody listens an event costs a load and a branch.
///
/// Not for a pool that is the program's global allocator: whoever collects `tracing`'s events may hold a lock while it
/// allocates, and would be told of that allocation.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct TracingSubscriber;

impl TracingSubscriber {
    /// The subscriber.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

/// The level has to be known where the macro stands.
macro_rules! emit {
    ($level:expr, $event:expr) => {
        event!(
            target: "millpond",
            $level,
            kind = $event.kind.name(),
            pool = &*$event.pool.name,
            pool_id = $event.pool.id,
            device = $event.pool.device,
            address = $event.address,
            requested = $event.requested,
            bytes = $event.bytes,
            tag = $event.tag.name(),
            context = $event.context.map(::tracing::field::debug),
        )
    };
}

impl Subscriber for TracingSubscriber {
    fn event(&self, event: &Event<'_>) {
        match event.kind {
            EventKind::Allocated | EventKind::Freed => emit!(Level::TRACE, event),
            EventKind::Refilled | EventKind::Trimmed => emit!(Level::DEBUG, event),
            EventKind::Refused => emit!(Level::WARN, event),
        }
    }

    fn wrong_free(&self, error: &WrongFree) {
        event!(target: "millpond", Level::ERROR, %error, "wrong free");
    }
}
