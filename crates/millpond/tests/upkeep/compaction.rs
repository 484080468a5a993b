//! Compaction: memory between live blocks is returned to the system, and is charged again before it is used.

use super::{MIB, dice::Dice};
use millpond::{AllocError, Budget, Buffer, Host, Pool, PoolBuilder};
use std::thread;
use std::time::{Duration, Instant};

fn quiet() -> PoolBuilder {
    Pool::builder().trim_every(None)
}

fn filled(pool: &Pool, bytes: usize, seed: usize) -> Buffer<u8> {
    pool.alloc::<u8>(bytes).expect("room").fill(seed as u8)
}

/// Allocates blocks from 1 KiB to 512 KiB, and frees two thirds of them.
fn fragmented(pool: &Pool, dice: &mut Dice) -> Vec<(usize, Buffer<u8>)> {
    let mut held: Vec<_> = (0..500)
        .map(|seed| (seed, filled(pool, 1024 << dice.below(10), seed)))
        .collect();
    held.retain(|_| dice.below(3) == 0);
    held
}

fn check(held: &[(usize, Buffer<u8>)]) {
    for (seed, buffer) in held {
        assert!(buffer.iter().all(|byte| *byte == *seed as u8), "block {seed}");
    }
}

#[test]
fn a_loop_until_the_ratio_is_low_ends() {
    let budget = Budget::builder("process").build().expect("a budget");
    let mut dice = Dice::new(3);
    let aliases = || Host::builder().aliases(true).build().expect("a source");
    let pools = [
        quiet().budget(&budget).host(),
        quiet().budget(&budget).capacity(64 * MIB).host(),
        quiet().budget(&budget).over(Box::new(aliases())),
    ];
    for pool in pools.map(|pool| pool.expect("a pool")) {
        // The other pools' capacity is charged too.
        let others = budget.used() - pool.stats().reserved.current;
        let used = || budget.used() - others;
        for _ in 0..2 {
            let held = fragmented(&pool, &mut dice);
            let places: Vec<_> = held.iter().map(|(_, buffer)| buffer.as_ptr()).collect();
            let before = pool.stats();
            assert!(before.fragmentation_ratio() > 0.5, "{before:?}");
            while pool.stats().fragmentation_ratio() > 0.3 {
                let compaction = pool.compact();
                assert!(compaction.returned() > 0, "{compaction}");
                let parts = compaction.allocated + compaction.shared + compaction.kept;
                assert_eq!(parts, compaction.reserved_after, "{compaction}");
            }
            let after = pool.stats();
            assert!(after.utilisation() > 0.7 && after.reserved.peak >= before.reserved.current);
            assert_eq!(after.allocated, before.allocated);
            assert_eq!(used(), after.reserved.current);
            assert_eq!(pool.compact().returned(), 0, "a second call finds more");
            check(&held);
            assert!(held.iter().map(|(_, buffer)| buffer.as_ptr()).eq(places));

            // The free memory is used again, and counts again.
            let more = fragmented(&pool, &mut dice);
            let again = pool.stats();
            assert!(again.reserved.current >= again.allocated.current);
            assert_eq!(used(), again.reserved.current);
            check(&held);
            check(&more);
            let zeroed: Vec<_> = (0..200)
                .map(|_| pool.alloc_zeroed::<u8>(1024 << dice.below(10)).expect("room"))
                .collect();
            assert!(zeroed.iter().all(|buffer| buffer.iter().all(|byte| *byte == 0)));
        }
        pool.clear();
        let cleared = pool.stats();
        assert_eq!((cleared.reserved.current, cleared.reserved.peak), (0, 0));
        assert_eq!(used(), 0);
    }
}

/// Another pool may get the memory that a compaction returned. The first pool is then refused memory that it holds, until
/// the other gives some back.
#[test]
fn memory_that_went_back_is_not_used_beyond_a_budget() {
    let budget = Budget::builder("process")
        .limit(64 * MIB)
        .build()
        .expect("a budget");
    for bytes in [4 << 10, 24 << 10, 200 << 10] {
        let pool = quiet().budget(&budget).host().expect("a pool");
        let mut held: Vec<_> = (0..(48 << 20) / bytes)
            .map(|seed| (seed, filled(&pool, bytes, seed)))
            .collect();
        held.retain(|(seed, _)| seed % 3 == 0);
        pool.compact();
        assert!(pool.stats().fragmentation_ratio() < 0.3, "{:?}", pool.stats());
        let other = quiet().budget(&budget).host().expect("a pool");
        let theirs = other.alloc_zeroed::<u8>(40 << 20).expect("room");
        let mut more = Vec::new();
        let refused = loop {
            match pool.alloc::<u8>(bytes) {
                Ok(buffer) => more.push((more.len(), buffer.fill(more.len() as u8))),
                Err(error) => break error,
            }
            assert!(budget.used() <= 64 * MIB);
        };
        assert!(matches!(refused, AllocError::Budget(_)), "{refused}");
        let stats = pool.stats();
        assert!(stats.allocated.current <= stats.reserved.current, "{stats:?}");
        assert!(budget.used() > 60 * MIB, "{} used of {bytes}", budget.used());
        assert_eq!(
            budget.used(),
            pool.stats().reserved.current + other.stats().reserved.current
        );
        drop(theirs);
        // The other pool gives its free memory back for this one.
        let full = (32 << 20) / bytes;
        while more.len() < full {
            more.push((more.len(), filled(&pool, bytes, more.len())));
        }
        check(&held);
        check(&more);
    }
    assert_eq!(budget.used(), 0);
}

#[test]
fn capacity_is_restored_after_a_compaction() {
    let pool = quiet().host().expect("a pool");
    let held = fragmented(&pool, &mut Dice::new(9));
    pool.compact();
    let total = pool.stats().reserved.current + 32 * MIB;
    pool.reserve(total).expect("room");
    assert!(pool.stats().reserved.current >= total);
    check(&held);
}

#[test]
fn memory_between_blocks_goes_back_in_the_background() {
    let pool = Pool::builder()
        .settings("decay:3")
        .trim_every(Some(Duration::from_millis(5)))
        .host()
        .expect("a pool");
    let held = fragmented(&pool, &mut Dice::new(5));
    let until = Instant::now() + Duration::from_secs(60);
    while pool.stats().fragmentation_ratio() > 0.3 {
        assert!(Instant::now() < until, "{:?}", pool.stats());
        thread::sleep(Duration::from_millis(5));
    }
    check(&held);
}
