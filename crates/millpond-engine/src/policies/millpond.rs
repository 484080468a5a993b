//! `millpond`, the default: best fit over pages that move before memory outgrows what the program needs.
//!
//! Every stream of every group has one free list, small and large together, searched for the best fit,
//! lowest address first among equals, as far as a bounded look goes ([`index`](crate::index)). All lists of
//! a group share their addresses; a free block joins its neighbours of the same stream.
//!
//! ```text
//!   best fit on the own stream          no call at all
//!   best fit on another stream          the taker waits for it on the device
//!   new pages, while memory may grow    create, map, set access
//!   free pages moved to one place       a stall: the host waits
//!   device full: wait, look again, move whatever is free, give back what does not fit
//! ```
//!
//! *May grow* is the point: up to the most the program has held at once, and a little more
//! ([`growth`]). Past that, a request that no free block serves is put together where the fewest pages
//! are missing ([`site`]), from whole handles inside other free blocks ([`moves`]): addresses are plenty,
//! memory is not. Live blocks never move.
//!
//! On a device without pages it is best fit over whole segments: a page for a small request, twelve for one
//! below ten megabytes, and else what is asked for.
//!
//! Free memory stays until a device is full, a compaction is asked for ([`compact`]), or time passes that did not
//! need it ([`retain`]).
//!
//! Small blocks are not kept apart: measured over the recordings that lost on every count, because a
//! second pool is a second set of pages that only its own requests fill (`docs/placement.md`).

mod compact;
mod growth;
mod handles;
mod lend;
mod lists;
mod moves;
mod pages;
mod retain;
mod site;
#[cfg(test)]
mod tests;

use crate::block::{Block, Group, Request, Stream};
use crate::conf::{MillpondConf, RetainConf};
use crate::index::{Search, SizeIndex};
use crate::policy::{Fidelity, Mark, Policy, Refusal};
use crate::source::{Range, Segment};
use crate::space::{BlockId, Piece};
use crate::supply::Supply;
use handles::Handles;
pub(super) use lend::Part;
use lists::Lists;
use pages::Pages;
use retain::Retain;

/// Sizes and addresses are multiples of it.
const MIN_BLOCK: u64 = 256;
/// No request above this can be served by any device.
const LIMIT: u64 = 1 << 46;

/// Keys from here on name blocks of a policy around this one.
pub(super) const FOREIGN: u32 = 1 << 31;

/// Where the blocks of one size class of one group lie.
struct Area {
    group: Group,
    /// Addresses without memory, by bytes.
    unmapped: SizeIndex,
}

/// Where a segment of the [`Space`](crate::Space) came from.
enum Held {
    Paged { range: Range, pages: Pages },
    Plain(Segment),
    Gone,
}

/// See the module.
pub struct Millpond {
    conf: MillpondConf,
    lists: Lists,
    areas: Vec<Area>,
    /// The list last asked for: programs seldom change their stream.
    recent: Option<(Group, Stream, u32)>,
    held: Vec<Held>,
    handles: Handles,
    retain: Retain,
    /// Bytes of live blocks, and the most there have been.
    live: u64,
    peak: u64,
    allocations: u64,
    /// Whether the last of them, undone and made again, would be served the same: from its own list, to which its block
    /// goes back, in the same order.
    repeats: bool,
    /// Allocations in which pages moved.
    stalls: u64,
    /// Bytes of pages moved.
    moved: u64,
    page: u64,
    /// Blocks of a policy around this one that were found waiting for a stream.
    pub(super) foreign: Vec<Block>,
}

impl Millpond {
    /// With these settings.
    #[must_use]
    pub fn new(conf: &MillpondConf) -> Self {
        Self {
            conf: conf.clone(),
            lists: Lists::default(),
            areas: Vec::new(),
            recent: None,
            held: Vec::new(),
            handles: Handles::new(conf.handle_bytes),
            retain: Retain::default(),
            live: 0,
            peak: 0,
            allocations: 0,
            repeats: false,
            stalls: 0,
            moved: 0,
            page: 2 << 20,
            foreign: Vec::new(),
        }
    }

    /// The list of a stream in a group, made on first use.
    #[inline]
    fn list_of(&mut self, group: Group, stream: Stream) -> u32 {
        match self.recent {
            Some((of, on, number)) if (of, on) == (group, stream) => number,
            _ => self.look_up_list(group, stream),
        }
    }

    #[cold]
    fn look_up_list(&mut self, group: Group, stream: Stream) -> u32 {
        let area = self.areas.iter().position(|a| a.group == group);
        let area = area.unwrap_or_else(|| {
            self.areas.push(Area {
                group,
                unmapped: SizeIndex::new(),
            });
            self.areas.len() - 1
        });
        let number = self.lists.number(area as u32, stream);
        self.recent = Some((group, stream, number));
        number
    }

    /// A fitting free block of another stream, which this one is made to wait for.
    fn take_foreign(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
        search: Search,
    ) -> Option<BlockId> {
        let (area, stream) = (self.lists.get(number).area, self.lists.get(number).stream);
        // Lists of streams that nobody can be made to wait for now.
        let mut out_of_reach = Vec::new();
        loop {
            let others = self.lists.iter().filter(|(n, l)| *n != number && l.area == area);
            let others = others.filter(|(n, _)| !out_of_reach.contains(n));
            let fits = others.filter_map(|(n, l)| {
                let entry = self.lists.fit(n, bytes, search)?;
                Some((entry.bytes, entry.address, n, l.stream))
            });
            let (.., other, owner) = fits.min_by_key(|(bytes, address, ..)| (*bytes, *address))?;
            if supply.can_wait_for(owner) {
                supply.order_after(stream, owner, None);
                return self.lists.take_fit(other, bytes, search);
            }
            out_of_reach.push(other);
        }
    }

    /// Makes a block free that no stream uses any more.
    #[inline]
    fn take_in(&mut self, block: &Block) {
        self.live -= block.bytes();
        if self.notes_use() {
            self.note_use(block.key());
        }
        self.lists.put_back(block.key());
    }

    #[inline]
    fn find(&mut self, supply: &mut Supply<'_>, number: u32, bytes: u64, search: Search) -> Option<BlockId> {
        let own = self.lists.take_fit(number, bytes, search);
        self.repeats = own.is_some();
        own.or_else(|| self.take_foreign(supply, number, bytes, search))
    }
}

impl Policy for Millpond {
    fn name(&self) -> &'static str {
        "millpond"
    }

    fn fidelity(&self) -> Fidelity {
        Fidelity::Original
    }

    fn allocate(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal> {
        if request.bytes > LIMIT {
            return Err(Refusal::TooLarge { limit: LIMIT });
        }
        if request.align > MIN_BLOCK && request.align > supply.page_bytes() {
            return Err(Refusal::Alignment {
                most: supply.page_bytes(),
            });
        }
        let bytes = request.bytes.max(1).next_multiple_of(MIN_BLOCK);
        let room = bytes + request.align.saturating_sub(MIN_BLOCK);
        let number = self.list_of(request.group, request.stream);
        let id = match self.find(supply, number, room, Search::Quick) {
            Some(id) => id,
            None => {
                self.keep_to_share(supply);
                self.grow(supply, number, room)?
            }
        };
        let order = self.lists.order();
        let id = self.lists.cut(id, request.align, bytes, number);
        self.repeats &= self.lists.order() == order;
        self.live += self.lists.space.bytes(id);
        self.allocations += 1;
        self.peak = self.peak.max(self.live);
        Ok(self.lists.block(id, request))
    }

    fn free(&mut self, _supply: &mut Supply<'_>, block: Block) {
        self.take_in(&block);
    }

    fn repeat(&mut self) -> bool {
        self.allocations += u64::from(self.repeats);
        self.repeats
    }

    fn mark(&mut self, supply: &mut Supply<'_>, mark: Mark) {
        self.pass_time(supply, mark.ticks());
    }

    fn release_cached(&mut self, supply: &mut Supply<'_>) {
        self.compact_now(supply);
    }

    fn set_retain(&mut self, retain: &RetainConf) -> bool {
        self.conf.retain = retain.clone();
        true
    }

    fn returnable_bytes(&self) -> u64 {
        self.whole_free_bytes()
    }

    fn expect_blocks(&mut self, blocks: usize) {
        self.lists.expect(blocks);
    }

    fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        self.lists.space.layout(visit);
    }

    fn check(&self) {
        self.lists.check();
        self.check_pages();
    }
}
