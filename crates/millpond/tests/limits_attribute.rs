//! `#[millpond::limits]` on real tests, which run concurrently in one process. Each has its own limits and is checked
//! with its own figures only.

#![cfg(target_os = "linux")]

use millpond::{AllocError, Buffer, Pool};
use std::panic::catch_unwind;
use std::sync::LazyLock;

/// The pool of all tests.
static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::builder().name("shared").host().expect("addresses"));

fn block(bytes: usize) -> Buffer<u8> {
    POOL.alloc_zeroed(bytes).expect("room")
}

/// Tests that hold exactly as much as they may.
macro_rules! beside_each_other {
    ($($name:ident: $blocks:literal of $bytes:literal, at most $peak:literal;)*) => {$(
        #[millpond::limits(peak = $peak, total = $peak, leaked = 0, allocations = $blocks, temporary = 1, warm_up = 1, runs = 40)]
        #[test]
        fn $name() {
            let held: Vec<Buffer<u8>> = (0..$blocks).map(|_| block($bytes)).collect();
            std::thread::yield_now();
            drop(held);
        }
    )*};
}

beside_each_other! {
    beside_01: 1 of 4096, at most "4 KiB";
    beside_02: 2 of 4096, at most "8 KiB";
    beside_03: 3 of 4096, at most "12 KiB";
    beside_04: 4 of 4096, at most "16 KiB";
    beside_05: 5 of 4096, at most "20 KiB";
    beside_06: 6 of 4096, at most "24 KiB";
    beside_07: 7 of 4096, at most "28 KiB";
    beside_08: 8 of 4096, at most "32 KiB";
    beside_09: 9 of 8192, at most "72 KiB";
    beside_10: 10 of 8192, at most "80 KiB";
    beside_11: 11 of 8192, at most "88 KiB";
    beside_12: 12 of 8192, at most "96 KiB";
    beside_13: 13 of 8192, at most "104 KiB";
    beside_14: 14 of 8192, at most "112 KiB";
    beside_15: 15 of 8192, at most "120 KiB";
    beside_16: 16 of 8192, at most "128 KiB";
}

#[test]
#[millpond::limits(peak = 4 << 20, leaked = 0)]
fn a_test_that_can_fail() -> Result<(), AllocError> {
    let kept = POOL.alloc_zeroed::<u8>(1 << 20)?;
    drop(kept);
    Ok(())
}

#[test]
#[should_panic(expected = "peak: 8.00 KiB, and the limit is 4.00 KiB")]
#[millpond::limits(peak = "4 KiB")]
fn a_test_that_exceeds_a_limit_fails() {
    drop(block(8192));
}

#[test]
#[should_panic(expected = "in run 2 of 3")]
#[millpond::limits(allocations = 1, runs = 3)]
fn every_run_keeps_to_the_limits() {
    static RUNS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let blocks = 1 + RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    (0..blocks).for_each(|_| drop(block(64)));
}

#[millpond::limits(leaked = 0)]
fn answers<T: Copy>(bytes: usize, value: T) -> (Option<Buffer<u8>>, T) {
    ((bytes > 0).then(|| block(bytes)), value)
}

#[millpond::limits(allocations = 0)]
fn fails_first(fails: bool) -> Result<Buffer<u8>, String> {
    let held = block(64);
    if fails {
        return Err("its own reason".to_owned());
    }
    Ok(held)
}

#[test]
fn functions_may_have_parameters_and_results() {
    assert_eq!(answers(0, 7).1, 7);
    let leaked = catch_unwind(|| answers(4096, "text"));
    assert!(leaked.is_err(), "what is answered is held still");
    assert_eq!(fails_first(true).err().as_deref(), Some("its own reason"));
    assert!(catch_unwind(|| fails_first(false)).is_err());
}

#[test]
fn a_text_that_is_not_a_size_is_reported() {
    #[millpond::limits(peak = "much")]
    fn wrong() {}
    let said = catch_unwind(wrong).unwrap_err();
    let said = said.downcast_ref::<String>().expect("a text");
    assert!(
        said.contains("invalid limit: ") && said.contains("much"),
        "{said}"
    );
}
