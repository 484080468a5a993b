//! The host as a source: the checks, charges, actions and rollbacks of each call.

use super::{Host, HostBuilder, HugePages, Reserved, Run, Runs, TakenSegment, VmaBoundaries};
use crate::memory::MemorySource;
use millpond_account::MemoryKind;
use millpond_engine::{Event, Range, Segment, Source, SourceError};
pub(crate) use millpond_os::{self as os, Errno, Map};

impl Source for Host {
    fn page_bytes(&self) -> u64 {
        self.rules.page
    }

    fn is_paged(&self) -> bool {
        !matches!(self.rules.huge, HugePages::Explicit(_))
    }

    fn capacity(&self) -> Option<u64> {
        self.rules.capacity
    }

    fn free_bytes(&self) -> Option<u64> {
        self.rules
            .capacity
            .map(|capacity| capacity.saturating_sub(self.used))
    }

    /// Takes a segment of exactly `bytes` bytes. Whole pages of the system are mapped and charged for it.
    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        self.give_up_spent();
        let unit = match self.rules.huge {
            HugePages::Explicit(huge) => huge,
            _ => os::page_bytes(),
        };
        let charged = bytes.max(1).checked_next_multiple_of(unit);
        let charged = charged.ok_or(SourceError::AddressSpace { requested: bytes })?;
        self.charge(charged)?;
        let map = self.map_segment(charged).inspect_err(|_| self.used -= charged)?;
        let address = map.address();
        self.segments.insert(
            address,
            TakenSegment {
                map,
                bytes,
                charged,
                seams: VmaBoundaries::default(),
            },
        );
        Ok(Segment::new(address, bytes))
    }

    fn give(&mut self, segment: Segment) {
        if self.holds_segment(&segment)
            && let Some(taken) = self.segments.remove(&segment.address())
        {
            self.give_up(taken.map, taken.charged);
        }
    }

    fn reserve(&mut self, bytes: u64) -> Result<Range, SourceError> {
        if !self.is_paged() {
            return Err(SourceError::Unsupported {
                operation: "reserve addresses",
            });
        }
        self.give_up_spent();
        self.mappings.charge(1)?;
        let align = self.align(u64::MAX);
        let (map, home) = match &mut self.backing {
            Some(backing) => (backing.memfd.map(bytes, align), backing.extend(bytes, align)),
            None => (Map::new(bytes, align), Some(0)),
        };
        let map = map.map_err(|_| {
            let exhausted = self.mappings.exhausted();
            exhausted.unwrap_or(SourceError::AddressSpace { requested: bytes })
        })?;
        let home = home.ok_or(SourceError::AddressSpace { requested: bytes })?;
        let address = map.address();
        let reserved = Reserved {
            map,
            bytes,
            home,
            runs: Runs::default(),
            unclosed: Vec::new(),
            seams: VmaBoundaries::default(),
        };
        self.ranges.insert(address, reserved);
        Ok(Range::new(address, bytes))
    }

    fn commit(
        &mut self,
        range: &Range,
        offset: u64,
        bytes: u64,
        handle_bytes: u64,
    ) -> Result<(), SourceError> {
        let not_held = SourceError::NotHeld {
            operation: "commit",
            address: range.address().saturating_add(offset),
            bytes,
        };
        let whole = handle_bytes > 0 && handle_bytes.is_multiple_of(self.rules.page);
        let part = self
            .part(range, offset, bytes)
            .filter(|_| whole && bytes.is_multiple_of(handle_bytes));
        let Some(part) = part else { return Err(not_held) };
        if bytes == 0 {
            return Ok(());
        }
        self.close_over(range, part);
        self.free_pages_again();
        let Some(reserved) = self.ranges.get(&range.address()).filter(|r| r.runs.is_free(part)) else {
            return Err(not_held);
        };
        if !reserved.is_vacant(part) {
            // The part was given back and is not closed yet, so it may still have its old contents.
            return Err(self.refused("mmap", bytes, Errno::NOMEM));
        }
        let home = reserved.home + offset;
        self.charge(bytes)?;
        let pages = self.take_pages(home, bytes).inspect_err(|_| self.used -= bytes)?;
        let run = Run::new(part, handle_bytes, pages);
        let opened = self
            .mappings
            .charge(2)
            .and_then(|()| self.open(range.address(), part, pages));
        if opened.is_err() {
            let charged = self.give_pages(&[run]);
            self.used -= charged;
        } else if let Some(reserved) = self.ranges.get_mut(&range.address()) {
            reserved.runs.insert(run);
        }
        opened
    }

    /// Returns 0 and changes nothing if the part is not committed in whole handles.
    fn decommit(&mut self, range: &Range, offset: u64, bytes: u64) -> u64 {
        let Some(part) = self.part(range, offset, bytes).filter(|part| part.bytes > 0) else {
            return 0;
        };
        let Some(reserved) = self.ranges.get_mut(&range.address()) else {
            return 0;
        };
        let Some(found) = reserved.runs.whole(part) else {
            return 0;
        };
        reserved.runs.remove(&found);
        self.mappings.note(2);
        let charged = self.give_pages(&found);
        if let Some(reserved) = self.ranges.get_mut(&range.address()) {
            self.used -= reserved.close(part, charged);
        }
        found.iter().map(|run| run.handles()).sum()
    }

    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        self.move_runs(from, to, bytes)
    }

    fn can_alias(&self) -> bool {
        self.backing.is_some()
    }

    fn alias(&mut self, parts: &[(&Range, u64, u64)], to: (&Range, u64)) -> Result<u64, SourceError> {
        if !self.can_alias() {
            return Err(SourceError::Unsupported {
                operation: "map pages at a second address",
            });
        }
        self.alias_runs(parts, to)
    }

    fn unmap(&mut self, address: u64, bytes: u64) -> u64 {
        self.end_stale(address, bytes)
    }

    /// Gives back everything in the range, including pages that are still committed. Ends its stale mappings.
    fn release(&mut self, range: Range) {
        if self.holds_range(&range)
            && let Some(reserved) = self.ranges.remove(&range.address())
        {
            let (stale, committed): (Vec<Run>, Vec<Run>) = reserved.runs.iter().partition(|run| run.stale);
            if self.rules.lock {
                let ended = stale
                    .iter()
                    .map(|run| (range.address() + run.part.offset, run.part.bytes));
                self.slipped.extend(ended);
            }
            let committed = self.give_pages(&committed);
            let unclosed: u64 = reserved.unclosed.iter().map(|(_, charged)| charged).sum();
            self.give_up(reserved.map, committed + unclosed);
        }
    }

    fn record_event(&mut self, _stream: u32) -> Event {
        self.next_event += 1;
        Event(self.next_event)
    }

    fn is_complete(&self, _event: Event) -> bool {
        true
    }

    fn wait_event(&mut self, _stream: u32, _event: Event) {}

    fn synchronize(&mut self) {}
}

// SAFETY: by the number of the condition:
// 1, 2. The parts in `runs` and all segments are open (invariants of `Reserved` and `TakenSegment`), and by the invariant of
//    `Map` no other code maps anything there. Only calls with the same token, and `unmap` for a stale part, close or unmap
//    them. The address and the size of a token are checked, and tokens of other sources are refused. A part of the memfd is in
//    only one run in use, because `Backing` gives it only once, and in the stale runs that `alias_runs` makes of that run.
// 3. Only `move_runs` and `transfer_pages` read or write contents, and `discard` clears them.
// 4. A part that is opened was closed before, and closed parts have no memory, so it reads as zero. A part of the memfd reads
//    as zero by the invariant of `Backing`. Explicit huge pages are fresh maps.
// 5. `transfer_pages` moves pages between parts that it found open. Both stay open, and the origin has no memory. Otherwise it
//    copies the contents and clears the origin.
// 6. `protect` changes only the access of a part that is held.
// 7. Maps are made at multiples of the page, or of the system's page if a segment is smaller.
unsafe impl MemorySource for Host {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn fresh_is_zero(&self) -> bool {
        true
    }

    fn transfer(&mut self, from: u64, to: u64, bytes: u64) -> bool {
        self.transfer_pages(from, to, bytes)
    }

    fn discard(&mut self, address: u64, bytes: u64) -> bool {
        let Some((held, part)) = self.open_part(address, bytes) else {
            return false;
        };
        let done = self.empty(held, part).is_some();
        if done {
            self.keep_small(held, part);
        }
        done
    }

    fn populate(&self, address: u64, bytes: u64) -> bool {
        let part = self.open_part(address, bytes);
        part.is_some_and(|(held, part)| self.map_of(held).is_some_and(|map| map.populate(part).is_ok()))
    }

    fn expect_use(&mut self, address: u64, bytes: u64) {
        let huge = os::transparent_huge_page();
        let first = address.checked_next_multiple_of(huge).unwrap_or(u64::MAX);
        let whole = (address.saturating_add(bytes) & !(huge - 1)).saturating_sub(first);
        let is_small = self.used <= HostBuilder::SMALL_BYTES;
        if whole == 0 || is_small || self.rules.huge != HugePages::Auto || !self.may_be_huge() {
            return;
        }
        let Some((held, part)) = self.open_part(first, whole) else {
            return;
        };
        if self.faults_are_slow() || self.mappings.charge(2).is_err() {
            return;
        }
        let advised = self.map_of(held).map(|map| map.advise_huge(part));
        if let (Some(Ok(())), Some(seams)) = (advised, self.seams_of(held)) {
            seams.add(part.offset);
            seams.add(part.end());
        }
    }

    /// Explicit huge pages can only be protected as a whole.
    fn can_protect(&self) -> bool {
        !matches!(self.rules.huge, HugePages::Explicit(_))
    }

    fn protect(&mut self, address: u64, bytes: u64, closed: bool) -> bool {
        let Some((held, part)) = self.open_part(address, bytes) else {
            return false;
        };
        // For the system, a part with different access is a separate mapping. It may split the rest into two mappings.
        if closed && self.mappings.charge(2).is_err() {
            return false;
        }
        let changed = self
            .map_of(held)
            .map(|map| if closed { map.shut(part) } else { map.open(part) });
        changed.is_some_and(|changed| changed.is_ok())
    }
}
