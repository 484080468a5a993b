//! A device's events in order, in pieces that are given back one by one.
//!
//! Numbering the events makes a second list as long as the first. Where both are large, the pieces already
//! numbered are gone by the time the second list is.

use crate::Event;

/// Events of a piece: 2.5 MiB.
const PIECE: usize = 1 << 16;

/// Events in order.
#[derive(Default)]
pub(super) struct Ring {
    /// None is empty, all but the last are full.
    pieces: Vec<Vec<Event>>,
}

impl Ring {
    /// Makes room for events that are expected; a number from a file reserves no more than a piece.
    pub(super) fn expect(&mut self, events: usize) {
        if self.pieces.is_empty() {
            self.pieces.push(Vec::with_capacity(events.min(PIECE)));
        }
    }

    #[inline]
    pub(super) fn push(&mut self, event: Event) {
        match self.pieces.last_mut() {
            Some(piece) if piece.len() < PIECE => piece.push(event),
            _ => self.start(event),
        }
    }

    #[cold]
    fn start(&mut self, event: Event) {
        let mut piece = Vec::with_capacity(if self.pieces.is_empty() { 0 } else { PIECE });
        piece.push(event);
        self.pieces.push(piece);
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.iter().map(Vec::len).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Event> {
        self.pieces.iter().flatten()
    }

    /// The last first.
    pub(super) fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Event> {
        self.pieces.iter_mut().flatten()
    }

    /// Each piece is given back when its last event was taken.
    pub(super) fn into_events(self) -> impl Iterator<Item = Event> {
        self.pieces.into_iter().flatten()
    }
}
