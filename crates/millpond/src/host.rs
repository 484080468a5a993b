//! Ordinary memory of this process.

mod builder;
mod dress;
mod locking;
mod mappings;
mod moves;
mod runs;

pub use builder::{HostBuilder, HostError, HugePages, Node};

use crate::memory::{MemoryKind, MemorySource};
use crate::os::{self, Errno, Map, Part};
use mappings::Mappings;
use millpond_engine::{Event, Range, Segment, Source, SourceError};
use runs::{Run, Runs};
use std::collections::BTreeMap;

/// Memory of this process, as private anonymous maps: plain and paged.
///
/// Reserved addresses are mapped and closed: nothing can touch them and nothing else can be mapped there.
/// Committing opens a part, decommitting gives its memory back to the system at once, moving takes pages
/// elsewhere without a copy. Fresh memory reads as zero. Handles are bookkeeping here: a handle costs no call
/// of its own.
///
/// *Streams.* A host has no work of its own: whoever calls has done what it did. Every event is complete as
/// soon as it is recorded, waits return at once, and streams are kept apart by nothing but the policy.
///
/// *When the system refuses.* Opening and moving fail with an error and change nothing. Closing cannot be
/// refused by its caller's contract; where the system cannot do it (it may have to cut a map in two, past its
/// limit on mappings), the part is emptied, so that its memory is back, and is closed before it is used again.
///
/// Dropping the source gives everything back.
///
/// ```
/// use millpond::Host;
/// use millpond::engine::Source;
///
/// let mut host = Host::builder().page_bytes(64 << 10).capacity(Some(1 << 20)).build()?;
/// let range = host.reserve(1 << 30)?;
/// host.commit(&range, 0, 512 << 10, 64 << 10)?;
/// assert_eq!(host.free_bytes(), Some(512 << 10));
/// assert_eq!(host.decommit(&range, 0, 512 << 10), 8);
/// host.release(range);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Host {
    rules: HostBuilder,
    mappings: Mappings,
    /// Bytes charged: committed, taken, and those not closed yet.
    used: u64,
    /// By address.
    ranges: BTreeMap<u64, Reserved>,
    /// By address.
    segments: BTreeMap<u64, Taken>,
    /// Maps given back that the system would not take yet, and bytes still charged for them.
    spent: Vec<(Map, u64)>,
    /// Parts that were locked and are no longer: address and bytes.
    slipped: Vec<(u64, u64)>,
    next_event: u64,
}

/// Reserved addresses.
///
/// Invariant: what `runs` names is open, and what neither `runs` nor `unclosed` names is closed and of one
/// piece between its neighbours.
#[derive(Debug)]
struct Reserved {
    map: Map,
    /// Bytes of the token, at most the map's.
    bytes: u64,
    runs: Runs,
    /// Parts given back that the system would not close yet, and bytes still charged for them.
    unclosed: Vec<(Part, u64)>,
}

/// A segment in a caller's hand. Invariant: the whole map is open.
#[derive(Debug)]
struct Taken {
    map: Map,
    /// Bytes of the token.
    bytes: u64,
    charged: u64,
}

fn overlap(one: Part, other: Part) -> bool {
    one.offset < other.end() && other.offset < one.end()
}

impl Reserved {
    /// Tries again to close what could not be closed and lies in a part; answers the bytes that are no longer
    /// charged.
    fn close_over(&mut self, part: Part) -> u64 {
        let mut refund = 0;
        let map = &self.map;
        self.unclosed.retain(|(other, charged)| {
            let closed = overlap(*other, part) && map.close(*other).is_ok();
            refund += if closed { *charged } else { 0 };
            !closed
        });
        refund
    }

    /// Tries again to close a few parts that could not be closed.
    fn close_some(&mut self) -> u64 {
        const FEW: usize = 4;
        let mut refund = 0;
        for _ in 0..FEW {
            match self.unclosed.pop() {
                Some((part, charged)) if self.map.close(part).is_ok() => refund += charged,
                Some(still) => {
                    self.unclosed.push(still);
                    break;
                }
                None => break,
            }
        }
        refund
    }

    /// Closes a part; answers how many of the bytes charged for it are no longer.
    fn close(&mut self, part: Part, charged: u64) -> u64 {
        if self.map.close(part).is_ok() {
            return charged + self.close_some();
        }
        // What can be done is done now: the memory goes, and the access if that cuts no map.
        let emptied = self.map.empty(part).is_ok();
        let _ = self.map.shut(part);
        let (refund, charged) = if emptied { (charged, 0) } else { (0, charged) };
        self.unclosed.push((part, charged));
        refund
    }

    /// Whether pages can be put into a part.
    fn is_vacant(&self, part: Part) -> bool {
        self.runs.is_free(part) && self.unclosed.iter().all(|(other, _)| !overlap(*other, part))
    }
}

impl Host {
    /// Begins to describe a source.
    pub fn builder() -> HostBuilder {
        HostBuilder::new()
    }

    fn with(rules: HostBuilder) -> Self {
        Self {
            mappings: Mappings::new(rules.mappings),
            rules,
            used: 0,
            ranges: BTreeMap::new(),
            segments: BTreeMap::new(),
            spent: Vec::new(),
            slipped: Vec::new(),
            next_event: 0,
        }
    }

    /// Bytes that are committed or taken now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used
    }

    /// Which pages the system was asked to use.
    #[must_use]
    pub fn huge_pages(&self) -> HugePages {
        self.rules.huge
    }

    /// The NUMA node memory comes from.
    #[must_use]
    pub fn node(&self) -> Option<Node> {
        self.rules.node
    }

    /// Parts that a failed move could not lock again, since this was last asked: address and bytes.
    pub(crate) fn take_slipped(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.slipped)
    }

    /// Whether this segment is one of its own.
    pub(crate) fn holds_segment(&self, segment: &Segment) -> bool {
        self.segments
            .get(&segment.address())
            .is_some_and(|taken| taken.bytes == segment.bytes())
    }

    /// Whether this range is one of its own.
    pub(crate) fn holds_range(&self, range: &Range) -> bool {
        self.ranges
            .get(&range.address())
            .is_some_and(|reserved| reserved.bytes == range.bytes())
    }

    /// Shows every committed part and every segment: address and bytes.
    pub(crate) fn for_each_held(&self, mut visit: impl FnMut(u64, u64)) {
        for (address, reserved) in &self.ranges {
            for run in reserved.runs.iter() {
                visit(address + run.part.offset, run.part.bytes);
            }
        }
        for (address, taken) in &self.segments {
            visit(*address, taken.bytes);
        }
    }

    fn charge(&mut self, bytes: u64) -> Result<(), SourceError> {
        let capacity = self.rules.capacity.unwrap_or(u64::MAX);
        let used = self.used.checked_add(bytes).filter(|used| *used <= capacity);
        self.used = used.ok_or(SourceError::OutOfMemory {
            requested: bytes,
            free: capacity.saturating_sub(self.used),
            capacity,
        })?;
        Ok(())
    }

    /// What a call refused by the system means to the caller.
    fn refused(&self, call: &'static str, requested: u64, error: Errno) -> SourceError {
        if error != Errno::NOMEM && error != Errno::AGAIN {
            return SourceError::Driver {
                call,
                code: error.raw_os_error(),
            };
        }
        self.mappings.exhausted().unwrap_or_else(|| {
            let (free, capacity) = os::machine_memory();
            SourceError::OutOfMemory {
                requested,
                free,
                capacity,
            }
        })
    }

    /// Alignment of what is this large.
    fn align(&self, bytes: u64) -> u64 {
        let align = match self.rules.huge {
            HugePages::Transparent => self.rules.page.max(os::transparent_huge_page()),
            HugePages::Default | HugePages::Explicit(_) => self.rules.page,
        };
        if bytes < align { os::page_bytes() } else { align }
    }

    /// The part of a range that a call names, if the range is ours and the part is of whole pages inside it.
    fn part(&self, range: &Range, offset: u64, bytes: u64) -> Option<Part> {
        let reserved = self
            .ranges
            .get(&range.address())
            .filter(|r| r.bytes == range.bytes())?;
        let page = self.rules.page;
        let end = offset.checked_add(bytes)?;
        let whole = offset.is_multiple_of(page) && bytes.is_multiple_of(page);
        (whole && end <= reserved.bytes).then_some(Part { offset, bytes })
    }

    /// Unmaps, or keeps for later what the system does not take.
    fn give_up(&mut self, map: Map, charged: u64) {
        match map.unmap() {
            Ok(()) => self.used -= charged,
            Err(map) => {
                let emptied = map.empty(map.whole()).is_ok();
                self.used -= if emptied { charged } else { 0 };
                self.spent.push((map, if emptied { 0 } else { charged }));
            }
        }
    }

    fn give_up_spent(&mut self) {
        for (map, charged) in std::mem::take(&mut self.spent) {
            self.give_up(map, charged);
        }
    }

    /// Maps and dresses a segment.
    fn map_segment(&mut self, bytes: u64) -> Result<Map, SourceError> {
        self.mappings.charge(3)?;
        let refused = |call, error| self.refused(call, bytes, error);
        let map = match self.rules.huge {
            HugePages::Explicit(huge) => {
                Map::new_huge(bytes, huge).map_err(|error| refused("mmap", error))?
            }
            _ => {
                let map = Map::new(bytes, self.align(bytes)).map_err(|error| refused("mmap", error))?;
                map.open(map.whole())
                    .map_err(|error| refused("mprotect", error))?;
                map
            }
        };
        let locking = self.rules.lock.then(locking::shared);
        self.dress(&map, map.whole())?;
        drop(locking);
        Ok(map)
    }
}

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

    /// Takes a segment of exactly `bytes`; whole pages of the system are mapped and charged for it.
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
        self.segments.insert(address, Taken { map, bytes, charged });
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
        let map = Map::new(bytes, align).map_err(|_| {
            let exhausted = self.mappings.exhausted();
            exhausted.unwrap_or(SourceError::AddressSpace { requested: bytes })
        })?;
        let address = map.address();
        let reserved = Reserved {
            map,
            bytes,
            runs: Runs::default(),
            unclosed: Vec::new(),
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
        let Some(reserved) = self.ranges.get(&range.address()).filter(|r| r.runs.is_free(part)) else {
            return Err(not_held);
        };
        if !reserved.is_vacant(part) {
            // Given back, and not closed yet: it may still hold what it held.
            return Err(self.refused("mmap", bytes, Errno::NOMEM));
        }
        self.charge(bytes)?;
        let opened = self
            .mappings
            .charge(2)
            .and_then(|()| self.open(range.address(), part));
        opened.inspect_err(|_| self.used -= bytes)?;
        if let Some(reserved) = self.ranges.get_mut(&range.address()) {
            reserved.runs.insert(Run {
                part,
                handle: handle_bytes,
            });
        }
        Ok(())
    }

    /// Answers 0, and changes nothing, where the part is not committed in whole handles.
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
        self.used -= reserved.close(part, bytes);
        found.iter().map(|run| run.handles()).sum()
    }

    fn move_pages(&mut self, from: (&Range, u64), to: (&Range, u64), bytes: u64) -> Result<u64, SourceError> {
        self.move_runs(from, to, bytes)
    }

    /// Gives everything back that is in the range, pages that are still committed too.
    fn release(&mut self, range: Range) {
        if self.holds_range(&range)
            && let Some(reserved) = self.ranges.remove(&range.address())
        {
            let committed: u64 = reserved.runs.iter().map(|run| run.part.bytes).sum();
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

// SAFETY: 1, 2: parts named in `runs` are open, segments are open whole (invariants of `Reserved` and `Taken`),
// and by the invariant of `Map` nobody else maps anything there; only calls for that very token close or unmap
// them, and tokens that are not ours are refused by address and size. 3: nothing here reads or writes contents
// but `move_runs`. 4: what is opened was closed before and closed parts have no memory, so it reads as zero;
// explicit huge pages are fresh maps. 5: maps are made at multiples of the page, or of the system's where a
// segment is smaller.
unsafe impl MemorySource for Host {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn fresh_is_zero(&self) -> bool {
        true
    }
}
