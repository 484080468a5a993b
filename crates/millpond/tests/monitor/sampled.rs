//! The samples of a program with known actions.

use super::{MIB, wait_for};
use millpond::monitor::{Quantity, Subject};
use millpond::{Budget, Ledger, Monitor, Pool, Snapshot, Tracking, budget::Measure};
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(10);

#[test]
fn samples_show_what_a_scripted_program_did() {
    let pool = Pool::builder()
        .name("scripted")
        .settings("")
        .limit(256 * MIB)
        .host()
        .expect("a pool");
    let monitor = Monitor::builder().interval(SHORT).start().expect("a monitor");
    let seen = |bytes: u64| {
        wait_for("a sample", || {
            let last = monitor.last().expect("here");
            let of = last
                .pools
                .iter()
                .find(|of| of.name == "scripted")
                .expect("it is there");
            of.stats.allocated.current == bytes
        });
    };
    seen(0);
    let first = pool.alloc_zeroed::<u8>(8 << 20).expect("memory");
    seen(8 * MIB);
    let second = pool.alloc_zeroed::<u8>(24 << 20).expect("memory");
    seen(32 * MIB);
    drop(second);
    seen(8 * MIB);
    // The peak is known, whether a sample was taken meanwhile or not.
    drop(pool.alloc_zeroed::<u8>(64 << 20).expect("memory"));
    drop(first);
    seen(0);
    let timeline = monitor.timeline();
    let report = monitor.stop();
    let of = report.get("scripted", Quantity::Allocated).expect("followed");
    assert_eq!((of.least, of.peak, of.last), (0, 72 * MIB, 0));
    assert!(of.mean < of.peak && of.samples == report.samples, "{report}");
    let reserved = report.get("scripted", Quantity::Reserved).expect("followed");
    assert!(reserved.peak >= 72 * MIB && reserved.least <= reserved.mean && reserved.mean <= reserved.peak);
    let course = timeline.get("scripted", Quantity::Allocated).expect("followed");
    let mut steps: Vec<u64> = course.points.iter().map(|point| point.last).collect();
    steps.dedup();
    // The short peak may have been sampled or not.
    steps.retain(|bytes| *bytes != 72 * MIB);
    steps.dedup();
    assert_eq!(steps, [0, 8 * MIB, 32 * MIB, 8 * MIB, 0]);
    let resident = report.get("process", Quantity::Resident).expect("followed");
    assert!(resident.least > MIB && matches!(resident.of, Subject::Process));
    assert!(report.to_string().contains("scripted"), "{report}");
}

#[test]
fn hit_rates_are_of_the_time_between_two_samples() {
    let pool = Pool::builder().name("hits").settings("").host().expect("a pool");
    let monitor = Monitor::builder()
        .interval(Duration::from_secs(3600))
        .start()
        .expect("a monitor");
    drop(monitor);
    // There are misses first, so that the rate over the pool's life differs from that of the interval.
    let held: Vec<_> = (0..20)
        .map(|n| pool.alloc_zeroed::<u8>((4 + n) << 20).expect("memory"))
        .collect();
    let monitor = Monitor::builder()
        .interval(Duration::from_secs(3600))
        .start()
        .expect("a monitor");
    drop(held);
    for _ in 0..100 {
        drop(pool.alloc_zeroed::<u8>(4 << 20).expect("memory"));
    }
    let over_all = pool.stats().hit_rate();
    let report = monitor.stop();
    let of = report.get("hits", Quantity::HitRate).expect("followed");
    assert_eq!(of.last, 10_000, "all of them were hits: {over_all}");
    assert!(over_all < 0.99);
}

#[test]
fn a_snapshot_has_budgets_tags_and_limits() {
    let process = Budget::builder("all of it")
        .limit(1 << 30)
        .build()
        .expect("a budget");
    let own = process
        .child_builder("own")
        .measure(Measure::Allocated)
        .limit(64 * MIB)
        .build()
        .expect("a budget");
    let pool = Pool::builder()
        .name("snapped")
        .limit(128 * MIB)
        .budget(&own)
        .host()
        .expect("a pool");
    pool.track(Some(Ledger::builder(Tracking::All)));
    let _scope = millpond::tag("monitor-weights");
    let held = pool.alloc_zeroed::<u8>(3 << 20).expect("memory");
    let lone = Budget::builder("nobody's").limit(7).build().expect("a budget");
    let monitor = Monitor::builder().budget(&lone).start().expect("a monitor");
    let now = monitor.last().expect("here");
    let of = now
        .pools
        .iter()
        .find(|of| of.name == "snapped")
        .expect("it is there");
    assert_eq!(
        (of.limit, of.stats.allocations, of.misses()),
        (Some(128 * MIB), 1, 1)
    );
    assert_eq!(of.stats, pool.stats());
    let used = |path: &str| {
        now.budgets
            .iter()
            .find(|of| of.path == path)
            .map(|of| (of.used, of.limit))
    };
    assert_eq!(used("all of it/own"), Some((3 * MIB, Some(64 * MIB))));
    assert_eq!(
        used("all of it").map(|(used, _)| used),
        Some(of.stats.reserved.current)
    );
    assert_eq!(used("nobody's"), Some((0, Some(7))));
    let tags = now.tags.as_ref().expect("an account is kept");
    let tag = tags
        .iter()
        .find(|tag| tag.name == "monitor-weights")
        .expect("it is there");
    assert_eq!((tag.bytes, tag.blocks), (3 * MIB, 1));
    assert!(now.resident.is_some_and(|bytes| bytes > 3 * MIB) && now.resident <= now.resident_peak);
    assert!(now.limit.is_some_and(|limit| limit.used < limit.bytes));
    drop((held, monitor));
    drop(pool);
    let gone = Snapshot::take();
    assert!(
        gone.pools.iter().all(|of| of.name != "snapped"),
        "a closed pool is not shown"
    );
}

#[test]
fn two_pools_of_one_name_are_two_series() {
    let pools = ["same"; 2].map(|name| Pool::builder().name(name).host().expect("a pool"));
    let held = pools[1].alloc_zeroed::<u8>(1 << 20).expect("memory");
    let report = Monitor::builder().start().expect("a monitor").stop();
    let of = report
        .series
        .iter()
        .filter(|of| of.of.to_string() == "same" && of.quantity == Quantity::Allocated);
    let last: Vec<u64> = of.map(|of| of.last).collect();
    assert_eq!(last, [0, MIB]);
    drop(held);
}
