//! The memory of pools as the system sees it: resident memory and page faults of this process. There is only one test,
//! because others in the process would be counted too.

use millpond::{Buffer, Pool};
use std::sync::mpsc;
use std::thread;

const MIB: u64 = 1 << 20;
/// The bytes of tables, caches and stacks in addition to the blocks.
const FIXED: u64 = 4 * MIB;

fn page() -> u64 {
    4096
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("the system tells");
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("a number");
    pages * page()
}

/// Returns the number of this thread's page faults that needed no disk.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("the system tells");
    let after = stat.rsplit(')').next().expect("a name in brackets");
    after
        .split_whitespace()
        .nth(7)
        .and_then(|n| n.parse().ok())
        .expect("a number")
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Returns a size whose logarithm is evenly distributed.
    fn size(&mut self, least_log: u64, logs: u64) -> usize {
        let base = 1u64 << (least_log + self.roll() % logs);
        (base + self.roll() % base) as usize
    }
}

fn quiet() -> Pool {
    let pool = Pool::builder().trim_every(None).track(None);
    pool.host().expect("a pool")
}

fn filled(pool: &Pool, bytes: usize, seed: u8) -> Buffer<u8> {
    pool.alloc::<u8>(bytes).expect("room").fill(seed)
}

/// Returns the bytes of the pages with a byte of a live block.
fn live_pages(held: &[Option<Buffer<u8>>]) -> u64 {
    let mut pages: Vec<u64> = held
        .iter()
        .flatten()
        .flat_map(|buffer| {
            let start = buffer.as_ptr().addr() as u64;
            start / page()..(start + buffer.len() as u64).div_ceil(page())
        })
        .collect();
    pages.sort_unstable();
    pages.dedup();
    pages.len() as u64 * page()
}

fn check(held: &[Option<Buffer<u8>>]) {
    for (seed, buffer) in held.iter().enumerate() {
        if let Some(buffer) = buffer {
            // Each byte is compared with the next one by the C library. A loop without optimisation would take most of the test's time.
            assert!(buffer[0] == seed as u8 && buffer[1..] == buffer[..buffer.len() - 1]);
        }
    }
}

#[test]
fn memory_is_returned_and_populated_on_request() {
    // The first use of a pool allocates memory that the test itself keeps, so it comes before the measurement.
    let warm = quiet();
    drop(filled(&warm, 1 << 20, 1));
    drop(warm);
    let start = resident();

    // Threads that are idle afterwards free a random half.
    let pool = quiet();
    let mut dice = Dice(7);
    let mut held: Vec<Option<Buffer<u8>>> = (0..4000)
        .map(|seed| Some(filled(&pool, dice.size(6, 16), seed as u8)))
        .collect();
    let (idle, over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let (to, freed) = mpsc::channel::<Buffer<u8>>();
        let freeing = scope.spawn(move || {
            freed.into_iter().for_each(drop);
            // The thread's cache stays unchanged until the end.
            let _ = over.recv();
        });
        for place in &mut held {
            if dice.roll() & 1 == 0 {
                let buffer = place.take().expect("held so far");
                to.send(buffer).expect("the other thread lives");
            }
        }
        drop(to);
        while pool.stats().frees < held.iter().filter(|buffer| buffer.is_none()).count() as u64 {
            thread::yield_now();
        }
        pool.trim();
        let (live, left) = (live_pages(&held), resident() - start);
        assert!(
            left <= live + live / 50 + FIXED,
            "{left} resident for {live} of live pages"
        );
        check(&held);
        drop(idle);
        freeing.join().expect("no panic");
    });

    // Everything is freed.
    held.clear();
    pool.clear();
    let left = resident().saturating_sub(start);
    assert!(left <= FIXED, "{left} resident after everything was freed");

    // Fragments are moved together, so that only allocated memory stays.
    let mut held: Vec<Option<Buffer<u8>>> = (0..6000)
        .map(|seed| Some(filled(&pool, dice.size(6, 15), seed as u8)))
        .collect();
    for place in held.iter_mut() {
        if !dice.roll().is_multiple_of(3) {
            *place = None;
        }
    }
    let addresses: Vec<usize> = held
        .iter()
        .flatten()
        .map(|buffer| buffer.as_ptr().addr())
        .collect();
    let before = resident() - start;
    pool.compact();
    let (live, left) = (live_pages(&held), resident() - start);
    assert!(
        before > live + live / 2,
        "{before} resident for {live} is no fragmentation"
    );
    assert!(
        left <= live + live / 20 + FIXED,
        "{left} resident for {live} of live pages"
    );
    let after: Vec<usize> = held
        .iter()
        .flatten()
        .map(|buffer| buffer.as_ptr().addr())
        .collect();
    assert_eq!(addresses, after);
    check(&held);
    held.clear();
    pool.clear();

    // Reserved memory causes no more faults.
    pool.reserve(64 * MIB).expect("room");
    let before = faults();
    for seed in 0..30 {
        let mut buffer = pool.alloc_zeroed::<u8>(2 << 20).expect("room");
        buffer
            .iter_mut()
            .step_by(page() as usize)
            .for_each(|byte| *byte = seed);
        held.push(Some(buffer));
    }
    let faulted = faults() - before;
    assert!(faulted <= 16, "{faulted} pages of 15,360 faulted");
    held.clear();
    pool.clear();

    // Zeros from the system are not faulted in and written again.
    let (before, faulted) = (resident(), faults());
    let zeroed = pool.alloc_zeroed::<u8>(256 << 20).expect("room");
    assert!(resident() - before <= MIB && faults() - faulted < 100);
    assert!(zeroed.iter().step_by(1 << 16).all(|byte| *byte == 0));
    drop(zeroed);
}
