//! Reserves pages. The policy creates pages up to the program's peak. Beyond that it moves free pages.
//!
//! Growth beyond the most bytes that the program has held at once is only fragmentation, so whole free handles are moved
//! to the place where they are needed. The bytes moved in total are limited to a share of the bytes that the program
//! allocates. Otherwise a program without any regularity would move pages for ever. The program may then grow until its
//! fragmentation exceeds [`compact_at_percent`](crate::RetainConf). Above that, pages are moved again.

use super::site::Site;
use super::{FOREIGN, Held, Millpond};
use crate::error::SourceError;
use crate::index::Search;
use crate::space::{BlockId, State};
use crate::supply::Supply;
use std::collections::BTreeMap;

/// Number of pages by which memory may always exceed the program's peak.
pub(in crate::policies) const SLACK_PAGES: u64 = 2;
/// Bytes by which memory may exceed the peak on a host, where creating a page costs no more than moving one. They are
/// limited to 1 / `HOST_SLACK_SHARE` of the peak.
const HOST_SLACK: u64 = 64 << 20;
const HOST_SLACK_SHARE: u64 = 20;

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
        match self.grow_at_widest(supply, number, bytes) {
            Err(error) if error.is_out_of_memory() && self.relocate(supply, number, bytes) => {
                self.grow_at_widest(supply, number, bytes)
            }
            outcome => outcome,
        }
    }

    /// Fills the widest hole with every free page. The narrowest hole needs the fewest pages, but the free blocks on both
    /// sides of it cannot move into it. All other pages can move into the widest hole.
    fn grow_at_widest(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        self.page = supply.page_bytes();
        let mut site = self.widest_site(supply, number, bytes)?;
        let need = self.missing(&site, bytes);
        let gathered = self.gather(supply, &mut site, need, true);
        let outcome = gathered.and_then(|()| self.create_missing(supply, &mut site, bytes));
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
        let need = self.missing(&site, bytes);
        let scarce = scarce || supply.free_bytes().is_some_and(|free| free < need);
        let excess = need.saturating_sub(self.allowance(supply, bytes, scarce));
        let mut outcome = Ok(());
        if excess > 0 && supply.can_wait() && (scarce || self.may_move(supply, excess, bytes)) {
            outcome = self.gather(supply, &mut site, excess, scarce);
        }
        outcome = outcome.and_then(|()| self.create_missing(supply, &mut site, bytes));
        self.finish(site, bytes, outcome)
    }

    /// Builds a block from free pages, without a limit on moves. Reserved memory may grow by at most `new` bytes.
    pub(super) fn assemble(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
        new: u64,
    ) -> Result<BlockId, SourceError> {
        self.page = supply.page_bytes();
        let (moved, most) = (self.moved, supply.reserved().saturating_add(new));
        let site = self.choose_site(supply, number, bytes);
        let mut outcome = site.and_then(|site| self.assemble_at(supply, site, bytes, most));
        if outcome.is_err() {
            // The free blocks on both sides of a narrow hole cannot move into it.
            let site = self.widest_site(supply, number, bytes);
            outcome = site.and_then(|site| self.assemble_at(supply, site, bytes, most));
        }
        self.moved = moved;
        outcome
    }

    /// Fills a site with free pages, and then with new ones. Fails if more than `most` bytes would be reserved.
    fn assemble_at(
        &mut self,
        supply: &mut Supply<'_>,
        mut site: Site,
        bytes: u64,
        most: u64,
    ) -> Result<BlockId, SourceError> {
        let need = self.missing(&site, bytes);
        let mut gathered = self.gather(supply, &mut site, need, true);
        if gathered.is_ok() && supply.reserved() + self.missing(&site, bytes) > most {
            gathered = Err(SourceError::AddressSpace { requested: bytes });
        }
        let outcome = gathered.and_then(|()| self.create_missing(supply, &mut site, bytes));
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

    /// Returns the number of bytes by which memory may grow before free pages are moved.
    fn allowance(&self, supply: &Supply<'_>, bytes: u64, scarce: bool) -> u64 {
        if scarce {
            return supply.free_bytes().unwrap_or(u64::MAX);
        }
        let peak = self.peak.max(self.live + bytes);
        let least = if self.conf.single_pages {
            HOST_SLACK.min(peak / HOST_SLACK_SHARE)
        } else {
            0
        };
        let slack = (peak / 1000 * self.conf.slack_permille)
            .max(least)
            .max(SLACK_PAGES * self.page);
        (peak + slack).saturating_sub(supply.reserved())
    }

    /// Returns whether `bytes` more may be moved for a request of `request` bytes.
    fn may_move(&self, supply: &Supply<'_>, bytes: u64, request: u64) -> bool {
        let permille = self.conf.moved_permille;
        let budget = self.peak.max(self.live + request) + self.allocated.saturating_mul(permille) / 1000;
        permille > 0 && self.moved + bytes <= budget || self.is_fragmented(supply, bytes, request)
    }

    /// Returns whether growth by `need` would leave more free memory than the threshold, even when the program returns
    /// to its peak.
    fn is_fragmented(&self, supply: &Supply<'_>, need: u64, bytes: u64) -> bool {
        let reserved = supply.reserved() + need;
        let free = reserved - self.peak.max(self.live + bytes).min(reserved);
        let percent = self.conf.retain.compact_at_percent;
        percent > 0 && free > reserved / 100 * percent
    }

    /// Creates the pages that a site still needs.
    fn create_missing(
        &mut self,
        supply: &mut Supply<'_>,
        site: &mut Site,
        bytes: u64,
    ) -> Result<(), SourceError> {
        let need = self.missing(site, bytes);
        let handle = self.handle_bytes(bytes);
        for (part, handle) in [(need / handle * handle, handle), (need % handle, need % handle)] {
            let Some((address, index)) = self.next_place(site, part).filter(|_| part > 0) else {
                continue;
            };
            let Held::Paged { range, pages } = &mut self.held[index] else {
                continue;
            };
            let offset = address - range.address();
            supply.commit(range, offset, part, handle)?;
            pages.map(offset, part, handle);
            self.advance(site, part);
        }
        Ok(())
    }

    /// Returns the size of new handles for a request of `bytes`.
    fn handle_bytes(&self, bytes: u64) -> u64 {
        let page = self.page;
        if self.conf.single_pages {
            return page;
        }
        let share = (bytes / self.conf.handle_share.max(1)).next_multiple_of(page);
        share.clamp(page, self.conf.handle_bytes.max(page))
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
