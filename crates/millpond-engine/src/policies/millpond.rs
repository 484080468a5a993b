//! `millpond`, the default: best fit over pages that are mapped again before memory outgrows the program's need.
//!
//! Every stream of every group has one free list for small and large blocks. The search finds the best fit with the
//! lowest address among equals, within a bounded number of blocks ([`index`](crate::index)). All lists of a group share
//! their addresses. A free block is joined with its neighbours of the same stream.
//!
//! ```text
//!   best fit on the own stream          no call at all
//!   best fit on another stream          the taker waits for it on the device
//!   new pages, while memory may grow    create, map, set access
//!   free pages mapped at one place      map, set access; the host does not wait
//!   device full: wait, search again, map all free pages, return what does not fit
//!   with relocate:on: replace the pages under live blocks
//! ```
//!
//! Memory may grow up to the most bytes that the program has held at once ([`growth`]). Beyond that, a request that no
//! free block serves gets a place where the fewest pages are missing ([`site`]). Whole handles inside other free blocks
//! are mapped there ([`moves`]). This uses more addresses but no more memory. Live blocks never move.
//!
//! On a device without pages the policy is best fit over whole segments. A segment has one page for a small request and
//! twelve pages for a request below ten megabytes. For larger requests it has the requested size.
//!
//! Free memory is kept until the device is full, a compaction is requested ([`compact`]), or the memory is not needed
//! for some time ([`retain`]).
//!
//! Small blocks do not have a pool of their own. On the recordings a second pool was worse by every measure, because
//! only its own requests can use its pages (`docs/placement.md`).

mod compact;
mod growth;
mod lend;
mod lists;
mod moves;
mod pages;
mod relocate;
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
pub(super) use growth::SLACK_PAGES;
pub(super) use lend::Part;
use lists::Lists;
use pages::Pages;
use retain::Retain;

/// Sizes and addresses are multiples of this.
const MIN_BLOCK: u64 = 256;
/// No device can serve a request above this size.
pub(super) const LIMIT: u64 = 1 << 46;

/// Keys of at least this value identify blocks of an enclosing policy.
pub(super) const FOREIGN: u32 = 1 << 31;

/// The addresses of one group.
struct Area {
    group: Group,
    /// Addresses without memory, by size.
    unmapped: SizeIndex,
}

/// The origin of a segment of the [`Space`](crate::Space).
enum Held {
    Paged { range: Range, pages: Pages },
    Plain(Segment),
    Gone,
}

/// The `millpond` policy. The module describes its rules.
pub struct Millpond {
    conf: MillpondConf,
    lists: Lists,
    areas: Vec<Area>,
    /// The most recently used list. Programs rarely change their stream.
    recent: Option<(Group, Stream, u32)>,
    held: Vec<Held>,
    retain: Retain,
    /// Bytes of live blocks, and their peak.
    live: u64,
    peak: u64,
    /// Bytes lent to an enclosing policy. The blocks that it places there do not count as live.
    lent: u64,
    /// Bytes allocated in total.
    allocated: u64,
    /// Whether a free and a repetition of the last allocation would return the same block. This holds if the block came
    /// from its own list, returns there, and the search order stays the same.
    repeats: bool,
    /// Bytes of pages that were moved for single requests.
    moved: u64,
    page: u64,
    /// Blocks of an enclosing policy that were waiting for a stream.
    pub(super) foreign: Vec<Block>,
}

impl Millpond {
    /// Creates the policy with these settings.
    #[must_use]
    pub fn new(conf: &MillpondConf) -> Self {
        Self {
            conf: conf.clone(),
            lists: Lists::default(),
            areas: Vec::new(),
            recent: None,
            held: Vec::new(),
            retain: Retain::default(),
            live: 0,
            peak: 0,
            lent: 0,
            allocated: 0,
            repeats: false,
            moved: 0,
            page: 2 << 20,
            foreign: Vec::new(),
        }
    }

    /// Returns the list of a stream in a group. The first use creates the list.
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

    /// Takes a fitting free block of another stream and makes the requesting stream wait for that stream.
    fn take_foreign(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
        search: Search,
    ) -> Option<BlockId> {
        let (area, stream) = (self.lists.get(number).area, self.lists.get(number).stream);
        // Lists of streams for which a wait is not possible now.
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

    /// Frees a block that no stream uses any more.
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
        self.allocated += bytes;
        self.peak = self.peak.max(self.live);
        Ok(self.lists.block(id, request))
    }

    fn free(&mut self, _supply: &mut Supply<'_>, block: Block) {
        self.take_in(&block);
    }

    fn repeat(&mut self) -> bool {
        self.repeats
    }

    fn mark(&mut self, supply: &mut Supply<'_>, mark: Mark) {
        self.pass_time(supply, mark.ticks());
    }

    fn release_cached(&mut self, supply: &mut Supply<'_>) {
        self.recover(supply);
        self.release_free(supply);
    }

    fn compact(&mut self, supply: &mut Supply<'_>) {
        self.release_cached(supply);
        self.relocate_all(supply);
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
