//! The contents of memory, and the addresses without memory.

use super::super::memory::{is_stamped, is_zero, stamp};
use super::super::process::{is_closed, is_open, resident};
use super::of_pages;
use millpond::source::MemorySource;

pub(crate) fn fresh_memory_is_zero<S: MemorySource>(make: impl Fn(Option<u64>) -> Option<S>) {
    let Some((mut source, page)) = of_pages(make, 16) else {
        return;
    };
    if !source.fresh_is_zero() {
        return;
    }
    for _ in 0..3 {
        let taken = source.take(2 * page + 512).expect("fits");
        assert!(is_zero(&source, taken.address(), 2 * page + 512));
        stamp(&source, taken.address(), 2 * page, 7);
        source.give(taken);
    }
    if !source.is_paged() {
        return;
    }
    let range = source.reserve(16 * page).expect("addresses");
    let at = range.address();
    for round in 0..3 {
        source.commit(&range, 0, 4 * page, page).expect("fits");
        assert!(is_zero(&source, at, 4 * page), "round {round}");
        stamp(&source, at, 4 * page, 8);
        source
            .move_pages((&range, page), (&range, 8 * page), 2 * page)
            .expect("moves");
        source.commit(&range, page, 2 * page, page).expect("fits");
        assert!(is_zero(&source, at + page, 2 * page), "where pages have left");
        source.decommit(&range, 0, 4 * page);
        source.decommit(&range, 8 * page, 2 * page);
    }
    source.release(range);
}

pub(crate) fn contents_change_places<S: MemorySource>(make: impl Fn(Option<u64>) -> Option<S>) {
    let Some((mut source, page)) = of_pages(make, 64) else {
        return;
    };
    let one = source.take(8 * page).expect("fits");
    let two = source.take(16 * page).expect("fits");
    let (a, b) = (one.address(), two.address());
    stamp(&source, a, 8 * page, 1);
    // A move of memory that is foreign, not in use, partial or overlapping is refused.
    let system = 4096;
    for (from, to, bytes) in [
        (a, b, 0),
        (a + 8, b, system),
        (a, b + 8, system),
        (a, b, 8),
        (a, b, 9 * page),
        (a, b + 9 * page, 8 * page),
        (a, a + page, 2 * page),
        (a + page, a, 2 * page),
        (system, b, page),
        (a, system, page),
        (u64::MAX - page + 1, b, page),
    ] {
        assert!(!source.transfer(from, to, bytes), "{from} to {to}: {bytes}");
    }
    assert!(is_stamped(&source, a, 8 * page, 1));
    let can = source.transfer(a, b + 2 * page, 8 * page);
    if can {
        assert!(is_zero(&source, a, 8 * page));
        assert!(is_stamped(&source, b + 2 * page, 8 * page, 1));
        // The source has several pieces by now, and the target has pages that were left.
        stamp(&source, b, 2 * page, 2);
        stamp(&source, b + 10 * page, page, 3);
        assert!(source.transfer(b, a, 4 * page));
        assert!(source.transfer(b + 8 * page, b, 3 * page));
        assert!(is_stamped(&source, a, 2 * page, 2) && is_stamped(&source, b + 2 * page, page, 3));
        assert!(is_zero(&source, b + 3 * page, page) && is_zero(&source, b + 8 * page, 3 * page));
        assert!(is_open(a, 8 * page) && is_open(b, 16 * page));
    } else {
        assert!(is_stamped(&source, a, 8 * page, 1));
    }
    if source.is_paged() {
        let range = source.reserve(32 * page).expect("addresses");
        let at = range.address();
        source.commit(&range, page, page, page).expect("fits");
        source.commit(&range, 2 * page, 2 * page, 2 * page).expect("fits");
        source.commit(&range, 8 * page, 4 * page, page).expect("fits");
        stamp(&source, at + page, page, 4);
        stamp(&source, at + 2 * page, 2 * page, 5);
        assert!(!source.transfer(at, at + 8 * page, page), "not committed");
        assert!(
            !source.transfer(at + page, at + 9 * page, 4 * page),
            "not committed whole"
        );
        assert!(!source.transfer(at + page, at + 12 * page, page), "to nowhere");
        // Pages that can have a second mapping stay where they are.
        let can = can && !source.can_alias();
        assert_eq!(source.transfer(at + page, at + 9 * page, 3 * page), can);
        assert!(is_closed(at, page) && is_closed(at + 4 * page, 4 * page) && is_closed(at + 12 * page, page));
        let place = if can { at + 9 * page } else { at + page };
        assert!(is_stamped(&source, place, page, 4) && is_stamped(&source, place + page, 2 * page, 5));
        // A piece that was assembled from others still moves and is decommitted as it was committed.
        let from = place - at;
        assert_eq!(
            source.move_pages((&range, from), (&range, 20 * page), 3 * page),
            Ok(if can { 3 } else { 2 })
        );
        assert!(
            is_stamped(&source, at + 20 * page, page, 4) && is_stamped(&source, at + 21 * page, 2 * page, 5)
        );
        assert!(is_closed(at + from, 3 * page));
        source.commit(&range, from, 3 * page, page).expect("fits");
        assert!(is_zero(&source, at + from, 3 * page));
        source.release(range);
    }
    source.give(one);
    source.give(two);
}

pub(crate) fn contents_move_along<S: MemorySource>(make: impl Fn(Option<u64>) -> Option<S>) {
    let Some((mut source, page)) = of_pages(make, 16) else {
        return;
    };
    if !source.is_paged() {
        return;
    }
    let (one, two) = (
        source.reserve(16 * page).expect("one"),
        source.reserve(16 * page).expect("two"),
    );
    let (a, b) = (one.address(), two.address());
    // Three calls commit the memory, so that it may consist of several pieces.
    source.commit(&one, 2 * page, 2 * page, 2 * page).expect("fits");
    source.commit(&one, 6 * page, page, page).expect("fits");
    stamp(&source, a + 2 * page, 2 * page, 1);
    stamp(&source, a + 6 * page, page, 3);
    source.commit(&one, 4 * page, 2 * page, page).expect("fits");
    stamp(&source, a + 4 * page, 2 * page, 2);
    assert_eq!(
        source.move_pages((&one, 2 * page), (&two, 5 * page), 5 * page),
        Ok(4)
    );
    let arrived = |source: &S, at: u64| {
        is_stamped(source, at, 2 * page, 1)
            && is_stamped(source, at + 2 * page, 2 * page, 2)
            && is_stamped(source, at + 4 * page, page, 3)
    };
    assert!(arrived(&source, b + 5 * page));
    // The pages move within the same range, next to their old place, and back in parts.
    assert_eq!(source.move_pages((&two, 5 * page), (&two, 0), 5 * page), Ok(4));
    assert!(arrived(&source, b));
    assert_eq!(
        source.move_pages((&two, 2 * page), (&one, 2 * page), 3 * page),
        Ok(3)
    );
    assert_eq!(source.move_pages((&two, 0), (&one, 0), 2 * page), Ok(1));
    assert!(arrived(&source, a));
    assert_eq!(source.decommit(&one, 0, 5 * page), 4);
    assert_eq!(source.free_bytes(), Some(16 * page));
    source.release(one);
    source.release(two);
}

pub(crate) fn only_committed_parts_are_open<S: MemorySource>(make: impl Fn(Option<u64>) -> Option<S>) {
    let Some((mut source, page)) = of_pages(make, 16) else {
        return;
    };
    let taken = source.take(3 * page).expect("fits");
    assert!(is_open(taken.address(), 3 * page));
    source.give(taken);
    if !source.is_paged() {
        return;
    }
    let range = source.reserve(16 * page).expect("addresses");
    let at = range.address();
    assert!(is_closed(at, 16 * page));
    source.commit(&range, 4 * page, 8 * page, page).expect("fits");
    assert!(is_closed(at, 4 * page) && is_open(at + 4 * page, 8 * page));
    assert!(is_closed(at + 12 * page, 4 * page));
    source.decommit(&range, 6 * page, page);
    assert!(is_closed(at + 6 * page, page) && is_open(at + 4 * page, 2 * page));
    source
        .move_pages((&range, 7 * page), (&range, page), 2 * page)
        .expect("moves");
    assert!(is_closed(at + 6 * page, 3 * page), "what pages have left");
    assert!(is_open(at + page, 2 * page) && is_open(at + 9 * page, 3 * page) && is_closed(at, page));
    for (offset, pages) in [(1, 2), (4, 2), (9, 3)] {
        source.decommit(&range, offset * page, pages * page);
    }
    assert!(is_closed(at, 16 * page));
    source.release(range);
}

pub(crate) fn memory_goes_back_to_the_system<S: MemorySource>(make: impl Fn(Option<u64>) -> Option<S>) {
    let Some((mut source, page)) = of_pages(make, 16) else {
        return;
    };
    if !source.is_paged() {
        return;
    }
    let range = source.reserve(32 * page).expect("addresses");
    let at = range.address();
    source.commit(&range, 0, 8 * page, page).expect("fits");
    for offset in (0..8 * page).step_by(4096) {
        stamp(&source, at + offset, 4096, 5);
    }
    assert_eq!(resident(at, 8 * page), 8 * page);
    source.decommit(&range, 2 * page, 3 * page);
    assert_eq!(resident(at, 8 * page), 5 * page);
    assert_eq!(resident(at + 2 * page, 3 * page), 0);
    source
        .move_pages((&range, 5 * page), (&range, 20 * page), 3 * page)
        .expect("moves");
    // The pages are resident in a new mapping after they are accessed.
    for offset in (20 * page..23 * page).step_by(4096) {
        assert!(is_stamped(&source, at + offset, 4096, 5));
    }
    assert_eq!(
        (resident(at, 8 * page), resident(at + 20 * page, 3 * page)),
        (2 * page, 3 * page)
    );
    source.decommit(&range, 0, 2 * page);
    source.decommit(&range, 20 * page, 3 * page);
    assert_eq!(resident(at, 32 * page), 0);
    source.release(range);
}
