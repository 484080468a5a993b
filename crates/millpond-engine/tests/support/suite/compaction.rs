//! Tests of memory that is returned at once or after some time. After each call, the driver checks that every block
//! keeps its address and its contents.

use super::super::driver::{Driver, request};
use super::super::program::{fixed, fixed_with_ticks};
use super::{MIB, abilities, limited, unlimited};
use millpond_engine::Simulated;

fn addresses(driver: &Driver) -> Vec<u64> {
    driver.live.iter().map(|b| b.address()).collect()
}

pub(crate) fn blocks_keep_their_places_and_contents(policy: &str) {
    for mut driver in [unlimited(policy), limited(policy, 400 * MIB)] {
        for _ in 0..4 {
            driver.run(&fixed(300));
            while driver.live.len() > 60 {
                driver.free(driver.live.len() / 3, &[]);
            }
            let before = addresses(&driver);
            let told = driver.compact();
            assert_eq!(addresses(&driver), before);
            assert!(told.reserved_after <= told.reserved_before);
            assert_eq!(
                driver.compact().returned(),
                0,
                "the second finds more than the first"
            );
        }
    }
}

/// Frees most blocks of three streams. The memory that stays holds live blocks or shares a handle or segment with them.
pub(crate) fn after_a_compaction_no_free_handle_or_segment_is_kept(policy: &str) {
    let mut driver = unlimited(policy);
    for at in 0..120u64 {
        let bytes = [300, 70_000, 3 * MIB, 24 * MIB][at as usize % 4];
        driver
            .allocate(request(bytes, at as u32 % 3, 0))
            .expect("no limit");
    }
    for index in (0..120).rev().filter(|index| index % 31 != 0) {
        driver.free(index, &[]);
    }
    let told = driver.compact();
    if abilities(policy).gives_back {
        assert_eq!(told.kept, 0, "{told}");
        assert!(told.returned() > 0 || !abilities(policy).caches, "{told}");
    } else {
        assert_eq!(told.returned(), 0);
    }
}

pub(crate) fn a_compaction_returns_all_returnable_memory(policy: &str) {
    let mut driver = unlimited(policy);
    for bytes in [300, 3 * MIB, 24 * MIB, 70_000, 24 * MIB, 24 * MIB, 300] {
        driver.allocate(request(bytes, 0, 0)).expect("no limit");
    }
    while driver.live.len() > 1 {
        driver.free(1, &[]);
    }
    let returnable = driver.engine.policy().returnable_bytes();
    if abilities(policy).gives_back {
        assert!(returnable > 0 || !abilities(policy).caches);
        assert_eq!(driver.compact().returned(), returnable);
    }
}

pub(crate) fn without_live_blocks_all_memory_is_returned(policy: &str) {
    for mut driver in [unlimited(policy), limited(policy, 400 * MIB)] {
        let program = fixed(400);
        // The policies have their own rules for returning the memory of private pools.
        let program: Vec<_> = program
            .into_iter()
            .filter(|op| !op.is_in_a_private_pool())
            .collect();
        driver.run(&program);
        driver.free_all();
        let told = driver.compact();
        assert_eq!((told.allocated, told.shared), (0, 0));
        if abilities(policy).gives_back {
            assert_eq!(told.reserved_after, 0, "{told}");
        }
    }
}

pub(crate) fn memory_that_waited_for_streams_is_returned(policy: &str) {
    let mut driver = Driver::new(policy, Simulated::new().hold_events());
    for stream in 0..3 {
        driver.allocate(request(40 * MIB, stream, 0)).expect("no limit");
    }
    while !driver.live.is_empty() {
        driver.free(0, &[7, 8]);
    }
    let stalls = driver.engine.stats().stalls;
    let told = driver.compact();
    assert!(told.waited >= 120 * MIB);
    assert!(driver.engine.deferred().is_empty());
    assert_eq!(
        driver.engine.stats().stalls,
        stalls + 1,
        "the host waits for the device"
    );
    assert!(
        !abilities(policy).gives_back || told.reserved_after == 0,
        "{told}"
    );
}

pub(crate) fn a_compacted_pool_serves_further_requests(policy: &str) {
    let mut driver = limited(policy, 256 * MIB);
    while driver.allocate(request(5 * MIB, 0, 0)).is_ok() {}
    while driver.live.len() > 1 {
        driver.free(1, &[]);
    }
    driver.compact();
    // The returned memory serves a large block in one piece.
    let bytes = if abilities(policy).gives_back {
        100 * MIB
    } else {
        5 * MIB
    };
    driver.allocate(request(bytes, 1, 0)).expect("room");
    driver.run(&fixed(200));
    driver.free_all();
}

/// The passing of time never changes a block, and returned memory is counted.
pub(crate) fn ticks_do_not_change_live_blocks(policy: &str) {
    for mut driver in [unlimited(policy), limited(policy, 300 * MIB)] {
        driver.run(&fixed_with_ticks(700));
        let before = addresses(&driver);
        let (meter, stalls) = (*driver.engine.meter(), driver.engine.stats().stalls);
        driver.tick(1000);
        driver.tick(1000);
        assert_eq!(addresses(&driver), before);
        let after = *driver.engine.meter();
        let gave = after.reserved.current < meter.reserved.current;
        assert_eq!(gave, after.operations() > meter.operations());
        assert_eq!(gave, driver.engine.stats().stalls > stalls);
        let calls = |m: &millpond_engine::Meter| m.calls.unmap + m.calls.release + m.calls.free;
        assert_eq!(gave, calls(&after) > calls(&meter));
    }
}

pub(crate) fn completed_events_are_found_at_a_tick(policy: &str) {
    let mut driver = Driver::new(policy, Simulated::new().hold_events());
    driver.allocate(request(MIB, 0, 0)).expect("no limit");
    let event = driver.engine.source().device.next_event();
    driver.free(0, &[1]);
    driver.tick(1);
    assert_eq!(
        driver.engine.deferred().blocks().count(),
        1,
        "the event has not passed"
    );
    driver.engine.source_mut().device.complete(event);
    driver.tick(1);
    assert!(driver.engine.deferred().is_empty());
}
