//! Tests on a device whose calls fail, one after another.

use super::super::driver::{Driver, request};
use super::super::program::{Op, fixed, fixed_with_ticks};
use super::{MIB, abilities};
use millpond_engine::{AllocError, Fault, Simulated};

/// Number of calls that take memory, and number of calls that can fail.
type Calls = (u64, u64);

/// Runs a program and checks that all memory is accounted for and that later requests are served. Returns the number of
/// calls that the program made.
fn survives(policy: &str, program: &[Op], device: Simulated) -> Calls {
    let mut driver = Driver::new(policy, device);
    driver.run(program);
    let source = driver.engine.source();
    let calls = (source.taking_calls, source.failing_calls);
    driver.free_all();
    driver.release();
    assert_eq!(driver.engine.stats().active.current, 0);
    for bytes in [1, 3 * MIB, 20 * MIB] {
        driver
            .allocate(request(bytes, 0, 0))
            .expect("usable after a failure");
    }
    calls
}

fn device() -> Simulated {
    Simulated::new().with_capacity(Some(256 * MIB))
}

fn survives_no_memory(policy: &str, program: &[Op]) {
    let (calls, _) = survives(policy, program, device());
    assert!(calls > 1 || !abilities(policy).gives_back);
    for n in 0..calls {
        for device in [device(), Simulated::new()] {
            survives(policy, program, device.with_faults([Fault::OutOfMemoryAt(n)]));
        }
    }
}

fn survives_errors(policy: &str, program: &[Op]) {
    let (_, calls) = survives(policy, program, device());
    for n in 0..calls {
        for device in [device(), Simulated::new()] {
            survives(
                policy,
                program,
                device.with_faults([Fault::DriverErrorAt(n, 999)]),
            );
        }
    }
}

pub(crate) fn no_memory_at_each_call(policy: &str) {
    survives_no_memory(policy, &fixed(160));
}

pub(crate) fn a_driver_error_at_each_call(policy: &str) {
    survives_errors(policy, &fixed(160));
}

pub(crate) fn no_memory_at_each_call_between_compactions_and_ticks(policy: &str) {
    survives_no_memory(policy, &fixed_with_ticks(120));
}

pub(crate) fn a_driver_error_at_each_call_between_compactions_and_ticks(policy: &str) {
    survives_errors(policy, &fixed_with_ticks(120));
}

/// Errors other than a lack of memory are reported as such. A policy may also work around them.
pub(crate) fn a_driver_error_is_reported_as_an_error_of_the_source(policy: &str) {
    let device = Simulated::new().with_faults((0..3000).map(|n| Fault::DriverErrorAt(n, 700)));
    let mut driver = Driver::new(policy, device);
    let error = driver
        .allocate(request(3 * MIB, 0, 0))
        .expect_err("the driver is broken");
    assert!(matches!(error, AllocError::Source(_)), "{error}");
}
