//! Sources whose events complete at the calls that a recording names.

use millpond_engine::{Event, Simulated, Source};

/// A source that can hold its events until the recorded program would have seen them complete.
///
/// A recording says when another stream had finished with a block. A replay frees the block at exactly that
/// call, on a simulated device and on a real one. So the same blocks are free at the same calls on every
/// device.
pub trait Paced: Source {
    /// Sets whether events that are recorded from now on are held until [`complete`](Self::complete).
    fn set_holding(&mut self, hold: bool);

    /// Returns the event that was recorded last, if any.
    fn last_event(&self) -> Option<Event>;

    /// Completes an event, because the recorded program saw it complete at this call. Waits if the device has
    /// not reached it yet.
    fn complete(&mut self, event: Event);
}

impl Paced for Simulated {
    fn set_holding(&mut self, hold: bool) {
        Self::set_holding(self, hold);
    }

    fn last_event(&self) -> Option<Event> {
        self.next_event().0.checked_sub(1).map(Event)
    }

    fn complete(&mut self, event: Event) {
        Self::complete(self, event);
    }
}

// Lets the owner of a source inspect it after a replay.
impl<T: Paced + ?Sized> Paced for &mut T {
    fn set_holding(&mut self, hold: bool) {
        (**self).set_holding(hold);
    }

    fn last_event(&self) -> Option<Event> {
        (**self).last_event()
    }

    fn complete(&mut self, event: Event) {
        (**self).complete(event);
    }
}
