//! Tests of memory that several streams use. After each allocation, the driver asserts that the last use of the memory
//! comes before the next work of the block's stream.

use super::super::driver::{Driver, request};
use super::{MIB, abilities, limited};
use millpond_engine::{Event, Simulated};

pub(crate) fn another_stream_reuses_memory_only_after_a_wait(policy: &str) {
    let mut driver = limited(policy, 512 * MIB);
    let fill = |driver: &mut Driver, stream| while driver.allocate(request(24 * MIB, stream, 0)).is_ok() {};
    fill(&mut driver, 1);
    let most = driver.live.len();
    assert!(most > 0);
    driver.free_all();
    let meter = *driver.engine.meter();
    let stalls = driver.engine.stats().stalls;
    let mut reused = false;
    while driver.live.len() < most {
        let served = driver.allocate(request(24 * MIB, 2, 0));
        assert!(
            served.is_ok(),
            "memory that one stream freed is lost to the other"
        );
        if driver.reused && !reused {
            reused = true;
            let waited = driver.engine.meter().cross_stream_waits > meter.cross_stream_waits;
            let stalled = driver.engine.stats().stalls > stalls || stalls > 0;
            assert!(waited || stalled, "another stream's block without any wait");
        }
    }
}

pub(crate) fn small_blocks_of_many_streams(policy: &str) {
    let mut driver = limited(policy, 512 * MIB);
    for round in 0..4 {
        for stream in 0..70 {
            let bytes = 1000 * u64::from(stream + round + 1);
            driver
                .allocate(request(bytes, (stream + round) % 70, 0))
                .expect("fits");
        }
        while driver.live.len() > 40 {
            driver.free(driver.live.len() / 2, &[]);
        }
    }
}

pub(crate) fn a_freed_block_waits_for_another_stream_that_used_it(policy: &str) {
    for bytes in [100, 900 << 10, 5 * MIB] {
        let mut driver = Driver::new(policy, Simulated::new().hold_events());
        let waiting = driver.allocate(request(bytes, 0, 0)).expect("no limit");
        let event = driver.engine.source().device.next_event();
        driver.free(0, &[1]);
        assert_eq!(driver.engine.deferred().blocks().count(), 1);
        let active = driver.engine.stats().active.current;
        assert!(active >= bytes && driver.engine.stats().allocated.current == 0);
        for stream in [0, 1, 2, 0] {
            let other = driver.allocate(request(bytes, stream, 0)).expect("no limit");
            assert_ne!(other, waiting, "handed out while a stream may use it");
        }
        driver.engine.source_mut().device.complete(event);
        driver.collect();
        assert!(driver.engine.deferred().is_empty());
        let again = driver.allocate(request(bytes, 0, 0)).expect("no limit");
        assert_eq!(again == waiting, abilities(policy).caches, "{bytes}");
    }
}

pub(crate) fn a_freed_block_waits_for_every_stream_that_used_it(policy: &str) {
    let mut driver = Driver::new(policy, Simulated::new().hold_events());
    driver.allocate(request(3 * MIB, 0, 0)).expect("no limit");
    let Event(first) = driver.engine.source().device.next_event();
    driver.free(0, &[1, 2]);
    driver.engine.source_mut().device.complete(Event(first));
    driver.collect();
    assert_eq!(
        driver.engine.deferred().blocks().count(),
        1,
        "the second has not passed"
    );
    driver.engine.source_mut().device.complete(Event(first + 1));
    driver.collect();
    assert!(driver.engine.deferred().is_empty());
}
