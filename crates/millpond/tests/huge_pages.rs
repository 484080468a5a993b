//! The pages that a host source requests, as shown in the system's list of mappings.
#![cfg(target_os = "linux")]

mod support;

use millpond::engine::{Range, Source};
use millpond::{
    Host, Pool,
    source::{HostBuilder, HugePages, MemorySource},
};
use support::memory::{is_stamped, is_zero, stamp};
use support::process::has_flag;

const HUGE: u64 = 2 << 20;
const SMALL: u64 = HostBuilder::SMALL_BYTES;

fn asks_for_huge(address: u64, bytes: u64) -> bool {
    has_flag(address, bytes, "hg")
}

/// Returns true if the system has transparent huge pages of this size.
fn known() -> bool {
    let size = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let known = size.is_ok_and(|size| size.trim() == HUGE.to_string());
    if !known {
        eprintln!("skipped: this system has no transparent huge pages of 2 MiB");
    }
    known
}

/// Returns a source that has committed twice its limit for small pages, and its range.
fn grown(huge: HugePages) -> (Host, Range) {
    let mut host = Host::builder().huge_pages(huge).build().expect("ordinary pages");
    let range = host.reserve(4 * SMALL).expect("addresses");
    for offset in (0..2 * SMALL).step_by(2 * HUGE as usize) {
        host.commit(&range, offset, 2 * HUGE, HUGE).expect("memory");
    }
    (host, range)
}

#[test]
fn large_memory_past_the_first_is_huge() {
    if !known() {
        return;
    }
    // Whether more is huge depends on the time of page faults, which unit tests of the source set.
    let (mut host, range) = grown(HugePages::Auto);
    let base = range.address();
    for offset in (0..SMALL).step_by(HUGE as usize) {
        assert!(!asks_for_huge(base + offset, HUGE), "at {offset}");
    }
    host.commit(&range, 2 * SMALL, HUGE, HUGE).expect("memory");
    assert!(!asks_for_huge(base + 2 * SMALL, HUGE), "a single page");
    let (_host, range) = grown(HugePages::System);
    assert!(!asks_for_huge(range.address() + SMALL, HUGE));
    let (_host, range) = grown(HugePages::Transparent);
    assert!(asks_for_huge(range.address(), 2 * SMALL));
}

#[test]
fn partly_discarded_huge_pages_are_not_refilled() {
    if !known() {
        return;
    }
    let (mut host, range) = grown(HugePages::Transparent);
    let base = range.address() + SMALL;
    // The discarded part is the end of the first huge page, all of the second, and the beginning of the third.
    stamp(&host, base, 3 * HUGE, 1);
    stamp(&host, base + 3 * HUGE, HUGE, 1);
    assert!(host.discard(base + HUGE / 2, 2 * HUGE));
    assert!(is_zero(&host, base + HUGE / 2, 2 * HUGE));
    assert!(
        is_stamped(&host, base + 3 * HUGE, HUGE, 1),
        "the rest is as it was"
    );
    let small = |page: u64| has_flag(base + page * HUGE, HUGE, "nh");
    assert_eq!([0, 1, 2, 3].map(small), [true, false, true, false]);
    assert!(asks_for_huge(base + HUGE, HUGE) && asks_for_huge(base + 3 * HUGE, HUGE));
    // Pages that are decommitted and committed again are like any other.
    assert!(host.decommit(&range, SMALL, 4 * HUGE) > 0);
    host.commit(&range, SMALL, 4 * HUGE, HUGE).expect("memory");
    assert!(asks_for_huge(base, 4 * HUGE));
    // After a part was discarded, the system may have several mappings. The pages can still be moved.
    assert!(host.discard(base + HUGE / 2, 2 * HUGE));
    stamp(&host, base, 4 * HUGE, 3);
    assert!(host.transfer(base, base + 4 * HUGE, 4 * HUGE));
    assert!(is_stamped(&host, base + 4 * HUGE, 4 * HUGE, 3) && is_zero(&host, base, 4 * HUGE));
}

/// The system has separate mappings for memory of huge pages and of small ones.
#[test]
fn memory_moves_between_huge_and_small_pages() {
    let (mut host, range) = grown(HugePages::Auto);
    let (from, to) = (range.address() + SMALL - HUGE, range.address() + SMALL + 4 * HUGE);
    for _ in 0..2 {
        stamp(&host, from, 2 * HUGE, 7);
        assert!(host.transfer(from, to, 2 * HUGE));
        assert!(is_zero(&host, from, 2 * HUGE) && is_stamped(&host, to, 2 * HUGE, 7));
    }
}

#[test]
fn pools_with_a_small_limit_use_small_pages() {
    let reserved = |pool: Pool| {
        let _block = pool.alloc::<u8>(100).expect("room");
        pool.stats().reserved.current
    };
    let pool = || Pool::builder().trim_every(None).track(None);
    let small = reserved(pool().limit(64 << 20).host().expect("a pool"));
    assert!(small < 1 << 20, "{small}");
    let large = reserved(pool().host().expect("a pool"));
    assert!(large.is_multiple_of(HUGE), "{large}");
    // The smallest limit at which a pool works.
    let least = pool().limit(256 << 10).host().expect("a pool");
    assert!(least.alloc::<u8>(100).is_ok());
}
