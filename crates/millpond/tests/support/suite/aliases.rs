//! Pages that are mapped at a second address.

use super::of_pages;
use millpond::engine::{Source, SourceError};

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
    // Again, from the place where they are now.
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
