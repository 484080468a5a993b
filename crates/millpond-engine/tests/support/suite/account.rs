//! Tests of the counts. The driver compares every count with its own after each call.

use super::super::driver::request;
use super::super::program::fixed;
use super::{MIB, limited, unlimited};

pub(crate) fn the_ratios_of_an_empty_engine_are_zero(policy: &str) {
    let driver = unlimited(policy);
    let stats = driver.engine.stats();
    assert_eq!(
        (stats.hit_rate(), stats.utilisation(), stats.fragmentation_ratio()),
        (0.0, 0.0, 0.0)
    );
    assert_eq!(stats.cached(), 0);
    driver.engine.check();
}

pub(crate) fn peaks_are_exact(policy: &str) {
    let mut driver = limited(policy, 400 * MIB);
    driver.run(&fixed(1500));
    let stats = driver.engine.stats();
    assert!(stats.allocations > 500 && stats.frees > 100);
    assert!(stats.requested.peak > stats.requested.current);
    assert_eq!(stats.reserved.peak, driver.engine.source().peak_held);
}

pub(crate) fn stats_match_the_calls(policy: &str) {
    let mut driver = unlimited(policy);
    for bytes in [1000, 2 * MIB, 7] {
        driver.allocate(request(bytes, 0, 0)).expect("no limit");
    }
    driver.free(1, &[]);
    let stats = driver.engine.stats();
    assert_eq!((stats.allocations, stats.frees, stats.refusals), (3, 1, 0));
    assert_eq!(
        (stats.requested.current, stats.requested.peak),
        (1007, 2 * MIB + 1007)
    );
    assert!(stats.hits < 3);
    let held: u64 = driver.live.iter().map(|b| b.bytes()).sum();
    assert_eq!(stats.allocated.current, held);
    assert!(stats.utilisation() > 0.0 && stats.utilisation() + stats.fragmentation_ratio() == 1.0);
}
