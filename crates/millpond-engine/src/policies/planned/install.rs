//! Starts and drops a plan.

use super::super::millpond::{FOREIGN, Part};
use super::course::Course;
use super::{MOST_PATIENCE, Phase, Planned};
use crate::block::{Block, Group, Request, Stream};
use crate::plan::{Detector, Plan};
use crate::policy::{Policy, Refusal};
use crate::supply::Supply;

/// The most by which reserved memory may exceed the program's peak to start a plan, in thousandths.
const GROWTH_PERMILLE: u64 = 3;
/// The same in pages, if that is more.
const GROWTH_PAGES: u64 = 4;
/// The plan is dropped once unexpected requests need more new memory than this fraction of the reserved bytes (1/1024).
const ODD_SHARE: u64 = 1024;
/// A plan that served this many periods was successful.
const WORTHWHILE: u64 = 4;

impl Planned {
    /// Collects the plan's memory and begins to follow the plan.
    pub(super) fn install(&mut self, supply: &mut Supply<'_>, mut plan: Plan) {
        let tries = std::mem::take(&mut self.saved);
        let keys = self.orphans.keys().next_back().map_or(FOREIGN, |last| last + 1);
        if !supply.is_paged() || plan.height == 0 || u32::MAX - keys <= plan.step.period() as u32 {
            return self.give_up();
        }
        // Pages can move only when no stream uses them. Afterwards their new users need not wait.
        self.free_deferred(supply);
        // Slots without a place stay with the default policy and need memory there.
        let unplanned = plan.step.slots.iter().filter(|slot| !slot.is_planned());
        let unplanned: Vec<Request> = unplanned
            .map(|slot| Request::new(slot.bytes, slot.stream))
            .collect();
        let set_aside: Vec<Block> = unplanned
            .iter()
            .map_while(|request| self.inner.allocate_cached(supply, request))
            .collect();
        let pieces = self.inner.lend_pieces();
        let sizes: Vec<u64> = pieces.iter().map(Block::bytes).collect();
        let solved = plan.clone();
        plan.use_pieces(&sizes);
        let page = supply.page_bytes();
        let height = plan.height.next_multiple_of(page).max(page);
        let reserved = supply.reserved() + height.saturating_sub(self.inner.movable_bytes());
        let slack = (self.inner.peak() / 1000 * GROWTH_PERMILLE).max(GROWTH_PAGES * page);
        let most = supply.peak_reserved().max(self.inner.peak() + slack);
        let block = if reserved <= most {
            self.inner.lend(supply, height).ok()
        } else {
            None
        };
        for block in set_aside {
            self.inner.free(supply, block);
        }
        let Some(block) = block else {
            for piece in pieces {
                let bytes = piece.bytes();
                self.inner.take_back(piece, &[Part { bytes, live: None }]);
            }
            self.give_up();
            if tries > 1 {
                self.remember(solved);
                self.saved = tries - 1;
            }
            return;
        };

        self.remember(solved);
        let lent = std::iter::once(block).chain(pieces).collect();
        self.phase = Phase::Serving(Box::new(Course::new(&plan, lent, keys)));
    }

    /// Continues without a plan that could not be started.
    fn give_up(&mut self) {
        self.known = None;
        self.patience = (self.patience * 2).min(MOST_PATIENCE);
        self.watch_afresh();
    }

    fn watch_afresh(&mut self) {
        self.phase = Phase::Watching;
        self.detector = Detector::new();
        self.numbers.fill(u64::MAX);
    }

    /// Serves a request that is not part of the plan.
    #[cold]
    pub(super) fn serve_odd(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal> {
        let Phase::Serving(course) = &self.phase else {
            return self.serve_inner(supply, request);
        };
        let lost = course.is_lost();
        if !lost {
            if let Some(block) = self.inner.allocate_cached(supply, request) {
                return Ok(block);
            }
            let affordable = self.odd_bytes + request.bytes <= supply.reserved() / ODD_SHARE;
            if affordable || request.group != Group::default() {
                self.odd_bytes += request.bytes;
                return self.serve_inner(supply, request);
            }
        }
        self.drop_plan(supply);
        self.watch(supply, request)
    }

    /// Drops a plan that has served no request for as long as free memory is kept. Its memory then becomes free.
    pub(super) fn drop_idle_plan(&mut self, supply: &mut Supply<'_>, ticks: u32) {
        let Phase::Serving(course) = &self.phase else {
            return;
        };
        if course.served != self.served {
            (self.served, self.idle_ticks) = (course.served, 0);
            return;
        }
        self.idle_ticks += u64::from(ticks);
        let decay = self.decay;
        if decay > 0 && self.idle_ticks > decay && supply.can_wait() {
            self.idle_ticks = 0;
            self.drop_plan(supply);
        }
    }

    /// Drops the plan. Its blocks stay live, and the rest of its memory becomes free. Returns whether there was a plan.
    pub(super) fn drop_plan(&mut self, supply: &mut Supply<'_>) -> bool {
        if !matches!(self.phase, Phase::Serving(_)) {
            return false;
        }
        let Phase::Serving(mut course) = std::mem::replace(&mut self.phase, Phase::Watching) else {
            return false;
        };
        course.order_all(supply, Stream::DEFAULT);
        let mut parts = course.by_address();
        for lent in std::mem::take(&mut course.lent) {
            let parts = parts.remove(&lent.address()).unwrap_or_default();
            let live: Vec<usize> = parts.iter().filter_map(|p| p.slot).collect();
            let request = |bytes, slot| Request::new(bytes, course.stream(slot));
            let parts: Vec<Part> = parts
                .iter()
                .map(|p| Part {
                    bytes: p.bytes,
                    live: p.slot.map(|slot| request(p.bytes, slot)),
                })
                .collect();
            for (slot, block) in live.into_iter().zip(self.inner.take_back(lent, &parts)) {
                self.orphans.insert(course.key(slot), block);
            }
        }
        if course.rounds() >= WORTHWHILE {
            self.patience = 1;
        } else {
            // The program does not follow the plan, so a step must repeat more often next time.
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
            self.known = None;
        }
        self.watch_afresh();
        true
    }
}
