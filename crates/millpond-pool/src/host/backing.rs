//! The memory of ranges whose pages can be mapped at several addresses.

use super::runs::{Run, Runs};
use super::{Host, HostError};
use millpond_engine::SourceError;
use millpond_os::{Memfd, Part};

/// A memfd, and the parts of it that are in use.
///
/// Invariant: every part that is neither in `held` nor in `unfreed` reads as zero.
#[derive(Debug)]
pub(super) struct Backing {
    pub(super) memfd: Memfd,
    /// The parts that committed runs use, by their offsets in the memfd.
    held: Runs,
    /// Parts that were given back and that the system could not free yet. They are still charged.
    unfreed: Vec<Part>,
    /// The end of the parts that were ever given out.
    end: u64,
}

impl Backing {
    pub(super) fn new() -> Result<Self, HostError> {
        let memfd = Memfd::new().map_err(|(call, error)| HostError::System {
            call,
            code: error.raw_os_error(),
        })?;
        Ok(Self {
            memfd,
            held: Runs::default(),
            unfreed: Vec::new(),
            end: 0,
        })
    }

    /// Returns the offset of an unused part. Offsets are not reused: there are enough for any program.
    pub(super) fn extend(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let offset = self.end.checked_next_multiple_of(align)?;
        self.end = offset.checked_add(bytes).filter(|end| *end <= Memfd::BYTES)?;
        Some(offset)
    }

    /// Takes an unused part and returns its offset. This is `home` if the part there is unused, because the system joins
    /// neighbouring mappings only if their offsets are neighbours too.
    fn take(&mut self, home: u64, bytes: u64, page: u64) -> Option<u64> {
        let at_home = Part { offset: home, bytes };
        let is_free = self.held.is_free(at_home) && !self.unfreed.iter().any(|other| other.overlaps(at_home));
        let offset = if is_free { home } else { self.extend(bytes, page)? };
        self.held.insert(Run::new(Part { offset, bytes }, bytes, 0));
        Some(offset)
    }

    /// Gives a part back, and frees its memory and that of parts that could not be freed before. Returns the bytes that are
    /// no longer charged.
    fn give(&mut self, part: Part) -> u64 {
        self.held.remove(&[Run::new(part, part.bytes, 0)]);
        self.unfreed.push(part);
        self.free_again()
    }

    fn free_again(&mut self) -> u64 {
        let mut freed = 0;
        while let Some(part) = self.unfreed.pop() {
            if self.memfd.free(part).is_err() {
                self.unfreed.push(part);
                break;
            }
            freed += part.bytes;
        }
        freed
    }
}

impl Host {
    /// Takes the memory of a new run and returns its offset, which is `home` if possible. Without a memfd the memory belongs
    /// to the mapping, and the offset has no meaning.
    pub(super) fn take_pages(&mut self, home: u64, bytes: u64) -> Result<u64, SourceError> {
        let page = self.rules.page;
        let Some(backing) = &mut self.backing else {
            return Ok(home);
        };
        if backing.memfd.is_inherited() {
            return Err(SourceError::Unsupported {
                operation: "commit pages in the child of a fork",
            });
        }
        let taken = backing.take(home, bytes, page);
        taken.ok_or(SourceError::AddressSpace { requested: bytes })
    }

    /// Gives back the memory of runs. Returns the bytes that stay charged until their mappings are closed: all of them
    /// without a memfd, and otherwise none.
    pub(super) fn give_pages(&mut self, runs: &[Run]) -> u64 {
        let Some(backing) = &mut self.backing else {
            return runs.iter().map(|run| run.part.bytes).sum();
        };
        self.used -= runs.iter().map(|run| backing.give(run.pages())).sum::<u64>();
        0
    }

    /// Tries again to free memory that the system could not free.
    pub(super) fn free_pages_again(&mut self) {
        if let Some(backing) = &mut self.backing {
            self.used -= backing.free_again();
        }
    }
}
