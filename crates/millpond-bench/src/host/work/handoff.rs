//! W5: one thread allocates and touches blocks, and another one frees them. At most 64 blocks are in transit.

use super::{Outcome, ResidentMemory};
use crate::host::allocator::{Allocator, Block, Shape};
use crate::host::figures::Figures;
use crate::host::gauge::Timed;
use crate::host::random::Random;
use crate::measure::Clock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const ITEMS: usize = 100_000;
const RING: usize = 64;

/// A ring between two threads. Each place belongs to one thread at a time, so its lock never waits. The two counts determine
/// to which.
struct Ring<T> {
    places: Vec<Mutex<Option<T>>>,
    put: AtomicUsize,
    taken: AtomicUsize,
}

/// A thread that gives up stores this as its count, so that the other one does not wait for it.
const BROKEN: usize = usize::MAX;

impl<T> Ring<T> {
    fn new() -> Self {
        Self {
            places: (0..RING).map(|_| Mutex::new(None)).collect(),
            put: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
        }
    }

    fn put(&self, at: usize, item: T) {
        wait(|| at - self.taken.load(Ordering::Acquire) < RING);
        *self.places[at % RING]
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(item);
        self.put.store(at + 1, Ordering::Release);
    }

    /// Takes the item, or returns `None` if the other thread has given up.
    fn take(&self, at: usize) -> Option<T> {
        wait(|| self.put.load(Ordering::Acquire) > at);
        if self.put.load(Ordering::Acquire) == BROKEN {
            return None;
        }
        let item = self.places[at % RING]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        self.taken.store(at + 1, Ordering::Release);
        item
    }
}

/// Spins, and after some time yields, because both threads may share one processor.
fn wait(ready: impl Fn() -> bool) {
    let mut turns = 0u32;
    while !ready() {
        turns += 1;
        if turns < 1_000 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

pub(super) fn run<A: Allocator + Sync>(from: &A) -> Outcome<Figures> {
    let mut random = Random::new(8);
    let shapes: Vec<Shape> = (0..ITEMS)
        .map(|_| Shape::new(random.size(1 << 10, 1 << 20), 64))
        .collect();
    let sizes = |window: &[Shape]| window.iter().map(|shape| shape.size() as u64).sum();
    // Blocks in the ring, and one in each thread.
    let live = shapes.windows(RING + 2).map(sizes).max().unwrap_or(0);
    let ring = Ring::new();
    let resident_memory = ResidentMemory::start();
    let timed = Timed::start(Clock::Wall);
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| (0..ITEMS).map_while(|at| ring.take(at)).count());
        for (at, &shape) in shapes.iter().enumerate() {
            match Block::new(from, shape) {
                Ok(mut block) => {
                    block.touch_pages();
                    ring.put(at, block);
                }
                Err(refused) => {
                    ring.put.store(BROKEN, Ordering::Release);
                    return Err(refused.into());
                }
            }
        }
        match consumer.join() {
            Ok(ITEMS) => Outcome::Ok(()),
            _ => Err("the second thread lost a block".into()),
        }
    })?;
    let times = vec![timed.stop("item", ITEMS as u64, 0)];
    drop(ring);
    Ok(Figures {
        times,
        memory: Some(resident_memory.end(from, live, 0)),
    })
}
