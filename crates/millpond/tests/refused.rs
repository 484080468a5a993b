//! Simulates other systems: each test disables a call on a thread of its own.

#![cfg(all(target_os = "linux", target_endian = "little"))]

mod support;

use millpond::engine::{Range, Source};
use millpond::{
    Host,
    source::{HostBuilder, HostError, MemorySource, is_pinned},
};
use std::ptr::without_provenance;
use support::forbid::{Forbidden, without};
use support::memory::{is_stamped, is_zero, stamp};
use support::process::{has_flag, is_closed, is_open, resident};

const PAGE: u64 = 4096;

const MOVE: Forbidden = Forbidden {
    call: libc::SYS_mremap,
    argument: None,
    code: libc::EINVAL,
};
const POPULATE: Forbidden = Forbidden {
    call: libc::SYS_madvise,
    argument: Some((2, libc::MADV_POPULATE_WRITE)),
    code: libc::EINVAL,
};
const UNMAP: Forbidden = Forbidden {
    call: libc::SYS_munmap,
    argument: None,
    code: libc::ENOMEM,
};
const OPEN: Forbidden = Forbidden {
    call: libc::SYS_mprotect,
    argument: Some((2, libc::PROT_READ | libc::PROT_WRITE)),
    code: libc::ENOMEM,
};
const CLOSE: Forbidden = Forbidden {
    call: libc::SYS_mmap,
    argument: Some((3, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED)),
    code: libc::ENOMEM,
};
const OPEN_SHARED: Forbidden = Forbidden {
    call: libc::SYS_mmap,
    argument: Some((3, libc::MAP_SHARED | libc::MAP_FIXED)),
    code: libc::ENOMEM,
};
const FREE_SHARED: Forbidden = Forbidden {
    call: libc::SYS_fallocate,
    argument: None,
    code: libc::ENOMEM,
};
const LOCK: Forbidden = Forbidden {
    call: libc::SYS_mlock,
    argument: None,
    code: libc::EAGAIN,
};

fn builder() -> HostBuilder {
    Host::builder().page_bytes(PAGE).capacity(Some(64 * PAGE))
}

/// Moves three runs of pages and checks their new places.
fn moves<S: MemorySource>(source: &mut S) {
    let range = source.reserve(64 * PAGE).expect("addresses");
    let at = range.address();
    for n in 0..3 {
        source
            .commit(&range, 4 * n * PAGE, 4 * PAGE, 2 * PAGE)
            .expect("memory");
        stamp(source, at + 4 * n * PAGE, 4 * PAGE, n << 40);
    }
    assert_eq!(
        source.move_pages((&range, 2 * PAGE), (&range, 30 * PAGE), 8 * PAGE),
        Ok(4)
    );
    // A stamp contains the offset of its page at the time of the write.
    assert!(is_stamped(source, at + 32 * PAGE, 4 * PAGE, 1 << 40));
    assert!(is_stamped(source, at, 2 * PAGE, 0) && !is_zero(source, at + 30 * PAGE, 2 * PAGE));
    assert!(is_closed(at + 2 * PAGE, 8 * PAGE) && is_open(at + 30 * PAGE, 8 * PAGE));
    assert_eq!(resident(at + 2 * PAGE, 8 * PAGE), 0);
    source.decommit(&range, 0, 2 * PAGE);
    source.decommit(&range, 30 * PAGE, 8 * PAGE);
    source.decommit(&range, 10 * PAGE, 2 * PAGE);
    source.release(range);
    assert_eq!(source.free_bytes(), Some(64 * PAGE));
}

#[test]
fn pages_that_cannot_be_moved_are_copied() {
    without(MOVE, || moves(&mut builder().build().expect("a host")));
    without(MOVE, || {
        let mut pinned = builder().build_pinned().expect("a source");
        match pinned.take(32 * PAGE) {
            Ok(segment) => pinned.give(segment),
            Err(error) => return eprintln!("skipped: {error}"),
        }
        moves(&mut pinned);
    });
}

#[test]
fn pages_are_touched_where_the_system_cannot_populate() {
    without(POPULATE, || {
        let mut host = builder().populate(true).build().expect("a host");
        let range = host.reserve(64 * PAGE).expect("addresses");
        host.commit(&range, 3 * PAGE, 8 * PAGE, PAGE).expect("memory");
        assert_eq!(resident(range.address(), 64 * PAGE), 8 * PAGE);
        assert!(is_zero(&host, range.address() + 3 * PAGE, 8 * PAGE));
    });
}

#[test]
fn a_segment_that_cannot_be_unmapped_is_emptied_and_unmapped_later() {
    let mut host = builder().build().expect("a host");
    let segment = host.take(8 * PAGE).expect("memory");
    let at = segment.address();
    stamp(&host, at, 8 * PAGE, 1);
    let refused = without(UNMAP, || {
        host.give(segment);
        assert_eq!((resident(at, 8 * PAGE), host.free_bytes()), (0, Some(64 * PAGE)));
        assert!(is_open(at, 8 * PAGE), "its addresses are still taken");
        assert!(!format!("{host:?}").contains("spent: []"));
    });
    let again = host.take(PAGE).expect("memory");
    assert!(refused.is_none() || format!("{host:?}").contains("spent: []"));
    host.give(again);
}

#[test]
fn pages_that_cannot_be_opened_stay_closed() {
    let mut host = builder().build().expect("a host");
    let range = host.reserve(64 * PAGE).expect("addresses");
    without(OPEN, || {
        let error = host.commit(&range, 0, 4 * PAGE, PAGE).expect_err("refused");
        assert!(error.is_out_of_memory(), "{error}");
        assert!(host.take(PAGE).is_err());
    });
    assert_eq!(host.free_bytes(), Some(64 * PAGE));
    assert!(is_closed(range.address(), 64 * PAGE));
    host.commit(&range, 0, 4 * PAGE, PAGE).expect("memory");
}

#[test]
fn pages_that_cannot_be_closed_are_emptied_and_closed_before_reuse() {
    let mut host = builder().build().expect("a host");
    let range = host.reserve(64 * PAGE).expect("addresses");
    let at = range.address();
    host.commit(&range, 0, 16 * PAGE, PAGE).expect("memory");
    stamp(&host, at, 16 * PAGE, 7);
    let refused = without(CLOSE, || {
        assert_eq!(host.decommit(&range, 2 * PAGE, 4 * PAGE), 4);
        assert_eq!(
            host.move_pages((&range, 8 * PAGE), (&range, 40 * PAGE), 4 * PAGE),
            Ok(4)
        );
        assert_eq!(host.free_bytes(), Some(52 * PAGE));
        assert_eq!(
            (
                resident(at + 2 * PAGE, 4 * PAGE),
                resident(at + 8 * PAGE, 4 * PAGE)
            ),
            (0, 0)
        );
        assert!(is_closed(at + 2 * PAGE, 4 * PAGE) && is_closed(at + 8 * PAGE, 4 * PAGE));
        assert!(host.commit(&range, 5 * PAGE, PAGE, PAGE).is_err());
        assert!(host.move_pages((&range, 0), (&range, 8 * PAGE), PAGE).is_err());
        assert_eq!(host.free_bytes(), Some(52 * PAGE));
    });
    if refused.is_none() {
        return;
    }
    host.commit(&range, 5 * PAGE, PAGE, PAGE).expect("closed by now");
    assert!(is_zero(&host, at + 5 * PAGE, PAGE) && is_closed(at + 2 * PAGE, 3 * PAGE));
    assert_eq!(host.move_pages((&range, 0), (&range, 8 * PAGE), PAGE), Ok(1));
    assert!(!is_zero(&host, at + 8 * PAGE, PAGE) && !is_zero(&host, at + 40 * PAGE, PAGE));
    host.release(range);
    assert_eq!(host.free_bytes(), Some(64 * PAGE));
}

#[test]
fn pages_that_cannot_be_locked_again_are_not_called_pinned() {
    let mut source = builder().build_pinned().expect("a source");
    let range = source.reserve(64 * PAGE).expect("addresses");
    let at = range.address();
    if let Err(error) = source.commit(&range, 0, 8 * PAGE, PAGE) {
        return eprintln!("skipped: {error}");
    }
    stamp(&source, at, 8 * PAGE, 7);
    let pinned = |page: u64| is_pinned(without_provenance::<u8>((at + page * PAGE) as usize));
    let refused = without(LOCK, || {
        assert!(
            source
                .move_pages((&range, 2 * PAGE), (&range, 40 * PAGE), 4 * PAGE)
                .is_err()
        );
        assert!(source.commit(&range, 20 * PAGE, PAGE, PAGE).is_err());
    });
    assert!(is_stamped(&source, at, 8 * PAGE, 7));
    if refused.is_some() {
        assert!(pinned(1) && !pinned(2) && !pinned(5) && pinned(6) && !pinned(20) && !pinned(40));
        assert!(has_flag(at, 2 * PAGE, "lo") && !has_flag(at + 2 * PAGE, PAGE, "lo"));
        assert!(is_closed(at + 8 * PAGE, 56 * PAGE));
        assert_eq!(source.free_bytes(), Some(56 * PAGE));
    }
}

#[test]
fn a_source_whose_pages_have_aliases_is_refused_with_the_call() {
    for (number, name, code) in [
        (libc::SYS_memfd_create, "memfd_create", libc::EPERM),
        (libc::SYS_ftruncate, "ftruncate", libc::EFBIG),
        (libc::SYS_fallocate, "fallocate", libc::EOPNOTSUPP),
    ] {
        let call = Forbidden {
            call: number,
            argument: None,
            code,
        };
        without(call, || {
            let error = builder().aliases(true).build().expect_err("a refused call");
            assert_eq!(error, HostError::System { call: name, code });
            builder().build().expect("a source without aliases");
        });
    }
}

/// Returns a source whose pages have aliases, and a range with four handles. Two of them are mapped twice.
fn aliased() -> (Host, Range) {
    let mut host = builder().aliases(true).build().expect("a host");
    let range = host.reserve(64 * PAGE).expect("addresses");
    host.commit(&range, 0, 8 * PAGE, 2 * PAGE).expect("memory");
    stamp(&host, range.address(), 8 * PAGE, 7);
    let parts = [(&range, 4 * PAGE, 4 * PAGE)];
    host.alias(&parts, (&range, 20 * PAGE)).expect("a second mapping");
    (host, range)
}

#[test]
fn a_second_mapping_that_is_refused_changes_nothing() {
    let (mut host, range) = aliased();
    let at = range.address();
    without(OPEN_SHARED, || {
        let parts = [(&range, 20 * PAGE, 2 * PAGE), (&range, 0, 2 * PAGE)];
        let error = host.alias(&parts, (&range, 30 * PAGE)).expect_err("refused");
        assert!(error.is_out_of_memory(), "{error}");
        assert!(
            host.move_pages((&range, 0), (&range, 30 * PAGE), 4 * PAGE)
                .is_err()
        );
        assert!(host.commit(&range, 30 * PAGE, PAGE, PAGE).is_err());
        assert_eq!(host.free_bytes(), Some(56 * PAGE));
    });
    assert!(is_stamped(&host, at, 8 * PAGE, 7));
    assert!(is_closed(at + 8 * PAGE, 12 * PAGE) && is_closed(at + 24 * PAGE, 40 * PAGE));
    // The handles have not moved: two are at the new place, and two at the old one.
    assert_eq!(host.unmap(at + 4 * PAGE, 4 * PAGE), 2);
    assert_eq!(host.decommit(&range, 20 * PAGE, 4 * PAGE), 2);
    assert_eq!(host.decommit(&range, 0, 4 * PAGE), 2);
    assert_eq!(host.free_bytes(), Some(64 * PAGE));
}

#[test]
fn a_second_mapping_that_is_refused_in_part_changes_nothing() {
    let mut host = builder().aliases(true).build_pinned().expect("a source");
    let range = host.reserve(64 * PAGE).expect("addresses");
    let at = range.address();
    if let Err(error) = host.commit(&range, 0, 4 * PAGE, PAGE) {
        return eprintln!("skipped: {error}");
    }
    stamp(&host, at, 4 * PAGE, 7);
    // The pages are mapped before they are locked.
    without(LOCK, || {
        let parts = [(&range, 2 * PAGE, PAGE), (&range, 0, PAGE)];
        assert!(host.alias(&parts, (&range, 30 * PAGE)).is_err());
        assert!(
            host.move_pages((&range, 0), (&range, 30 * PAGE), 2 * PAGE)
                .is_err()
        );
        assert!(is_closed(at + 4 * PAGE, 60 * PAGE));
    });
    assert!(is_stamped(&host, at, 4 * PAGE, 7) && has_flag(at, 4 * PAGE, "lo"));
    assert_eq!(host.decommit(&range, 0, 4 * PAGE), 4);
    assert_eq!(host.free_bytes(), Some(64 * PAGE));
}

#[test]
fn memory_that_cannot_be_freed_stays_charged_until_it_is() {
    let (mut host, range) = aliased();
    let at = range.address();
    let refused = without(FREE_SHARED, || {
        assert!(!host.discard(at, PAGE));
        assert_eq!(host.decommit(&range, 0, 2 * PAGE), 1);
        assert_eq!(host.free_bytes(), Some(56 * PAGE));
        host.commit(&range, 0, 2 * PAGE, PAGE).expect("other memory");
        assert!(is_zero(&host, at, 2 * PAGE));
    });
    if refused.is_none() {
        return;
    }
    assert_eq!(host.decommit(&range, 0, 2 * PAGE), 2);
    assert_eq!(host.free_bytes(), Some(58 * PAGE), "all was freed");
    assert!(is_stamped(&host, at + 20 * PAGE, PAGE, 7 ^ (4 * PAGE)));
}

#[test]
fn discarded_memory_that_cannot_be_freed_in_part_reads_as_zero() {
    let (mut host, range) = aliased();
    let at = range.address();
    // The part has two runs. The second one is the first half of the stale mappings.
    let second = Forbidden {
        argument: Some((2, 4 * PAGE as i32)),
        ..FREE_SHARED
    };
    without(second, || {
        assert!(host.discard(at + 2 * PAGE, 4 * PAGE));
        assert!(is_zero(&host, at + 2 * PAGE, 4 * PAGE) && is_zero(&host, at + 20 * PAGE, 2 * PAGE));
    });
}

#[test]
fn a_stale_mapping_that_cannot_be_closed_is_closed_before_its_addresses_are_used() {
    let (mut host, range) = aliased();
    let at = range.address();
    let refused = without(CLOSE, || {
        assert_eq!(host.unmap(at + 4 * PAGE, 4 * PAGE), 2);
        assert!(is_closed(at + 4 * PAGE, 4 * PAGE));
        assert!(host.commit(&range, 4 * PAGE, PAGE, PAGE).is_err());
        assert!(host.alias(&[(&range, 0, 2 * PAGE)], (&range, 6 * PAGE)).is_err());
    });
    if refused.is_none() {
        return;
    }
    host.commit(&range, 4 * PAGE, PAGE, PAGE).expect("closed by now");
    assert!(is_zero(&host, at + 4 * PAGE, PAGE));
    assert!(is_stamped(&host, at + 20 * PAGE, PAGE, 7 ^ (4 * PAGE)));
}

#[test]
fn memory_that_is_lacking_when_it_is_populated_is_an_error() {
    let lack = Forbidden {
        code: libc::EFAULT,
        ..POPULATE
    };
    without(lack, || {
        let builder = builder().populate(true).aliases(true);
        let mut host = builder.build().expect("a host");
        let range = host.reserve(64 * PAGE).expect("addresses");
        let error = host.commit(&range, 0, 4 * PAGE, PAGE).expect_err("no memory");
        assert!(error.is_out_of_memory(), "{error}");
        assert_eq!(host.free_bytes(), Some(64 * PAGE));
        assert!(is_closed(range.address(), 64 * PAGE));
    });
}
