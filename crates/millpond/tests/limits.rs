//! Refusals of the system. There is only one test, because the limits apply to the whole process.

#![cfg(target_os = "linux")]

mod support;

use millpond::engine::{Source, SourceError};
use millpond::{
    Host,
    source::{HostError, HugePages, MemorySource, Node},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use support::memory::{is_stamped, is_zero, stamp};
use support::process::{is_closed, is_open, resident, status};

const PAGE: u64 = 4096;

fn mappings() -> u64 {
    fs::read_to_string("/proc/self/maps")
        .expect("maps")
        .lines()
        .count() as u64
}

fn host() -> Host {
    Host::builder().page_bytes(PAGE).build().expect("ordinary pages")
}

/// Runs a function with a lower limit, and restores the old one.
fn under<T>(resource: Resource, bytes: u64, run: impl FnOnce() -> T) -> T {
    let before = getrlimit(resource);
    let lower = |current| Rlimit {
        current,
        maximum: before.maximum,
    };
    setrlimit(resource, lower(Some(bytes))).expect("a lower limit");
    let outcome = run();
    setrlimit(resource, lower(before.current)).expect("the limit that was");
    outcome
}

#[test]
fn refusals_of_the_system_lose_no_memory() {
    a_builder_says_what_cannot_be();
    a_limit_on_files_refuses_aliases();
    a_dropped_source_leaves_nothing();
    a_move_that_fails_half_way_is_undone();
    #[cfg(target_endian = "little")]
    support::forbid::without(
        support::forbid::Forbidden {
            call: libc::SYS_mremap,
            argument: None,
            code: libc::EINVAL,
        },
        a_move_that_fails_half_way_is_undone,
    );
    a_move_whose_way_back_is_shut_is_copied_back();
    a_move_past_a_limit_lets_go_of_no_address();
    a_transfer_that_cannot_be_changes_nothing();
    a_refused_commit_changes_nothing();
    its_own_limit_on_mappings_comes_first();
    second_mappings_are_counted_too();
    at_the_systems_limit_on_mappings_nothing_is_lost();
}

fn a_limit_on_files_refuses_aliases() {
    let build = || Host::builder().aliases(true).build();
    let error = under(Resource::Fsize, 1 << 40, build).expect_err("the file is larger");
    let (call, code) = ("ftruncate", libc::EFBIG);
    assert_eq!(error, HostError::System { call, code });
    build().expect("a file in memory");
}

fn a_move_past_a_limit_lets_go_of_no_address() {
    let mut host = host();
    let range = host.reserve(64 * PAGE).expect("addresses");
    host.commit(&range, 0, 16 * PAGE, PAGE).expect("memory");
    stamp(&host, range.address(), 16 * PAGE, 3);
    let moved = under(Resource::Data, 1, || {
        host.move_pages((&range, 0), (&range, 32 * PAGE), 16 * PAGE)
    });
    moved.expect_err("no more of this kind may be mapped");
    assert!(is_closed(range.address() + 32 * PAGE, 16 * PAGE));
    assert!(is_stamped(&host, range.address(), 16 * PAGE, 3));
}

fn a_transfer_that_cannot_be_changes_nothing() {
    let mut host = host();
    let (one, two) = (
        host.take(16 * PAGE).expect("one"),
        host.take(16 * PAGE).expect("two"),
    );
    stamp(&host, one.address(), 16 * PAGE, 3);
    let mut transfer = || host.transfer(one.address(), two.address(), 16 * PAGE);
    for (resource, least) in [(Resource::Data, 1), (Resource::As, status("VmSize") + 8 * PAGE)] {
        assert!(!under(resource, least, &mut transfer));
        assert!(is_open(two.address(), 16 * PAGE));
    }
    #[cfg(target_endian = "little")]
    support::forbid::without(
        support::forbid::Forbidden {
            call: libc::SYS_mremap,
            argument: None,
            code: libc::EINVAL,
        },
        || {
            let mut host = self::host();
            let (one, two) = (
                host.take(4 * PAGE).expect("one"),
                host.take(4 * PAGE).expect("two"),
            );
            stamp(&host, one.address(), 4 * PAGE, 5);
            assert!(!host.transfer(one.address(), two.address(), 4 * PAGE));
            assert!(is_stamped(&host, one.address(), 4 * PAGE, 5) && is_open(two.address(), 4 * PAGE));
        },
    );
    assert!(transfer());
    // No byte is held twice, and the source of the move stays usable.
    assert_eq!(
        (
            resident(one.address(), 16 * PAGE),
            resident(two.address(), 16 * PAGE)
        ),
        (0, 16 * PAGE)
    );
    assert!(is_stamped(&host, two.address(), 16 * PAGE, 3) && is_zero(&host, one.address(), 16 * PAGE));
    stamp(&host, one.address(), 8 * PAGE, 4);
}

fn a_builder_says_what_cannot_be() {
    let build = |bytes| Host::builder().page_bytes(bytes).build();
    for bytes in [0, 1, 2048, 4097, 12 << 10, 2 << 30, u64::MAX] {
        assert!(
            matches!(build(bytes), Err(HostError::PageBytes { .. })),
            "{bytes}"
        );
    }
    let node = |node| Host::builder().node(node).build();
    match node(Node::Prefer(0)) {
        Err(error @ HostError::System { .. }) => eprintln!("skipped: {error}"),
        outcome => {
            outcome.expect("every machine has node 0");
            for number in [900, 1023, 1024, u32::MAX] {
                let error = node(Node::Only(number)).expect_err("no machine has so many");
                assert!(
                    matches!(&error, HostError::NoNode { node, .. } if *node == number),
                    "{error}"
                );
                assert!(
                    error.to_string().contains("the nodes of this machine are 0"),
                    "{error}"
                );
            }
        }
    }
    let huge = |bytes| Host::builder().huge_pages(HugePages::Explicit(bytes)).build();
    assert!(matches!(
        huge(8192),
        Err(HostError::HugePageBytes { bytes: 8192 })
    ));
    match huge(2 << 20) {
        Ok(host) => assert!(!host.is_paged() && host.page_bytes() == 2 << 20),
        Err(error) => {
            assert!(matches!(
                error,
                HostError::NoHugePages { .. } | HostError::HugePageBytes { .. }
            ));
            assert!(error.to_string().contains("huge pages"), "{error}");
        }
    }
}

fn a_dropped_source_leaves_nothing() {
    let (maps, rss, size) = (mappings(), status("RssAnon"), status("VmSize"));
    let mut host = Host::builder()
        .page_bytes(64 << 10)
        .build()
        .expect("ordinary pages");
    let range = host.reserve(1 << 40).expect("addresses");
    host.commit(&range, 0, 64 << 20, 64 << 10).expect("memory");
    host.commit(&range, 1 << 30, 64 << 20, 64 << 10).expect("memory");
    let segment = host.take(64 << 20).expect("memory");
    for (at, bytes) in [
        (range.address(), 64 << 20),
        (range.address() + (1 << 30), 64 << 20),
    ]
    .into_iter()
    .chain([(segment.address(), 64 << 20)])
    {
        for page in (at..at + bytes).step_by(PAGE as usize) {
            stamp(&host, page, PAGE, 1);
        }
    }
    assert!(status("RssAnon") - rss >= 192 << 20);
    host.decommit(&range, 0, 64 << 20);
    let left = status("RssAnon") - rss;
    assert!((128 << 20..140 << 20).contains(&left), "{left}");
    drop(host);
    assert!(status("RssAnon") < rss + (4 << 20));
    assert!(status("VmSize") < size + (64 << 20));
    assert!(mappings() <= maps + 2, "{} {maps}", mappings());
}

fn a_move_that_fails_half_way_is_undone() {
    let mut host = host();
    let range = host.reserve(2048 * PAGE).expect("addresses");
    let at = range.address();
    for part in 0..4 {
        host.commit(&range, part * 128 * PAGE, 128 * PAGE, 64 * PAGE)
            .expect("memory");
        stamp(&host, at + part * 128 * PAGE, 128 * PAGE, part << 40);
    }
    let intact = |host: &Host| (0..4).all(|n| is_stamped(host, at + n * 128 * PAGE, 128 * PAGE, n << 40));
    // A move opens the new place before it closes the old one, so both count. The limit for data is reached during the
    // move.
    for runs in 0..4 {
        let outcome = under(
            Resource::Data,
            status("VmData") + runs * 128 * PAGE + 8 * PAGE,
            || host.move_pages((&range, 0), (&range, 1024 * PAGE), 512 * PAGE),
        );
        let error = outcome.expect_err("no room");
        assert!(error.is_out_of_memory(), "{error}");
        assert!(intact(&host), "{runs}");
        assert!(is_open(at, 512 * PAGE) && is_closed(at + 512 * PAGE, 1536 * PAGE));
        assert_eq!(
            (host.used_bytes(), resident(at + 512 * PAGE, 1536 * PAGE)),
            (512 * PAGE, 0)
        );
    }
    assert_eq!(
        host.move_pages((&range, 0), (&range, 1024 * PAGE), 512 * PAGE),
        Ok(8)
    );
    assert_eq!(host.decommit(&range, 1024 * PAGE, 512 * PAGE), 8);
    assert_eq!(host.used_bytes(), 0);
}

#[cfg(not(target_endian = "little"))]
fn a_move_whose_way_back_is_shut_is_copied_back() {}

#[cfg(target_endian = "little")]
fn a_move_whose_way_back_is_shut_is_copied_back() {
    let mut host = host();
    let range = host.reserve(2048 * PAGE).expect("addresses");
    let at = range.address();
    for part in 0..2 {
        host.commit(&range, part * 128 * PAGE, 128 * PAGE, PAGE)
            .expect("memory");
        stamp(&host, at + part * 128 * PAGE, 128 * PAGE, part << 40);
    }
    let to_the_first = support::forbid::Forbidden {
        call: libc::SYS_mremap,
        argument: Some((4, at as i32)),
        code: libc::ENOMEM,
    };
    support::forbid::without(to_the_first, || {
        under(Resource::Data, status("VmData") + 136 * PAGE, || {
            let outcome = host.move_pages((&range, 0), (&range, 1024 * PAGE), 256 * PAGE);
            assert!(outcome.is_err(), "room for one of two");
        });
    });
    assert!((0..2).all(|n| is_stamped(&host, at + n * 128 * PAGE, 128 * PAGE, n << 40)));
    assert!(is_closed(at + 256 * PAGE, 1792 * PAGE) && host.used_bytes() == 256 * PAGE);
}

fn a_refused_commit_changes_nothing() {
    let mut host = host();
    let range = host.reserve(4096 * PAGE).expect("addresses");
    host.commit(&range, 0, 16 * PAGE, PAGE).expect("memory");
    let (size, data) = (status("VmSize"), status("VmData"));
    under(Resource::Data, data + 64 * PAGE, || {
        let error = host
            .commit(&range, 16 * PAGE, 1024 * PAGE, PAGE)
            .expect_err("no room");
        assert!(matches!(error, SourceError::OutOfMemory { requested, .. } if requested == 1024 * PAGE));
        assert!(
            host.take(1024 * PAGE)
                .is_err_and(|error| error.is_out_of_memory())
        );
        host.commit(&range, 16 * PAGE, 16 * PAGE, PAGE)
            .expect("what fits");
    });
    under(Resource::As, size + 64 * PAGE, || {
        assert_eq!(
            host.reserve(1024 * PAGE),
            Err(SourceError::AddressSpace {
                requested: 1024 * PAGE
            })
        );
    });
    assert_eq!(host.used_bytes(), 32 * PAGE);
    assert!(is_closed(range.address() + 32 * PAGE, 4064 * PAGE));
}

fn its_own_limit_on_mappings_comes_first() {
    let limit = mappings() + 40;
    let mut host = Host::builder()
        .page_bytes(PAGE)
        .mappings(limit)
        .build()
        .expect("ordinary pages");
    let range = host.reserve(1024 * PAGE).expect("addresses");
    let pages = || (0..512).map(|n| n * 2 * PAGE);
    let error = pages()
        .find_map(|at| host.commit(&range, at, PAGE, PAGE).err())
        .expect("a limit");
    assert!(
        matches!(error, SourceError::Mappings { mappings, limit: told } if told == limit && mappings <= limit)
    );
    assert!(error.to_string().contains("vm.max_map_count"), "{error}");
    assert!(mappings() <= limit, "{} {limit}", mappings());
    let used = host.used_bytes();
    assert!((15 * PAGE..30 * PAGE).contains(&used), "{used}");
    let given: u64 = pages().map(|at| host.decommit(&range, at, PAGE)).sum();
    assert_eq!((given * PAGE, host.used_bytes()), (used, 0));
    host.commit(&range, 0, 1024 * PAGE, PAGE).expect("one map again");
}

fn second_mappings_are_counted_too() {
    let limit = mappings() + 40;
    let builder = Host::builder().page_bytes(PAGE).mappings(limit).aliases(true);
    let mut host = builder.build().expect("a file in memory");
    let range = host.reserve(1024 * PAGE).expect("addresses");
    host.commit(&range, 0, 512 * PAGE, PAGE).expect("memory");
    stamp(&host, range.address(), 512 * PAGE, 3);
    // The order is reversed, so that no two neighbours are one mapping.
    let one = |nth: u64| (&range, (511 - nth) * PAGE, PAGE);
    let place = |nth: u64| (&range, (512 + nth) * PAGE);
    let many: Vec<_> = (0..64).map(one).collect();
    let error = host.alias(&many, place(0)).expect_err("too many mappings");
    assert!(matches!(error, SourceError::Mappings { .. }), "{error}");
    assert!(is_closed(range.address() + 512 * PAGE, 512 * PAGE));
    let mut made = 0;
    while host.alias(&[one(made)], place(made)).is_ok() {
        made += 1;
    }
    assert!((15..40).contains(&made) && mappings() <= limit, "{made}");
    assert!(is_stamped(&host, range.address(), 512 * PAGE, 3));
    assert_eq!(host.unmap(range.address(), 512 * PAGE), made);
    host.release(range);
    assert_eq!(host.used_bytes(), 0);
}

/// At the limit the system refuses to split mappings, also to unmap a part.
fn at_the_systems_limit_on_mappings_nothing_is_lost() {
    let most: u64 = fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(u64::MAX);
    if most > 200_000 {
        return eprintln!("skipped: {most} mappings are too many to make in a test");
    }
    let mut host = Host::builder()
        .page_bytes(PAGE)
        .mappings(u64::MAX)
        .build()
        .expect("ordinary pages");
    let range = host.reserve(4 * most * PAGE).expect("addresses");
    let whole = most * 2;
    host.commit(&range, whole * PAGE, 64 * PAGE, PAGE)
        .expect("memory");
    stamp(&host, range.address() + whole * PAGE, 64 * PAGE, 5);
    // These ranges have holes, which provide more mappings later.
    let spare = host.reserve(64 * PAGE).expect("addresses");
    (0..16).for_each(|n| host.commit(&spare, 2 * n * PAGE, PAGE, PAGE).expect("memory"));
    let mut made = 0;
    let error = loop {
        match host.commit(&range, made * 2 * PAGE, PAGE, PAGE) {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
        assert!(made < most, "the system has no limit after all");
    };
    assert!(
        matches!(error, SourceError::Mappings { limit, .. } if limit == most),
        "{error}"
    );
    assert_eq!(host.used_bytes(), (made + 64 + 16) * PAGE);
    // The middle of a mapping cannot be closed now. Its memory is freed anyway, and nothing else may use the place.
    let middle = range.address() + (whole + 20) * PAGE;
    assert_eq!(host.decommit(&range, (whole + 20) * PAGE, 8 * PAGE), 8);
    assert_eq!(resident(middle, 8 * PAGE), 0);
    assert_eq!(host.used_bytes(), (made + 56 + 16) * PAGE);
    assert!(
        host.commit(&range, (whole + 20) * PAGE, 8 * PAGE, PAGE).is_err(),
        "not closed yet"
    );
    let refused = host.move_pages((&range, (whole + 40) * PAGE), (&range, 3 * most * PAGE), 8 * PAGE);
    assert!(refused.is_err(), "a move cuts maps too");
    assert!(is_stamped(&host, range.address() + whole * PAGE, 20 * PAGE, 5));
    host.release(spare);
    host.commit(&range, (whole + 20) * PAGE, 8 * PAGE, PAGE)
        .expect("closed by now, and opened anew");
    assert!(is_zero(&host, middle, 8 * PAGE));
    for n in 0..made {
        assert_eq!(host.decommit(&range, n * 2 * PAGE, PAGE), 1);
    }
    assert_eq!(host.used_bytes(), 64 * PAGE);
    assert!(mappings() < 1000, "neighbours join again");
    host.release(range);
    assert_eq!(host.used_bytes(), 0);
}
