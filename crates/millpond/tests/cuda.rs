//! Sources and pools of CUDA devices on the emulated driver, or on the machine's own with `MILLPOND_TEST_CUDA=real`.

#![cfg(target_os = "linux")]

#[path = "cuda/documented.rs"]
mod documented;
mod support;

use millpond::cuda::{self, CudaDevice, CudaError, CudaMemory, CudaSource, CudaStream, DevicePool};
use millpond::engine::{CallKind, Counted, Limit, Limited, Source};
use support::emulator::{self, in_children};
use support::suite::{account, aliases, faults, programs};

/// Returns a device, or prints a message and returns `None` if there is no driver.
fn device() -> Option<CudaDevice> {
    emulator::load().then(|| CudaDevice::get(0).expect("a device"))
}

/// Returns true if the driver supports this kind of memory, and otherwise prints a message.
fn has(device: &CudaDevice, memory: CudaMemory) -> bool {
    let has = match memory {
        CudaMemory::Virtual => device.has_virtual_memory(),
        CudaMemory::Pooled => device.has_pools(),
        _ => true,
    };
    if !has {
        eprintln!("skipped: this driver has no {memory:?} memory");
    }
    has
}

/// Returns a source with a limited capacity.
fn source(capacity: Option<u64>, memory: CudaMemory) -> Option<Limited<CudaSource>> {
    let device = device().filter(|device| has(device, memory))?;
    let mut source = CudaSource::new(&device, memory).expect("a source");
    // SAFETY: only the thread of the test submits work that uses the source's memory.
    unsafe { source.allow_relocation() };
    Some(Limited::new(source, Limit::new(capacity.unwrap_or(u64::MAX))))
}

macro_rules! source_behaviour {
    ($($module:ident $memory:expr;)*) => {
        $(mod $module {
            use super::*;
            source_behaviour!(@tests $memory;
                account::{
                    capacity_is_a_wall,
                    handles_stay_whole,
                    segments_are_apart,
                    ranges_are_apart,
                    too_much_is_an_error,
                    events_pass,
                }
                aliases::{pages_are_mapped_at_a_second_address}
                programs::{random_programs_agree_with_the_model}
                faults::{each_call_fails_in_turn}
            );
        })*
    };
    (@tests $memory:expr; $($topic:ident::{$($test:ident),* $(,)?})*) => {
        $($(
            #[test]
            fn $test() {
                $topic::$test(|capacity| source(capacity, $memory));
            }
        )*)*
    };
}

// The suite of every source is in tests/sources.rs.
source_behaviour! {
    of_pages CudaMemory::Virtual;
    of_the_drivers_pool CudaMemory::Pooled;
    of_plain_segments CudaMemory::Plain;
}

#[test]
fn the_best_supported_kind_of_memory_is_chosen() {
    let Some(device) = device() else { return };
    let source = CudaSource::new(&device, CudaMemory::Best).expect("a source");
    let best = if device.has_virtual_memory() {
        CudaMemory::Virtual
    } else if device.has_pools() {
        CudaMemory::Pooled
    } else {
        CudaMemory::Plain
    };
    assert_eq!(source.memory(), best);
    assert_eq!(source.is_paged(), best == CudaMemory::Virtual);
    assert_eq!(source.lost(), None);
}

#[test]
fn a_dropped_source_returns_its_memory() {
    let Some(device) = device() else { return };
    for memory in [CudaMemory::Virtual, CudaMemory::Pooled, CudaMemory::Plain] {
        if !has(&device, memory) {
            continue;
        }
        let mut source = CudaSource::new(&device, memory).expect("a source");
        let page = source.page_bytes();
        let _segment = source.take(3 * page).expect("memory");
        if source.is_paged() {
            let range = source.reserve(8 * page).expect("addresses");
            source.commit(&range, page, 4 * page, 2 * page).expect("memory");
        }
        let held = source.used_bytes();
        assert!(held >= 3 * page, "{memory:?}");
        let within = device.memory().expect("figures").free;
        drop(source);
        // Other tests of this process may allocate and free on the same device, so only the machine's own is compared,
        // with a wide margin.
        if emulator::is_real() {
            assert!(device.memory().expect("figures").free >= within, "{memory:?}");
        }
    }
}

fn pool_of(memory: CudaMemory) -> Option<(CudaDevice, DevicePool)> {
    let device = device().filter(|device| has(device, memory))?;
    let pool = DevicePool::builder()
        .memory(memory)
        .build(&device)
        .expect("a pool");
    Some((device, pool))
}

#[test]
fn elements_are_copied_to_the_device_and_back() {
    for memory in [CudaMemory::Virtual, CudaMemory::Pooled, CudaMemory::Plain] {
        let Some((device, pool)) = pool_of(memory) else {
            continue;
        };
        let stream = CudaStream::new(&device).expect("a stream");
        let there: Vec<u32> = (0..100_000).collect();
        let mut first = pool.alloc_from(&there, &stream).expect("memory");
        assert_eq!(
            (first.len(), first.bytes(), first.is_empty()),
            (100_000, 400_000, false)
        );
        assert!(first.address().is_multiple_of(256));
        assert_eq!(first.device().to_string(), "cuda:0");
        let other = CudaStream::new(&device).expect("a stream");
        let mut second = pool.alloc_zeroed::<u32>(100_000, &other).expect("memory");
        assert!(second.to_vec().expect("a copy").iter().all(|x| *x == 0));
        second.copy_from(&first).expect("a copy");
        first.fill_zero().expect("zeros");
        assert_eq!(second.to_vec().expect("a copy"), there);
        assert!(first.to_vec().expect("a copy").iter().all(|x| *x == 0));
        assert!(first.copy_from_host(&[1]).is_err(), "as many as there are");
        let none = pool.alloc::<f64>(0, &stream).expect("nothing");
        assert_eq!((none.address(), none.to_vec().expect("nothing").len()), (0, 0));
        drop((first, second, none));
        let stats = pool.stats();
        assert_eq!(
            (stats.requested.current, stats.allocations, stats.frees),
            (0, 2, 2)
        );
        assert_eq!(pool.compact().reserved_after, 0, "{memory:?}");
    }
}

/// The loop of DotCompute's documentation needs one driver allocation per turn without a pool, and a single one with
/// it.
#[test]
fn a_loop_of_buffers_needs_one_driver_allocation() {
    let Some((device, pool)) = pool_of(CudaMemory::Best) else {
        return;
    };
    let stream = CudaStream::new(&device).expect("a stream");
    for _ in 0..100 {
        let buffer = pool.alloc::<u8>(1 << 20, &stream).expect("memory");
        assert_eq!(buffer.bytes(), 1 << 20);
    }
    let stats = pool.stats();
    assert_eq!((stats.allocations, stats.allocations - stats.hits), (100, 1));

    let mut unpooled = Counted::new(CudaSource::new(&device, CudaMemory::Plain).expect("a source"));
    for _ in 0..100 {
        let segment = unpooled.take(1 << 20).expect("memory");
        unpooled.give(segment);
    }
    assert_eq!(unpooled.counts().of(CallKind::Take).calls, 100);
}

#[test]
fn a_freed_block_is_reused_on_its_own_stream_at_once() {
    let Some((device, pool)) = pool_of(CudaMemory::Best) else {
        return;
    };
    let stream = CudaStream::new(&device).expect("a stream");
    let first = pool.alloc::<u8>(3 << 20, &stream).expect("memory");
    let address = first.address();
    drop(first);
    let second = pool.alloc::<u8>(3 << 20, &stream).expect("memory");
    assert_eq!(second.address(), address);
}

#[test]
fn a_request_above_the_limit_is_refused_and_the_pool_continues() {
    let Some(device) = device() else { return };
    let limited = DevicePool::builder().limit(64 << 20).build(&device);
    let pool = limited.expect("a pool");
    let stream = CudaStream::new(&device).expect("a stream");
    let held = pool.alloc::<u8>(40 << 20, &stream).expect("fits");
    let error = pool.alloc::<u8>(30 << 20, &stream).expect_err("does not fit");
    assert!(error.is_out_of_memory(), "{error}");
    let why = error.post_mortem().expect("it says why").to_string();
    assert!(why.contains("30.0 MiB"), "{why}");
    drop(held);
    let next = pool.alloc::<u8>(60 << 20, &stream).expect("fits now");
    pool.set_limit(1 << 20);
    assert!(pool.alloc::<u8>(2 << 20, &stream).is_err());
    drop(next);
    pool.set_limit(8 << 20);
    assert!(pool.stats().reserved.current <= 8 << 20);
    assert!(pool.alloc::<u64>(usize::MAX, &stream).is_err());
    for fraction in [0.0, -1.0, 1.1, f64::NAN] {
        let refused = DevicePool::builder().memory_fraction(fraction).build(&device);
        assert!(refused.is_err(), "{fraction}");
    }
    assert!(DevicePool::builder().policy("none such").build(&device).is_err());
    assert!(DevicePool::builder().settings("garbage").build(&device).is_err());
}

#[test]
fn threads_share_a_pool() {
    let Some((device, pool)) = pool_of(CudaMemory::Best) else {
        return;
    };
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (device, pool) = (&device, &pool);
            scope.spawn(move || {
                let stream = CudaStream::new(device).expect("a stream");
                for turn in 0..50u32 {
                    let len = 1000 * (1 + (turn * 7 + thread) % 40) as usize;
                    let filled = vec![turn << 8 | thread; len];
                    let buffer = pool.alloc_from(&filled, &stream).expect("memory");
                    assert_eq!(buffer.to_vec().expect("a copy"), filled);
                }
            });
        }
    });
    assert_eq!(pool.stats().requested.current, 0);
}

#[test]
fn a_device_that_does_not_exist_is_an_error() {
    if !emulator::load() {
        return;
    }
    let error = CudaDevice::get(1000).expect_err("there are not so many");
    assert!(
        error.to_string().contains("there is no CUDA device 1000"),
        "{error}"
    );
}

#[test]
fn driver_calls_are_counted_while_they_are_watched() {
    if !emulator::load() {
        return;
    }
    // No other test of this program calls this function.
    let calls = || {
        let calls = cuda::driver_calls().expect("a driver");
        let of = calls.into_iter().find(|of| of.function == "cuDriverGetVersion");
        of.map_or(0, |of| of.calls)
    };
    CudaDevice::driver_version().expect("a version");
    assert_eq!(calls(), 0);
    cuda::watch_driver_calls(true);
    CudaDevice::driver_version().expect("a version");
    cuda::watch_driver_calls(false);
    CudaDevice::driver_version().expect("a version");
    assert_eq!(calls(), 1);
}

#[test]
fn a_source_numbers_the_streams_of_its_own_device_only() {
    const NAME: &str = "a_source_numbers_the_streams_of_its_own_device_only";
    if emulator::is_real() || !emulator::load() {
        return;
    }
    if !emulator::is_child(NAME) {
        let (passed, text) = emulator::child(NAME, "devices:2");
        assert!(passed, "{text}");
        return;
    }
    let (device, other) = (CudaDevice::get(0), CudaDevice::get(1));
    let (device, other) = (device.expect("a device"), other.expect("a device"));
    assert!(device.is_emulated());
    let mut source = CudaSource::new(&device, CudaMemory::Best).expect("a source");
    let (one, two) = (CudaStream::new(&device), CudaStream::new(&device));
    let (one, two) = (one.expect("a stream"), two.expect("a stream"));
    let first = source.stream_number(&one).expect("a number");
    assert_ne!(source.stream_number(&two), Ok(first));
    assert_eq!(source.stream_number(&one), Ok(first));
    let elsewhere = CudaStream::new(&other).expect("a stream");
    let refused = source.stream_number(&elsewhere).expect_err("another device");
    assert!(matches!(
        refused,
        CudaError::OtherDevice {
            expected: 0,
            found: 1
        }
    ));
}

/// Two pools know a stream. It ends when only the pools hold it. A program with a stream for each request has only the
/// streams that are in use, and waits for none.
#[test]
fn streams_are_freed_although_pools_have_used_them() {
    let options = (0..2).map(|seed| format!("strict:on,streams:seeded,seed:{seed}"));
    in_children("streams_are_freed_although_pools_have_used_them", options, || {
        let device = CudaDevice::get(0).expect("a device");
        let pools = [(); 2].map(|()| DevicePool::builder().settings("").build(&device).expect("a pool"));
        let calls = |name| emulator::calls(Some(name));
        let living = || calls(c"cuStreamCreate") - calls(c"cuStreamDestroy_v2");
        let waits = calls(c"cuStreamSynchronize");
        let mut shared: Vec<_> = Vec::new();
        for turn in 0..10_000u32 {
            let stream = CudaStream::new(&device).expect("a stream");
            for pool in &pools {
                let mut block = pool.alloc::<u32>(1000, &stream).expect("memory");
                emulator::set_bytes(block.address(), turn as u8, 4000, stream.as_raw());
                // Some blocks outlive their stream's other handles.
                if turn % 7 == 0 {
                    shared.push((block, stream.clone()));
                } else if let Some((_, before)) = shared.last() {
                    block.record_use(before).expect("of the device");
                }
            }
            if shared.len() > 8 {
                shared.drain(..4);
            }
            assert!(living() < 100, "{} streams at turn {turn}", living());
        }
        assert_eq!(calls(c"cuStreamSynchronize"), waits, "nobody waits for them");
        drop((shared, pools));
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}
