//! Tests of the guarantees of guarded blocks. Tests that end a process are in `tests/guard.rs`.

use super::*;
use millpond_account::Budget;
use millpond_account::Event;
use millpond_account::Measure;
use millpond_account::Subscriber;
use millpond_account::Tracking;
use proptest::prelude::*;
use std::alloc::Layout;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

fn pool() -> Pool {
    Pool::builder()
        .guard(true)
        .track(None)
        .trim_every(None)
        .host()
        .expect("a pool")
}

/// A subscriber that stores the errors that it receives.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Subscriber for Told {
    fn event(&self, _: &Event<'_>) {}
    fn wrong_free(&self, error: &WrongFree) {
        self.0.lock().expect("no panic").push(error.to_string());
    }
}

fn told(pool: &Pool) -> Told {
    let told = Told::default();
    pool.subscribe(told.clone());
    told
}

fn write(address: usize, value: u8) {
    let byte: *mut u8 = ptr::with_exposed_provenance_mut(address);
    // SAFETY: this is accessible memory of a test's pool, and there is one thread.
    unsafe { byte.write_volatile(value) };
}

fn check(pool: &Pool) {
    let guard = pool.heap().guard.as_ref().expect("it guards");
    lock(&guard.blocks).check();
    pool.heap().check();
}

#[test]
fn writes_around_a_block_are_reported_when_it_is_freed() {
    let pool = pool();
    let told = told(&pool);
    let _scope = millpond_account::tag("guarded rows");
    for (bytes, at, says) in [
        (1000usize, 1000isize, "overrun: a write 0 B past the end"),
        (1000, 1023, "overrun: a write 23 B past the end"),
        (65, 127, "overrun: a write 62 B past the end"),
        (1000, -1, "underrun: a write 1 B before the start"),
        (70_000, -8, "underrun: a write 8 B before the start"),
    ] {
        let block = pool.alloc_raw(bytes, 64).expect("room");
        assert_eq!(block.len(), bytes, "no more than was asked for");
        let address = block.cast::<u8>().as_ptr().expose_provenance();
        write(address, 1);
        write(address + bytes - 1, 1);
        write(address.wrapping_add_signed(at), 1);
        // SAFETY: the block is not used any more.
        unsafe { pool.free_raw(block.cast()) }.expect("its own");
        let said = told.0.lock().expect("no panic").pop().expect("it is told");
        assert!(said.starts_with(says), "{said}");
        assert!(
            said.contains("guarded rows") && said.contains(&format!(" {bytes} B")),
            "{said}"
        );
    }
    for bytes in [1, 64, 1000, 4096, 70_000] {
        let mut block = pool.alloc_zeroed::<u8>(bytes).expect("room");
        block.fill(7);
    }
    assert!(told.0.lock().expect("no panic").is_empty());
    assert_eq!(pool.stats().frees, pool.stats().allocations);
    check(&pool);
}

#[test]
fn wrong_frees_are_reported_without_tracking() {
    let pool = pool();
    let told = told(&pool);
    let layout = Layout::from_size_align(100, 64).expect("a layout");
    let block: NonNull<u8> = pool.allocate(layout).expect("room").cast();
    for _ in 0..2 {
        // SAFETY: the block is not used any more. The second free is refused.
        unsafe { pool.deallocate(block, layout) };
    }
    let inside = NonNull::new(ptr::without_provenance_mut(block.addr().get() + 64)).expect("no null");
    // SAFETY: no block begins there, so the free is refused.
    unsafe { pool.deallocate(inside, layout) };
    let told = told.0.lock().expect("no panic");
    assert!(told[0].starts_with("double free of"), "{told:?}");
    assert!(told[1].starts_with("wrong free: no block"), "{told:?}");
    assert_eq!((told.len(), pool.stats().frees), (2, 1));
}

#[test]
fn guarded_pools_have_the_same_counts_as_plain_pools() {
    let plain = Pool::builder().track(None).host().expect("a pool");
    let guarded = pool();
    let budget = |name: &str| {
        Budget::builder(name)
            .measure(Measure::Allocated)
            .limit(8 << 20)
            .build()
    };
    let budgets = [
        budget("plain").expect("a budget"),
        budget("guarded").expect("a budget"),
    ];
    let run = |pool: &Pool, budget: &Budget| {
        let tenant = pool.tenant(budget).expect("a tenant");
        let mut held = Vec::new();
        for bytes in [1, 63, 100, 5000, 30_000, 70_001, 1 << 20] {
            held.push(tenant.alloc_zeroed::<u8>(bytes).expect("room"));
            drop(tenant.alloc::<u16>(bytes).expect("room"));
        }
        held.truncate(5);
        let stats = pool.stats();
        assert_eq!(budget.used(), stats.allocated.current);
        assert!(stats.allocated.current <= stats.reserved.current);
        tenant.alloc_zeroed::<u8>(16 << 20).expect_err("over budget");
        let figures = (stats.requested, stats.allocated, stats.allocations, stats.frees);
        drop(held);
        assert_eq!((budget.used(), pool.stats().allocated.current), (0, 0));
        figures
    };
    assert_eq!(run(&plain, &budgets[0]), run(&guarded, &budgets[1]));
    check(&guarded);
    guarded.trim();
    assert_eq!(guarded.stats().reserved.current, 0, "the quarantine too");
}

#[test]
fn the_quarantine_is_bounded_and_releases_the_oldest_block_first() {
    let page = os::page_bytes();
    let pool = Pool::builder()
        .guard(true)
        .quarantine(10 * 2 * page)
        .host()
        .expect("a pool");
    let first = pool.alloc_zeroed::<u8>(100).expect("room");
    let address = first.as_ptr().addr();
    drop(first);
    let described = describe_fault(address + 5).expect("in quarantine");
    assert_eq!(described.place, FaultPlace::Inside(5));
    assert!(described.freed.is_some());
    for round in 1..100 {
        let block = pool.alloc_zeroed::<u8>(100).expect("room");
        assert!(round >= 10 || block.as_ptr().addr() != address, "reused too soon");
        drop(block);
        let stats = pool.guard_stats().expect("it guards");
        assert!(stats.quarantined_bytes <= stats.quarantine, "{stats:?}");
        assert_eq!(stats.quarantined, (round + 1).min(10));
    }
    assert!(pool.stats().reserved.peak <= 4 << 20);
    // A block that is larger than the quarantine does not stay in it.
    drop(pool.alloc_zeroed::<u8>(1 << 20).expect("room"));
    check(&pool);
    pool.trim();
    assert_eq!(pool.guard_stats().map(|stats| stats.quarantined), Some(0));
    assert_eq!(pool.stats().reserved.current, 0);
    assert!(describe_fault(address).is_none());
}

#[test]
fn the_quarantine_makes_room_before_a_request_is_refused() {
    let pool = Pool::builder().guard(true).limit(8 << 20).host().expect("a pool");
    for _ in 0..20 {
        let block = pool.alloc_zeroed::<u8>(3 << 20).expect("room");
        assert!(block.iter().all(|byte| *byte == 0));
    }
    let held = pool.alloc_zeroed::<u8>(5 << 20).expect("room");
    assert!(pool.alloc_zeroed::<u8>(5 << 20).is_err());
    assert!(pool.stats().reserved.peak <= 8 << 20);
    drop(held);
    check(&pool);
}

#[test]
fn pages_that_cannot_be_protected_are_filled_and_checked() {
    let pool = pool();
    let told = told(&pool);
    let fenced = pool.alloc_zeroed::<u8>(100).expect("room");
    let guard = pool.heap().guard.as_ref().expect("it guards");
    *lock(&guard.no_maps) = true;
    let last = pool.alloc_zeroed::<u8>(100).expect("room");
    assert_eq!(pool.guard_stats().map(|stats| stats.unfenced), Some(1));
    let address = last.as_ptr().expose_provenance();
    write(address + 128 + 4000, 1);
    drop(last);
    let said = told.0.lock().expect("no panic").pop().expect("it is told");
    assert!(said.starts_with("overrun: a write 4028 B past the end"), "{said}");
    // The block's own pages could not be protected either.
    write(address + 7, 1);
    pool.trim();
    drop(pool.alloc_zeroed::<u8>(10).expect("room"));
    let said = told.0.lock().expect("no panic").pop().expect("it is told");
    assert!(said.starts_with("use after free: byte 7 "), "{said}");
    drop(fenced);
    pool.trim();
    assert_eq!(pool.stats().reserved.current, 0);
    assert!(told.0.lock().expect("no panic").is_empty());
    check(&pool);
}

#[test]
fn guarded_blocks_outlive_their_pool_and_are_still_checked() {
    let pool = pool();
    let told = told(&pool);
    let block = pool.alloc_zeroed::<u8>(100).expect("room");
    let other = pool.alloc_zeroed::<u8>(70_000).expect("room");
    drop(pool);
    write(block.as_ptr().expose_provenance() + 101, 1);
    drop(block);
    assert!(told.0.lock().expect("no panic")[0].starts_with("overrun"));
    let address = other.as_ptr().addr();
    assert!(describe_fault(address).is_some());
    drop(other);
    assert!(describe_fault(address).is_none(), "its memory is gone");
}

#[test]
fn describe_fault_finds_the_block_of_an_address() {
    let pool = pool();
    let _scope = millpond_account::tag("described");
    let mut block = pool.alloc::<u8>(1000).expect("room");
    let address = block.as_mut_ptr().addr();
    let at = |address: usize| describe_fault(address).map(|report| report.place);
    assert_eq!(at(address), Some(FaultPlace::Inside(0)));
    assert_eq!(at(address + 999), Some(FaultPlace::Inside(999)));
    assert_eq!(at(address + 1000), Some(FaultPlace::Past(0)));
    assert_eq!(at(address + 1024 + 4095), Some(FaultPlace::Past(24 + 4095)));
    assert_eq!(at(address - 1), Some(FaultPlace::Before(1)));
    let report = describe_fault(address + 1024).expect("of the pool");
    assert_eq!(
        (report.record.requested, report.record.tag.name()),
        (1000, "described")
    );
    drop(block);
    let said = describe_fault(address + 3).expect("in quarantine").to_string();
    assert!(
        said.contains("3 B into 1000 B") && said.contains("freed by thread"),
        "{said}"
    );
    assert!(describe_fault(0x10).is_none());
    assert!(describe_fault(usize::MAX).is_none());
}

#[test]
fn blocks_are_guarded_under_every_policy_that_can_align_to_pages() {
    for name in millpond_engine::policies::names() {
        let pool = Pool::builder()
            .guard(true)
            .policy(name)
            .limit(1 << 30)
            .host()
            .expect("a pool");
        let take = |bytes: usize| pool.alloc_zeroed::<u8>(bytes);
        let held: Result<Vec<_>, _> = [1, 0, 5000, 70_000, 1 << 20].into_iter().map(take).collect();
        if name == "buckets" {
            // The policy aligns to 256 bytes.
            assert!(matches!(held, Err(AllocError::Alignment { .. })));
            continue;
        }
        drop(held.expect("room"));
        check(&pool);
    }
    let pool = pool();
    let block: NonNull<u8> = pool.alloc_raw(0, 64).expect("room").cast();
    write(block.as_ptr().expose_provenance(), 1);
    // SAFETY: the block is not used any more.
    unsafe { pool.free_raw(block) }.expect("its own");
}

#[derive(Clone, Debug)]
enum Step {
    Take {
        bytes: usize,
        align: usize,
        zeroed: bool,
    },
    Give {
        which: usize,
    },
    Grow {
        which: usize,
        bytes: usize,
    },
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![0usize..300, 0usize..20_000, 60_000usize..300_000];
    prop_oneof![
        5 => (bytes.clone(), 0u32..18, any::<bool>()).prop_map(|(bytes, log, zeroed)| Step::Take {
            bytes,
            align: 1 << log,
            zeroed
        }),
        4 => any::<usize>().prop_map(|which| Step::Give { which }),
        2 => (any::<usize>(), bytes).prop_map(|(which, bytes)| Step::Grow { which, bytes }),
        1 => Just(Step::Trim),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Checks blocks with known contents: no other code writes to them, zeroed memory is zero, and sums are right.
    #[test]
    fn random_programs_keep_their_contents(steps in prop::collection::vec(step(), 1..80), bound in 0u64..600_000) {
        let pool = Pool::builder().guard(true).quarantine(bound).track(Some(Tracking::All)).host().expect("a pool");
        let told = told(&pool);
        let mut held: Vec<(NonNull<u8>, Layout, u8)> = Vec::new();
        let fill = |block: NonNull<u8>, bytes: usize, seed: u8| {
            // SAFETY: the block is this test's and has these bytes.
            unsafe { block.write_bytes(seed, bytes) };
        };
        let holds = |block: NonNull<u8>, bytes: usize, seed: u8| {
            // SAFETY: the block is this test's, has these bytes, and they were written.
            unsafe { std::slice::from_raw_parts(block.as_ptr(), bytes) }.iter().all(|byte| *byte == seed)
        };
        for (seed, step) in steps.into_iter().enumerate() {
            let seed = seed as u8 | 1;
            match step {
                Step::Take { bytes, align, zeroed } => {
                    let layout = Layout::from_size_align(bytes, align).expect("a layout");
                    let block = if zeroed { pool.allocate_zeroed(layout) } else { pool.allocate(layout) };
                    let block: NonNull<u8> = block.expect("room").cast();
                    prop_assert!(!zeroed || holds(block, bytes, 0));
                    let least = if bytes > 0 { align.max(64) } else { align };
                    prop_assert!(block.addr().get().is_multiple_of(least));
                    fill(block, bytes, seed);
                    held.push((block, layout, seed));
                }
                Step::Give { which } if !held.is_empty() => {
                    let (block, layout, seed) = held.swap_remove(which % held.len());
                    prop_assert!(holds(block, layout.size(), seed));
                    // SAFETY: the block was allocated for this layout, and is not used any more.
                    unsafe { pool.deallocate(block, layout) };
                }
                Step::Grow { which, bytes } if !held.is_empty() => {
                    let at = which % held.len();
                    let (block, layout, old) = held[at];
                    let wanted = Layout::from_size_align(bytes, layout.align()).expect("a layout");
                    // SAFETY: the block was allocated for this layout. The old pointer is not used any more.
                    let block = unsafe { pool.resize(block, layout, wanted) }.expect("room").cast();
                    prop_assert!(holds(block, bytes.min(layout.size()), old));
                    fill(block, bytes, seed);
                    held[at] = (block, wanted, seed);
                }
                Step::Trim => pool.trim(),
                _ => {}
            }
            let requested: usize = held.iter().map(|(_, layout, _)| layout.size()).sum();
            prop_assert_eq!(pool.stats().requested.current, requested as u64);
            let stats = pool.guard_stats().expect("it guards");
            prop_assert_eq!(stats.blocks, held.iter().filter(|(_, l, _)| l.size() > 0).count() as u64);
            prop_assert!(stats.quarantined_bytes <= bound);
            check(&pool);
        }
        for (block, layout, seed) in held {
            prop_assert!(holds(block, layout.size(), seed));
            // SAFETY: the block was allocated for this layout, and is not used any more.
            unsafe { pool.deallocate(block, layout) };
        }
        prop_assert_eq!(told.0.lock().expect("no panic").len(), 0);
        pool.trim();
        prop_assert_eq!(pool.stats().reserved.current, 0);
    }
}
