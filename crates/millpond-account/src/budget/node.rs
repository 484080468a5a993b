//! The figures of one budget, and its path to the last budget that a charge reaches.

use super::Measure;
use super::line::ChargeQueue;
use super::room::{MOST, Room, Seen};
use super::soft::SoftLimit;
use super::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, lock};
use crate::post_mortem::Lister;
use std::sync::{Arc, Weak};

/// The maximum depth of the tree. A charge walks all levels.
pub(super) const MOST_LEVELS: u32 = 32;

pub(super) struct Node {
    pub(super) name: Box<str>,
    pub(super) measure: Measure,
    pub(super) parent: Option<Arc<Node>>,
    pub(super) levels: u32,
    pub(super) room: Room,
    /// The limit, changed under the lock of the line together with the room.
    pub(super) limit: AtomicU64,
    /// The bytes of completed charges. Bytes that are taken from the room and not yet counted here are in flight.
    used: AtomicU64,
    peak: AtomicU64,
    refusals: AtomicU64,
    /// The bytes of charges to this budget that were forgotten.
    forgotten: AtomicU64,
    /// The number of requests that wait here, changed under the lock of the line.
    waiting: AtomicUsize,
    /// The last round of the line that found a request waiting here. It is used under the line's lock.
    round: AtomicU64,
    pub(super) soft: Box<[SoftLimit]>,
    /// The line, shared by all budgets that this one's charges reach.
    pub(super) line: Arc<ChargeQueue>,
    /// The number of requests that wait anywhere in the tree.
    pub(super) pressure: Arc<AtomicUsize>,
    children: Mutex<Vec<Weak<Node>>>,
    lister: Mutex<Option<Arc<dyn Lister>>>,
}

/// The arguments for a new node.
pub(super) struct Parts {
    pub(super) name: Box<str>,
    pub(super) measure: Measure,
    pub(super) limit: u64,
    pub(super) soft: Box<[SoftLimit]>,
}

/// Shared state is atomic or behind locks, and no foreign code runs under them, so a panic leaves no inconsistent
/// state.
impl std::panic::RefUnwindSafe for Node {}

impl Node {
    pub(super) fn new(parts: Parts, parent: Option<Arc<Node>>) -> Self {
        let above = parent.as_ref();
        let limit = parts.limit.min(MOST);
        Self {
            line: above
                .filter(|node| node.measure == parts.measure)
                .map_or_else(Arc::default, |node| Arc::clone(&node.line)),
            pressure: above.map_or_else(
                || Arc::new(AtomicUsize::new(0)),
                |node| Arc::clone(&node.pressure),
            ),
            levels: above.map_or(1, |node| node.levels + 1),
            name: parts.name,
            measure: parts.measure,
            room: Room::new(limit),
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            round: AtomicU64::new(0),
            soft: parts.soft,
            children: Mutex::new(Vec::new()),
            lister: Mutex::new(None),
            parent,
        }
    }

    /// Returns the next budget that a charge of this one reaches.
    pub(super) fn next(&self) -> Option<&Arc<Node>> {
        self.parent.as_ref().filter(|node| node.measure == self.measure)
    }

    /// Returns this budget and all budgets above it that its charges reach.
    pub(super) fn way(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Node>> {
        std::iter::successors(Some(self), |node| node.next())
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn peak(&self) -> u64 {
        let used = self.used();
        // The peak is behind between a charge and the update of the peak.
        self.peak.load(Ordering::Relaxed).max(used)
    }

    /// Counts a charge whose room was taken in all budgets on its path. Returns the bytes used now.
    ///
    /// The peak is exact and never above a limit because counts and discounts have one order. A charge is counted after
    /// its room was taken and discounted before its room is returned, and taking room happens after the return that
    /// provides it ([`Room::take`]). So charges that are counted together held room together.
    ///
    /// `AcqRel` here and below is needed by the soft limits ([`SoftLimit::rose`]).
    pub(super) fn count(&self, bytes: u64) -> u64 {
        let used = self.used.fetch_add(bytes, Ordering::AcqRel) + bytes;
        if used > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
        used
    }

    /// Discounts a charge before its room is returned. Returns the bytes used now.
    pub(super) fn discount(&self, bytes: u64) -> u64 {
        self.used.fetch_sub(bytes, Ordering::AcqRel) - bytes
    }

    /// Reads the used bytes with an operation that has its own place in the order of counts and discounts.
    pub(super) fn recount(&self) -> u64 {
        self.used.fetch_add(0, Ordering::AcqRel)
    }

    pub(super) fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    pub(super) fn refused(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn forget(&self, bytes: u64) {
        self.forgotten.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// Takes bytes from the forgotten bytes. Returns the number of forgotten bytes as an error if there are too few.
    pub(super) fn remember(&self, bytes: u64) -> Result<(), u64> {
        self.forgotten
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |forgotten| {
                forgotten.checked_sub(bytes)
            })
            .map(|_| ())
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts one more waiting request. The caller has set the flag and holds the lock of the line.
    pub(super) fn arrive(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one fewer waiting request. The caller holds the lock of the line.
    pub(super) fn depart(&self) {
        if self.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.room.lower_flag();
        }
    }

    pub(super) fn round(&self) -> u64 {
        self.round.load(Ordering::Relaxed)
    }

    pub(super) fn set_round(&self, round: u64) {
        self.round.store(round, Ordering::Relaxed);
    }

    /// Returns the charged bytes, including those in flight, as a refusal saw them.
    pub(super) fn charged(&self, seen: Seen) -> u64 {
        seen.charged(self.limit())
    }

    /// Adds a child to the list, whose memory is allocated outside the lock.
    pub(super) fn adopt(&self, child: &Arc<Node>) {
        let mut larger = Vec::new();
        loop {
            let mut children = lock(&self.children);
            if let Some(gone) = children.iter_mut().find(|child| child.strong_count() == 0) {
                let gone = std::mem::replace(gone, Arc::downgrade(child));
                drop(children);
                drop(gone);
                return;
            }
            if children.len() < children.capacity() {
                children.push(Arc::downgrade(child));
                return;
            }
            if larger.capacity() > children.len() {
                larger.append(&mut children);
                std::mem::swap(&mut larger, &mut children);
                children.push(Arc::downgrade(child));
                drop(children);
                return;
            }
            let wanted = children.len() * 2 + 4;
            drop(children);
            larger.reserve_exact(wanted);
        }
    }

    /// Calls `visit` for each child, outside the lock.
    pub(super) fn each_child(&self, mut visit: impl FnMut(&Arc<Node>)) {
        for at in 0.. {
            let child = {
                let children = lock(&self.children);
                match children.get(at) {
                    Some(child) => child.upgrade(),
                    None => return,
                }
            };
            if let Some(child) = child {
                visit(&child);
            }
        }
    }

    pub(super) fn set_lister(&self, lister: Option<Arc<dyn Lister>>) {
        let mut place = lock(&self.lister);
        let before = std::mem::replace(&mut *place, lister);
        drop(place);
        drop(before);
    }

    pub(super) fn lister(&self) -> Option<Arc<dyn Lister>> {
        lock(&self.lister).clone()
    }
}
