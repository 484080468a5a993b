//! Follows a plan.
//!
//! ```text
//!   address ^   |  a  |   c   |        a slot is allocated only if its predecessors are free:
//!           |   |-----+-------|        the slots that last used any of its addresses before it,
//!           |   |   b   |  d  |        in circular time. The predecessor of c is a, of d is b,
//!           +-----------------> time   of a is c, of b is d.
//! ```
//!
//! Frees may be late or early, and requests may be missing or unexpected. The plan is followed by the order of
//! allocations alone, and a slot is allocated only if its *predecessors* are free. A slot that was not allocated at its
//! turn because a predecessor was live is *barred*. A slot with a barred predecessor cannot rely on that predecessor's
//! state, so it checks all live slots. At most one slot is therefore live at any address. A slot that is free and not
//! barred found its addresses free at its last turn, and no slot there has had a turn since.
//!
//! The relation between slots and predecessors is a planar graph, so a slot has at most three predecessors on average.
//! The checks therefore take constant time on average over a step.
//!
//! A slot of another stream is reused after a wait on the device. One wait covers all blocks that were freed before it.
//!
//! Sizes may change from step to step, for example if batches have several lengths. Each slot has the largest size that
//! an earlier step requested there. A smaller request is served there too. A larger request *outgrows* its slot. It is
//! served elsewhere, and its size is noted for the next plan. A request may deviate in this way only if the size of its
//! slot has changed before, or if it has nearly the same size. The sizes of all other slots show where in the plan the
//! program is.

use super::super::millpond::LIMIT;
use super::MIN_BLOCK;
use crate::block::{Block, Group, Request, Stream};
use crate::plan::{Plan, Step};
use crate::space::BlockId;
use crate::supply::Supply;
use std::collections::{BTreeMap, BTreeSet};

/// Number of consecutive requests that must match the plan at a later point before it is followed from there.
const AGREE: usize = 6;
/// Maximum number of slots that one request may skip on its own. If the request was an unexpected one that only
/// resembles a later slot, the skipped requests arrive as unexpected ones, and then the plan matches again.
const SKIP: usize = 3;
/// Maximum distance to a later point of the plan.
const AHEAD: usize = 512;
/// A request is of nearly the same size as its slot if they differ by at most this fraction (1/8).
const NEAR: u64 = 8;

/// States of a slot.
const FREE: u8 = 0;
const LIVE: u8 = 1;
/// The slot was not allocated at its turn because one of its predecessors was still live.
const BARRED: u8 = 2;

struct Slot {
    /// The bytes of its place.
    bytes: u64,
    /// The fewest and the most bytes that were requested here.
    least: u64,
    most: u64,
    /// The bytes of the last block that was placed here.
    last: u64,
    /// The address of its place, or `u64::MAX` if the slot has no place.
    address: u64,
    stream: Stream,
    /// Index of its first predecessor in the list of all predecessors. The next slot's index is the end.
    predecessors: u32,
}

/// How a request relates to the plan.
pub(super) enum Next {
    /// The request is the next of the plan, and it was served.
    Placed(Block),
    /// The request is the next of the plan, which has no place for it.
    Unplanned,
    /// The request is the next of the plan, for this slot, but larger than its place.
    Outgrown(usize),
    /// The request is not the next, or its place is not free.
    Odd,
}

/// A part of lent memory.
pub(super) struct Part {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// The slot that is live in this part.
    pub(super) slot: Option<usize>,
}

/// A plan that is being followed.
pub(super) struct Course {
    slots: Vec<Slot>,
    predecessors: Vec<u32>,
    states: Vec<u8>,
    cursor: usize,
    /// The key of the first slot.
    first_key: u32,
    /// The memory lent for the plan.
    pub(super) lent: Vec<Block>,
    /// The lives of the slots, for the next plan.
    lives: Vec<u32>,
    /// Whether a request was larger than all earlier ones for its slot since the last plan was solved.
    has_grown: bool,
    /// Whether a larger step is being solved.
    is_solving: bool,
    /// Whether a round has just ended, and a larger step must be solved or was solved.
    is_due: bool,
    /// Number of rounds that must pass before a larger step is solved.
    rest: u32,
    /// Consecutive requests that were not the next of the plan.
    odd: Vec<(u64, Stream)>,
    /// Number of requests that the plan served, and number that it did not serve.
    pub(super) served: u64,
    pub(super) missed: u64,
    /// Bytes of the blocks that were placed.
    placed: u64,
    order: Option<Order>,
}

/// A record of the waits between streams. It exists only if there are several streams.
struct Order {
    streams: Vec<Stream>,
    /// For each slot, the index of its stream and the time when it was last freed.
    owners: Vec<u16>,
    freed: Vec<u64>,
    /// The time when a stream last waited for another, by taker and owner.
    waited: Vec<u64>,
    now: u64,
}

impl Course {
    /// Creates a course for a plan in lent memory. `lent` has the block for the plan's own region, then the pieces.
    pub(super) fn new(plan: &Plan, lent: Vec<Block>, first_key: u32) -> Self {
        let slots: Vec<(u64, u64)> = plan
            .places
            .iter()
            .zip(&plan.step.slots)
            .map(|(place, slot)| {
                let base = place.and_then(|p| lent.get(p.region as usize).map(|l| l.address() + p.offset));
                (base.unwrap_or(u64::MAX), slot.bytes)
            })
            .collect();
        let before = predecessors(&slots);
        let mut predecessors = Vec::new();
        let mut all = Vec::with_capacity(slots.len() + 1);
        for ((slot, (address, bytes)), before) in plan.step.slots.iter().zip(&slots).zip(before) {
            let at = predecessors.len() as u32;
            all.push(Slot {
                bytes: *bytes,
                least: slot.least,
                most: *bytes,
                last: 0,
                address: *address,
                stream: slot.stream,
                predecessors: at,
            });
            predecessors.extend(before);
        }
        // The last slot is a sentinel, so that every slot's predecessors end where the next slot's begin.
        let end = predecessors.len() as u32;
        all.push(Slot {
            bytes: 0,
            least: 0,
            most: 0,
            last: 0,
            address: u64::MAX,
            stream: Stream::DEFAULT,
            predecessors: end,
        });
        let order = Order::new(plan);
        Self {
            states: vec![FREE; plan.step.period()],
            slots: all,
            predecessors,
            cursor: 0,
            first_key,
            lent,
            lives: plan.step.slots.iter().map(|slot| slot.life).collect(),
            has_grown: false,
            is_solving: false,
            is_due: false,
            rest: 0,
            odd: Vec::new(),
            served: 0,
            missed: 0,
            placed: 0,
            order,
        }
    }

    #[inline]
    fn wants(&self, slot: usize, bytes: u64, stream: Stream) -> bool {
        let slot = &self.slots[slot];
        slot.least <= bytes && bytes <= slot.bytes && slot.stream == stream
    }

    /// Handles a request of a new size at the cursor. Returns `None` if the slot cannot have this size.
    #[cold]
    fn vary(&mut self, supply: &mut Supply<'_>, request: &Request, bytes: u64) -> Option<Next> {
        let slot = &mut self.slots[self.cursor];
        let is_near = bytes.abs_diff(slot.most) <= slot.most / NEAR;
        if slot.stream != request.stream || slot.least == slot.most && !is_near {
            return None;
        }
        slot.least = slot.least.min(bytes);
        self.odd.clear();
        if bytes <= slot.bytes {
            return Some(self.take(supply, request, bytes));
        }
        let at = self.cursor;
        self.skip(supply, 1);
        Some(Next::Outgrown(at))
    }

    /// Returns whether a slot has a place.
    pub(super) fn has_place(&self, slot: usize) -> bool {
        self.slots[slot].address != u64::MAX
    }

    /// Notes a block that was larger than its slot.
    pub(super) fn note_size(&mut self, slot: usize, bytes: u64) {
        let has_life = self.lives[slot] > 0;
        let slot = &mut self.slots[slot];
        if bytes > slot.most {
            slot.most = bytes;
            self.has_grown |= has_life;
        }
    }

    /// Advances the cursor.
    #[inline]
    fn advance(&mut self) {
        self.cursor += 1;
        if self.cursor == self.states.len() {
            self.cursor = 0;
            self.is_due = self.rest == 0 && (self.has_grown || self.is_solving);
            self.rest = self.rest.saturating_sub(1);
        }
    }

    /// Returns whether a round has just ended, and a larger step must be solved or was solved.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Postpones the work that is due to the end of the next round.
    pub(super) fn put_off(&mut self) {
        self.is_due = false;
    }

    /// Marks the step as grown, so that it is solved again.
    pub(super) fn solve_again(&mut self) {
        self.has_grown = true;
    }

    /// Sets how many rounds must pass before a larger step is solved.
    pub(super) fn set_rest(&mut self, rounds: u32) {
        self.rest = rounds;
    }

    /// Handles the end of a round that is due. Returns the step that must be solved during the next round, or `None` if it
    /// was solved during this one.
    pub(super) fn turn(&mut self) -> Option<Step> {
        self.is_due = false;
        self.is_solving = !self.is_solving;
        self.is_solving.then(|| {
            self.has_grown = false;
            let slots = self.slots.iter().zip(&self.lives);
            let slots = slots.map(|(slot, life)| crate::plan::Slot {
                least: slot.least,
                bytes: slot.most,
                stream: slot.stream,
                life: *life,
            });
            Step {
                slots: slots.collect(),
            }
        })
    }

    /// Gives up the plan's memory. The requests are followed without a place until the next plan. Returns the memory,
    /// and the bytes of the blocks that were placed in it.
    pub(super) fn retire(&mut self) -> (Vec<Block>, u64) {
        self.slots.iter_mut().for_each(|slot| slot.address = u64::MAX);
        self.states.fill(FREE);
        self.order = None;
        (std::mem::take(&mut self.lent), std::mem::take(&mut self.placed))
    }

    /// Serves a request if it matches the plan.
    #[inline]
    pub(super) fn next(&mut self, supply: &mut Supply<'_>, request: &Request) -> Next {
        let bytes = request.bytes.max(1).div_ceil(MIN_BLOCK).saturating_mul(MIN_BLOCK);
        if request.group != Group::default() || request.align > MIN_BLOCK || request.bytes > LIMIT {
            return Next::Odd;
        }
        if !self.wants(self.cursor, bytes, request.stream) {
            return match self.vary(supply, request, bytes) {
                Some(next) => next,
                None => self.find_way_back(supply, request, bytes),
            };
        }
        if !self.odd.is_empty() {
            self.odd.clear();
        }
        self.take(supply, request, bytes)
    }

    /// Serves the slot at the cursor and advances the cursor.
    #[inline]
    fn take(&mut self, supply: &mut Supply<'_>, request: &Request, bytes: u64) -> Next {
        let at = self.cursor;
        self.advance();
        if self.slots[at].address == u64::MAX {
            return Next::Unplanned;
        }
        if self.pass(supply, at) != FREE {
            self.missed += 1;
            return Next::Odd;
        }
        self.states[at] = LIVE;
        self.served += 1;
        self.placed += bytes;
        let slot = &mut self.slots[at];
        slot.last = bytes;
        let key = BlockId::from_index(self.first_key + at as u32);
        Next::Placed(Block::new(slot.address, bytes, request, key))
    }

    /// Handles a slot's turn. Returns its state. If the slot is free, its stream waits for the previous users.
    #[inline]
    fn pass(&mut self, supply: &mut Supply<'_>, at: usize) -> u8 {
        if self.states[at] == LIVE {
            return LIVE;
        }
        let before = self.slots[at].predecessors as usize..self.slots[at + 1].predecessors as usize;
        let before = &self.predecessors[before];
        let taken = before
            .iter()
            .fold(FREE, |taken, p| taken | self.states[*p as usize]);
        if taken != FREE {
            return self.pass_barred(supply, at, taken);
        }
        self.states[at] = FREE;
        if let Some(order) = &mut self.order {
            order.after(supply, at, before);
        }
        FREE
    }

    /// Handles the turn of a slot with a live or barred predecessor. If no predecessor is live, checks all live slots for
    /// an overlap.
    #[cold]
    fn pass_barred(&mut self, supply: &mut Supply<'_>, at: usize, taken: u8) -> u8 {
        let (first, end) = (
            self.slots[at].address,
            self.slots[at].address + self.slots[at].bytes,
        );
        let lives = |(slot, state): (&Slot, &u8)| {
            *state == LIVE && slot.address < end && first < slot.address + slot.bytes
        };
        let free = taken & LIVE == 0 && !self.slots.iter().zip(&self.states).any(lives);
        self.states[at] = if free { FREE } else { BARRED };
        if free && let Some(order) = &mut self.order {
            order.after_all(supply, at);
        }
        self.states[at]
    }

    /// Handles a request that is not the next. It checks whether a few slots were skipped, or else whether the last few
    /// unexpected requests match a later point of the plan.
    #[cold]
    fn find_way_back(&mut self, supply: &mut Supply<'_>, request: &Request, bytes: u64) -> Next {
        let period = self.states.len();
        let after = |slot: usize| (self.cursor + slot) % period;
        if let Some(skip) =
            (1..=SKIP.min(period)).find(|skip| self.wants(after(*skip), bytes, request.stream))
        {
            self.skip(supply, skip);
            return self.take(supply, request, bytes);
        }
        self.missed += 1;
        if self.odd.len() == AGREE {
            self.odd.remove(0);
        }
        self.odd.push((bytes, request.stream));
        if self.odd.len() < AGREE {
            return Next::Odd;
        }
        let agrees = |skip: usize| {
            let mut wanted = (skip..).zip(&self.odd);
            wanted.all(|(slot, &(bytes, stream))| self.wants(after(slot), bytes, stream))
        };
        let Some(skip) = (0..period.min(AHEAD)).find(|skip| agrees(*skip)) else {
            return Next::Odd;
        };
        // The last of the unexpected requests is part of the plan again.
        self.skip(supply, skip + AGREE - 1);
        self.odd.clear();
        self.take(supply, request, bytes)
    }

    /// Skips slots.
    fn skip(&mut self, supply: &mut Supply<'_>, slots: usize) {
        for _ in 0..slots {
            let at = self.cursor;
            self.advance();
            if self.slots[at].address != u64::MAX
                && self.pass(supply, at) == FREE
                && let Some(order) = &mut self.order
            {
                // The slot was not used, but the next user must still wait for the previous ones.
                order.freed(at);
            }
        }
    }

    /// Frees a block. Returns whether it belonged to this plan.
    #[inline]
    pub(super) fn free(&mut self, key: BlockId) -> bool {
        let Some(at) = key.index().checked_sub(self.first_key as usize) else {
            return false;
        };
        match self.states.get_mut(at) {
            Some(state) if *state == LIVE => {
                *state = FREE;
                if let Some(order) = &mut self.order {
                    order.freed(at);
                }
                true
            }
            _ => false,
        }
    }

    /// Returns the number of whole periods served.
    pub(super) fn rounds(&self) -> u64 {
        self.served / self.states.len().max(1) as u64
    }

    /// Returns whether too few of the recent requests matched the plan.
    pub(super) fn is_lost(&self) -> bool {
        self.missed > 16 + (self.served + self.missed) / 4
    }

    /// Returns the streams other than the default one that use the plan's memory.
    pub(super) fn streams(&self) -> BTreeSet<Stream> {
        let streams = self.slots.iter().map(|slot| slot.stream);
        streams.filter(|stream| *stream != Stream::DEFAULT).collect()
    }

    /// Returns the key of a slot's block.
    pub(super) fn key(&self, slot: usize) -> u32 {
        self.first_key + slot as u32
    }

    pub(super) fn stream(&self, slot: usize) -> Stream {
        self.slots[slot].stream
    }

    /// Returns the parts of every lent block, by its address. The parts cover the block.
    pub(super) fn by_address(&self) -> BTreeMap<u64, Vec<Part>> {
        let mut live: Vec<(u64, usize)> = (0..self.states.len())
            .filter(|i| self.states[*i] == LIVE)
            .map(|i| (self.slots[i].address, i))
            .collect();
        live.sort_unstable();
        let mut found = BTreeMap::new();
        for lent in &self.lent {
            let (mut at, end) = (lent.address(), lent.address() + lent.bytes());
            let first = live.partition_point(|(address, _)| *address < at);
            let mut parts = Vec::new();
            for &(address, slot) in live[first..].iter().take_while(|(address, _)| *address < end) {
                if at < address {
                    parts.push(Part {
                        address: at,
                        bytes: address - at,
                        slot: None,
                    });
                }
                let bytes = self.slots[slot].last;
                parts.push(Part {
                    address,
                    bytes,
                    slot: Some(slot),
                });
                at = address + bytes;
            }
            if at < end {
                parts.push(Part {
                    address: at,
                    bytes: end - at,
                    slot: None,
                });
            }
            found.insert(lent.address(), parts);
        }
        found
    }

    /// Asserts that live slots do not overlap and lie inside the lent memory.
    pub(super) fn check(&self) {
        let mut live = 0;
        for (address, parts) in self.by_address() {
            let mut at = address;
            for part in &parts {
                assert_eq!(
                    part.address, at,
                    "live slots of the plan overlap, or one sticks out"
                );
                at += part.bytes;
                live += usize::from(part.slot.is_some());
            }
            let lent = self
                .lent
                .iter()
                .find(|l| l.address() == address)
                .map(|l| l.address() + l.bytes());
            assert_eq!(lent, Some(at), "parts of lent memory do not tile it");
        }
        assert_eq!(
            live,
            self.states.iter().filter(|s| **s == LIVE).count(),
            "live slots outside"
        );
    }
}

impl Order {
    fn new(plan: &Plan) -> Option<Self> {
        let mut streams: Vec<Stream> = plan
            .step
            .slots
            .iter()
            .filter(|s| s.is_planned())
            .map(|s| s.stream)
            .collect();
        streams.sort_unstable();
        streams.dedup();
        if streams.len() < 2 || streams.len() > usize::from(u16::MAX) {
            return None;
        }
        let owner = |stream: Stream| streams.binary_search(&stream).unwrap_or(0) as u16;
        Some(Self {
            owners: plan.step.slots.iter().map(|s| owner(s.stream)).collect(),
            freed: vec![0; plan.step.period()],
            waited: vec![0; streams.len() * streams.len()],
            streams,
            now: 1,
        })
    }

    /// Makes a slot's stream wait for every stream that used its place.
    #[inline]
    fn after(&mut self, supply: &mut Supply<'_>, slot: usize, predecessors: &[u32]) {
        let taker = usize::from(self.owners[slot]);
        for &before in predecessors {
            let owner = usize::from(self.owners[before as usize]);
            let waited = &mut self.waited[taker * self.streams.len() + owner];
            if owner != taker && *waited < self.freed[before as usize] {
                *waited = self.now;
                self.now += 1;
                supply.order_after(self.streams[taker], self.streams[owner], None);
            }
        }
    }

    /// Makes a slot's stream wait for every other stream.
    fn after_all(&mut self, supply: &mut Supply<'_>, slot: usize) {
        let taker = usize::from(self.owners[slot]);
        for owner in (0..self.streams.len()).filter(|owner| *owner != taker) {
            self.waited[taker * self.streams.len() + owner] = self.now;
            self.now += 1;
            supply.order_after(self.streams[taker], self.streams[owner], None);
        }
    }

    #[inline]
    fn freed(&mut self, slot: usize) {
        self.freed[slot] = self.now;
        self.now += 1;
    }
}

/// Returns for each slot the slots that last held any of its addresses before its turn, in circular time.
fn predecessors(slots: &[(u64, u64)]) -> Vec<Vec<u32>> {
    // Maps the start of an address range to its end and the slot that last held it.
    let mut last: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
    let mut found = vec![Vec::new(); slots.len()];
    for round in 0..2 {
        for (at, &(address, bytes)) in slots.iter().enumerate().filter(|(_, s)| s.0 != u64::MAX) {
            let end = address + bytes;
            let first = last
                .range(..address)
                .next_back()
                .filter(|(_, (e, _))| *e > address)
                .map(|(s, _)| *s);
            let touched: Vec<(u64, (u64, u32))> = last
                .range(first.unwrap_or(address)..end)
                .map(|(s, v)| (*s, *v))
                .collect();
            for (start, (stop, slot)) in touched {
                last.remove(&start);
                if start < address {
                    last.insert(start, (address, slot));
                }
                if end < stop {
                    last.insert(end, (stop, slot));
                }
                if round == 1 && slot != at as u32 {
                    found[at].push(slot);
                }
            }
            last.insert(address, (end, at as u32));
            found[at].sort_unstable();
            found[at].dedup();
        }
    }
    found
}
