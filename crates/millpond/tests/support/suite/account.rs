//! Bytes, handles and refusals.

use super::of_pages;
use millpond::engine::{Source, SourceError};

pub(crate) fn capacity_is_a_wall<S: Source>(make: impl Fn(Option<u64>) -> Option<S>) {
    let Some((mut source, page)) = of_pages(make, 8) else {
        return;
    };
    assert_eq!(
        (source.capacity(), source.free_bytes()),
        (Some(8 * page), Some(8 * page))
    );
    let taken = source.take(3 * page).expect("fits");
    assert_eq!(source.free_bytes(), Some(5 * page));
    let told = SourceError::OutOfMemory {
        requested: 6 * page,
        free: 5 * page,
        capacity: 8 * page,
    };
    assert_eq!(source.take(6 * page), Err(told.clone()));
    assert_eq!(source.free_bytes(), Some(5 * page));
    if source.is_paged() {
        let range = source.reserve(64 * page).expect("addresses");
        assert_eq!(source.free_bytes(), Some(5 * page), "addresses are not memory");
        assert_eq!(source.commit(&range, 0, 6 * page, page), Err(told));
        source
            .commit(&range, 0, 5 * page, page)
            .expect("fits to the byte");
        assert_eq!(source.free_bytes(), Some(0));
        assert!(source.commit(&range, 5 * page, page, page).is_err());
        source.decommit(&range, 0, 5 * page);
        source.release(range);
    }
    source.give(taken);
    assert_eq!(source.free_bytes(), Some(8 * page));
}

pub(crate) fn handles_stay_whole<S: Source>(make: impl Fn(Option<u64>) -> Option<S>) {
    let Some((mut source, page)) = of_pages(make, 16) else {
        return;
    };
    if !source.is_paged() {
        return;
    }
    let range = source.reserve(32 * page).expect("addresses");
    source.commit(&range, 0, 8 * page, 4 * page).expect("fits");
    source.commit(&range, 8 * page, 6 * page, 2 * page).expect("fits");
    assert_eq!(
        source.move_pages((&range, 4 * page), (&range, 20 * page), 8 * page),
        Ok(3)
    );
    assert_eq!(source.free_bytes(), Some(2 * page), "moving takes nothing");
    assert_eq!(source.decommit(&range, 0, 4 * page), 1);
    assert_eq!(source.decommit(&range, 20 * page, 6 * page), 2);
    assert_eq!(source.decommit(&range, 26 * page, 2 * page), 1);
    assert_eq!(source.decommit(&range, 12 * page, 2 * page), 1);
    assert_eq!(source.free_bytes(), Some(16 * page));
    source.release(range);
}

pub(crate) fn segments_are_apart<S: Source>(make: impl Fn(Option<u64>) -> Option<S>) {
    let Some((mut source, page)) = of_pages(make, 64) else {
        return;
    };
    let sizes = [page, 1, 3 * page, 512, page + 512, 0, 5 * page];
    let mut held: Vec<_> = sizes
        .iter()
        .map(|bytes| source.take(*bytes).expect("fits"))
        .collect();
    for (segment, bytes) in held.iter().zip(sizes) {
        assert_eq!(segment.bytes(), bytes);
        assert!(
            bytes < page || segment.address().is_multiple_of(page.min(2 << 20)),
            "{segment:?}"
        );
    }
    held.sort_by_key(|segment| segment.address());
    for pair in held.windows(2) {
        assert!(
            pair[0].address() + pair[0].bytes() <= pair[1].address(),
            "{pair:?}"
        );
    }
    held.into_iter().for_each(|segment| source.give(segment));
    assert_eq!(source.free_bytes(), Some(64 * page));
}

pub(crate) fn ranges_are_apart<S: Source>(make: impl Fn(Option<u64>) -> Option<S>) {
    let Some((mut source, page)) = of_pages(make, 1) else {
        return;
    };
    if !source.is_paged() {
        assert!(matches!(
            source.reserve(page),
            Err(SourceError::Unsupported { .. })
        ));
        return;
    }
    let mut held: Vec<_> = (1..9)
        .map(|n| source.reserve(n * page).expect("addresses"))
        .collect();
    held.sort_by_key(|range| range.address());
    for pair in held.windows(2) {
        assert!(
            pair[0].address() + pair[0].bytes() <= pair[1].address(),
            "{pair:?}"
        );
    }
    assert!(
        held.iter()
            .all(|range| range.address().is_multiple_of(page.min(2 << 20)))
    );
    held.into_iter().for_each(|range| source.release(range));
}

pub(crate) fn too_much_is_an_error<S: Source>(make: impl Fn(Option<u64>) -> Option<S>) {
    let Some((mut limited, page)) = of_pages(&make, 4) else {
        return;
    };
    let Some(mut unlimited) = make(None) else { return };
    for bytes in [1 << 62, (1 << 63) + 1, u64::MAX - 1, u64::MAX] {
        assert!(limited.take(bytes).is_err());
        let _ = unlimited.take(bytes);
        if limited.is_paged() && bytes >= u64::MAX - 1 {
            assert!(limited.reserve(bytes).is_err() && unlimited.reserve(bytes).is_err());
        }
    }
    assert_eq!(limited.free_bytes(), Some(4 * page));
    let kept = limited.take(4 * page).expect("as usable as before");
    limited.give(kept);
}

pub(crate) fn events_pass<S: Source>(make: impl Fn(Option<u64>) -> Option<S>) {
    let Some((mut source, _)) = of_pages(make, 1) else {
        return;
    };
    let (first, second) = (source.record_event(0), source.record_event(7));
    assert_ne!(first, second);
    source.wait_event(1, first);
    source.synchronize();
    assert!(source.is_complete(first) && source.is_complete(second));
}
