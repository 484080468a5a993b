//! Tests of each policy's rules, with figures computed by hand.

mod support;

use millpond_engine::{Engine, Fault, RetainConf, Settings, Simulated, TorchConf, policies};
use support::driver::{Driver, request};
use support::suite::{KIB, MIB, limited, unlimited};

/// Allocates on stream 0. Returns the size of the block in bytes.
fn bytes_of(driver: &mut Driver, bytes: u64) -> u64 {
    driver.allocate(request(bytes, 0, 0)).expect("served");
    driver.live.last().map_or(0, |b| b.bytes())
}

fn reserved(driver: &Driver) -> u64 {
    driver.engine.stats().reserved.current
}

#[test]
fn bfc_doubles_its_regions() {
    let mut driver = unlimited("bfc");
    let after = |driver: &mut Driver, bytes| {
        bytes_of(driver, bytes);
        reserved(driver)
    };
    assert_eq!(after(&mut driver, 1000), 2 * MIB);
    assert_eq!(after(&mut driver, 2 * MIB), 6 * MIB);
    // The next region would be 8 MiB. It is doubled until the request fits, and the size stays for the region after it.
    assert_eq!(after(&mut driver, 20 * MIB), (6 + 32) * MIB);
    assert_eq!(after(&mut driver, 20 * MIB), (6 + 32 + 32) * MIB);
}

#[test]
fn bfc_does_not_split_off_a_remainder_smaller_than_the_request() {
    let mut driver = unlimited("bfc");
    for bytes in [MIB, 600 * KIB] {
        bytes_of(&mut driver, bytes);
    }
    driver.free(0, &[]);
    assert_eq!(bytes_of(&mut driver, 600 * KIB), MIB);
    driver.free(1, &[]);
    assert_eq!(bytes_of(&mut driver, 512 * KIB), 512 * KIB);
    let mut driver = unlimited("bfc");
    for bytes in [400 * MIB, 400 * MIB] {
        bytes_of(&mut driver, bytes);
    }
    driver.free(1, &[]);
    assert_eq!(
        bytes_of(&mut driver, 380 * MIB),
        380 * MIB,
        "the rest joined what followed"
    );
}

#[test]
fn bfc_requests_a_tenth_less_after_each_refusal() {
    let mut driver = limited("bfc", 7 * MIB);
    bytes_of(&mut driver, MIB);
    bytes_of(&mut driver, 3 * MIB);
    assert_eq!(reserved(&driver), 6 * MIB);
    bytes_of(&mut driver, 1000 * KIB);
    bytes_of(&mut driver, 1000 * KIB);
    assert_eq!(reserved(&driver), 7 * MIB, "the whole device and no more");
    let device = Simulated::new().with_faults([Fault::OutOfMemoryAt(1)]);
    let mut driver = Driver::new("bfc", device);
    bytes_of(&mut driver, 2 * MIB);
    bytes_of(&mut driver, MIB);
    // 0.9 times 4 MiB, rounded up to 256 bytes.
    assert_eq!(reserved(&driver), 2 * MIB + 3_774_976);
}

#[test]
fn rmm_pool_doubles_when_it_grows() {
    let mut driver = unlimited("rmm-pool");
    for (bytes, held) in [(MIB, 1), (KIB, 2), (5 * MIB, 7), (512 * KIB, 7), (5 * MIB, 14)] {
        assert_eq!(bytes_of(&mut driver, bytes), bytes);
        assert_eq!(reserved(&driver), held * MIB);
    }
    let mut driver = limited("rmm-pool", 9 * MIB);
    bytes_of(&mut driver, 6 * MIB);
    bytes_of(&mut driver, MIB);
    // 6 MiB are refused, but half of that is not.
    assert_eq!(reserved(&driver), 9 * MIB);
}

#[test]
fn rmm_pool_takes_from_another_stream_with_one_wait() {
    let mut driver = unlimited("rmm-pool");
    let first = driver.allocate(request(3 * MIB, 1, 0)).expect("no limit");
    driver.free(0, &[]);
    assert_eq!(driver.engine.meter().calls.event_record, 1);
    assert_eq!(driver.allocate(request(MIB, 2, 0)), Ok(first));
    assert_eq!(driver.engine.meter().cross_stream_waits, 1);
    // The remainder still belongs to stream 1.
    assert_eq!(driver.allocate(request(2 * MIB, 1, 0)), Ok(first + MIB));
    assert_eq!(driver.engine.meter().cross_stream_waits, 1);
}

#[test]
fn rmm_arena_takes_half_and_waits_for_large_frees() {
    let mut driver = limited("rmm-arena", 64 * MIB);
    let first = driver.allocate(request(KIB, 1, 0)).expect("fits");
    let other = driver.allocate(request(KIB, 2, 0)).expect("fits");
    assert_eq!(reserved(&driver), 32 * MIB);
    assert_eq!(other - first, MIB, "each stream has a superblock of its own");
    driver.free_all();
    assert_eq!(driver.engine.stats().stalls, 0);
    bytes_of(&mut driver, MIB + 256);
    driver.free_all();
    assert_eq!(driver.engine.stats().stalls, 1);
}

#[test]
fn rmm_arena_backs_only_used_memory_on_a_device_without_a_limit() {
    let mut driver = unlimited("rmm-arena");
    bytes_of(&mut driver, 100);
    assert_eq!(reserved(&driver), 2 * MIB);
    bytes_of(&mut driver, 9 * MIB);
    assert_eq!(reserved(&driver), 10 * MIB);
}

#[test]
fn cuda_async_remaps_when_the_device_is_full() {
    let mut driver = limited("cuda-async", 16 * MIB);
    for _ in 0..4 {
        bytes_of(&mut driver, 4 * MIB);
    }
    driver.free(2, &[]);
    driver.free(0, &[]);
    bytes_of(&mut driver, 8 * MIB);
    assert_eq!(reserved(&driver), 16 * MIB);
    assert_eq!(driver.engine.meter().moved_bytes, 8 * MIB);
    assert_eq!(driver.engine.stats().stalls, 1);
    assert!(driver.allocate(request(1, 0, 0)).is_err());
}

#[test]
fn pow2_reuses_the_most_recently_freed_block_of_the_same_class() {
    let mut driver = unlimited("pow2");
    assert_eq!(bytes_of(&mut driver, 5 * MIB), 8 * MIB);
    assert_eq!(bytes_of(&mut driver, 8 * MIB), 8 * MIB);
    let warmest = driver.live[1].address();
    driver.free(0, &[]);
    driver.free(0, &[]);
    let taken = driver.engine.meter().calls.malloc;
    bytes_of(&mut driver, 2 * MIB);
    assert_eq!(
        driver.engine.meter().calls.malloc,
        taken + 1,
        "a larger block is left"
    );
    assert_eq!(driver.allocate(request(6 * MIB, 0, 0)), Ok(warmest));
}

#[test]
fn buckets_grow_by_three_blocks() {
    let mut driver = unlimited("buckets");
    for (call, taken) in [1, 1, 1, 2, 2, 2, 3].into_iter().enumerate() {
        assert_eq!(bytes_of(&mut driver, 40 * KIB), 64 * KIB);
        assert_eq!(driver.engine.meter().calls.malloc, taken, "call {call}");
    }
    assert_eq!(bytes_of(&mut driver, 65), 256);
    let large = bytes_of(&mut driver, 65 * KIB);
    assert_eq!(large, 65 * KIB);
    driver.free(driver.live.len() - 1, &[]);
    bytes_of(&mut driver, 64 * KIB + 256);
    assert_eq!(
        driver.engine.meter().calls.malloc,
        5,
        "only the exact size is reused"
    );
}

#[test]
fn none_calls_the_driver_for_each_block() {
    let mut driver = unlimited("none");
    for _ in 0..5 {
        bytes_of(&mut driver, 1000);
        driver.free_all();
    }
    let (stats, calls) = (driver.engine.stats(), driver.engine.meter().calls);
    assert_eq!((calls.malloc, calls.free, stats.stalls, stats.hits), (5, 5, 5, 0));
    assert_eq!(stats.reserved.peak, 1024);
}

#[test]
fn torch_native_returns_old_blocks_above_the_threshold() {
    let fraction = "per_process_memory_fraction:1.0";
    for (conf, reserved_after) in [
        // 258 MiB are reserved, and the threshold is 200 MiB. The free blocks are 4, 3 and 2 searches old, so the two that are
        // at least as old as the mean are returned.
        (format!("garbage_collection_threshold:0.5,{fraction}"), 196 * MIB),
        // That is not enough, so the third one is returned as well.
        (format!("garbage_collection_threshold:0.05,{fraction}"), 112 * MIB),
        (format!("garbage_collection_threshold:0.7,{fraction}"), 358 * MIB),
        // PyTorch returns nothing without a memory fraction.
        ("garbage_collection_threshold:0.5".to_owned(), 358 * MIB),
    ] {
        let settings = Settings {
            torch: TorchConf::parse(&conf).expect("settings"),
            ..Settings::default()
        };
        let device = Simulated::new().with_capacity(Some(400 * MIB));
        let mut driver = Driver::with("torch-native", &settings, device);
        for bytes in [80 * MIB, 82 * MIB, 84 * MIB, 12 * MIB] {
            bytes_of(&mut driver, bytes);
        }
        for _ in 0..3 {
            driver.free(0, &[]);
            // The last block is freed and found again. This search makes the other free blocks older.
            driver.free(driver.live.len() - 1, &[]);
            bytes_of(&mut driver, 12 * MIB);
        }
        bytes_of(&mut driver, 100 * MIB);
        assert_eq!(reserved(&driver), reserved_after, "{conf}");
    }
}

#[test]
fn only_policies_with_retain_settings_accept_new_ones() {
    for (policy, accepts) in [("millpond", true), ("planned", true), ("torch-native", false)] {
        let mut driver = unlimited(policy);
        let changed = driver.engine.set_retain(&RetainConf::default());
        assert_eq!(changed, accepts, "{policy}");
    }
}

#[test]
fn reset_peaks_sets_each_peak_to_its_current_value() {
    let mut driver = unlimited("millpond");
    bytes_of(&mut driver, 8 * MIB);
    bytes_of(&mut driver, 6 * MIB);
    driver.free(0, &[]);
    driver.engine.reset_peaks();
    let stats = *driver.engine.stats();
    let [requested, allocated, active] = [stats.requested, stats.allocated, stats.active];
    assert_eq!([requested.peak, allocated.peak, active.peak], [6 * MIB; 3]);
    assert_eq!(stats.reserved.peak, stats.reserved.current);
    assert!(stats.reserved.peak >= 14 * MIB);
}

#[test]
fn a_repetition_counts_as_a_free_and_an_allocation() {
    let mut engine = Engine::new(
        policies::build("millpond", &Settings::default()).expect("a policy"),
        Simulated::new(),
    );
    let first = engine.allocate(request(MIB, 0, 0)).expect("memory");
    let block = engine.allocate(request(MIB, 0, 0)).expect("memory");
    assert!(engine.repeat(&block, &request(MIB, 0, 0)));
    let stats = *engine.stats();
    assert_eq!((stats.allocations, stats.frees), (3, 1));
    assert!(
        !engine.repeat(&first, &request(MIB, 0, 0)),
        "it was not the last one"
    );
    assert_eq!(*engine.stats(), stats);
}
