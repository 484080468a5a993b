//! The source of ordinary memory of this process.

mod aliases;
mod backing;
mod builder;
mod dress;
mod faults;
pub(crate) mod locking;
mod mappings;
mod moves;
mod reserved;
mod runs;
mod source;
mod transfer;

pub use builder::{HostBuilder, HostError, HugePages, Node};

use backing::Backing;
use faults::Faults;
use mappings::Mappings;
use millpond_engine::{Range, Segment, SourceError};
pub use millpond_os::{self as os, Errno, Map, Part};
use reserved::{Reserved, TakenSegment, VmaBoundaries};
use runs::{Run, Runs};
use std::cell::Cell;
use std::collections::BTreeMap;

/// Memory of this process in private anonymous mappings, plain and paged. With [`aliases`](HostBuilder::aliases), the ranges
/// have memory that can be mapped at several addresses.
///
/// Reserved addresses are mapped without access: nothing can touch them, and nothing else can be mapped there. Committing
/// makes a part accessible. Decommitting returns its memory to the system at once. Moving transfers pages without a copy.
/// Fresh memory reads as zero. Handles exist only in the source's tables, so a handle costs no system call of its own.
///
/// *Streams.* A host has no asynchronous work: an operation is complete when its call returns. Every event is complete as
/// soon as it is recorded, and waits return at once. Only the policy distinguishes streams.
///
/// *Refusals of the system.* A failed open or move returns an error and changes nothing. The caller of a close does not
/// expect an error. If the system cannot close a part (it may have to split a mapping and exceed its limit on mappings),
/// the part is emptied, so that its memory is returned, and it is closed before it is used again.
///
/// Dropping the source returns all memory.
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
    /// The memory of the ranges, if it can be mapped at several addresses.
    backing: Option<Backing>,
    mappings: Mappings,
    faults: Cell<Faults>,
    /// Bytes charged: committed and taken bytes, and those not closed yet.
    used: u64,
    /// By address.
    ranges: BTreeMap<u64, Reserved>,
    /// By address.
    segments: BTreeMap<u64, TakenSegment>,
    /// Mappings that the system could not unmap yet, and the bytes still charged for them.
    spent: Vec<(Map, u64)>,
    /// Parts that are no longer locked, and locked stale mappings that ended: address and bytes.
    slipped: Vec<(u64, u64)>,
    next_event: u64,
}

impl Host {
    /// Returns a builder for a source.
    pub fn builder() -> HostBuilder {
        HostBuilder::new()
    }

    fn with(rules: HostBuilder, backing: Option<Backing>) -> Self {
        Self {
            backing,
            mappings: Mappings::new(rules.mappings),
            faults: Cell::default(),
            rules,
            used: 0,
            ranges: BTreeMap::new(),
            segments: BTreeMap::new(),
            spent: Vec::new(),
            slipped: Vec::new(),
            next_event: 0,
        }
    }

    /// Returns the bytes that are committed or taken now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used
    }

    /// Returns the page sizes that the system was asked to use.
    #[must_use]
    pub fn huge_pages(&self) -> HugePages {
        self.rules.huge
    }

    /// Returns the NUMA node of the memory.
    #[must_use]
    pub fn node(&self) -> Option<Node> {
        self.rules.node
    }

    /// Returns the parts whose lock ended since the last call: parts that a failed move could not lock again, and stale
    /// mappings that were unmapped. Each is given as its address and bytes.
    pub(crate) fn take_slipped(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.slipped)
    }

    /// Returns whether this segment belongs to this source.
    pub(crate) fn holds_segment(&self, segment: &Segment) -> bool {
        self.segments
            .get(&segment.address())
            .is_some_and(|taken| taken.bytes == segment.bytes())
    }

    /// Returns whether this range belongs to this source.
    pub(crate) fn holds_range(&self, range: &Range) -> bool {
        self.ranges
            .get(&range.address())
            .is_some_and(|reserved| reserved.bytes == range.bytes())
    }

    /// Calls `visit` with the address and the bytes of every committed part, every stale mapping and every segment.
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

    /// Returns the error for a call that the system refused.
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

    /// Returns the alignment of a mapping of this size.
    fn align(&self, bytes: u64) -> u64 {
        let align = match self.rules.huge {
            HugePages::Transparent => self.rules.page.max(os::transparent_huge_page()),
            HugePages::Auto | HugePages::System | HugePages::Explicit(_) => self.rules.page,
        };
        if bytes < align { os::page_bytes() } else { align }
    }

    /// Returns whether transparent huge pages are requested at all.
    fn may_be_huge(&self) -> bool {
        match self.rules.huge {
            HugePages::Transparent => true,
            HugePages::Auto => self.rules.page >= os::transparent_huge_page(),
            HugePages::System | HugePages::Explicit(_) => false,
        }
    }

    /// Returns whether transparent huge pages are requested for a part when the source gives it. With [`HugePages::Auto`] this is done
    /// only for memory that is resident at once, and for a memfd. For other memory they are requested when it is used.
    fn is_huge(&self, part: Part) -> bool {
        let at_once = self.rules.populate || self.rules.lock || self.backing.is_some();
        let is_large = self.used > HostBuilder::SMALL_BYTES && part.bytes > os::transparent_huge_page();
        (is_large && at_once || self.rules.huge == HugePages::Transparent) && self.may_be_huge()
    }

    /// Returns the part of a range that a call names, if the range belongs to this source and the part consists of whole
    /// pages inside it.
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

    /// Unmaps a mapping, or keeps it for later if the system cannot unmap it.
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

    /// Maps a segment and applies the memory settings to it.
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
