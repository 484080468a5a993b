//! Starts and drops a plan.

use super::super::millpond::{FOREIGN, LIMIT, Part, SLACK_PAGES};
use super::course::Course;
use super::{MOST_PATIENCE, Phase, Planned};
use crate::block::{Block, Group, Request, Stream};
use crate::plan::{Detector, Plan};
use crate::policy::{Policy, Refusal};
use crate::supply::Supply;

/// The most by which memory may grow for a saved plan, in thousandths of the program's peak.
const SAVED_PERMILLE: u64 = 10;
/// A plan that placed the requests of this many periods was successful.
const WORTHWHILE: u64 = 4;

impl Planned {
    /// Collects the plan's memory and begins to follow the plan.
    pub(super) fn install(&mut self, supply: &mut Supply<'_>, solved: Plan, is_saved: bool) {
        if !supply.can_wait() {
            // The plan can start when its step occurs again.
            if is_saved || self.saved == 0 {
                self.remember(solved);
            }
            return self.watch_afresh();
        }
        let keys = self.orphans.keys().next_back().map_or(FOREIGN, |last| last + 1);
        let is_possible =
            supply.is_paged() && solved.height > 0 && u32::MAX - keys > solved.step.period() as u32;
        if is_possible {
            if supply.has_deferred() {
                self.free_deferred(supply);
            }
            if let Some((plan, lent)) = self.collect(supply, &solved, is_saved) {
                let course = Course::new(&plan, lent, keys);
                // The default stream has waited for the streams that used this memory, and each stream of the plan waits
                // for the default stream.
                for stream in course.streams() {
                    supply.order_after(stream, Stream::DEFAULT, None);
                }
                self.remember(solved);
                self.saved = 0;
                self.phase = Phase::Serving(Box::new(course));
                return;
            }
        }
        self.patience = (self.patience * 2).min(MOST_PATIENCE);
        self.watch_afresh();
        if is_saved {
            self.saved -= 1;
        }
        if is_saved && self.saved > 0 {
            self.remember(solved);
        } else if self.saved == 0 {
            self.known = None;
        }
    }

    /// Collects the memory for a plan. Returns the plan with its final places, and its memory: the block for its own
    /// region, then the pieces. Returns `None` if the plan needs more memory than was held before. A saved plan may need a
    /// little more.
    fn collect(
        &mut self,
        supply: &mut Supply<'_>,
        solved: &Plan,
        is_saved: bool,
    ) -> Option<(Plan, Vec<Block>)> {
        let page = supply.page_bytes();
        // Slots without a place stay with the default policy and need memory there.
        let unplanned = solved.step.slots.iter().filter(|slot| !slot.is_planned());
        let unplanned = unplanned.fold(0u64, |sum, slot| sum.saturating_add(slot.bytes));
        let more = if is_saved {
            self.inner.peak() / 1000 * SAVED_PERMILLE
        } else {
            0
        };
        let new = (self.most_reserved(supply) + more).saturating_sub(supply.reserved());
        let most = (new + self.inner.movable_bytes(supply)).saturating_sub(unplanned);
        let pieces = self.inner.pieces(supply);
        let mut plan = solved.clone();
        plan.use_pieces(&pieces.iter().map(|(_, bytes)| *bytes).collect::<Vec<u64>>());
        let height = |plan: &Plan| plan.height.next_multiple_of(page).max(page);
        if height(&plan) > most {
            plan.pack_again(most);
        }
        if height(&plan) > most {
            return None;
        }
        let used = plan.used_pieces(pieces.len());
        let mut lent = Vec::new();
        let mut regions = vec![0; pieces.len() + 1];
        for (at, piece) in pieces.into_iter().enumerate().filter(|(at, _)| used[*at]) {
            let Some(block) = self.inner.lend_piece(supply, piece) else {
                break;
            };
            lent.push(block);
            regions[at + 1] = lent.len() as u32;
        }
        let is_whole = lent.len() == used.iter().filter(|used| **used).count();
        let own = if is_whole {
            self.inner.lend(supply, height(&plan), new).ok()
        } else {
            None
        };
        let Some(own) = own else {
            for piece in lent {
                let bytes = piece.bytes();
                self.inner.take_back(piece, &[Part { bytes, live: None }]);
            }
            return None;
        };
        for place in plan.places.iter_mut().flatten() {
            place.region = regions[place.region as usize];
        }
        lent.insert(0, own);
        Some((plan, lent))
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
        if request.bytes > LIMIT {
            return self.serve_inner(supply, request);
        }
        if !course.is_lost() {
            if course.lent.is_empty() {
                return self.serve_inner(supply, request);
            }
            if let Some(block) = self.serve_beside(supply, request) {
                return block;
            }
        }
        if self.drop_plan(supply) {
            self.watch(supply, request)
        } else {
            self.serve_inner(supply, request)
        }
    }

    /// Serves a request that is larger than its slot in the plan.
    #[cold]
    pub(super) fn serve_outgrown(
        &mut self,
        supply: &mut Supply<'_>,
        request: &Request,
        slot: usize,
    ) -> Result<Block, Refusal> {
        let has_place = matches!(&self.phase, Phase::Serving(course) if course.has_place(slot));
        let beside = has_place.then(|| self.serve_beside(supply, request)).flatten();
        let block = match beside {
            Some(outcome) => outcome?,
            None => {
                if has_place {
                    self.retire(supply);
                }
                self.serve_inner(supply, request)?
            }
        };
        if let Phase::Serving(course) = &mut self.phase {
            course.note_size(slot, block.bytes());
        }
        Ok(block)
    }

    /// Serves a request outside the plan's memory. Returns `None` if it would need more memory than was held before.
    fn serve_beside(&mut self, supply: &mut Supply<'_>, request: &Request) -> Option<Result<Block, Refusal>> {
        if let Some(block) = self.inner.allocate_cached(supply, request) {
            return Some(Ok(block));
        }
        let page = supply.page_bytes();
        let room = self.most_reserved(supply).saturating_sub(supply.reserved());
        let need = request.bytes.div_ceil(page).saturating_mul(page);
        let is_affordable = need <= room || request.group != Group::default();
        is_affordable.then(|| self.serve_inner(supply, request))
    }

    /// Returns the most bytes that may be reserved while a plan is followed: the peak of the reserved bytes, or the bytes
    /// that the default policy may always reserve, whichever is more.
    fn most_reserved(&self, supply: &Supply<'_>) -> u64 {
        let slack = SLACK_PAGES * supply.page_bytes();
        supply.peak_reserved().max(self.inner.peak() + slack)
    }

    /// Starts to solve a step that has grown, or starts its plan.
    #[cold]
    pub(super) fn turn(&mut self, supply: &mut Supply<'_>) {
        let Phase::Serving(course) = &mut self.phase else {
            return;
        };
        if !supply.can_wait() {
            return course.put_off();
        }
        if let Some(step) = course.turn() {
            return self.planner.start(step);
        }
        let Some(plan) = self.planner.finish() else {
            return course.solve_again();
        };
        let was_retired = course.lent.is_empty();
        if !self.retire(supply) {
            return;
        }
        self.phase = Phase::Watching;
        self.install(supply, plan, false);
        if let Phase::Serving(course) = &mut self.phase {
            let rest = &mut self.rests[usize::from(was_retired)];
            course.set_rest(*rest);
            *rest = (2 * *rest + 1).min(MOST_PATIENCE);
            if was_retired {
                self.rests[0] = 0;
            }
        }
    }

    /// Drops a plan that has served no request for as long as free memory is kept. Its memory then becomes free.
    pub(super) fn drop_idle_plan(&mut self, supply: &mut Supply<'_>, ticks: u32) {
        let Phase::Serving(course) = &self.phase else {
            return;
        };
        if course.served != self.served || course.lent.is_empty() {
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

    /// Gives the plan's memory back. Its blocks stay live, and the rest of its memory becomes free. The course continues
    /// without places. Returns `false` if there is no plan, or if a wait for its streams is not possible now.
    fn retire(&mut self, supply: &mut Supply<'_>) -> bool {
        let Phase::Serving(course) = &mut self.phase else {
            return false;
        };
        if course.lent.is_empty() {
            return true;
        }
        let streams = course.streams();
        if !streams.iter().all(|stream| supply.can_wait_for(*stream)) {
            return false;
        }
        for stream in streams {
            supply.order_after(Stream::DEFAULT, stream, None);
        }
        let mut parts = course.by_address();
        let (lent, placed) = course.retire();
        self.inner.note_allocated(placed);
        for lent in lent {
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
        true
    }

    /// Drops the plan. Its blocks stay live, and the rest of its memory becomes free. Returns `false` if there is no plan,
    /// or if a wait for its streams is not possible now.
    pub(super) fn drop_plan(&mut self, supply: &mut Supply<'_>) -> bool {
        if !self.retire(supply) {
            return false;
        }
        let rounds = match &self.phase {
            Phase::Serving(course) => course.rounds(),
            _ => 0,
        };
        if rounds >= WORTHWHILE {
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
