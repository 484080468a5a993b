//! Forwards the events of a pool to `tracing`.

use super::{Event, EventKind, Subscriber};
use crate::ledger::WrongFree;
use ::tracing::{Level, event};

/// Forwards every event to `tracing` with the target `millpond`: allocations and frees at level `TRACE`, memory that is
/// taken from the source or returned to it at `DEBUG`, refusals at `WARN`, wrong frees at `ERROR`. `tracing` adds the
/// current span itself. If no collector listens, an event costs a load and a branch.
///
/// It is not suitable for a pool that is the program's global allocator. A collector of `tracing` events may hold a
/// lock while it allocates, and would receive the event of that allocation.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct TracingSubscriber;

impl TracingSubscriber {
    /// Makes the subscriber.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

/// Emits an event. The macro of `tracing` needs the level as a constant.
macro_rules! emit {
    ($level:expr, $event:expr) => {
        event!(
            target: "millpond",
            $level,
            kind = $event.kind.name(),
            pool = &*$event.pool.name,
            pool_id = $event.pool.id,
            device = ::tracing::field::display($event.pool.device),
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
