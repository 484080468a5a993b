//! The profiler. There is only one test, because the profiler covers the whole process.

#![cfg(target_os = "linux")]

use millpond::{Buffer, Pool, Tag, profiler};
use std::thread;

const MIB: usize = 1 << 20;

fn tagged(pool: &Pool, tag: &str, bytes: usize) -> Buffer<u8> {
    let _scope = millpond::tag(tag);
    pool.alloc_zeroed(bytes).expect("room")
}

#[test]
fn the_report_has_the_allocations_of_all_threads_while_it_is_enabled() {
    let pool = Pool::builder()
        .name("busy")
        .track(None)
        .host()
        .expect("addresses");
    assert!(!profiler().is_enabled());
    assert_eq!(profiler().report().allocations, 0, "it never was on");
    let old = tagged(&pool, "before", 8 * MIB);
    drop(tagged(&pool, "before", MIB));

    profiler().enable();
    profiler().enable();
    assert!(profiler().is_enabled() && pool.ledger().is_some());
    drop(old);
    let weights = tagged(&pool, "weights", 4 * MIB);
    thread::scope(|threads| {
        threads.spawn(|| {
            let more = tagged(&pool, "activations", 3 * MIB);
            (0..10).for_each(|_| drop(tagged(&pool, "scratch", 1 << 10)));
            drop(more);
        });
    });
    let kept = tagged(&pool, "activations", MIB);
    let report = profiler().report();
    let sums = (
        report.peak,
        report.live,
        report.total,
        report.allocations,
        report.temporary,
    );
    let (peak, total) = ((7 * MIB + (1 << 10)) as u64, (8 * MIB + 10 * (1 << 10)) as u64);
    assert_eq!(sums, (peak, 5 * MIB as u64, total, 13, 10));
    let by_tag: Vec<(&str, u64, u64)> = report
        .by_tag()
        .iter()
        .map(|of| (of.tag.name(), of.peak, of.live))
        .collect();
    let mib = MIB as u64;
    assert_eq!(
        by_tag,
        [
            ("weights", 4 * mib, 4 * mib),
            ("activations", 3 * mib, mib),
            ("scratch", 1 << 10, 0)
        ]
    );
    assert_eq!(by_tag.iter().map(|(_, peak, _)| peak).sum::<u64>(), report.peak);
    assert_eq!(report.at_peak().bytes, report.peak);
    assert_eq!(report.most_temporary(1)[0].tag, Tag::new("scratch"));
    let scratch = report.sites.iter().filter(|site| site.tag.name() == "scratch");
    // The first block was made, and the others came from the thread's cache. All are from one line.
    assert_eq!(scratch.count(), 1);
    assert_eq!(report.most_allocated(1)[0].tag, Tag::new("weights"));

    let largest = profiler().largest(1);
    assert_eq!(
        (largest.blocks.len(), largest.blocks[0].block.requested),
        (1, 4 * MIB)
    );
    let large = profiler().larger_than("1.5 MiB").expect("a size");
    assert_eq!(large.blocks.len(), 1);
    assert_eq!(profiler().larger_than(MIB - 1).expect("a size").blocks.len(), 2);
    assert!(profiler().larger_than("large").is_err());
    let busy = report
        .pools
        .iter()
        .find(|of| of.name == "busy")
        .expect("it is there");
    assert_eq!(busy.allocations, 13, "and not those before");
    assert!(busy.hits < 13 && busy.hit_rate() > 0.5, "{busy:?}");

    let text = report.summary().to_string();
    for expected in [
        "peak 7.00 MiB, live 5.00 MiB; 8.01 MiB allocated in 13 blocks, 10 of them temporary",
        "   4.00 MiB  weights, live 4.00 MiB",
        "  in busy: weights",
        "pool busy: ",
    ] {
        assert!(text.contains(expected), "no {expected:?} in\n{text}");
    }
    #[cfg(feature = "stacks")]
    assert!(text.contains("tests/profiler.rs:"), "{text}");

    profiler().disable();
    profiler().disable();
    assert!(pool.ledger().is_none(), "the account was begun for it");
    drop(kept);
    let late = tagged(&pool, "late", 16 * MIB);
    let still = profiler().report();
    assert_eq!((still.peak, still.live, still.allocations), (peak, 5 * mib, 13));

    // Enabling the profiler resets its figures.
    for _ in 0..5 {
        profiler().enable();
        assert_eq!(profiler().report().allocations, 0);
        drop(tagged(&pool, "again", MIB));
        assert_eq!(profiler().report().by_tag()[0].tag, Tag::new("again"));
        assert!(
            profiler().largest(9).blocks.is_empty(),
            "nothing of the account before"
        );
        profiler().disable();
    }
    drop((late, weights));
}
