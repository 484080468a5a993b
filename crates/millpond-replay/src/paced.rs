//! Sources whose events pass where a recording says, as a replay needs them.

use millpond_engine::{Event, Simulated, Source};

/// A source whose events can be held until the recorded program would have seen them pass.
///
/// A recording says when another stream was done with a block. A replay gives it back at that very call, on a simulated
/// device as on a real one, so that the same blocks are free at the same calls whatever the device is.
pub trait Paced: Source {
    /// Whether events that are recorded from now on are held until [`complete`](Self::complete).
    fn set_holding(&mut self, hold: bool);

    /// The event that was recorded last, if any was.
    fn last_event(&self) -> Option<Event>;

    /// Lets an event pass: the recorded program has seen it pass here. A device that is not as far yet is waited for.
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

// So that whoever made a source can look at it after a replay has had it.
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
