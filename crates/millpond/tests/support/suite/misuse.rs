//! Invalid calls of a source.

use super::super::memory::{is_stamped, stamp};
use super::of_pages;
use millpond::engine::{Range, Segment, SourceError};
use millpond::source::MemorySource;

pub(crate) fn foreign_tokens_are_refused<S: MemorySource>(make: impl Fn(Option<u64>) -> Option<S>) {
    let Some((mut source, page)) = of_pages(&make, 16) else {
        return;
    };
    let Some(mut other) = make(None) else { return };
    let mine = vec![1u8; 4 * page as usize];
    let address = (mine.as_ptr() as u64).next_multiple_of(page);
    let theirs = other.take(page).expect("no limit");
    stamp(&other, theirs.address(), page, 4);
    source.give(Segment::new(address, page));
    source.give(Segment::new(theirs.address(), page));
    if source.is_paged() {
        for (address, bytes) in [(address, 2 * page), (theirs.address(), page), (0, 1 << 40)] {
            let forged = Range::new(address, bytes);
            assert!(matches!(
                source.commit(&forged, 0, page, page),
                Err(SourceError::NotHeld { .. })
            ));
            assert_eq!(source.decommit(&forged, 0, page), 0);
            assert!(source.move_pages((&forged, 0), (&forged, page), page).is_err());
            source.release(forged);
        }
    }
    assert!(mine.iter().all(|byte| *byte == 1));
    assert!(is_stamped(&other, theirs.address(), page, 4));
    assert_eq!(source.free_bytes(), Some(16 * page));
    other.give(theirs);
}

pub(crate) fn crooked_parts_are_refused<S: MemorySource>(make: impl Fn(Option<u64>) -> Option<S>) {
    let Some((mut source, page)) = of_pages(make, 16) else {
        return;
    };
    if !source.is_paged() {
        return;
    }
    let range = source.reserve(8 * page).expect("addresses");
    let at = range.address();
    source.commit(&range, 0, 4 * page, 2 * page).expect("fits");
    stamp(&source, at, 4 * page, 6);
    let far = u64::MAX - page + 1;
    for (offset, bytes, handle) in [
        (3 * page, page, page),
        (2 * page, 4 * page, page),
        (7 * page, 2 * page, page),
        (9 * page, page, page),
        (4 * page, 3 * page, 2 * page),
        (4 * page + 512, page, page),
        (4 * page, page, 512),
        (4 * page, page, 0),
        (far, page, page),
        (far, 2 * page, page),
    ] {
        let outcome = source.commit(&range, offset, bytes, handle);
        assert!(
            matches!(outcome, Err(SourceError::NotHeld { .. })),
            "{offset} {bytes} {handle} {outcome:?}"
        );
    }
    for (offset, bytes) in [
        (0, page),
        (page, 2 * page),
        (page, page),
        (2 * page, 4 * page),
        (6 * page, page),
    ]
    .into_iter()
    .chain([(0, 2 * page + 512), (far, page), (9 * page, page), (0, 0)])
    {
        assert_eq!(source.decommit(&range, offset, bytes), 0, "{offset} {bytes}");
    }
    for (from, to, bytes) in [
        (0, page, 2 * page),
        (0, 2 * page, 2 * page),
        (0, 3 * page, 2 * page),
        (0, 7 * page, 2 * page),
        (page, 5 * page, page),
        (2 * page, 4 * page, 4 * page),
        (0, far, 2 * page),
        (far, 4 * page, 2 * page),
    ] {
        let outcome = source.move_pages((&range, from), (&range, to), bytes);
        assert!(
            matches!(outcome, Err(SourceError::NotHeld { .. })),
            "{from} {to} {bytes} {outcome:?}"
        );
    }
    assert!(is_stamped(&source, at, 4 * page, 6));
    assert_eq!(source.free_bytes(), Some(12 * page));
    // The range is released while it has pages, which are freed too.
    source.release(range);
    assert_eq!(source.free_bytes(), Some(16 * page));
}
