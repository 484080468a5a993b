//! W3, W4 and the half: blocks that live for some time and are replaced at random, and the memory that they leave behind.

use super::{Outcome, ResidentMemory};
use crate::host::allocator::{Allocator, Block, Shape};
use crate::host::figures::Figures;
use crate::host::gauge::Timed;
use crate::host::random::Random;
use crate::measure::Clock;
use std::sync::Barrier;

/// The steps of a workload, computed before the timer starts.
struct Schedule {
    /// The place that gets a new block, and its shape. Each place is filled once before any is replaced.
    steps: Vec<(usize, Shape)>,
    places: usize,
    /// The most bytes at once.
    live: u64,
}

impl Schedule {
    fn random(seed: u64, places: usize, steps: usize, most: usize) -> Self {
        let mut random = Random::new(seed);
        let mut held = vec![0; places];
        let (mut now, mut live) = (0, 0);
        let step = |at| {
            let place = if at < places { at } else { random.below(places) };
            let shape = Shape::new(random.size(4 << 10, most), 64);
            now = now - held[place] + shape.size() as u64;
            held[place] = shape.size() as u64;
            live = live.max(now);
            (place, shape)
        };
        let steps = (0..steps).map(step).collect();
        Self { steps, places, live }
    }

    /// Returns the steps in halves. In the first half memory is allocated from the system and the allocator adapts to the
    /// program. In the second half it is warm.
    fn halves(&self) -> [&[(usize, Shape)]; 2] {
        let (one, two) = self.steps.split_at(self.steps.len() / 2);
        [one, two]
    }

    /// Frees the old block before it allocates the new one.
    fn run<'a, A: Allocator>(
        &self,
        steps: &[(usize, Shape)],
        from: &'a A,
        held: &mut Vec<Option<Block<'a, A>>>,
    ) -> Outcome<()> {
        held.resize_with(self.places, || None);
        for &(place, shape) in steps {
            held[place] = None;
            let mut block = Block::new(from, shape)?;
            block.touch_pages();
            held[place] = Some(block);
        }
        Ok(())
    }
}

/// Runs W3.
pub(super) fn run<A: Allocator>(from: &A, steps: usize) -> Outcome<Figures> {
    let schedule = Schedule::random(3, 200, steps, 32 << 20);
    let mut held = Vec::with_capacity(schedule.places);
    let resident_memory = ResidentMemory::start();
    let mut times = Vec::new();
    for (part, steps) in ["warm-up", "step"].into_iter().zip(schedule.halves()) {
        let timed = Timed::start(Clock::Thread);
        schedule.run(steps, from, &mut held)?;
        times.push(timed.stop(part, steps.len() as u64, 0));
    }
    held.clear();
    Ok(Figures {
        times,
        memory: Some(resident_memory.end(from, schedule.live, 0)),
    })
}

/// Runs W4 and measures wall-clock time for each step of a thread.
pub(super) fn run_threads<A: Allocator + Sync>(from: &A) -> Outcome<Figures> {
    let steps = 10_000;
    let schedules = [4, 5].map(|seed| Schedule::random(seed, 100, steps, 4 << 20));
    let start = Barrier::new(schedules.len() + 1);
    let resident_memory = ResidentMemory::start();
    let times = std::thread::scope(|scope| {
        let threads: Vec<_> = schedules
            .iter()
            .map(|schedule| {
                let start = &start;
                scope.spawn(move || {
                    let mut held = Vec::with_capacity(schedule.places);
                    // All threads wait for all others, even after an error.
                    let halves = schedule.halves().map(|steps| {
                        start.wait();
                        schedule.run(steps, from, &mut held)
                    });
                    start.wait();
                    halves.into_iter().collect::<Outcome<()>>()
                })
            })
            .collect();
        start.wait();
        let warm_up = Timed::start(Clock::Wall);
        start.wait();
        let mut times = vec![warm_up.stop("warm-up", steps as u64 / 2, 0)];
        let timed = Timed::start(Clock::Wall);
        start.wait();
        times.push(timed.stop("step", steps as u64 / 2, 0));
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Outcome::Ok(times)
    })?;
    let live = schedules.iter().map(|schedule| schedule.live).sum();
    Ok(Figures {
        times,
        memory: Some(resident_memory.end(from, live, 0)),
    })
}

/// Allocates blocks and frees a random half.
pub(super) fn run_half<A: Allocator>(from: &A) -> Outcome<Figures> {
    let schedule = Schedule::random(6, 1_000, 1_000, 4 << 20);
    let mut held = Vec::with_capacity(schedule.places);
    let resident_memory = ResidentMemory::start();
    schedule.run(&schedule.steps, from, &mut held)?;
    let mut random = Random::new(7);
    let mut order: Vec<usize> = (0..held.len()).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at + 1));
    }
    order.truncate(held.len() / 2);
    let timed = Timed::start(Clock::Thread);
    for &place in &order {
        held[place] = None;
    }
    let times = vec![timed.stop("free", order.len() as u64, 0)];
    let left = held.iter().flatten().map(|block| block.size() as u64).sum();
    Ok(Figures {
        times,
        memory: Some(resident_memory.end(from, schedule.live, left)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_documented_mean() {
        let schedule = Schedule::random(3, 200, 20_000, 32 << 20);
        let sum: usize = schedule.steps.iter().map(|(_, shape)| shape.size()).sum();
        let mean = sum as f64 / 20_000.0;
        assert!((3.5e6..3.9e6).contains(&mean), "{mean} is not the 3.7 MB of W3");
        assert!((4 << 20..9 << 30).contains(&schedule.live));
    }
}
