//! Pools that free memory when a simulated system has little left.

use crate::tree::Tree;
use millpond::pressure::{Level, Share};
use millpond::{Pool, PoolBuilder, Pools, pressure::Watch, source::HugePages};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "never {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns settings with frequent checks and without frees of idle memory.
fn looking(tree: &Tree) -> PoolBuilder {
    // With small pages, reserved memory follows held memory closely.
    Pool::builder()
        .settings("decay:1000000")
        .huge_pages(HugePages::System)
        .trim_every(Some(Duration::from_millis(5)))
        .trim_at_pressure(Some(Share::percent(80)))
        .readings(tree.readings())
}

fn fill(pool: &Pool) -> u64 {
    drop(pool.alloc_zeroed::<u8>(16 << 20).expect("room"));
    pool.stats().reserved.current
}

/// Waits for longer than several checks.
fn looks_pass() {
    std::thread::sleep(Duration::from_millis(120));
}

#[test]
fn a_pool_frees_memory_at_its_threshold_and_then_pauses() {
    let tree = Tree::new();
    tree.machine(16 * GIB, 4 * GIB);
    let pool = looking(&tree).host().expect("a pool");
    let kept = pool.alloc_zeroed::<u8>(3 << 20).expect("room");
    let before = fill(&pool);
    assert!(before >= 19 * MIB);
    looks_pass();
    assert_eq!(pool.stats().reserved.current, before, "75 % are used");
    tree.machine(16 * GIB, 3 * GIB);
    until("given back", || pool.stats().reserved.current < 4 * MIB);
    assert_eq!(pool.stats().allocations, 2, "nothing is counted anew");
    // Memory is as scarce as before. For a while, the program may keep memory that it allocates again.
    let again = fill(&pool);
    looks_pass();
    assert_eq!(pool.stats().reserved.current, again);
    // New settings apply at once.
    pool.configure("trim-at-pressure:70%").expect("known");
    until("given back again", || pool.stats().reserved.current < 4 * MIB);
    pool.configure("trim-at-pressure:off").expect("known");
    let again = fill(&pool);
    looks_pass();
    assert_eq!(pool.stats().reserved.current, again, "nobody looks");
    assert!(kept.iter().all(|byte| *byte == 0));
}

#[test]
fn limits_on_addresses_and_small_caches_free_no_memory() {
    let tree = Tree::new();
    tree.limits("1073741824", "unlimited");
    let pool = looking(&tree).host().expect("a pool");
    let before = fill(&pool);
    looks_pass();
    assert_eq!(pool.stats().reserved.current, before, "addresses stay a pool's");
    pool.trim();
    tree.machine(16 * GIB, 0);
    drop(pool.alloc_zeroed::<u8>(100_000).expect("room"));
    let before = pool.stats().reserved.current;
    assert!(before > 0 && before < MIB);
    looks_pass();
    assert_eq!(pool.stats().reserved.current, before, "not worth a look");
}

#[test]
fn a_pool_without_ticks_checks_every_second() {
    let tree = Tree::new();
    tree.machine(16 * GIB, GIB);
    let pool = looking(&tree).trim_every(None).host().expect("a pool");
    fill(&pool);
    until("given back", || pool.stats().reserved.current == 0);
}

#[test]
fn a_set_frees_memory_before_other_callbacks_run() {
    let tree = Tree::new();
    let template = Pool::builder().trim_every(None).huge_pages(HugePages::System);
    let (set, joined) = (Pools::with(template.clone()), Pools::with(template));
    let told = Arc::new(AtomicBool::new(false));
    let (seen, tells) = (set.clone(), Arc::clone(&told));
    let builder = Watch::builder()
        .readings(tree.readings())
        .interval(Duration::ZERO)
        .calm(Duration::ZERO)
        .tell(move |change| {
            if change.to >= Level::High {
                // The callback may call any function of the set, because no lock is held.
                let pool = seen.host().expect("there");
                assert_eq!(pool.stats().reserved.current, 0);
                drop(pool.alloc_zeroed::<u8>(100).expect("room"));
                tells.store(true, Ordering::Release);
            }
        });
    for pools in [&set, &joined] {
        fill(&pools.host().expect("a pool"));
    }
    let watch = set.watch_pressure(builder).expect("a watch");
    let heeds = joined.heed(&watch);
    looks_pass();
    assert!(set.stats().total.reserved.current >= 16 * MIB);
    tree.machine(16 * GIB, GIB);
    until("told", || told.load(Ordering::Acquire));
    assert_eq!(joined.stats().total.reserved.current, 0);
    assert_eq!(watch.panics().0, 0);
    drop(heeds);
    // A change from high to critical is reported too. A pool that no longer reacts keeps its memory.
    let kept = fill(&joined.host().expect("there"));
    fill(&set.host().expect("there"));
    tree.machine(16 * GIB, 0);
    until("critical", || watch.level() == Level::Critical);
    until("given back", || set.stats().total.reserved.current < MIB);
    assert_eq!(joined.stats().total.reserved.current, kept);
    // The watch does not keep a set alive.
    drop(set);
    drop(watch);
}
