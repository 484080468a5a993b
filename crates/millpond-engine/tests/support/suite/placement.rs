//! Tests of the addresses of blocks.

use super::super::driver::request;
use super::super::program::fixed;
use super::{KIB, MIB, abilities, limited, unlimited};
use millpond_engine::{AllocError, Request};

pub(crate) fn alignment(policy: &str) {
    let mut driver = unlimited(policy);
    for align in (0..30).map(|log| 1 << log) {
        for bytes in [1, 700, 3 * MIB] {
            let asked = Request {
                align,
                ..request(bytes, 0, 0)
            };
            // The driver checks the address of each allocated block.
            match driver.allocate(asked) {
                Ok(_) => {}
                Err(AllocError::Alignment { align: named, most }) => {
                    assert!(named == align && most < align && align > 256);
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
    for align in [0, 3, 257] {
        let asked = Request {
            align,
            ..request(1, 0, 0)
        };
        assert!(matches!(
            driver.allocate(asked),
            Err(AllocError::Alignment { .. })
        ));
    }
}

pub(crate) fn blocks_are_distinct(policy: &str) {
    let mut driver = unlimited(policy);
    for round in 0..3 {
        for step in 0..60u64 {
            driver
                .allocate(request(1 + step * step * 977 + round, 0, 0))
                .expect("no limit");
        }
        for _ in 0..40 {
            driver.free(driver.live.len() / 3, &[]);
        }
    }
}

pub(crate) fn a_request_of_zero_bytes_gets_its_own_block(policy: &str) {
    let mut driver = unlimited(policy);
    let first = driver.allocate(request(0, 0, 0)).expect("served");
    let second = driver.allocate(request(0, 0, 0)).expect("served");
    assert_ne!(first, second);
    assert_eq!(driver.engine.stats().requested.current, 0);
    driver.free_all();
}

pub(crate) fn a_request_that_no_device_can_serve_is_an_error(policy: &str) {
    for mut driver in [unlimited(policy), limited(policy, 512 * MIB)] {
        for bytes in [(1 << 60) + 1, 1 << 62, (1 << 63) + 1, u64::MAX - 1, u64::MAX] {
            let error = driver
                .allocate(request(bytes, 0, 0))
                .expect_err("no device has it");
            assert!(
                matches!(error, AllocError::TooLarge { requested, .. } | AllocError::Exhausted { requested, .. } if requested == bytes)
                    || matches!(error, AllocError::Source(_)),
                "{error}"
            );
        }
        driver
            .allocate(request(10 * KIB, 0, 0))
            .expect("as usable as before");
        driver.free_all();
    }
}

pub(crate) fn a_freed_block_is_reused(policy: &str) {
    for bytes in [100, 60 * KIB, 900 * KIB, 3 * MIB, 50 * MIB] {
        let mut driver = unlimited(policy);
        let first = driver.allocate(request(bytes, 0, 0)).expect("no limit");
        driver.free(0, &[]);
        let hits = driver.engine.stats().hits;
        let second = driver.allocate(request(bytes, 0, 0)).expect("no limit");
        if abilities(policy).caches {
            assert_eq!(first, second);
            assert_eq!(driver.engine.stats().hits, hits + 1, "{bytes}");
        } else {
            assert_eq!(driver.engine.stats().hits, 0);
        }
    }
}

pub(crate) fn groups_share_nothing(policy: &str) {
    for bytes in [100, 900 * KIB, 50 * MIB] {
        let mut driver = unlimited(policy);
        driver.allocate(request(bytes, 0, 0)).expect("no limit");
        driver.free(0, &[]);
        driver.allocate(request(bytes, 0, 1)).expect("no limit");
        assert!(!driver.reused, "memory of one private pool in another");
        let held = driver.engine.source().held;
        driver.allocate(request(bytes, 0, 0)).expect("no limit");
        assert!(!abilities(policy).caches || (driver.reused && driver.engine.source().held == held));
    }
}

pub(crate) fn the_same_calls_give_the_same_addresses(policy: &str) {
    let program = fixed(600);
    let run = |capacity| limited(policy, capacity).run(&program);
    assert_eq!(run(96 * MIB), run(96 * MIB));
    assert_eq!(unlimited(policy).run(&program), unlimited(policy).run(&program));
}
