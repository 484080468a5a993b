//! Reserves pages. The policy creates pages up to a little more than the program's peak. Beyond that it moves free
//! pages.
//!
//! While the program's need rises, memory may exceed it by [`rising`](crate::MillpondConf). Free memory is then usually
//! used soon, so moving it would gain nothing. If the need was higher before, growth is only fragmentation, and the
//! allowance is small.
//!
//! Moves are limited in number and in bytes, and they stop if they have not helped. Otherwise an irregular program
//! would move pages for ever. Such a program may grow until its fragmentation exceeds
//! [`compact_at_percent`](crate::RetainConf). From there on, pages are moved again.

use super::site::Site;
use super::{FOREIGN, Held, Millpond};
use crate::error::SourceError;
use crate::index::Search;
use crate::space::{BlockId, State};
use crate::supply::Supply;
use std::collections::BTreeMap;

/// Number of pages by which memory may always exceed the program's peak.
const SLACK_PAGES: u64 = 2;
/// Memory may exceed a small program's peak by the bytes of the settings, but at most by this fraction of the peak
/// (1/20).
const SLACK_SHARE: u64 = 20;
/// The same while the need rises.
const RISING_SHARE: u64 = 10;
/// Growth of at least this many pages gets its own handles, except for a last page that it shares with the next block.
const OWN_HANDLES: u64 = 16;
/// Moves stop when memory exceeds the peak by more than this fraction of it (1/8).
const HOPELESS: u64 = 8;
/// A request of at least this fraction of the peak (1/100) may move pages twice as often.
const WORTH_MORE: u64 = 100;
/// Minimum number of allocations for each move, also at the start. Large requests need half as many.
const APART: u64 = 50;
/// The same on average, where moving a page costs less than creating one.
const CHEAP_APART: u64 = 4;
/// The same on average, for a program at its threshold of fragmentation.
const HELD_APART: u64 = 1000;

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
            // No memory can be freed now, but there may be enough for the request alone.
            Err(SourceError::Held { .. }) => return self.grow_paged(supply, number, bytes, true),
            outcome => return outcome,
        }
        self.recover(supply);
        if let Some(id) = self.find(supply, number, bytes, Search::Thorough) {
            return Ok(id);
        }
        match self.grow_paged(supply, number, bytes, true) {
            Err(error) if error.is_out_of_memory() => {}
            outcome => return outcome,
        }
        // The narrowest hole needs the fewest pages, but the free blocks on both sides of it cannot move into it. All
        // other pages can move into the widest hole.
        self.page = supply.page_bytes();
        let mut site = self.widest_site(supply, number, bytes)?;
        let need = self.missing(&site, bytes);
        let gathered = self.gather(supply, &mut site, need, true);
        let outcome = gathered.and_then(|()| self.create_missing(supply, &mut site, bytes, true));
        self.finish(site, bytes, outcome)
    }

    /// Waits for the device, frees the blocks that waited for a stream, and joins the free blocks of all streams, since
    /// any stream may use them now.
    pub(super) fn recover(&mut self, supply: &mut Supply<'_>) {
        for block in supply.synchronize() {
            if block.key().index() >= FOREIGN as usize {
                self.foreign.push(block);
                continue;
            }
            self.take_in(&block);
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
        let page = 2 << 20;
        let least = bytes.next_multiple_of(page);
        let wanted = match bytes {
            _ if bytes <= 1 << 20 => page,
            _ if bytes < 10 << 20 => 24 << 20,
            _ => least,
        };
        match self.take_segment(supply, number, wanted) {
            Err(error) if error.is_out_of_memory() => {}
            // No memory can be freed now, but there may be enough for the block alone.
            Err(SourceError::Held { .. }) if least < wanted => {
                return self.take_segment(supply, number, least);
            }
            outcome => return outcome,
        }
        self.recover(supply);
        if let Some(id) = self.find(supply, number, bytes, Search::Thorough) {
            return Ok(id);
        }
        self.release_free(supply);
        match self.take_segment(supply, number, wanted) {
            // There is no memory for a shared segment, but there may be enough for the block alone.
            Err(error) if error.is_out_of_memory() && least < wanted => {
                self.take_segment(supply, number, least)
            }
            outcome => outcome,
        }
    }

    fn take_segment(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        wanted: u64,
    ) -> Result<BlockId, SourceError> {
        let segment = supply.take(wanted)?;
        let (address, bytes) = (segment.address(), segment.bytes());
        self.held.push(Held::Plain(segment));
        let index = self.held.len() as u32 - 1;
        Ok(self
            .lists
            .space
            .add_segment(address, bytes, index, number, State::Live))
    }

    fn grow_paged(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
        scarce: bool,
    ) -> Result<BlockId, SourceError> {
        self.page = supply.page_bytes();
        let mut site = self.choose_site(supply, number, bytes)?;
        let mut outcome = Ok(());
        if self.should_move(supply, self.missing(&site, bytes), bytes, scarce) && supply.can_wait() {
            let need = self.missing(&site, bytes);
            self.stalls += 1;
            let before = self.moved;
            outcome = self.gather(supply, &mut site, need, scarce);
            if self.moved == before {
                self.stalls -= 1;
            }
            if !scarce && self.missing(&site, bytes) > 0 {
                self.narrow(supply, bytes);
            }
        }
        outcome = outcome.and_then(|()| self.create_missing(supply, &mut site, bytes, scarce));
        self.finish(site, bytes, outcome)
    }

    /// Builds a block from free pages before it creates new ones, without a limit on moves.
    pub(super) fn assemble(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        self.page = supply.page_bytes();
        let mut site = self.choose_site(supply, number, bytes)?;
        let need = self.missing(&site, bytes);
        let gathered = self.gather(supply, &mut site, need, true);
        let outcome = gathered.and_then(|()| self.create_missing(supply, &mut site, bytes, true));
        self.finish(site, bytes, outcome)
    }

    /// Returns the block of a site that has all its pages. Lists the block if `outcome` is an error.
    fn finish(
        &mut self,
        mut site: Site,
        bytes: u64,
        outcome: Result<(), SourceError>,
    ) -> Result<BlockId, SourceError> {
        if let Some(beyond) = site.beyond.take() {
            self.lists.put_back(beyond);
        }
        match (outcome, site.block) {
            // A hole that was filled completely no longer separates the block from the free block that was listed
            // behind the hole.
            (Ok(()), Some(block)) => Ok(self.lists.absorb(block)),
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

    fn allowance(&self, supply: &Supply<'_>, bytes: u64, scarce: bool) -> u64 {
        if scarce {
            return supply.free_bytes().unwrap_or(u64::MAX);
        }
        // While the program's need rises, memory that is free now will mostly be used. Otherwise it will not.
        let rising = self.live + bytes > self.peak;
        let peak = self.peak.max(self.live + bytes);
        let (permille, least, share) = if rising {
            (
                self.conf.rising_permille,
                self.conf.rising_least_bytes,
                RISING_SHARE,
            )
        } else {
            (self.conf.slack_permille, self.conf.slack_least_bytes, SLACK_SHARE)
        };
        let least = least.min(peak / share).max(SLACK_PAGES * self.page);
        let slack = (peak / 1000 * permille).max(least);
        (peak + slack).saturating_sub(supply.reserved())
    }

    fn should_move(&self, supply: &Supply<'_>, need: u64, bytes: u64, scarce: bool) -> bool {
        let allowance = self.allowance(supply, bytes, scarce);
        if need <= allowance {
            return false;
        }
        scarce || self.moving_helps(supply, need) || self.is_fragmented(supply, need, bytes)
    }

    /// Returns whether memory is close to the program's need and moves have not been too frequent.
    fn moving_helps(&self, supply: &Supply<'_>, need: u64) -> bool {
        if self.conf.single_pages {
            // If pages need no driver call of their own, moving one costs less than creating one.
            return self.stalls < self.conf.stalls + self.allocations / CHEAP_APART;
        }
        let stalls = self.conf.stalls + self.allocations / self.conf.stall_every.max(1);
        let stalls = stalls.min(1 + self.allocations / APART);
        let large = need >= self.peak / WORTH_MORE && self.stalls < 2 * stalls;
        let moved = supply.reserved() / 100 * self.conf.moved_percent;
        // If moves have not kept memory compact so far, they will not help now.
        let close = supply.reserved() - self.peak.min(supply.reserved()) <= self.peak / HOPELESS;
        close && (self.stalls < stalls || large) && self.moved + need <= moved
    }

    /// Returns whether growth by `need` would leave more free memory than the threshold, even when the program returns
    /// to its peak.
    fn is_fragmented(&self, supply: &Supply<'_>, need: u64, bytes: u64) -> bool {
        let reserved = supply.reserved() + need;
        let free = reserved - self.peak.max(self.live + bytes).min(reserved);
        let stalls = self.conf.stalls + self.allocations / HELD_APART;
        let percent = self.conf.retain.compact_at_percent;
        percent > 0 && free > reserved / 100 * percent && self.stalls < stalls
    }

    /// Creates the pages that a site still needs, and more if memory may grow by more.
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
        let ahead = self
            .ahead_bytes(supply, allowance)
            .min(allowance)
            .min(self.hole_bytes(site))
            / page
            * page;
        let wanted = need.max(ahead);
        let handle = self.handle_bytes(supply, wanted);
        // A block of many pages gets its own handles, except for the page that it shares with the next block.
        let shared = if need == wanted && wanted >= OWN_HANDLES * page && !self.conf.single_pages {
            page
        } else {
            0
        };
        let body = wanted - shared;
        let count = body.div_ceil(handle);
        let mut handle = body.div_ceil(count).next_multiple_of(page);
        let room = self.hole_bytes(site).min(supply.free_bytes().unwrap_or(u64::MAX));
        if handle * count + shared > room {
            handle = page;
        }
        for (part, handle) in [(body.next_multiple_of(handle), handle), (page, page)] {
            if self.missing(site, bytes) == 0 {
                break;
            }
            let Some((address, index)) = self.next_place(site, part) else {
                continue;
            };
            let Held::Paged { range, pages } = &mut self.held[index] else {
                continue;
            };
            let offset = address - range.address();
            supply.commit(range, offset, part, handle)?;
            pages.map(offset, part, handle);
            self.handles.note(part.div_ceil(handle));
            self.advance(site, part);
        }
        Ok(())
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
