//! One period of a repeating program.

use crate::block::Stream;

/// One allocation of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The fewest bytes that were requested here. They differ from `bytes` if the size changes from step to step.
    pub least: u64,
    /// The most bytes that were requested here, as the policy rounds them. The slot's place has this size.
    pub bytes: u64,
    /// The stream of the request.
    pub stream: Stream,
    /// Number of allocations from this one, inclusive, until it is freed. 0 if it is not planned.
    pub life: u32,
}

impl Slot {
    /// Returns whether the slot gets a place.
    #[must_use]
    pub fn is_planned(&self) -> bool {
        self.life > 0
    }

    /// Returns whether the size changes from step to step.
    #[must_use]
    pub fn varies(&self) -> bool {
        self.least < self.bytes
    }

    /// Returns whether a request has a size that was seen here, on the same stream.
    #[must_use]
    pub fn admits(&self, bytes: u64, stream: Stream) -> bool {
        self.stream == stream && (self.least..=self.bytes).contains(&bytes)
    }
}

/// The allocations of one period in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// One slot for each allocation.
    pub slots: Vec<Slot>,
}

impl Step {
    /// Returns the number of allocations of a period.
    #[must_use]
    pub fn period(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether this step has a place for each allocation of another one, in the same order.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let slots = self.slots.iter().zip(&other.slots);
        self.period() == other.period()
            && slots.into_iter().all(|(own, slot)| {
                own.admits(slot.least, slot.stream)
                    && own.admits(slot.bytes, slot.stream)
                    && slot.life <= own.life
            })
    }

    /// Returns whether two slots are live at the same time in any round of the step.
    #[must_use]
    pub fn together(&self, a: usize, b: usize) -> bool {
        let (first, later) = (a.min(b), a.max(b));
        let between = later - first;
        between < self.slots[first].life as usize
            || self.slots.len() - between < self.slots[later].life as usize && between > 0
    }

    /// Returns the bytes of planned slots that are live just after each allocation.
    #[must_use]
    pub fn live(&self) -> Vec<u64> {
        let period = self.slots.len();
        let mut change = vec![0i128; period + 1];
        for (at, slot) in self.slots.iter().enumerate().filter(|(_, s)| s.is_planned()) {
            let end = at + slot.life as usize;
            change[at] += i128::from(slot.bytes);
            if end <= period {
                change[end] -= i128::from(slot.bytes);
            } else {
                change[0] += i128::from(slot.bytes);
                change[end - period] -= i128::from(slot.bytes);
            }
        }
        let mut live = 0;
        let sums = change[..period].iter().map(|c| {
            live += c;
            live as u64
        });
        sums.collect()
    }

    /// Returns for each slot whether it is live at a time at which `chosen` is true for the live bytes.
    #[must_use]
    pub fn touches(&self, chosen: impl Fn(u64) -> bool) -> Vec<bool> {
        // Number of chosen times before each time, over two rounds.
        let (live, mut count) = (self.live(), 0);
        let mut counts = vec![0u32];
        for bytes in live.iter().chain(&live) {
            count += u32::from(chosen(*bytes));
            counts.push(count);
        }
        let slots = self.slots.iter().enumerate();
        slots
            .map(|(at, slot)| counts[at] < counts[at + slot.life as usize])
            .collect()
    }

    /// Returns the most bytes that are live at once.
    #[must_use]
    pub fn lower_bound(&self) -> u64 {
        self.live().into_iter().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(slots: &[(u64, u32)]) -> Step {
        let slots = slots.iter().map(|&(bytes, life)| Slot {
            least: bytes,
            bytes,
            stream: Stream::DEFAULT,
            life,
        });
        Step {
            slots: slots.collect(),
        }
    }

    #[test]
    fn a_slot_can_live_into_the_next_step() {
        // The last slot lives into the next step, for its first two allocations.
        let step = step(&[(10, 1), (20, 1), (30, 1), (40, 3)]);
        assert_eq!(step.live(), [50, 60, 30, 40]);
        assert!(step.together(3, 0) && step.together(1, 3) && !step.together(2, 3) && !step.together(0, 1));
        assert_eq!(step.lower_bound(), 60);
    }

    #[test]
    fn a_step_covers_one_that_is_smaller_in_the_same_order() {
        let mut larger = step(&[(10, 1), (20, 2), (30, 1)]);
        let smaller = step(&[(10, 1), (15, 2), (30, 1)]);
        assert!(larger.covers(&larger) && !larger.covers(&smaller));
        larger.slots[1].least = 12;
        assert!(larger.covers(&smaller) && !smaller.covers(&larger));
        larger.slots[1].least = 16;
        let mut varying = larger.clone();
        varying.slots[1].least = 15;
        assert!(varying.covers(&larger) && !larger.covers(&varying));
        assert!(!larger.covers(&step(&[(10, 1), (15, 2)])));
        assert!(
            !larger.covers(&step(&[(10, 1), (15, 3), (30, 1)])),
            "freed too late"
        );
    }

    #[test]
    fn a_slot_that_lives_a_whole_period_overlaps_every_planned_slot() {
        let step = step(&[(10, 4), (20, 0), (30, 1), (40, 1)]);
        assert_eq!(step.live(), [10, 10, 40, 50]);
        assert!(step.together(0, 3) && step.together(2, 0) && !step.together(1, 2));
    }
}
