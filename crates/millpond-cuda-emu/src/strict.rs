//! Strict mode reports use after free, unordered use of one block by two streams, memory that is released without a wait, and the use of
//! handles that have ended.
//!
//! The rule is happens-before, implemented with vector clocks. Work comes after the work that its stream, the
//! events it waits for and the rule of the legacy stream put before it. It also comes after everything that
//! the host had synchronised with when it was queued. A wait by one host thread counts for all of them,
//! because threads order each other by means that are not visible here. So ordered work is never reported,
//! but a race between host threads may be missed. Bytes are compared, not blocks. For memory that the client
//! maps itself, physical bytes are compared, so that a page at two addresses is recognised as one page. Work
//! with unknown accesses (kernels registered through the C interface) is not compared. Branches of one graph
//! count as ordered.
//!
//! The work of other processes is not visible, only that this process waited for it. Such a wait counts as
//! ordered after everything that was recorded here before it and that other processes could wait for.
//! Accesses of processes to each other's blocks are not compared.
#![forbid(unsafe_code)]

use crate::access::{Access, Origin};
use crate::clock::{Clock, Stamp};
use crate::memory::pages::Place;
use std::collections::VecDeque;

/// Returns the address of the first byte that two uses have in common, as the first use addresses it. Physical memory is compared if it is
/// known for both uses, and addresses otherwise.
fn common(one: (Access, Option<Place>), other: (Access, Option<Place>)) -> Option<u64> {
    let ((a, a_place), (b, b_place)) = (one, other);
    let (start, other_start) = match (a_place, b_place) {
        (Some(a), Some(b)) if a.bytes == b.bytes => (a.offset, b.offset),
        (Some(_), Some(_)) => return None,
        _ => (a.at, b.at),
    };
    let first = start.max(other_start);
    (first < start + a.len && first < other_start + b.len).then(|| a.at + (first - start))
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    access: Access,
    place: Option<Place>,
    stamp: Stamp,
    origin: Origin,
}

#[derive(Clone, Copy, Debug)]
struct Freed {
    at: u64,
    len: u64,
    taken: Origin,
    freed: Origin,
}

fn verb(write: bool) -> &'static str {
    if write { "writes" } else { "reads" }
}

/// The number of freed blocks that are remembered.
const GRAVES: usize = 4096;

/// The stream number that stands for other processes. No stream has this number.
const OTHERS: u64 = 0;

/// The maximum number of waits for other processes that are distinguished. Earlier waits count as the oldest of them.
const WAITS: usize = 1024;

/// The accesses so far, and the findings.
#[derive(Debug, Default)]
pub(crate) struct Strict {
    on: bool,
    seen: Vec<Seen>,
    freed: VecDeque<Freed>,
    findings: Vec<String>,
    /// The work that other processes may have waited for.
    told: Clock,
    /// The value of `told` at each of the last waits for other processes, and the total number of such waits.
    waits: VecDeque<Clock>,
    waited: u64,
}

impl Strict {
    pub(crate) fn new(on: bool) -> Self {
        Self {
            on,
            ..Self::default()
        }
    }

    pub(crate) fn on(&self) -> bool {
        self.on
    }

    pub(crate) fn findings(&self) -> &[String] {
        &self.findings
    }

    /// Notes a record that other processes can wait for. `clock` is the work that comes before it.
    pub(crate) fn tells(&mut self, clock: &Clock) {
        if self.on {
            self.told.join(clock);
        }
    }

    /// Notes a wait for another process. Later work comes after the work that other processes had waited for.
    pub(crate) fn hears(&mut self) -> Stamp {
        if self.on {
            self.waited += 1;
            self.waits.push_back(self.told.clone());
            if self.waits.len() > WAITS {
                self.waits.pop_front();
            }
        }
        Stamp {
            stream: OTHERS,
            place: self.waited,
        }
    }

    /// Returns the work that comes before a clock through other processes.
    fn by_others(&self, clock: &Clock) -> Option<&Clock> {
        let back = self.waited - clock.place(OTHERS);
        let last = self.waits.len() as u64;
        let index = last.saturating_sub(back.saturating_add(1)) as usize;
        (clock.place(OTHERS) > 0).then(|| self.waits.get(index)).flatten()
    }

    /// Records that work is queued that touches these bytes of this memory, and reports misuse. `clock` is the work that comes before it.
    /// `host` is the work that the host knows to be complete.
    pub(crate) fn queued(
        &mut self,
        accesses: &[(Access, Option<Place>)],
        stamp: Stamp,
        clock: &Clock,
        host: &Clock,
        origin: Origin,
        live: impl Fn(u64) -> bool,
    ) {
        if !self.on || accesses.is_empty() {
            return;
        }
        self.seen.retain(|seen| !host.covers(seen.stamp));
        let others = self.by_others(clock).cloned().unwrap_or_default();
        for &(access, place) in accesses.iter().filter(|used| used.0.len > 0) {
            if !live(access.at) {
                self.look_among_the_freed(access, origin);
            }
            let races = |seen: &&Seen| {
                common((access, place), (seen.access, seen.place)).is_some()
                    && (access.write || seen.access.write)
                    && seen.stamp.stream != stamp.stream
                    && !clock.covers(seen.stamp)
                    && !others.covers(seen.stamp)
            };
            if let Some(other) = self.seen.iter().find(races).copied() {
                let at = common((access, place), (other.access, other.place)).unwrap_or(access.at);
                let there = common((other.access, other.place), (access, place)).unwrap_or(at);
                let also = if there == at {
                    String::new()
                } else {
                    format!(" at {there:#x}, where the same page is mapped")
                };
                self.find(format!(
                    "unordered use of {at:#x}: {origin} {} it, {} {} it{also}, but nothing orders the two",
                    verb(access.write),
                    other.origin,
                    verb(other.access.write),
                ));
            }
            // A later access to all of its bytes replaces an earlier one.
            let covered = |seen: &Seen| {
                let inside = |start, other_start| {
                    other_start >= start && other_start + seen.access.len <= start + access.len
                };
                let inside = match (place, seen.place) {
                    (Some(a), Some(b)) => a.bytes == b.bytes && inside(a.offset, b.offset),
                    _ => inside(access.at, seen.access.at),
                };
                inside && (access.write || !seen.access.write) && clock.covers(seen.stamp)
            };
            self.seen.retain(|seen| !covered(seen));
            self.seen.push(Seen {
                access,
                place,
                stamp,
                origin,
            });
        }
    }

    /// Reports memory that is released while the host has not waited for all work that uses it. A call such as `cuMemFree` may wait by
    /// itself, but no documentation promises that.
    pub(crate) fn unwaited(&mut self, at: u64, len: u64, host: &Clock, origin: Origin) {
        if !self.on {
            return;
        }
        let others = self.by_others(host).cloned().unwrap_or_default();
        let pending = |seen: &&Seen| {
            let overlap = seen.access.at < at + len && at < seen.access.at + seen.access.len;
            overlap && !host.covers(seen.stamp) && !others.covers(seen.stamp)
        };
        if let Some(other) = self.seen.iter().find(pending).copied() {
            self.find(format!(
                "missing wait: {origin} releases memory at {at:#x} that {} {}, and the host has not waited for that work",
                other.origin,
                verb(other.access.write),
            ));
        }
    }

    /// Reports a call that passes a handle that has ended. A real driver crashes, or takes the handle for another object.
    pub(crate) fn stale(&mut self, what: &str, handle: u64, ended: &str, origin: Origin) {
        if self.on {
            self.find(format!(
                "stale handle: {origin} uses the {what} {handle:#x}, which is not valid after {ended}"
            ));
        }
    }

    /// Forgets the uses of a range, which no later work can conflict with.
    pub(crate) fn forget_range(&mut self, at: u64, len: u64) {
        self.seen
            .retain(|seen| seen.access.at < at || seen.access.at >= at + len);
    }

    /// Notes that a block was freed. Work that is queued from now on must not access it.
    pub(crate) fn freed(&mut self, at: u64, len: u64, taken: Origin, freed: Origin) {
        if self.on {
            self.forget_range(at, len);
            self.freed.retain(|grave| grave.at != at);
            self.freed.push_back(Freed {
                at,
                len,
                taken,
                freed,
            });
            if self.freed.len() > GRAVES {
                self.freed.pop_front();
            }
        }
    }

    /// Forgets a stream whose work is all complete and which gets no new work.
    pub(crate) fn forget(&mut self, stream: u64) {
        self.seen.retain(|seen| seen.stamp.stream != stream);
    }

    fn look_among_the_freed(&mut self, access: Access, origin: Origin) {
        let inside = |grave: &&Freed| access.at >= grave.at && access.at < grave.at + grave.len;
        if let Some(grave) = self.freed.iter().rev().find(inside).copied() {
            self.find(format!(
                "use after free: {origin} accesses {:#x}, which {} allocated and {} freed",
                access.at, grave.taken, grave.freed
            ));
        }
    }

    /// Reports a call that passes an address without memory, if the memory was freed.
    pub(crate) fn wild(&mut self, at: u64, len: u64, origin: Origin) {
        if self.on {
            self.look_among_the_freed(
                Access {
                    at,
                    len,
                    write: false,
                },
                origin,
            );
        }
    }

    /// Reports work that accessed memory that is not mapped or not accessible.
    pub(crate) fn illegal(&mut self, origin: Origin) {
        if self.on {
            self.find(format!(
                "illegal address: {origin} accesses memory that is not mapped, or not accessible, when it runs"
            ));
        }
    }

    fn find(&mut self, finding: String) {
        eprintln!("millpond-cuda-emu: {finding}");
        self.findings.push(finding);
    }
}
