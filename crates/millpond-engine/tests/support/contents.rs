//! The simulated contents of addresses: each physical byte has a number that moves with its page.
//!
//! A block whose numbers change has lost its content, even if its address is the same.

use std::collections::BTreeMap;

/// A range of physical bytes: offset from the start of the query, bytes, first number.
pub(crate) type Stretch = (u64, u64, u64);

/// The numbers behind all addresses.
#[derive(Default)]
pub(crate) struct Contents {
    /// Start address to end address and first number.
    parts: BTreeMap<u64, (u64, u64)>,
    /// Page handles and plain segments, which are only released whole: start address to end address.
    units: BTreeMap<u64, u64>,
    next: u64,
    /// Number of changes so far.
    pub(crate) changes: u64,
}

impl Contents {
    /// Maps new bytes in units of `unit` bytes.
    pub(crate) fn map(&mut self, address: u64, bytes: u64, unit: u64) {
        self.changes += 1;
        self.parts.insert(address, (address + bytes, self.next));
        self.next += bytes;
        for at in (address..address + bytes).step_by(unit.max(1) as usize) {
            self.units.insert(at, at + unit);
        }
    }

    /// Unmaps these bytes and their units.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) {
        self.changes += 1;
        self.cut(address);
        self.cut(address + bytes);
        let end = address + bytes;
        self.parts.retain(|start, _| *start < address || end <= *start);
        self.units.retain(|start, last| {
            let inside = address <= *start && *last <= end;
            assert!(
                inside || *last <= address || end <= *start,
                "a handle at {start:#x} is cut"
            );
            !inside
        });
    }

    /// Moves these bytes to another address. They keep their numbers.
    pub(crate) fn carry(&mut self, from: u64, to: u64, bytes: u64) {
        let stretches = self.at(from, bytes);
        let units = self.units.range(from..from + bytes);
        let units: Vec<(u64, u64)> = units.map(|(start, end)| (*start, *end)).collect();
        self.unmap(from, bytes);
        for (offset, bytes, number) in stretches {
            let start = to + offset;
            self.parts.insert(start, (start + bytes, number));
        }
        for (start, end) in units {
            self.units.insert(start - from + to, end - from + to);
        }
    }

    /// Replaces a unit by units of `page` bytes under the kept parts, each given as its address and bytes. These bytes keep
    /// their numbers, and the others are unmapped.
    pub(crate) fn relocate(&mut self, address: u64, bytes: u64, kept: &[(u64, u64)], page: u64) {
        assert_eq!(
            self.units.get(&address),
            Some(&(address + bytes)),
            "no whole handle"
        );
        let numbers: Vec<_> = kept
            .iter()
            .map(|(at, bytes)| (*at, self.at(*at, *bytes)))
            .collect();
        self.unmap(address, bytes);
        for (at, stretches) in numbers {
            for (offset, bytes, number) in stretches {
                self.parts.insert(at + offset, (at + offset + bytes, number));
            }
        }
        for (at, bytes) in kept {
            self.units
                .extend((*at..at + bytes).step_by(page as usize).map(|at| (at, at + page)));
        }
    }

    fn cut(&mut self, at: u64) {
        let Some((start, (end, number))) = self.parts.range(..at).next_back().map(|(s, p)| (*s, *p)) else {
            return;
        };
        if at < end {
            self.parts.insert(start, (at, number));
            self.parts.insert(at, (end, number + (at - start)));
        }
    }

    /// Returns the contents of an address range. Adjacent ranges with consecutive numbers are merged.
    pub(crate) fn at(&self, address: u64, bytes: u64) -> Vec<Stretch> {
        let end = address + bytes;
        let first = self
            .parts
            .range(..=address)
            .next_back()
            .map_or(address, |(s, _)| *s);
        let mut found: Vec<Stretch> = Vec::new();
        let mut at = address;
        for (start, (last, number)) in self.parts.range(first..end) {
            if *last <= at {
                continue;
            }
            assert!(*start <= at, "nothing behind {at:#x}");
            let until = end.min(*last);
            let number = number + (at - start);
            match found.last_mut() {
                Some((_, bytes, before)) if *before + *bytes == number => *bytes += until - at,
                _ => found.push((at - address, until - at, number)),
            }
            at = until;
        }
        assert_eq!(at, end, "nothing behind {at:#x}");
        found
    }

    /// Returns the bytes of the units that overlap none of these blocks. `blocks` maps start to end addresses.
    pub(crate) fn unused(&self, blocks: &BTreeMap<u64, u64>) -> u64 {
        let used = |start: u64, end: u64| {
            let last = blocks.range(..end).next_back();
            last.is_some_and(|(_, block_end)| *block_end > start)
        };
        let units = self.units.iter().filter(|(start, end)| !used(**start, **end));
        units.map(|(start, end)| end - start).sum()
    }
}
