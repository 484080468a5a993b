//! Pages that are mapped at a second address.

use super::super::memory::{is_stamped, stamp};
use super::super::process::{is_closed, is_open};
use super::of_pages;
use millpond::engine::{Range, Source, SourceError};
use millpond::source::MemorySource;

/// A second mapping keeps the old addresses until it ends, and takes no memory.
pub(crate) fn pages_are_mapped_at_a_second_address<S: Source>(make: impl Fn(Option<u64>) -> Option<S>) {
    let Some((mut source, page)) = of_pages(make, 16) else {
        return;
    };
    if !source.is_paged() {
        return;
    }
    let range = source.reserve(64 * page).expect("addresses");
    source.commit(&range, 0, 8 * page, 2 * page).expect("fits");
    let parts = [(&range, 4 * page, 2 * page), (&range, 0, 4 * page)];
    if !source.can_alias() {
        let refused = source.alias(&parts, (&range, 20 * page));
        assert!(
            matches!(refused, Err(SourceError::Unsupported { .. })),
            "{refused:?}"
        );
        source.decommit(&range, 0, 8 * page);
        return source.release(range);
    }
    let free = source.free_bytes();
    assert_eq!(source.alias(&parts, (&range, 20 * page)), Ok(3));
    assert_eq!(source.free_bytes(), free);
    // The pages get another mapping from their present place.
    assert_eq!(
        source.alias(&[(&range, 22 * page, 4 * page)], (&range, 40 * page)),
        Ok(2)
    );
    assert_eq!(source.free_bytes(), free);
    assert_eq!(source.unmap(range.address(), 6 * page), 3);
    assert_eq!(source.unmap(range.address() + 22 * page, 4 * page), 2);
    source
        .commit(&range, 0, 6 * page, page)
        .expect("the addresses are free");
    assert_eq!(source.decommit(&range, 0, 6 * page), 6);
    assert_eq!(source.decommit(&range, 6 * page, 2 * page), 1);
    assert_eq!(source.decommit(&range, 20 * page, 2 * page), 1);
    assert_eq!(source.decommit(&range, 40 * page, 4 * page), 2);
    source.release(range);
}

/// All mappings of a handle are the same memory, until each of them ends.
pub(crate) fn mappings_of_a_page_have_the_same_contents<S: MemorySource>(
    make: impl Fn(Option<u64>) -> Option<S>,
) {
    let Some((mut source, page)) = of_pages(make, 16).filter(|(source, _)| source.can_alias()) else {
        return;
    };
    let (one, two) = (
        source.reserve(64 * page).expect("one"),
        source.reserve(64 * page).expect("two"),
    );
    let (a, b) = (one.address(), two.address());
    source.commit(&one, 0, 4 * page, 2 * page).expect("fits");
    stamp(&source, a, 2 * page, 1);
    // Pages that are first written through their second mapping are the same too.
    let parts = [(&one, 2 * page, 2 * page), (&one, 0, 2 * page)];
    assert_eq!(source.alias(&parts, (&two, 8 * page)), Ok(2));
    stamp(&source, b + 8 * page, 2 * page, 2);
    assert!(is_stamped(&source, b + 10 * page, 2 * page, 1));
    assert!(is_stamped(&source, a + 2 * page, 2 * page, 2));
    // The third mapping of the first handle.
    assert_eq!(
        source.alias(&[(&two, 10 * page, 2 * page)], (&one, 20 * page)),
        Ok(1)
    );
    let mappings = [a, b + 10 * page, a + 20 * page];
    for (value, writer) in (3..).zip(mappings) {
        stamp(&source, writer, 2 * page, value);
        assert!(
            mappings
                .iter()
                .all(|at| is_stamped(&source, *at, 2 * page, value))
        );
    }
    // Other calls leave the old mappings as they are.
    source.commit(&one, 4 * page, 4 * page, page).expect("fits");
    assert_eq!(
        source.move_pages((&one, 20 * page), (&two, 30 * page), 2 * page),
        Ok(1)
    );
    source.decommit(&one, 4 * page, 4 * page);
    stamp(&source, a, 2 * page, 9);
    assert!(is_stamped(&source, b + 30 * page, 2 * page, 9) && is_open(b + 10 * page, 2 * page));
    // A mapping that ends takes nothing from the others.
    assert_eq!(source.unmap(b + 10 * page, 2 * page), 1);
    assert!(is_closed(b + 10 * page, 2 * page));
    assert!(is_stamped(&source, a, 2 * page, 9) && is_stamped(&source, b + 30 * page, 2 * page, 9));
    assert_eq!(source.unmap(a, 4 * page), 2);
    assert!(is_closed(a, 64 * page) && is_stamped(&source, b + 30 * page, 2 * page, 9));
    assert_eq!(source.unmap(a, 4 * page), 0, "ended");
    assert_eq!(source.decommit(&two, 30 * page, 2 * page), 1);
    assert_eq!(source.decommit(&two, 8 * page, 2 * page), 1);
    assert_eq!(source.free_bytes(), Some(16 * page));
    source.release(one);
    source.release(two);
}

/// Calls that cannot be served change nothing.
pub(crate) fn crooked_mappings_are_refused<S: MemorySource>(make: impl Fn(Option<u64>) -> Option<S>) {
    let Some((mut source, page)) = of_pages(make, 16).filter(|(source, _)| source.can_alias()) else {
        return;
    };
    let range = source.reserve(32 * page).expect("addresses");
    let at = range.address();
    source.commit(&range, 0, 4 * page, 2 * page).expect("fits");
    source.commit(&range, 4 * page, 2 * page, page).expect("fits");
    assert_eq!(
        source.alias(&[(&range, 4 * page, 2 * page)], (&range, 20 * page)),
        Ok(2)
    );
    stamp(&source, at, 6 * page, 6);
    let forged = Range::new(at + page, page);
    let far = u64::MAX - page + 1;
    let whole = (&range, 0, 2 * page);
    for (parts, to) in [
        (vec![(&range, 0, page)], 10 * page),
        (vec![(&range, page, 2 * page)], 10 * page),
        (vec![(&range, 512, 2 * page)], 10 * page),
        (vec![(&range, 6 * page, 2 * page)], 10 * page),
        (vec![(&range, far, 2 * page)], 10 * page),
        (vec![(&forged, 0, page)], 10 * page),
        // A stale part, a part that is named twice, and a later part that is not committed.
        (vec![(&range, 4 * page, 2 * page)], 10 * page),
        (vec![whole, whole], 10 * page),
        (vec![whole, (&range, 8 * page, page)], 10 * page),
        // Places that are in use, stale, or outside.
        (vec![whole], 2 * page),
        (vec![whole], 4 * page),
        (vec![whole], 19 * page),
        (vec![whole], 31 * page),
        (vec![whole], 10 * page + 512),
        (vec![whole], far),
    ] {
        let outcome = source.alias(&parts, (&range, to));
        assert!(
            matches!(outcome, Err(SourceError::NotHeld { .. })),
            "{parts:?} {to} {outcome:?}"
        );
    }
    assert_eq!(source.alias(&[], (&range, 10 * page)), Ok(0));
    assert!(
        source.commit(&range, 5 * page, page, page).is_err(),
        "still mapped"
    );
    assert_eq!(
        source.decommit(&range, 4 * page, 2 * page),
        0,
        "the pages are elsewhere"
    );
    assert!(
        source
            .move_pages((&range, 4 * page), (&range, 10 * page), 2 * page)
            .is_err()
    );
    assert_eq!((source.unmap(at, 4 * page), source.unmap(far, page)), (0, 0));
    assert_eq!(source.unmap(at + 5 * page, 0), 0);
    assert!(is_stamped(&source, at, 6 * page, 6) && is_closed(at + 6 * page, 14 * page));
    assert_eq!(source.free_bytes(), Some(10 * page));
    assert_eq!(source.unmap(at + 4 * page, 2 * page), 2);
    let back = [(&range, 20 * page, 2 * page)];
    assert_eq!(
        source.alias(&back, (&range, 4 * page)),
        Ok(2),
        "nothing is left there"
    );
    // The range is released while it has stale mappings.
    source.release(range);
    assert_eq!(source.free_bytes(), Some(16 * page));
}
