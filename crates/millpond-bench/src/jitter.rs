//! Random variants of a recorded program. They show whether a policy works in general, or whether its settings fit one recording.

use crate::program::{GOLDEN, mix};
use crate::{Op, Program};
use std::ops::Range;

/// One step in this many is left out on average, and one in this many is repeated.
const CHANGED: u64 = 8;

/// Random fractions are multiples of 1 / `FINE`. An `f64` represents each of them exactly.
const FINE: u64 = 1 << 53;

impl Program {
    /// Returns a variant of the program. The variant depends only on the program, the percentage and the seed.
    ///
    /// Each distinct size is multiplied by its own random factor, which differs from 1 by at most `percent` percent. Equal sizes
    /// stay equal. One step in eight is left out on average, with all blocks that it allocates. One step in eight is repeated. The
    /// repetition contains only the blocks that the step itself frees.
    #[must_use]
    pub fn jittered(&self, percent: f64, seed: u64) -> Self {
        let mut changed = Self {
            name: self.name.clone(),
            ..Self::default()
        };
        let mut slots = Slots::new(self.slots);
        let mut at = 0;
        for (number, step) in self.steps.windows(2).enumerate() {
            changed.copy(self, at..step[0], &mut slots);
            let calls = step[0]..step[1];
            match chance(seed, number as u64) % CHANGED {
                0 => changed.leave_out(self, calls, &mut slots),
                1 => {
                    changed.copy_inner(self, calls.clone(), &mut slots);
                    changed.copy(self, calls, &mut slots);
                }
                _ => changed.copy(self, calls, &mut slots),
            }
            at = step[1];
        }
        changed.copy(self, at..self.ops.len(), &mut slots);
        changed.slots = slots.count;
        changed.scale(percent, seed);
        changed
    }

    /// Appends these calls.
    fn copy(&mut self, from: &Self, calls: Range<usize>, slots: &mut Slots) {
        for op in &from.ops[calls] {
            match *op {
                Op::Alloc { slot, stream, bytes } => {
                    let slot = slots.take(slot);
                    self.ops.push(Op::Alloc { slot, stream, bytes });
                }
                Op::Free { slot } => self.ops.extend(slots.free(slot).map(|slot| Op::Free { slot })),
            }
        }
    }

    /// Appends only the frees of blocks that were allocated before these calls.
    fn leave_out(&mut self, from: &Self, calls: Range<usize>, slots: &mut Slots) {
        for op in &from.ops[calls] {
            match *op {
                Op::Alloc { slot, .. } => slots.leave_out(slot),
                Op::Free { slot } => self.ops.extend(slots.free(slot).map(|slot| Op::Free { slot })),
            }
        }
    }

    /// Appends only the calls for blocks that these calls both allocate and free.
    fn copy_inner(&mut self, from: &Self, calls: Range<usize>, slots: &mut Slots) {
        let ops = &from.ops[calls];
        let mut last = vec![None; from.slots];
        let mut inner = vec![false; ops.len()];
        for (at, op) in ops.iter().enumerate() {
            match *op {
                Op::Alloc { slot, .. } => last[slot as usize] = Some(at),
                Op::Free { slot } => {
                    if let Some(allocated) = last[slot as usize].take() {
                        (inner[allocated], inner[at]) = (true, true);
                    }
                }
            }
        }
        let mut copies = vec![None; from.slots];
        for (op, _) in ops.iter().zip(inner).filter(|(_, inner)| *inner) {
            match *op {
                Op::Alloc { slot, stream, bytes } => {
                    let copy = slots.fresh();
                    copies[slot as usize] = Some(copy);
                    let slot = copy;
                    self.ops.push(Op::Alloc { slot, stream, bytes });
                }
                Op::Free { slot } => {
                    if let Some(slot) = copies[slot as usize].take() {
                        slots.vacant.push(slot);
                        self.ops.push(Op::Free { slot });
                    }
                }
            }
        }
    }

    /// Changes the sizes, and computes the counts of the program.
    fn scale(&mut self, percent: f64, seed: u64) {
        let mut held = vec![0; self.slots];
        let mut live = 0u64;
        for op in &mut self.ops {
            match op {
                Op::Alloc { slot, bytes, .. } => {
                    let within = (chance(seed ^ 1, *bytes) % FINE) as f64 / FINE as f64;
                    let factor = 1.0 + (2.0 * within - 1.0) * percent / 100.0;
                    *bytes = ((*bytes as f64 * factor) as u64).max(1);
                    held[*slot as usize] = *bytes;
                    live = live.saturating_add(*bytes);
                    self.peak = self.peak.max(live);
                    self.allocations += 1;
                }
                Op::Free { slot } => live = live.saturating_sub(std::mem::take(&mut held[*slot as usize])),
            }
        }
        self.left = held.iter().filter(|bytes| **bytes > 0).count() as u64;
    }
}

/// Assigns slots of the variant to the blocks of the original program.
struct Slots {
    /// The slot in the variant for each slot of the original program. `None` if the slot is empty or its block was left out.
    of: Vec<Option<u32>>,
    vacant: Vec<u32>,
    count: usize,
}

impl Slots {
    fn new(slots: usize) -> Self {
        Self {
            of: vec![None; slots],
            vacant: Vec::new(),
            count: 0,
        }
    }

    fn fresh(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count as u32 - 1
        })
    }

    fn take(&mut self, slot: u32) -> u32 {
        let fresh = self.fresh();
        self.of[slot as usize] = Some(fresh);
        fresh
    }

    fn free(&mut self, slot: u32) -> Option<u32> {
        let freed = self.of[slot as usize].take();
        self.vacant.extend(freed);
        freed
    }

    fn leave_out(&mut self, slot: u32) {
        self.of[slot as usize] = None;
    }
}

/// Returns a pseudo-random number. Equal arguments give equal numbers.
fn chance(seed: u64, of: u64) -> u64 {
    mix(mix(seed.wrapping_add(GOLDEN)).wrapping_add(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three hundred equal steps. Each keeps one block and frees the block that the step before it kept.
    fn program() -> Program {
        let mut ops = Vec::new();
        let mut steps = Vec::new();
        let alloc = |slot, bytes| Op::Alloc {
            slot,
            stream: 0,
            bytes,
        };
        for step in 0..300 {
            steps.push(ops.len());
            let (kept, old) = (step % 2, (step + 1) % 2);
            ops.extend([
                alloc(2, 1000),
                alloc(3, 50_000),
                alloc(kept, 1000),
                Op::Free { slot: 3 },
            ]);
            ops.push(Op::Free { slot: 2 });
            if step > 0 {
                ops.push(Op::Free { slot: old });
            }
        }
        steps.push(ops.len());
        Program {
            ops,
            steps,
            slots: 4,
            ..Program::default()
        }
    }

    /// Returns the sizes of all blocks, after a check that every slot is used in turn.
    fn sizes(program: &Program) -> Vec<u64> {
        let mut held = vec![None; program.slots];
        let mut sizes = Vec::new();
        for op in &program.ops {
            match *op {
                Op::Alloc { slot, bytes, .. } => {
                    assert_eq!(held[slot as usize].replace(bytes), None, "a slot with two blocks");
                    sizes.push(bytes);
                }
                Op::Free { slot } => assert!(held[slot as usize].take().is_some(), "a free without a block"),
            }
        }
        assert_eq!(held.iter().flatten().count() as u64, program.left);
        sizes
    }

    #[test]
    fn equal_sizes_stay_equal_and_change_by_at_most_the_percentage() {
        let changed = program().jittered(3.0, 7);
        let mut distinct = sizes(&changed);
        distinct.sort_unstable();
        distinct.dedup();
        let [small, large] = distinct[..] else {
            panic!("{distinct:?} are not two sizes")
        };
        assert!((970..=1030).contains(&small) && small != 1000, "{small}");
        assert!((48_500..=51_500).contains(&large) && large != 50_000, "{large}");
        assert_eq!(changed, program().jittered(3.0, 7));
        assert_ne!(changed, program().jittered(3.0, 8));
    }

    #[test]
    fn some_steps_are_left_out_and_some_are_repeated() {
        let changed = program().jittered(0.0, 1);
        let of = |sizes: &[u64], bytes| sizes.iter().filter(|size| **size == bytes).count();
        let sizes = sizes(&changed);
        let (kept_and_inner, inner) = (of(&sizes, 1000), of(&sizes, 50_000));
        // One block of each step outlives the step, and is not repeated.
        let left_out = 300 - (kept_and_inner - inner);
        let twice = inner + left_out - 300;
        assert!(
            (15..60).contains(&left_out) && (15..60).contains(&twice),
            "{left_out} {twice}"
        );
        assert_eq!(changed.allocations, sizes.len() as u64);
    }

    #[test]
    fn a_program_without_steps_keeps_its_calls() {
        let original = Program {
            steps: Vec::new(),
            ..program()
        };
        let changed = original.jittered(0.0, 3);
        assert_eq!(sizes(&changed), sizes(&Program { left: 1, ..original }));
        assert_eq!(changed.peak, 53_000);
    }
}
