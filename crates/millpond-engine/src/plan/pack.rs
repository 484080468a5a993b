//! Computes offsets for blocks whose lifetimes are known.
//!
//! This is offline *dynamic storage allocation*, which is strongly NP-complete (Garey and Johnson, *Computers and
//! Intractability*, problem SR2). The method is the greedy one of deep learning compilers. It places the largest block
//! first. Each block goes into the smallest gap that holds it among the blocks that live at the same time, at the
//! lowest address among equals (Pisarchyk and Lee, *Efficient Memory Management for Deep Neural Net Inference*, 2020,
//! "greedy by size"; XLA's heap simulator and TVM's memory planner use related methods). If the result exceeds the
//! lower bound, other orders are tried. Then the blocks that end above the bound are placed earlier, in several rounds.
//! Exact searches (MiniMalloc, 2023; TelaMalloc, 2022) were not needed: for the recorded training steps the first order
//! reaches the lower bound exactly.
//!
//! One placement compares each block with those placed before it, so its cost is quadratic in the period. All
//! placements for a solution share a budget of comparisons. Only the first one may exceed it.

use super::{Place, Plan, Step};

/// Maximum comparisons of two blocks for one solution.
const BUDGET: u64 = 400_000_000;
/// Number of rounds that place blocks above the bound earlier.
const ROUNDS: u32 = 24;

/// Computes an offset for every planned slot of a step.
#[must_use]
pub fn solve(step: Step) -> Plan {
    let lower_bound = step.lower_bound();
    let planned: Vec<usize> = (0..step.period())
        .filter(|&i| step.slots[i].is_planned())
        .collect();
    let (offsets, height) = best(&step, planned, lower_bound, BUDGET);
    let place = |offset: Option<u64>| offset.map(|offset| Place { region: 0, offset });
    Plan {
        places: offsets.into_iter().map(place).collect(),
        step,
        height,
        lower_bound,
    }
}

type Placed = (Vec<Option<u64>>, u64);

fn best(step: &Step, planned: Vec<usize>, lower_bound: u64, mut budget: u64) -> Placed {
    let slot = |i: usize| &step.slots[i];
    let orders: [&dyn Fn(usize) -> (u64, u64); 4] = [
        &|i| (slot(i).bytes, u64::from(slot(i).life)),
        &|i| (slot(i).bytes, u64::MAX - i as u64),
        &|i| {
            (
                slot(i).bytes.saturating_mul(u64::from(slot(i).life)),
                slot(i).bytes,
            )
        },
        &|i| (u64::from(slot(i).life), slot(i).bytes),
    ];
    let cost = (planned.len() as u64).pow(2) / 2 + 1;
    let mut best: Option<(Placed, Vec<usize>)> = None;
    for key in orders {
        let mut order = planned.clone();
        order.sort_by_key(|&i| (std::cmp::Reverse(key(i)), i));
        let placed = place_in(step, &order);
        if best.as_ref().is_none_or(|(b, _)| placed.1 < b.1) {
            best = Some((placed, order));
        }
        budget = budget.saturating_sub(cost);
        if budget < cost || best.as_ref().is_some_and(|(b, _)| b.1 <= lower_bound) {
            break;
        }
    }
    let Some((mut best, mut order)) = best else {
        return (vec![None; step.period()], 0);
    };
    for _ in 0..ROUNDS {
        if best.1 <= lower_bound || budget < cost {
            break;
        }
        budget -= cost;
        let out = |i: &usize| best.0[*i].is_some_and(|at| at + slot(*i).bytes > lower_bound);
        let (mut next, rest): (Vec<usize>, Vec<usize>) = order.iter().partition(|i| out(i));
        next.extend(rest);
        let placed = place_in(step, &next);
        order = next;
        if placed.1 < best.1 {
            best = placed;
        }
    }
    best
}

/// Places the slots in the given order.
fn place_in(step: &Step, order: &[usize]) -> Placed {
    let mut offsets = vec![None; step.period()];
    let mut placed: Vec<(u64, u64, u32)> = Vec::with_capacity(order.len());
    let mut height = 0;
    for &i in order {
        let bytes = step.slots[i].bytes;
        let (at, _) = gap(step, &placed, i, u64::MAX).unwrap_or((height, 0));
        offsets[i] = Some(at);
        height = height.max(at + bytes);
        let position = placed.partition_point(|p| p.0 < at);
        placed.insert(position, (at, at + bytes, i as u32));
    }
    (offsets, height)
}

/// Finds the smallest gap for a slot that ends at or below `capacity`. `placed` is sorted by offset. Returns the offset
/// of the gap and the bytes left in it. The space above all placed slots is used only if no gap fits.
fn gap(step: &Step, placed: &[(u64, u64, u32)], slot: usize, capacity: u64) -> Option<(u64, u64)> {
    let bytes = step.slots[slot].bytes;
    let mut best: Option<(u64, u64)> = None;
    let mut at = 0;
    for &(start, end, other) in placed {
        if end <= at || !step.together(slot, other as usize) {
            continue;
        }
        if start >= at && start - at >= bytes {
            let left = start - at - bytes;
            if best.is_none_or(|(_, l)| left < l) {
                best = Some((at, left));
            }
        }
        at = at.max(end);
    }
    best.or_else(|| {
        capacity
            .checked_sub(at)
            .filter(|room| *room >= bytes)
            .map(|room| (at, room - bytes))
    })
}

impl Plan {
    /// Moves small slots into free pieces of memory elsewhere, given by their sizes in bytes, and lowers the height
    /// accordingly. Slots that are live at the peak of the step are moved first. Small slots are placed last, so they
    /// usually lie at the top.
    pub fn use_pieces(&mut self, pieces: &[u64]) {
        let largest = pieces.iter().copied().max().unwrap_or(0);
        let high = self.lower_bound.saturating_sub(pieces.iter().sum());
        let is_high = self.step.touches(|bytes| bytes > high);
        let mut order: Vec<usize> = (0..self.step.period())
            .filter(|&i| self.places[i].is_some() && self.step.slots[i].bytes <= largest)
            .collect();
        order.sort_by_key(|&i| (std::cmp::Reverse((is_high[i], self.step.slots[i].bytes)), i));
        let mut by_size: Vec<usize> = (0..pieces.len()).collect();
        by_size.sort_by_key(|&p| (pieces[p], p));
        let mut inside: Vec<Vec<(u64, u64, u32)>> = vec![Vec::new(); pieces.len()];
        for i in order {
            let bytes = self.step.slots[i].bytes;
            let fitting = by_size.iter().filter(|&&p| pieces[p] >= bytes);
            let found = fitting
                .filter_map(|&p| gap(&self.step, &inside[p], i, pieces[p]).map(|(at, _)| (p, at)))
                .next();
            let Some((piece, offset)) = found else { continue };
            let position = inside[piece].partition_point(|p| p.0 < offset);
            inside[piece].insert(position, (offset, offset + bytes, i as u32));
            self.places[i] = Some(Place {
                region: piece as u32 + 1,
                offset,
            });
        }
        let tops = self
            .places
            .iter()
            .zip(&self.step.slots)
            .filter_map(|(place, slot)| place.filter(|p| p.region == 0).map(|p| p.offset + slot.bytes));
        self.height = tops.max().unwrap_or(0);
    }

    /// Returns for each piece whether a slot lies in it.
    #[must_use]
    pub fn used_pieces(&self, pieces: usize) -> Vec<bool> {
        let mut used = vec![false; pieces];
        for region in self
            .places
            .iter()
            .flatten()
            .filter_map(|place| place.region.checked_sub(1))
        {
            if let Some(used) = used.get_mut(region as usize) {
                *used = true;
            }
        }
        used
    }

    /// Computes new places for the slots in the plan's own memory. It can be smaller now, because other slots were moved
    /// into pieces. Does nothing if it would need more than `most` bytes anyway.
    pub fn pack_again(&mut self, most: u64) {
        let own: Vec<usize> = (0..self.step.period())
            .filter(|&i| self.places[i].is_some_and(|place| place.region == 0))
            .collect();
        let mut rest = self.step.clone();
        for (slot, place) in rest.slots.iter_mut().zip(&self.places) {
            if place.is_some_and(|place| place.region > 0) {
                slot.life = 0;
            }
        }
        let lower_bound = rest.lower_bound();
        if lower_bound > most {
            return;
        }
        let (offsets, height) = best(&rest, own, lower_bound, BUDGET / 16);
        if height < self.height {
            self.height = height;
            for (place, offset) in self.places.iter_mut().zip(offsets) {
                *place = offset.map(|offset| Place { region: 0, offset }).or(*place);
            }
        }
    }

    /// Asserts that slots that live at the same time do not overlap and lie within the plan.
    ///
    /// # Panics
    /// Panics if they do not.
    pub fn check(&self) {
        assert_eq!(self.places.len(), self.step.period());
        for (i, slot) in self.step.slots.iter().enumerate() {
            let Some(place) = self.places[i] else { continue };
            assert!(slot.is_planned(), "slot {i} has a place and no life");
            assert!(
                place.region > 0 || place.offset + slot.bytes <= self.height,
                "slot {i} sticks out"
            );
        }
        if let Some((a, b)) = self.overlap() {
            panic!("slots {a} and {b} overlap");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Stream;
    use crate::plan::Slot;
    use proptest::prelude::*;

    fn steps() -> impl Strategy<Value = Step> {
        proptest::collection::vec((1u64..5000, 0u32..200), 1..120).prop_map(|slots| {
            let period = slots.len() as u32;
            let slots = slots.into_iter().map(|(bytes, life)| Slot {
                least: bytes * 256,
                bytes: bytes * 256,
                stream: Stream::DEFAULT,
                life: life % (period + 1),
            });
            Step {
                slots: slots.collect(),
            }
        })
    }

    /// Checks for overlaps at every moment without the code under test.
    fn naive(plan: &Plan) {
        let period = plan.step.period();
        for now in 0..period {
            let mut held = Vec::new();
            for (i, slot) in plan.step.slots.iter().enumerate() {
                let age = (now + period - i) % period;
                if age < slot.life as usize {
                    let place = plan.places[i].expect("a planned slot has a place");
                    held.push((place.region, place.offset, place.offset + slot.bytes));
                }
            }
            held.sort_unstable();
            for pair in held.windows(2) {
                assert!(
                    pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1,
                    "at {now}: {pair:?}"
                );
            }
            let own: u64 = held.iter().map(|h| h.2 - h.1).sum();
            assert!(own <= plan.lower_bound);
        }
    }

    proptest! {
        #[test]
        fn slots_do_not_overlap_and_the_height_is_not_below_the_bound(step in steps(), pieces in proptest::collection::vec(1u64..2000, 0..8)) {
            let mut plan = solve(step);
            plan.check();
            naive(&plan);
            prop_assert!(plan.height >= plan.lower_bound);
            let before = plan.height;
            let pieces: Vec<u64> = pieces.iter().map(|p| p * 256).collect();
            plan.use_pieces(&pieces);
            plan.check();
            naive(&plan);
            prop_assert!(plan.height <= before);
            let before = plan.height;
            plan.pack_again(u64::MAX);
            plan.check();
            naive(&plan);
            prop_assert!(plan.height <= before);
            for (place, slot) in plan.places.iter().zip(&plan.step.slots) {
                if let Some(Place { region: region @ 1.., offset }) = place {
                    prop_assert!(offset + slot.bytes <= pieces[*region as usize - 1]);
                }
            }
        }
    }

    #[test]
    fn nested_lifetimes_are_packed_to_the_lower_bound() {
        // The first allocated slot is the last one freed, as in a forward and a backward pass.
        let slots = (0..100u32).map(|i| Slot {
            least: 256,
            bytes: 256 * u64::from(1 + i % 7),
            stream: Stream::DEFAULT,
            life: 100 - i,
        });
        let plan = solve(Step {
            slots: slots.collect(),
        });
        assert_eq!(plan.height, plan.lower_bound);
    }

    #[test]
    fn a_plan_is_packed_lower_after_slots_moved_into_pieces() {
        let slot = |bytes, life| Slot {
            least: bytes,
            bytes,
            stream: Stream::DEFAULT,
            life,
        };
        let mut plan = solve(Step {
            slots: vec![slot(512, 2), slot(1024, 2)],
        });
        for (place, offset) in plan.places.iter_mut().zip([0, 512]) {
            *place = Some(Place { region: 0, offset });
        }
        plan.use_pieces(&[512]);
        assert_eq!((plan.height, plan.used_pieces(1)), (1536, vec![true]));
        plan.pack_again(1023);
        assert_eq!(plan.height, 1536);
        plan.pack_again(1024);
        plan.check();
        assert_eq!(plan.height, 1024);
    }

    #[test]
    fn an_empty_step_needs_nothing() {
        let plan = solve(Step::default());
        assert_eq!((plan.height, plan.lower_bound), (0, 0));
        plan.check();
    }
}
