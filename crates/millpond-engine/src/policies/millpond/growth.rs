//! How the policy gets pages: creating them up to a little more than the program has ever needed at
//! once, and beyond that moving free ones.

use super::pages::Pages;
use super::{Area, Held, Millpond};
use crate::error::SourceError;
use crate::index::Entry;
use crate::space::{BlockId, State};
use crate::supply::Supply;
use std::collections::BTreeMap;

/// Addresses of a range where the device has no limit.
const UNLIMITED_RANGE: u64 = 1 << 46;

/// Free memory being put together for one request: an unlisted block that grows into the addresses
/// without memory beside it.
struct Site {
    list: u32,
    block: Option<BlockId>,
    hole: Option<BlockId>,
    /// What is free on the other side of the hole, unlisted too, so that its pages stay there.
    beyond: Option<BlockId>,
    /// The block lies below the hole and grows up; else above it and grows down.
    upward: bool,
}

impl Millpond {
    pub(super) fn grow(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        if !supply.is_paged() {
            return self.grow_plain(supply, number, bytes);
        }
        match self.grow_paged(supply, number, bytes, false) {
            Err(error) if error.is_out_of_memory() => {}
            outcome => return outcome,
        }
        self.recover(supply);
        if let Some(id) = self.find(supply, number, bytes) {
            return Ok(id);
        }
        self.grow_paged(supply, number, bytes, true)
    }

    /// Waits for the device, takes back what waited for a stream, and joins what several streams freed:
    /// any of them may have it now.
    pub(super) fn recover(&mut self, supply: &mut Supply<'_>) {
        for block in supply.synchronize() {
            self.live -= block.bytes();
            self.lists.put_back(block.key());
        }
        let mut first = BTreeMap::new();
        for (number, list) in self.lists.iter() {
            first.entry(list.area).or_insert(number);
        }
        for number in first.into_values() {
            self.lists.join_streams(number);
        }
    }

    fn grow_plain(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        match self.take_segment(supply, number, bytes) {
            Err(error) if error.is_out_of_memory() => {}
            outcome => return outcome,
        }
        self.recover(supply);
        if let Some(id) = self.find(supply, number, bytes) {
            return Ok(id);
        }
        self.release_free(supply);
        self.take_segment(supply, number, bytes)
    }

    fn take_segment(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        let page = 2 << 20;
        let wanted = match bytes {
            _ if bytes <= 1 << 20 => page,
            _ if bytes < 10 << 20 => 20 << 20,
            _ => bytes.next_multiple_of(page),
        };
        let segment = supply.take(wanted)?;
        let (address, bytes) = (segment.address(), segment.bytes());
        self.held.push(Held::Plain(segment));
        let index = self.held.len() as u32 - 1;
        Ok(self
            .lists
            .space
            .add_segment(address, bytes, index, number, State::Live))
    }

    fn area(&mut self, number: u32) -> &mut Area {
        &mut self.areas[self.lists.get(number).area as usize]
    }

    fn unmapped_entry(&self, id: BlockId) -> Entry {
        Entry {
            bytes: self.lists.space.bytes(id),
            address: self.lists.space.address(id),
            id,
        }
    }

    /// New addresses.
    fn add_range(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        let page = supply.page_bytes();
        let addresses = supply.capacity().map_or(UNLIMITED_RANGE, |c| c.saturating_mul(8));
        let addresses = addresses.max(bytes).next_multiple_of(page);
        let range = supply.reserve(addresses)?;
        let (address, bytes) = (range.address(), range.bytes());
        self.held.push(Held::Paged {
            range,
            pages: Pages::new(page),
        });
        let index = self.held.len() as u32 - 1;
        let id = self
            .lists
            .space
            .add_segment(address, bytes, index, number, State::Unmapped);
        let entry = self.unmapped_entry(id);
        self.area(number).unmapped.insert(entry);
        Ok(id)
    }

    /// The place where the fewest pages are missing for a request.
    fn choose_site(&mut self, supply: &mut Supply<'_>, number: u32, bytes: u64) -> Result<Site, SourceError> {
        let page = supply.page_bytes();
        let wanted = bytes.next_multiple_of(page);
        let mut best: Option<(u64, u64, BlockId, bool)> = None;
        for entry in self.areas[self.lists.get(number).area as usize].unmapped.iter() {
            let space = &self.lists.space;
            let free = |n: Option<BlockId>| {
                n.filter(|n| space.state(*n) == State::Free && space.owner(*n) == number)
                    .map_or(0, |n| space.bytes(n))
            };
            let (front, back) = (free(space.prev(entry.id)), free(space.next(entry.id)));
            if front + entry.bytes + back < bytes {
                continue;
            }
            let up = bytes
                .saturating_sub(front)
                .next_multiple_of(page)
                .min(entry.bytes);
            let down = bytes.saturating_sub(back).next_multiple_of(page).min(entry.bytes);
            let candidate = (up.min(down), entry.address, entry.id, up <= down);
            if best.is_none_or(|b| (candidate.0, candidate.1) < (b.0, b.1)) {
                best = Some(candidate);
            }
        }
        let (hole, upward) = match best {
            Some((.., id, upward)) => (id, upward),
            None => (self.add_range(supply, number, wanted)?, true),
        };
        Ok(self.open(number, hole, upward))
    }

    /// The addresses behind everything.
    fn open_last(&mut self, supply: &mut Supply<'_>, number: u32, bytes: u64) -> Result<Site, SourceError> {
        let wanted = bytes.next_multiple_of(supply.page_bytes());
        let largest = self.area(number).unmapped.largest();
        let hole = match largest.filter(|e| e.bytes >= wanted) {
            Some(entry) => entry.id,
            None => self.add_range(supply, number, wanted)?,
        };
        Ok(self.open(number, hole, true))
    }

    fn open(&mut self, number: u32, hole: BlockId, upward: bool) -> Site {
        self.lists.space.set_owner(hole, number);
        let (prev, next) = (self.lists.space.prev(hole), self.lists.space.next(hole));
        let mut beside = [prev, next].map(|n| self.lists.joins(hole, n));
        for block in beside.into_iter().flatten() {
            self.lists.unlist(block);
            self.lists.space.set_state(block, State::Live);
        }
        if !upward {
            beside.reverse();
        }
        Site {
            list: number,
            block: beside[0],
            hole: Some(hole),
            beyond: beside[1],
            upward,
        }
    }

    /// Where the next `bytes` of the hole begin, as address and segment.
    fn next_place(&self, site: &Site, bytes: u64) -> Option<(u64, usize)> {
        let space = &self.lists.space;
        let hole = site.hole?;
        let address = if site.upward {
            space.address(hole)
        } else {
            space.end(hole) - bytes
        };
        Some((address, space.segment(hole) as usize))
    }

    /// Notes that the next bytes of the hole are backed now, and joins them to the block.
    fn advance(&mut self, site: &mut Site, bytes: u64) {
        let Some(hole) = site.hole else { return };
        let entry = self.unmapped_entry(hole);
        self.area(site.list).unmapped.remove(entry.bytes, entry.address);
        let space = &mut self.lists.space;
        let whole = space.bytes(hole);
        let (new, rest) = if bytes >= whole {
            (hole, None)
        } else if site.upward {
            (hole, Some(space.split(hole, bytes)))
        } else {
            (space.split(hole, whole - bytes), Some(hole))
        };
        space.set_state(new, State::Live);
        space.set_owner(new, site.list);
        site.hole = rest;
        site.block = Some(match site.block {
            Some(block) if site.upward => {
                space.merge_next(block);
                block
            }
            Some(_) => {
                space.merge_next(new);
                new
            }
            None => new,
        });
        if let Some(rest) = rest {
            let entry = self.unmapped_entry(rest);
            self.area(site.list).unmapped.insert(entry);
            return;
        }
        // The hole is full: what lies free on its other side belongs to it now.
        let Some(block) = site.block else { return };
        if let Some(other) = site.beyond.take() {
            let (first, _) = if site.upward {
                (block, other)
            } else {
                (other, block)
            };
            self.lists.space.merge_next(first);
            site.block = Some(first);
        }
    }

    fn site_bytes(&self, site: &Site) -> u64 {
        site.block.map_or(0, |f| self.lists.space.bytes(f))
    }

    fn hole_bytes(&self, site: &Site) -> u64 {
        site.hole.map_or(0, |f| self.lists.space.bytes(f))
    }

    fn grow_paged(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
        scarce: bool,
    ) -> Result<BlockId, SourceError> {
        let mut site = self.choose_site(supply, number, bytes)?;
        let mut outcome = Ok(());
        if self.should_move(supply, self.missing(&site, bytes), bytes, scarce) {
            let need = self.missing(&site, bytes);
            self.stalls += 1;
            let before = self.moved;
            outcome = self.gather(supply, &mut site, need);
            let need = self.missing(&site, bytes);
            if outcome.is_ok() && need > self.allowance(supply, bytes, scarce) {
                // No handle fits this hole: at the end there is room for any.
                self.close(&mut site);
                site = self.open_last(supply, number, bytes)?;
                let need = self.missing(&site, bytes);
                outcome = self.gather(supply, &mut site, need);
            }
            if self.moved == before {
                self.stalls -= 1;
            }
        }
        if outcome.is_ok() {
            outcome = self.create_missing(supply, &mut site, bytes, scarce);
        }
        if let Some(beyond) = site.beyond.take() {
            self.lists.put_back(beyond);
        }
        match (outcome, site.block) {
            (Ok(()), Some(block)) => Ok(block),
            (outcome, block) => {
                if let Some(block) = block {
                    self.lists.put_back(block);
                }
                Err(outcome
                    .err()
                    .unwrap_or(SourceError::AddressSpace { requested: bytes }))
            }
        }
    }

    /// Lists what a site holds.
    fn close(&mut self, site: &mut Site) {
        for block in [site.block.take(), site.beyond.take()].into_iter().flatten() {
            self.lists.put_back(block);
        }
    }

    /// Bytes of pages a site still needs for a request.
    fn missing(&self, site: &Site, bytes: u64) -> u64 {
        let missing = bytes.saturating_sub(self.site_bytes(site));
        missing.next_multiple_of(self.page).min(self.hole_bytes(site))
    }

    /// Bytes that may be created for a request.
    fn allowance(&self, supply: &Supply<'_>, bytes: u64, scarce: bool) -> u64 {
        if scarce {
            return supply.free_bytes().unwrap_or(u64::MAX);
        }
        // While the program's need grows, what is free now will mostly be used; later it will not.
        let rising = self.live + bytes > self.peak;
        let peak = self.peak.max(self.live + bytes);
        let permille = if rising {
            self.conf.rising_permille
        } else {
            self.conf.slack_permille
        };
        let slack = (peak / 1000 * permille).max(4 << 20);
        (peak + slack).saturating_sub(supply.reserved())
    }

    fn should_move(&self, supply: &Supply<'_>, need: u64, bytes: u64, scarce: bool) -> bool {
        let allowance = self.allowance(supply, bytes, scarce);
        if need <= allowance {
            return false;
        }
        let stalls = self.conf.stalls + self.allocations / self.conf.stall_every;
        let moved = (supply.reserved() as f64 * self.conf.moved_share) as u64;
        let large = need >= self.peak / 100 && self.stalls < 2 * stalls;
        // Where moving has not kept memory together so far, it will not.
        let helps = supply.reserved() - self.peak.min(supply.reserved()) <= self.peak / self.conf.batch;
        scarce || (helps && (self.stalls < stalls || large) && self.moved + need <= moved)
    }

    fn create_missing(
        &mut self,
        supply: &mut Supply<'_>,
        site: &mut Site,
        bytes: u64,
        scarce: bool,
    ) -> Result<(), SourceError> {
        let page = self.page;
        let need = self.missing(site, bytes);
        if need == 0 {
            return Ok(());
        }
        let allowance = self.allowance(supply, bytes, scarce);
        let share = (supply.reserved() / self.conf.handle_share).next_multiple_of(page);
        let handle = self.conf.handle_bytes.min(share).max(page);
        let ahead = handle.min(allowance).min(self.hole_bytes(site)) / page * page;
        let wanted = need.max(ahead);
        let count = wanted.div_ceil(handle);
        let mut handle = wanted.div_ceil(count).next_multiple_of(page);
        if handle * count > self.hole_bytes(site) {
            handle = page;
        }
        self.create(supply, site, wanted.next_multiple_of(handle), handle)
    }

    /// New pages for the block.
    fn create(
        &mut self,
        supply: &mut Supply<'_>,
        site: &mut Site,
        bytes: u64,
        handle: u64,
    ) -> Result<(), SourceError> {
        let Some((address, index)) = self.next_place(site, bytes) else {
            return Ok(());
        };
        let Held::Paged { range, pages } = &mut self.held[index] else {
            return Ok(());
        };
        let offset = address - range.address();
        supply.commit(range, offset, bytes, handle)?;
        pages.map(offset, bytes, handle);
        self.advance(site, bytes);
        Ok(())
    }

    /// Moves whole free handles to the site, `bytes` of them if there are so many.
    fn gather(&mut self, supply: &mut Supply<'_>, site: &mut Site, bytes: u64) -> Result<(), SourceError> {
        let group = self.area(site.list).group;
        let before = self.moved;
        while self.moved - before < bytes {
            let room = self.hole_bytes(site);
            let lists = self
                .lists
                .iter()
                .filter(|(_, l)| self.areas[l.area as usize].group == group);
            let largest = lists.filter_map(|(_, l)| l.free.largest());
            let Some(source) = largest.max_by_key(|e| (e.bytes, e.address)) else {
                break;
            };
            let from = self.lists.space.segment(source.id) as usize;
            let Held::Paged { range, pages } = &self.held[from] else {
                break;
            };
            let base = range.address();
            let (first, last) = (source.address - base, source.address + source.bytes - base);
            let Some((start, end)) = pages.whole(first, last) else {
                break;
            };
            let mut end = pages.at_least(start, bytes - (self.moved - before)).min(end);
            while end - start > room {
                end = pages.before(end);
            }
            if end <= start {
                break;
            }
            let Some((target, to)) = self.next_place(site, end - start) else {
                break;
            };
            let Held::Paged { range: into, .. } = &self.held[to] else {
                break;
            };
            let mut at = target - into.address();
            supply.move_pages((range, start), (into, at), end - start)?;
            let sizes = match &mut self.held[from] {
                Held::Paged { pages, .. } => pages.unmap(start, end - start),
                _ => Vec::new(),
            };
            if let Held::Paged { pages, .. } = &mut self.held[to] {
                for size in sizes {
                    pages.map(at, size, size);
                    at += size;
                }
            }
            self.advance(site, end - start);
            let (hole, joined) = self.vacate(source.id, base + start, base + end);
            if joined.is_some() && joined == site.hole {
                site.hole = Some(hole);
            }
            self.moved += end - start;
        }
        Ok(())
    }

    /// Cuts a part without pages out of a listed free block; answers the hole it became part of, and
    /// the hole whose name ended by it.
    fn vacate(&mut self, id: BlockId, start: u64, end: u64) -> (BlockId, Option<BlockId>) {
        self.lists.unlist(id);
        let mut id = id;
        let space = &mut self.lists.space;
        if space.address(id) < start {
            let after = space.split(id, start - space.address(id));
            self.lists.list(id);
            id = after;
        }
        let space = &mut self.lists.space;
        if end < space.end(id) {
            let after = space.split(id, end - start);
            self.lists.list(after);
        }
        let space = &mut self.lists.space;
        space.set_state(id, State::Unmapped);
        let number = space.owner(id);
        let prev = space.prev(id).filter(|p| space.state(*p) == State::Unmapped);
        let next = space.next(id).filter(|n| space.state(*n) == State::Unmapped);
        if let Some(prev) = prev {
            let entry = self.unmapped_entry(prev);
            self.area(number).unmapped.remove(entry.bytes, entry.address);
            self.lists.space.merge_next(prev);
            id = prev;
        }
        if let Some(next) = next {
            let entry = self.unmapped_entry(next);
            self.area(number).unmapped.remove(entry.bytes, entry.address);
            self.lists.space.merge_next(id);
        }
        let entry = self.unmapped_entry(id);
        self.area(number).unmapped.insert(entry);
        (id, next)
    }

    /// Gives back every free whole handle and every wholly free segment.
    pub(super) fn release_free(&mut self, supply: &mut Supply<'_>) {
        let free: Vec<Entry> = self.lists.iter().flat_map(|(_, l)| l.free.iter()).collect();
        for entry in free {
            let index = self.lists.space.segment(entry.id) as usize;
            match &mut self.held[index] {
                Held::Paged { range, pages } => {
                    let base = range.address();
                    let Some((start, end)) =
                        pages.whole(entry.address - base, entry.address + entry.bytes - base)
                    else {
                        continue;
                    };
                    supply.decommit(range, start, end - start);
                    pages.unmap(start, end - start);
                    self.vacate(entry.id, base + start, base + end);
                }
                held @ Held::Plain(_) if self.lists.space.is_whole(entry.id) => {
                    self.lists.unlist(entry.id);
                    self.lists.space.remove_segment(entry.id);
                    if let Held::Plain(segment) = std::mem::replace(held, Held::Gone) {
                        supply.give(segment);
                    }
                }
                _ => {}
            }
        }
    }

    pub(super) fn check_pages(&self) {
        let space = &self.lists.space;
        for held in &self.held {
            if let Held::Paged { pages, .. } = held {
                pages.check();
            }
        }
        let listed: usize = self.areas.iter().map(|a| a.unmapped.len()).sum();
        let there = space
            .ids()
            .filter(|id| space.state(*id) == State::Unmapped)
            .count();
        assert_eq!(listed, there, "unmapped blocks that no index holds");
        for entry in self.areas.iter().flat_map(|a| a.unmapped.iter()) {
            assert_eq!(
                space.state(entry.id),
                State::Unmapped,
                "{entry:?} is indexed and mapped"
            );
            assert_eq!(
                (space.bytes(entry.id), space.address(entry.id)),
                (entry.bytes, entry.address)
            );
        }
    }
}
