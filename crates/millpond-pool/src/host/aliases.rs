//! Pages that are mapped at a second address.
//!
//! A page of a memfd can be mapped at any number of addresses, and all of its mappings have the same contents at every moment. One of them
//! belongs to a run in use. The others belong to stale runs, which stay open until the caller ends them.

use super::{Host, Run, locking};
use millpond_engine::{Range, SourceError};
use millpond_os::{Map, Part};

/// A part of a range: the range, the offset and the bytes.
type Place<'a> = (&'a Range, u64, u64);

/// A run that is mapped at another place too.
#[derive(Clone, Copy, Debug)]
struct Again {
    /// The range of the run.
    range: u64,
    run: Run,
    /// The offset of the other place.
    to: u64,
}

impl Again {
    fn target(self) -> Run {
        Run {
            part: Part {
                offset: self.to,
                ..self.run.part
            },
            ..self.run
        }
    }
}

fn handles(mapped: &[Again]) -> u64 {
    mapped.iter().map(|again| again.run.handles()).sum()
}

impl Host {
    /// Implements [`Source::alias`](millpond_engine::Source::alias) with a memfd.
    pub(super) fn alias_runs(&mut self, parts: &[Place<'_>], to: (&Range, u64)) -> Result<u64, SourceError> {
        let mapped = self.map_again(parts, to, "map again")?;
        for again in &mapped {
            if let Some(old) = self.ranges.get_mut(&again.range) {
                old.runs.remove(&[again.run]);
                old.runs.insert(Run {
                    stale: true,
                    ..again.run
                });
            }
        }
        Ok(handles(&mapped))
    }

    /// Moves the runs of a part: maps them at the new place, and closes the old one. Pages that are locked stay locked, and
    /// count twice against the limit for a moment.
    pub(super) fn remap_runs(
        &mut self,
        from: (&Range, u64),
        to: (&Range, u64),
        bytes: u64,
    ) -> Result<u64, SourceError> {
        let mapped = self.map_again(&[(from.0, from.1, bytes)], to, "move")?;
        if !mapped.is_empty()
            && let Some(old) = self.ranges.get_mut(&from.0.address())
        {
            for again in &mapped {
                old.runs.remove(&[again.run]);
            }
            let offset = from.1;
            self.mappings.note(2);
            self.used -= old.close(Part { offset, bytes }, 0);
        }
        Ok(handles(&mapped))
    }

    /// Ends the stale mappings in an address range. Returns their number of handles.
    pub(super) fn end_stale(&mut self, address: u64, bytes: u64) -> u64 {
        let end = address.saturating_add(bytes);
        let mut handles = 0;
        for (start, reserved) in self.ranges.range_mut(..end).rev() {
            let first = address.saturating_sub(*start);
            if first >= reserved.bytes {
                break;
            }
            let part = Part {
                offset: first,
                bytes: (end - start).min(reserved.bytes) - first,
            };
            for run in reserved.runs.stale(part) {
                reserved.runs.remove(&[run]);
                self.mappings.note(2);
                self.used -= reserved.close(run.part, 0);
                if self.rules.lock {
                    self.slipped.push((start + run.part.offset, run.part.bytes));
                }
                handles += run.handles();
            }
        }
        handles
    }

    /// Maps the runs of parts at a vacant place too, one after the other, and adds them to the runs of that place. After a
    /// failure they are not mapped there.
    fn map_again(
        &mut self,
        parts: &[Place<'_>],
        to: (&Range, u64),
        operation: &'static str,
    ) -> Result<Vec<Again>, SourceError> {
        let target = to.0.address();
        let bytes = parts.iter().map(|part| part.2).fold(0, u64::saturating_add);
        let place = self.vacant(to, bytes, operation)?;
        let found = self.find_again(parts, place.offset, operation)?;
        self.mappings.charge(found.len() as u64 + 1)?;
        let Some(new) = self.ranges.get(&target) else {
            return Ok(Vec::new());
        };
        let locking = self.rules.lock.then(locking::shared);
        let mapped = found
            .iter()
            .try_for_each(|again| self.map_run(&new.map, again.target()));
        drop(locking);
        if let Some(new) = self.ranges.get_mut(&target) {
            if mapped.is_err() {
                self.used -= new.close(place, 0);
            } else {
                found.iter().for_each(|again| new.runs.insert(again.target()));
            }
        }
        mapped.map(|()| found)
    }

    /// Returns a part of a range in which nothing is mapped.
    fn vacant(
        &mut self,
        (range, offset): (&Range, u64),
        bytes: u64,
        operation: &'static str,
    ) -> Result<Part, SourceError> {
        let part = self.part(range, offset, bytes);
        if let Some(part) = part {
            self.close_over(range, part);
        }
        let reserved = self.ranges.get(&range.address());
        part.filter(|part| reserved.is_some_and(|reserved| bytes == 0 || reserved.is_vacant(*part)))
            .ok_or(SourceError::NotHeld {
                operation,
                address: range.address().saturating_add(offset),
                bytes,
            })
    }

    /// Returns the runs of committed parts, to be mapped one after the other from the offset `to` on.
    fn find_again(
        &self,
        parts: &[Place<'_>],
        mut to: u64,
        operation: &'static str,
    ) -> Result<Vec<Again>, SourceError> {
        let mut found: Vec<Again> = Vec::new();
        for (range, offset, bytes) in parts.iter().filter(|part| part.2 > 0) {
            let at = range.address();
            let part = self.part(range, *offset, *bytes);
            let runs = part.and_then(|part| self.ranges.get(&at)?.runs.whole(part));
            let runs = runs.ok_or(SourceError::NotHeld {
                operation,
                address: at.saturating_add(*offset),
                bytes: *bytes,
            })?;
            for run in runs {
                found.push(Again { range: at, run, to });
                to += run.part.bytes;
            }
        }
        // No handle may be named twice.
        let place = |again: &Again| (again.range + again.run.part.offset, again.run.part.bytes);
        let mut places: Vec<_> = found.iter().map(place).collect();
        places.sort_unstable();
        let twice = places.windows(2).find(|two| two[0].0 + two[0].1 > two[1].0);
        twice.map_or(Ok(found), |two| {
            Err(SourceError::NotHeld {
                operation,
                address: two[1].0,
                bytes: two[1].1,
            })
        })
    }

    /// Opens the place of a run that is mapped elsewhere too.
    fn map_run(&self, map: &Map, run: Run) -> Result<(), SourceError> {
        let Some(backing) = self
            .backing
            .as_ref()
            .filter(|backing| !backing.memfd.is_inherited())
        else {
            return Err(SourceError::Unsupported {
                operation: "map pages in the child of a fork",
            });
        };
        let (part, bytes) = (run.part, run.part.bytes);
        backing
            .memfd
            .open(map, part, run.pages)
            .map_err(|error| self.refused("mmap", bytes, error))?;
        if self.is_huge(part) {
            // This is advice, as for new memory.
            let _ = map.advise_huge(part);
        }
        if self.rules.lock {
            map.lock(part).map_err(|error| self.not_locked(bytes, error))?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::memory::MemorySource;
    use crate::{Host, Pool};
    use millpond_engine::Source;
    use millpond_os::end_of_child;

    const PAGE: u64 = 4096;

    fn host() -> Host {
        let builder = Host::builder().page_bytes(PAGE).aliases(true);
        builder.build().expect("a source")
    }

    fn resident(host: &Host) -> u64 {
        let memfd = &host.backing.as_ref().expect("a memfd").memfd;
        memfd.resident_bytes().expect("the file is open")
    }

    fn word(address: u64) -> *mut u64 {
        std::ptr::with_exposed_provenance_mut(address as usize)
    }

    fn read(address: u64) -> u64 {
        // SAFETY: the tests read only what they have mapped.
        unsafe { word(address).read_volatile() }
    }

    fn write(address: u64, value: u64) {
        // SAFETY: the tests write only what they have mapped.
        unsafe { word(address).write_volatile(value) };
    }

    /// Writes to each page of a part.
    fn fill(address: u64, pages: u64) {
        (0..pages).for_each(|page| write(address + page * PAGE, page + 1));
    }

    #[test]
    fn decommitted_memory_is_freed_and_reads_as_zero_when_committed_again() {
        let mut host = host();
        let range = host.reserve(64 * PAGE).expect("addresses");
        let at = range.address();
        host.commit(&range, 0, 16 * PAGE, 2 * PAGE).expect("memory");
        assert_eq!(resident(&host), 0, "nothing was written");
        fill(at, 16);
        assert_eq!(resident(&host), 16 * PAGE);
        host.alias(&[(&range, 4 * PAGE, 8 * PAGE)], (&range, 32 * PAGE))
            .expect("a second mapping");
        assert_eq!(host.unmap(at + 4 * PAGE, 8 * PAGE), 4);
        assert_eq!(resident(&host), 16 * PAGE, "unmapping frees nothing");
        assert_eq!(host.decommit(&range, 34 * PAGE, 4 * PAGE), 2);
        assert_eq!(host.decommit(&range, 0, 2 * PAGE), 1);
        assert_eq!((resident(&host), host.used_bytes()), (10 * PAGE, 10 * PAGE));
        for offset in [0, 4 * PAGE, 34 * PAGE] {
            host.commit(&range, offset, 2 * PAGE, PAGE).expect("memory");
            assert_eq!([0, PAGE].map(|page| read(at + offset + page)), [0, 0]);
        }
        assert_eq!([32, 33, 38].map(|page| read(at + page * PAGE)), [5, 6, 11]);
        host.release(range);
        assert_eq!((resident(&host), host.used_bytes()), (0, 0));
    }

    #[test]
    fn discarded_memory_reads_as_zero_at_each_address() {
        let mut host = host();
        let range = host.reserve(64 * PAGE).expect("addresses");
        let at = range.address();
        host.commit(&range, 0, 8 * PAGE, 4 * PAGE).expect("memory");
        fill(at, 8);
        host.alias(&[(&range, 4 * PAGE, 4 * PAGE)], (&range, 32 * PAGE))
            .expect("a second mapping");
        // The part is in a run in use and in a stale one.
        assert!(host.discard(at + 3 * PAGE, 3 * PAGE));
        assert_eq!(resident(&host), 5 * PAGE);
        assert_eq!([2, 3, 5, 6].map(|page| read(at + page * PAGE)), [3, 0, 0, 7]);
        assert_eq!([32, 33, 34].map(|page| read(at + page * PAGE)), [0, 0, 7]);
        assert!(!host.discard(at + 7 * PAGE, 2 * PAGE), "not committed");
        assert!(!host.discard(at + 8, PAGE), "no whole page");
    }

    #[test]
    fn parts_whose_total_size_overflows_are_refused() {
        let mut host = host();
        let range = host.reserve(64 * PAGE).expect("addresses");
        let part = (&range, 0, u64::MAX - PAGE + 1);
        let outcome = host.alias(&[part, part], (&range, 0));
        assert!(matches!(outcome, Err(SourceError::NotHeld { .. })), "{outcome:?}");
    }

    /// Two ranges grow in turns, and a page in the middle is given back and committed again.
    #[test]
    fn neighbours_are_one_mapping_while_they_are_in_order() {
        let mut host = host();
        let ranges = [(); 2].map(|()| host.reserve(256 * PAGE).expect("addresses"));
        for page in 0..128 {
            for range in &ranges {
                host.commit(range, page * PAGE, PAGE, PAGE).expect("memory");
            }
        }
        assert_eq!(host.decommit(&ranges[0], 7 * PAGE, PAGE), 1);
        host.commit(&ranges[0], 7 * PAGE, PAGE, PAGE).expect("memory");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the list of mappings");
        for range in &ranges {
            let end = range.address() + 128 * PAGE;
            let whole = format!("{:x}-{end:x} rw-s", range.address());
            assert!(maps.contains(&whole), "{whole} is not in\n{maps}");
        }
    }

    #[test]
    fn a_child_does_not_change_the_memory_of_its_parent() {
        let mut host = host();
        let range = host.reserve(64 * PAGE).expect("addresses");
        host.commit(&range, 0, 4 * PAGE, PAGE).expect("memory");
        fill(range.address(), 4);
        host.alias(&[(&range, 0, PAGE)], (&range, 32 * PAGE))
            .expect("a second mapping");
        let fine = end_of_child(|| {
            let parts = [(&range, PAGE, PAGE)];
            let refused = [
                host.commit(&range, 40 * PAGE, PAGE, PAGE),
                host.alias(&parts, (&range, 40 * PAGE)).map(|_| ()),
                host.move_pages((&range, PAGE), (&range, 40 * PAGE), PAGE)
                    .map(|_| ()),
            ];
            let refused = refused
                .iter()
                .all(|error| matches!(error, Err(SourceError::Unsupported { .. })));
            let closed = !host.discard(range.address() + PAGE, PAGE)
                && !host.protect(range.address() + PAGE, PAGE, false);
            let counted = host.unmap(range.address(), PAGE) + host.decommit(&range, 2 * PAGE, 2 * PAGE);
            refused && closed && (counted, host.used_bytes()) == (3, 2 * PAGE)
        });
        assert_eq!(fine, 0);
        let touch = end_of_child(|| read(range.address()) == 1);
        assert!(libc::WIFSIGNALED(touch) && libc::WTERMSIG(touch) == libc::SIGSEGV);
        assert_eq!(
            [0, 1, 2, 3].map(|page| read(range.address() + page * PAGE)),
            [1, 2, 3, 4]
        );
        host.release(range);
    }

    #[test]
    fn a_child_can_read_the_statistics_of_a_pool_and_trim_it() {
        let pool = Pool::builder().trim_every(None);
        let pool = pool.over(Box::new(host())).expect("a pool");
        let mut block = pool.alloc_zeroed::<u64>(1000).expect("room");
        block.fill(7);
        drop(pool.alloc_zeroed::<u64>(100_000).expect("room"));
        let fine = end_of_child(|| {
            pool.trim();
            pool.stats().requested.current >= 8000
                && Pool::host().is_ok_and(|own| own.alloc_zeroed::<u8>(9).is_ok())
        });
        assert_eq!(fine, 0);
        assert!(block.iter().all(|word| *word == 7));
    }
}
