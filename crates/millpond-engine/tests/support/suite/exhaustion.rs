//! Tests on a full device.

use super::super::driver::{Driver, request};
use super::super::program::fixed;
use super::{MIB, abilities, limited};
use millpond_engine::{AllocError, Mark, PieceState, Simulated, Source, SourceError};

fn largest_hole(driver: &Driver) -> u64 {
    let mut largest = 0;
    driver.engine.policy().layout(&mut |piece| {
        if piece.state == PieceState::Free {
            largest = largest.max(piece.bytes);
        }
    });
    largest
}

/// Allocates until a request is refused.
fn fill(driver: &mut Driver, bytes: u64) -> AllocError {
    loop {
        if let Err(error) = driver.allocate(request(bytes, 0, 0)) {
            return error;
        }
    }
}

pub(crate) fn a_refusal_reports_the_free_and_the_cached_memory(policy: &str) {
    let mut driver = limited(policy, 256 * MIB);
    let bytes = 5 * MIB;
    let error = fill(&mut driver, bytes);
    // By their rules, rmm-arena uses half of the device, and pow2 rounds 5 MiB up to 8.
    assert!(driver.live.len() >= 24, "{} blocks", driver.live.len());
    let stats = *driver.engine.stats();
    assert_eq!(stats.refusals, 1);
    let told = AllocError::Exhausted {
        requested: bytes,
        device_free: driver.engine.source().free_bytes().expect("a limit"),
        largest_hole: largest_hole(&driver),
        cached: stats.reserved.current - stats.active.current,
    };
    assert_eq!(error, told);
    assert!(largest_hole(&driver) < bytes.next_power_of_two());
    driver.free(7, &[]);
    driver
        .allocate(request(bytes, 0, 0))
        .expect("what was freed serves");
}

pub(crate) fn blocks_that_wait_for_a_stream_are_freed_when_memory_runs_out(policy: &str) {
    let device = Simulated::new().with_capacity(Some(256 * MIB)).hold_events();
    let mut driver = Driver::new(policy, device);
    fill(&mut driver, 5 * MIB);
    driver.free(3, &[1]);
    assert_eq!(driver.engine.deferred().blocks().count(), 1);
    let outcome = driver.allocate(request(5 * MIB, 0, 0));
    assert!(driver.engine.deferred().is_empty(), "the device is waited for");
    assert_eq!(outcome.is_ok(), abilities(policy).looks_again);
    if outcome.is_err() {
        driver
            .allocate(request(5 * MIB, 0, 0))
            .expect("what came free serves");
    }
}

/// The device asserts that no call needs a wait during the capture.
pub(crate) fn no_call_waits_while_a_stream_is_captured(policy: &str) {
    let device = Simulated::new().with_capacity(Some(256 * MIB)).hold_events();
    let mut driver = Driver::new(policy, device);
    fill(&mut driver, 5 * MIB);
    driver.engine.source_mut().device.set_captured(Some(1));
    driver.free(3, &[1]);
    let reserved = driver.engine.stats().reserved.current;
    assert_eq!(driver.engine.compact().reserved_after, reserved);
    driver.engine.mark(Mark::Ticks(1_000_000));
    let outcome = driver.allocate(request(5 * MIB, 0, 0));
    let held = matches!(outcome, Err(AllocError::Source(SourceError::Held { .. })));
    assert!(held, "{outcome:?}");
    assert_eq!(driver.engine.deferred().blocks().count(), 1, "it waits on");
    // By its rules, rmm-arena waits for the device when a block of this size is freed. This check therefore excludes
    // it.
    if abilities(policy).caches && policy != "rmm-arena" {
        driver.free(0, &[]);
        driver
            .allocate(request(5 * MIB, 0, 0))
            .expect("what is free serves its own stream");
    }
    driver.engine.source_mut().device.set_captured(None);
    driver.engine.compact();
    assert!(driver.engine.deferred().is_empty(), "the device is waited for");
    driver
        .allocate(request(5 * MIB, 0, 0))
        .expect("what came free serves");
}

pub(crate) fn cached_blocks_are_returned_for_a_large_request(policy: &str) {
    let mut driver = limited(policy, 256 * MIB);
    fill(&mut driver, 5 * MIB);
    driver.free_all();
    let outcome = driver.allocate(request(150 * MIB, 0, 0));
    assert_eq!(outcome.is_ok(), abilities(policy).gives_back, "{outcome:?}");
}

pub(crate) fn small_blocks_of_all_streams_make_room_for_a_large_request(policy: &str) {
    let mut driver = limited(policy, 64 * MIB);
    for stream in [0, 1, 2].into_iter().cycle() {
        if driver.allocate(request(500 << 10, stream, 0)).is_err() {
            break;
        }
    }
    driver.free_all();
    driver
        .allocate(request(20 * MIB, 0, 0))
        .expect("nothing else is in use");
}

/// The watched device asserts this at each call that takes memory.
pub(crate) fn the_capacity_is_never_exceeded(policy: &str) {
    for mib in [1, 3, 40, 200] {
        let mut driver = limited(policy, mib * MIB);
        driver.run(&fixed(500));
        assert!(driver.engine.source().peak_held <= mib * MIB);
    }
}

pub(crate) fn release_returns_memory_that_no_block_uses(policy: &str) {
    let mut driver = limited(policy, 1 << 30);
    for bytes in [100, 70_000, 3 * MIB, 40 * MIB, 100] {
        driver.allocate(request(bytes, 0, 0)).expect("fits");
        driver.allocate(request(bytes, 1, 0)).expect("fits");
    }
    while driver.live.len() > 1 {
        driver.free(0, &[0, 1]);
    }
    driver.release();
    let held = driver.engine.source().held;
    driver.free_all();
    driver.release();
    if abilities(policy).gives_back {
        assert!(held <= 20 * MIB, "{held} bytes for one block of 100");
        assert_eq!(driver.engine.source().held, 0);
    } else {
        assert_eq!(driver.engine.stats().cached(), driver.engine.source().held);
    }
    driver.allocate(request(30 * MIB, 0, 0)).expect("usable after");
}
