//! The page table: maps the client's addresses to bytes of devices.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

/// The owner of some bytes: a device with its own store, or with a store that processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes {
    pub(crate) device: u32,
    /// The number of the shared store, if any.
    pub(crate) shared: Option<u64>,
}

/// A place in physical memory. A page can be mapped at several addresses but has one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) bytes: Bytes,
    pub(crate) offset: u64,
}

/// A set of devices, with one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Devices(u64);

impl Devices {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const ALL: Self = Self(u64::MAX);

    pub(crate) fn allows(self, device: u32) -> bool {
        self.0 >> device & 1 != 0
    }

    pub(crate) fn any(self) -> bool {
        self != Self::NONE
    }

    fn set(&mut self, device: u32, allowed: bool) {
        let bit = 1 << device;
        self.0 = if allowed { self.0 | bit } else { self.0 & !bit };
    }
}

/// One mapped piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) len: u64,
    pub(crate) bytes: Bytes,
    /// Its offset in the store.
    pub(crate) offset: u64,
    /// The physical handle, or 0 if the emulator mapped it by itself.
    pub(crate) handle: u64,
    /// The devices whose work may access it.
    pub(crate) access: Devices,
    /// Whether this is the first piece that one call mapped.
    pub(crate) first: bool,
}

/// Mapped pieces by address. They do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    at: BTreeMap<u64, Mapped>,
}

impl Pages {
    pub(crate) fn insert(&mut self, at: u64, piece: Mapped) {
        self.at.insert(at, piece);
    }

    /// Returns whether anything is mapped in a range.
    pub(crate) fn any(&self, at: u64, len: u64) -> bool {
        let before = self.at.range(..at + len).next_back();
        before.is_some_and(|(start, piece)| start + piece.len > at)
    }

    /// Returns the pieces of a range if they cover it exactly, without a hole and without cutting a mapping.
    pub(crate) fn exactly(&self, at: u64, len: u64) -> Option<Vec<(u64, Mapped)>> {
        let mut next = at;
        let mut pieces = Vec::new();
        for (&start, &piece) in self.at.range(at..at.checked_add(len)?) {
            if start != next || (start == at && !piece.first) {
                return None;
            }
            next = start + piece.len;
            pieces.push((start, piece));
        }
        (next == at + len && self.starts_a_mapping(next)).then_some(pieces)
    }

    /// Returns whether a mapping starts at an address. A mapping of several pieces must not be cut where one of them ends.
    fn starts_a_mapping(&self, at: u64) -> bool {
        self.at.get(&at).is_none_or(|piece| piece.first)
    }

    pub(crate) fn remove(&mut self, at: u64) {
        self.at.remove(&at);
    }

    /// Sets whether a device may access a piece. Returns the devices that may access it afterwards.
    pub(crate) fn set_access(&mut self, at: u64, device: u32, allowed: bool) -> Devices {
        match self.at.get_mut(&at) {
            Some(piece) => {
                piece.access.set(device, allowed);
                piece.access
            }
            None => Devices::NONE,
        }
    }

    /// Returns the piece that contains an address.
    pub(crate) fn piece(&self, at: u64) -> Option<(u64, Mapped)> {
        let (&start, &piece) = self.at.range(..=at).next_back()?;
        (at < start + piece.len).then_some((start, piece))
    }

    /// Returns whether pieces that all satisfy a condition map the whole range.
    pub(crate) fn all(&self, at: u64, len: u64, holds: impl Fn(&Mapped) -> bool) -> bool {
        let Some(end) = at.checked_add(len) else {
            return false;
        };
        let mut next = at;
        while next < end {
            match self.piece(next) {
                Some((start, piece)) if holds(&piece) => next = start + piece.len,
                _ => return false,
            }
        }
        true
    }

    /// Returns the store, offset and length of every part of a range, if for each part there is a device that may access it.
    pub(crate) fn translate(&self, at: u64, len: u64) -> Option<Vec<(Bytes, u64, u64)>> {
        let end = at.checked_add(len)?;
        let mut parts = Vec::new();
        let mut next = at;
        while next < end {
            let (start, piece) = self.piece(next)?;
            if !piece.access.any() {
                return None;
            }
            let part = (start + piece.len).min(end) - next;
            parts.push((piece.bytes, piece.offset + (next - start), part));
            next += part;
        }
        Some(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_translated_across_pieces_and_not_across_holes() {
        let mut pages = Pages::default();
        let bytes = Bytes {
            device: 0,
            shared: None,
        };
        let piece = |len, offset, access, first| Mapped {
            len,
            bytes,
            offset,
            handle: 1,
            access: if access { Devices::ALL } else { Devices::NONE },
            first,
        };
        pages.insert(100, piece(10, 500, true, true));
        pages.insert(110, piece(10, 40, true, false));
        pages.insert(130, piece(10, 0, false, true));
        assert_eq!(
            pages.translate(105, 10),
            Some(vec![(bytes, 505, 5), (bytes, 40, 5)])
        );
        assert_eq!(pages.translate(115, 10), None);
        assert_eq!(pages.translate(130, 1), None, "no access was given");
        assert_eq!(pages.exactly(100, 20).map(|p| p.len()), Some(2));
        assert_eq!(pages.exactly(100, 10), None, "one mapping is not cut");
        assert_eq!(pages.exactly(110, 10), None, "nor is its end taken alone");
        assert_eq!(pages.exactly(100, 40), None);
        assert!(pages.any(119, 1) && !pages.any(120, 10) && pages.any(120, 11));
    }
}
