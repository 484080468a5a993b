//! Managed memory: the location of each page, and the advice given for it.
//!
//! The bytes are host memory, at one address for all devices. Only the recorded locations move. Prefetches, advice and the work
//! of devices move pages as the driver's documentation says. Accesses by the host are not visible: pages that it accesses keep
//! their recorded location until work or a prefetch moves them.
#![forbid(unsafe_code)]

use super::{Kind, Memory};
use crate::access::Origin;
use crate::error::{Answer, Code};

/// The size of the pieces in which pages move: 64 KiB.
pub(crate) const PAGE: u64 = 64 << 10;

/// The location of the host.
pub(crate) const CPU: i32 = -1;
/// The value for no location.
pub(crate) const NOWHERE: i32 = -2;

/// The state of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// Its location. A read-mostly page may have additional copies.
    pub(crate) home: i32,
    /// The devices with a copy for reading, as bits.
    pub(crate) copies: u64,
    pub(crate) read_mostly: bool,
    pub(crate) preferred: i32,
    /// The location of the last requested prefetch.
    pub(crate) prefetched: i32,
    /// The devices in the accessed-by advice, as bits. Bit 63 is the host.
    pub(crate) accessed_by: u64,
}

/// The pages of a managed block.
#[derive(Clone, Debug)]
pub(crate) struct Managed {
    pub(crate) pages: Vec<Page>,
    /// The pool that the block belongs to.
    pub(crate) pool: Option<u64>,
}

/// A piece of advice, with the numbers of `cuMemAdvise`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    ReadMostly(bool),
    Preferred(bool),
    AccessedBy(bool),
}

impl Advice {
    pub(crate) fn from_raw(raw: i32) -> Answer<Self> {
        Ok(match raw {
            1 => Self::ReadMostly(true),
            2 => Self::ReadMostly(false),
            3 => Self::Preferred(true),
            4 => Self::Preferred(false),
            5 => Self::AccessedBy(true),
            6 => Self::AccessedBy(false),
            _ => return Err(Code::INVALID_VALUE),
        })
    }
}

fn bit(place: i32) -> u64 {
    if place == CPU {
        1 << 63
    } else {
        1u64.checked_shl(place as u32).unwrap_or(0)
    }
}

impl Page {
    fn new() -> Self {
        Self {
            home: CPU,
            copies: 0,
            read_mostly: false,
            preferred: NOWHERE,
            prefetched: NOWHERE,
            accessed_by: 0,
        }
    }

    fn advise(&mut self, advice: Advice, place: i32) {
        match advice {
            Advice::ReadMostly(on) => {
                self.read_mostly = on;
                if !on {
                    self.copies = 0;
                }
            }
            Advice::Preferred(on) => self.preferred = if on { place } else { NOWHERE },
            Advice::AccessedBy(true) => self.accessed_by |= bit(place),
            Advice::AccessedBy(false) => self.accessed_by &= !bit(place),
        }
    }

    /// Updates the page for a read or write by work of a device.
    fn touch(&mut self, place: i32, write: bool) {
        if write {
            self.copies = 0;
        } else if self.read_mostly {
            self.copies |= bit(place) & !bit(self.home);
            return;
        }
        // A page stays if it is at its preferred location, or if the device accesses it through a mapping.
        let wanted = self.preferred != NOWHERE && self.preferred == self.home;
        if !wanted && self.accessed_by & bit(place) == 0 {
            self.home = place;
        }
    }

    fn prefetch(&mut self, place: i32) {
        if self.read_mostly {
            self.copies |= bit(place) & !bit(self.home);
        } else {
            self.home = place;
        }
    }

    fn is_at(&self, place: i32) -> bool {
        self.home == place || self.copies & bit(place) != 0
    }
}

impl Managed {
    /// Returns the state of fresh memory.
    pub(crate) fn new(bytes: u64, pool: Option<u64>) -> Self {
        let pages = vec![Page::new(); bytes.div_ceil(PAGE) as usize];
        Self { pages, pool }
    }
}

impl Memory {
    pub(crate) fn managed_allocate(&mut self, device: u32, bytes: u64, origin: Origin) -> Answer<u64> {
        let at = self.host_chunk(bytes)?;
        self.enter(
            at,
            bytes,
            Kind::Managed(Managed::new(bytes, None)),
            device,
            origin,
        );
        Ok(at)
    }

    /// Returns the pages of a range, which must lie in one managed block.
    fn managed_pages(&mut self, at: u64, len: u64) -> Answer<&mut [Page]> {
        Code::INVALID_VALUE.when(len == 0 || self.block_around(at, len).is_none())?;
        let (base, block) = self.block_mut(at).ok_or(Code::INVALID_VALUE)?;
        let Kind::Managed(managed) = &mut block.kind else {
            return Err(Code::INVALID_VALUE);
        };
        let first = at - base;
        let pages = (first / PAGE) as usize..(first + len).div_ceil(PAGE) as usize;
        managed.pages.get_mut(pages).ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn is_managed(&mut self, at: u64, len: u64) -> bool {
        self.managed_pages(at, len).is_ok()
    }

    pub(crate) fn advise(&mut self, at: u64, len: u64, advice: Advice, place: i32) -> Answer {
        self.check_place(place)?;
        for page in self.managed_pages(at, len)? {
            page.advise(advice, place);
        }
        Ok(())
    }

    /// Records a place as the location of the last requested prefetch.
    pub(crate) fn note_prefetch(&mut self, at: u64, len: u64, place: i32) -> Answer {
        for page in self.managed_pages(at, len)? {
            page.prefetched = place;
        }
        Ok(())
    }

    pub(crate) fn prefetch(&mut self, at: u64, len: u64, place: i32) -> Answer {
        self.check_place(place)?;
        for page in self.managed_pages(at, len)? {
            page.prefetch(place);
        }
        Ok(())
    }

    /// Updates the pages of a range that work of a device accesses. Does nothing if the range is not managed.
    pub(crate) fn touch(&mut self, at: u64, len: u64, device: u32, write: bool) {
        if let Ok(pages) = self.managed_pages(at, len) {
            for page in pages {
                page.touch(device as i32, write);
            }
        }
    }

    /// Returns the bytes of a range that are at a location, in whole pages.
    pub(crate) fn resident(&mut self, at: u64, len: u64, place: i32) -> Answer<u64> {
        let pages = self.managed_pages(at, len)?;
        Ok(pages.iter().filter(|page| page.is_at(place)).count() as u64 * PAGE)
    }

    /// Returns the value on which all pages of a range agree, or `other` if they differ.
    pub(crate) fn agreed<T: PartialEq>(
        &mut self,
        at: u64,
        len: u64,
        other: T,
        what: impl Fn(&Page) -> T,
    ) -> Answer<T> {
        let pages = self.managed_pages(at, len)?;
        let first = pages.first().map(&what).ok_or(Code::INVALID_VALUE)?;
        let agree = pages.iter().all(|page| what(page) == first);
        Ok(if agree { first } else { other })
    }

    /// Returns the devices in the accessed-by advice of all pages in a range. The host is -1.
    pub(crate) fn accessors(&mut self, at: u64, len: u64) -> Answer<Vec<i32>> {
        let all = self
            .managed_pages(at, len)?
            .iter()
            .fold(u64::MAX, |all, page| all & page.accessed_by);
        let devices = (0..63).chain([CPU]).filter(|place| all & bit(*place) != 0);
        Ok(devices.collect())
    }

    fn check_place(&self, place: i32) -> Answer {
        let known = place == CPU || usize::try_from(place).is_ok_and(|device| device < self.cards.len());
        Code::INVALID_DEVICE.when(!known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_move_as_advised() {
        let mut page = Page::new();
        page.touch(0, true);
        assert_eq!(page.home, 0);
        page.prefetch(CPU);
        assert_eq!(page.home, CPU);
        page.advise(Advice::Preferred(true), CPU);
        page.touch(0, true);
        assert_eq!(page.home, CPU, "it is where it is wanted");
        page.advise(Advice::Preferred(false), CPU);
        page.advise(Advice::AccessedBy(true), 1);
        page.touch(1, true);
        assert_eq!(page.home, CPU, "device 1 has a map of it");
        page.advise(Advice::ReadMostly(true), CPU);
        page.touch(0, false);
        assert!(page.is_at(0) && page.is_at(CPU));
        page.touch(0, true);
        assert!(page.is_at(0) && !page.is_at(CPU), "a write leaves one copy");
    }
}
