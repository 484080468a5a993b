//! Drops the last handle of a pool on one thread while an owner without a block requests its first one on another thread.
//!
//! Each round makes a pool. The request either fails, because the pool has ended, or it serves a block that keeps its contents until it
//! is dropped. A block in memory that the pool has given back ends the process with a segmentation fault.
//!
//! ```sh
//! MILLPOND_CLOSING_ROUNDS=20000 cargo test -p millpond --all-features --test closing -- --nocapture
//! ```
#![cfg(target_os = "linux")]

use millpond::{AllocError, Budget, Buffer, Pool, PoolBuilder, Tracking, budget::Measure};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// One size of each kind: from a thread's cache and a shelf, from a larger class, from the engine, and larger than the caches keep.
const SIZES: [usize; 4] = [100, 5 << 10, 200 << 10, 42 << 20];
const VALUE: u8 = 7;

/// Returns the number of rounds over all kinds of pool and all sizes.
fn rounds() -> usize {
    let is_long = std::env::var_os("MILLPOND_TEST_ALL").is_some();
    let given = std::env::var("MILLPOND_CLOSING_ROUNDS").ok();
    given.map_or(if is_long { 200 } else { 50 }, |text| {
        text.parse().expect("a number of rounds")
    })
}

/// A generator of pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % most
    }
}

#[cfg(feature = "derive")]
#[derive(Clone, Copy, Debug, PartialEq, millpond::Soa)]
struct Pair {
    one: u8,
    other: u64,
}

fn is_whole(bytes: &[u8]) -> bool {
    bytes
        .iter()
        .step_by(509)
        .chain(bytes.last())
        .all(|byte| *byte == VALUE)
}

/// An owner without a block, which requests its first one. Returns an error if there was none.
type Owner = Box<dyn FnOnce(usize) -> Result<(), AllocError> + Send>;

fn empty_buffer(buffer: Result<Buffer<u8>, AllocError>) -> Owner {
    let mut buffer = buffer.expect("no memory is needed");
    Box::new(move |bytes| {
        buffer.try_resize(bytes, VALUE)?;
        assert!(is_whole(&buffer));
        Ok(())
    })
}

#[cfg(feature = "derive")]
fn empty_arrays(pool: &Pool) -> Owner {
    let mut arrays = PairVec::with_capacity_in(0, pool).expect("no memory is needed");
    Box::new(move |bytes| {
        let pair = Pair {
            one: VALUE,
            other: bytes as u64,
        };
        arrays.try_reserve_exact(bytes / size_of::<Pair>())?;
        arrays.try_push(pair)?;
        assert_eq!(arrays.to_vec(), [pair]);
        Ok(())
    })
}

/// Returns the owner of this round. The kinds of owner take turns.
fn owner(round: usize, pool: &Pool, budget: &Budget) -> Owner {
    match round % 8 {
        3 => empty_buffer(pool.tenant(budget).expect("of allocated bytes").alloc_zeroed(0)),
        #[cfg(feature = "derive")]
        5 => empty_arrays(pool),
        _ => empty_buffer(pool.alloc_zeroed(0)),
    }
}

/// The outcomes of the rounds of one kind of pool and one size.
#[derive(Debug, Default)]
struct Tally {
    served: usize,
    refused: usize,
}

fn run(builder: impl Fn() -> PoolBuilder, bytes: usize, rounds: usize, random: &mut Random) -> Tally {
    let budget = Budget::builder("tenant")
        .measure(Measure::Allocated)
        .build()
        .expect("a budget");
    let mut tally = Tally::default();
    for round in 0..rounds {
        let pool = builder().host().expect("a pool");
        if round % 2 == 0 {
            // Gives this thread a cache, and the pool memory.
            drop(pool.alloc_zeroed::<u8>(bytes.min(1 << 20)));
        }
        let ask = owner(round, &pool, &budget);
        // A request takes from less than a microsecond to some milliseconds, and closing a pool takes some microseconds. To make them
        // overlap, either of them begins first, by a random time of that order.
        let [asks_after, closes_after] = match random.below(4) {
            0 => [random.below(1 << 12), 0],
            1 => [0, random.below(1 << 16)],
            _ => [0, random.below(1 << 10)],
        };
        let ready = AtomicBool::new(false);
        let outcome = thread::scope(|scope| {
            let asking = scope.spawn(|| {
                ready.store(true, Ordering::Release);
                (0..asks_after).for_each(|_| spin_loop());
                ask(bytes)
            });
            while !ready.load(Ordering::Acquire) {
                thread::yield_now();
            }
            (0..closes_after).for_each(|_| spin_loop());
            drop(pool);
            asking.join().expect("no panic")
        });
        match outcome {
            Ok(()) => tally.served += 1,
            Err(_) => tally.refused += 1,
        }
    }
    assert_eq!(budget.used(), 0);
    tally
}

#[test]
fn a_pool_that_is_closed_waits_for_the_first_block_of_an_empty_owner() {
    let reserved = Budget::builder("reserved").build().expect("a budget");
    let allocated = reserved
        .child_builder("allocated")
        .measure(Measure::Allocated)
        .build()
        .expect("a budget");
    let plain = || Pool::builder().track(None).trim_every(None);
    type Kind<'a> = (&'a str, Box<dyn Fn() -> PoolBuilder + 'a>);
    let kinds: [Kind<'_>; 5] = [
        ("plain", Box::new(plain)),
        ("recording", Box::new(plain)),
        ("budgets", Box::new(|| plain().budget(&allocated))),
        (
            "accounts",
            Box::new(|| plain().track(Some(Tracking::All)).stacks(false)),
        ),
        ("guard", Box::new(|| plain().guard(true))),
    ];
    let each = rounds().div_ceil(kinds.len() * SIZES.len());
    let mut random = Random(1);
    for (name, builder) in &kinds {
        #[cfg(feature = "record")]
        let recording = (*name == "recording").then(|| {
            let path = std::env::temp_dir().join(format!("millpond-closing-{}.mpr", std::process::id()));
            let recorder = millpond::Recorder::start(&path).expect("a recording");
            (recorder, path)
        });
        for bytes in SIZES {
            let Tally { served, refused } = run(builder, bytes, each, &mut random);
            println!("{name}, {bytes} bytes: {each} rounds, {served} served, {refused} refused");
            assert_eq!(served + refused, each);
        }
        #[cfg(feature = "record")]
        if let Some((recorder, path)) = recording {
            drop(recorder);
            std::fs::remove_file(path).expect("a recording");
        }
    }
    assert_eq!((allocated.used(), reserved.used()), (0, 0));
}
