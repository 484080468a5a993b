//! Pools of CUDA devices over a driver that fails, lacks features, loses the device, or delays work as long as
//! possible. They run on the emulated driver only, each test in processes of its own.

#![cfg(target_os = "linux")]

mod support;

use millpond::cuda::{CudaDevice, CudaMemory, CudaStream, DeviceBuffer, DevicePool};
use std::error::Error;
use support::emulator::{self, in_any_order, in_children};

type Outcome = Result<(), Box<dyn Error>>;

const LEN: usize = 300_000;

/// Uses a pool: blocks of two streams, copies in both directions and between blocks, frees and a compaction.
fn program(device: &CudaDevice, pool: &DevicePool) -> Outcome {
    let (first, second) = (CudaStream::new(device)?, CudaStream::new(device)?);
    let numbers: Vec<u32> = (0..LEN as u32).collect();
    for turn in 0..3 {
        let source = pool.alloc_from(&numbers, &first)?;
        let mut target = pool.alloc_zeroed::<u32>(LEN, &second)?;
        target.copy_from(&source)?;
        drop(source);
        let mut other = pool.alloc::<u32>(LEN << turn, &first)?;
        other.fill_zero()?;
        other.record_use(&second)?;
        assert_eq!(target.to_vec()?, numbers);
        drop(target);
        assert!(other.to_vec()?.iter().all(|number| *number == 0));
        drop(other);
        pool.compact();
    }
    Ok(())
}

fn whole(pool: &DevicePool) {
    let stats = pool.stats();
    assert_eq!(stats.requested.current, 0, "a block is lost");
    assert_eq!(stats.allocations, stats.frees);
}

/// Each call of the driver in the program fails once. The failure is reported, nothing is lost, and the pool works
/// afterwards.
#[test]
fn each_call_fails_in_turn() {
    let options = ["strict:on", "without:vmm", "without:vmm,without:pools"];
    let options = options.into_iter().map(str::to_owned);
    in_children("each_call_fails_in_turn", options, || {
        let device = CudaDevice::get(0).expect("a device");
        let pool = DevicePool::new(&device).expect("a pool");
        let before = emulator::calls(None);
        program(&device, &pool).expect("nothing fails");
        let calls = emulator::calls(None) - before;
        whole(&pool);
        assert!(calls > 100, "{calls}");
        let (mut told, mut mended) = (0, 0);
        for nth in emulator::failing(calls) {
            emulator::fail(Some(nth));
            match program(&device, &pool) {
                Ok(()) => mended += 1,
                Err(_) => told += 1,
            }
            emulator::fail(None);
            whole(&pool);
            assert_eq!(pool.lost(), None, "call {nth} of {calls}");
            program(&device, &pool)
                .unwrap_or_else(|error| panic!("after call {nth} of {calls} failed: {error}"));
            whole(&pool);
        }
        pool.compact();
        assert_eq!(pool.stats().reserved.current, 0);
        println!("{calls} calls: {told} failures told, {mended} made good");
        assert!(told > 0 && mended > 0);
        let (count, text) = emulator::findings();
        assert_eq!(count, 0, "{text}");
    });
}

/// Each call also fails while the device and the pool are created.
#[test]
fn each_call_of_making_a_pool_fails_in_turn() {
    let options = (1..60).map(|nth| format!("fail:@{nth}"));
    in_children("each_call_of_making_a_pool_fails_in_turn", options, || {
        // Only one call fails, so one of two attempts succeeds.
        let made = || -> Result<(CudaDevice, DevicePool), Box<dyn Error>> {
            let device = CudaDevice::get(0)?;
            let pool = DevicePool::new(&device)?;
            Ok((device, pool))
        };
        match made() {
            Ok((device, pool)) => {
                // The failing call may be in this run.
                let _ = program(&device, &pool);
                whole(&pool);
                program(&device, &pool).expect("it goes well the second time");
            }
            // A driver whose initialisation failed stays unusable.
            Err(error) => assert!(made().is_ok() || error.to_string().contains("cuInit"), "{error}"),
        }
    });
}

/// If the driver lacks a feature, the program runs with the next best source.
#[test]
fn pools_work_on_a_driver_that_lacks_features() {
    let options = ["", "without:vmm", "without:vmm,without:pools"];
    in_children(
        "pools_work_on_a_driver_that_lacks_features",
        options.into_iter().map(str::to_owned),
        || {
            let device = CudaDevice::get(0).expect("a device");
            let pool = DevicePool::new(&device).expect("a pool");
            let said = std::env::var("MILLPOND_CUDA_EMU").unwrap_or_default();
            let expected = match said.as_str() {
                "" => CudaMemory::Virtual,
                "without:vmm" => CudaMemory::Pooled,
                _ => CudaMemory::Plain,
            };
            assert_eq!(pool.memory(), expected);
            if expected != CudaMemory::Virtual {
                let wanted = DevicePool::builder().memory(CudaMemory::Virtual).build(&device);
                let error = wanted.expect_err("there is none").to_string();
                assert!(error.contains("cuMemCreate"), "{error}");
            }
            program(&device, &pool).expect("it serves");
            whole(&pool);
        },
    );
}

/// With work as late and as interleaved as CUDA allows, all bytes are correct, and no use is unordered.
#[test]
fn results_are_correct_in_any_order_of_work() {
    in_any_order("results_are_correct_in_any_order_of_work", 100, || {
        let device = CudaDevice::get(0).expect("a device");
        let pool = DevicePool::new(&device).expect("a pool");
        program(&device, &pool).expect("nothing fails");
        whole(&pool);
        let (first, second) = (
            CudaStream::new(&device).expect("a stream"),
            CudaStream::new(&device).expect("a stream"),
        );
        for _ in 0..4 {
            used_elsewhere(&pool, &first, &second, true);
        }
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// Frees a block while another stream still writes it, and allocates it again at once. `recorded` selects whether that
/// use was recorded.
fn used_elsewhere(pool: &DevicePool, first: &CudaStream, second: &CudaStream, recorded: bool) {
    let mut block: DeviceBuffer<u8> = pool.alloc_zeroed(1 << 20, first).expect("memory");
    second.wait_for(first).expect("it waits");
    emulator::set_bytes(block.address(), 7, 1 << 20, second.as_raw());
    if recorded {
        block.record_use(second).expect("its device");
    }
    drop(block);
    let next: DeviceBuffer<u8> = pool.alloc_zeroed(1 << 20, first).expect("memory");
    let there = next.to_vec().expect("a copy");
    assert!(!recorded || there.iter().all(|byte| *byte == 0));
}

/// The emulator finds a planted error: a use that was not recorded lets a block be reused too early.
#[test]
fn an_early_reuse_is_found() {
    let options = std::iter::once("streams:seeded,seed:1,strict:on".to_owned());
    in_children("an_early_reuse_is_found", options, || {
        let device = CudaDevice::get(0).expect("a device");
        let pool = DevicePool::new(&device).expect("a pool");
        let (first, second) = (
            CudaStream::new(&device).expect("a stream"),
            CudaStream::new(&device).expect("a stream"),
        );
        used_elsewhere(&pool, &first, &second, false);
        let (count, text) = emulator::findings();
        assert!(count > 0, "the planted reuse was not found");
        println!("{text}");
    });
}

/// The emulator finds a missing wait: one stream writes memory for which it has not waited for another stream.
#[test]
fn a_missing_wait_is_found() {
    let options = std::iter::once("streams:seeded,seed:1,strict:on".to_owned());
    in_children("a_missing_wait_is_found", options, || {
        let device = CudaDevice::get(0).expect("a device");
        let pool = DevicePool::new(&device).expect("a pool");
        let (first, second) = (
            CudaStream::new(&device).expect("a stream"),
            CudaStream::new(&device).expect("a stream"),
        );
        let mut block: DeviceBuffer<u8> = pool.alloc_zeroed(1 << 20, &first).expect("memory");
        block.record_use(&second).expect("its device");
        emulator::set_bytes(block.address(), 7, 1 << 20, second.as_raw());
        block.to_vec().expect("a copy");
        assert!(emulator::findings().0 > 0, "the planted race was not found");
    });
}

/// The statistics show a leak.
#[test]
fn a_leak_is_counted() {
    in_children("a_leak_is_counted", std::iter::once(String::new()), || {
        let device = CudaDevice::get(0).expect("a device");
        let pool = DevicePool::new(&device).expect("a pool");
        let stream = CudaStream::new(&device).expect("a stream");
        std::mem::forget(pool.alloc::<u64>(1000, &stream).expect("memory"));
        assert_eq!(pool.stats().requested.current, 8000);
        pool.compact();
        assert!(pool.stats().reserved.current >= 8000);
    });
}

/// After the loss of a device, calls return errors and do not panic, and held memory is counted and not accessed.
#[test]
fn a_lost_device_is_reported_as_an_error() {
    let options = (10..200).step_by(10).map(|nth| format!("lost:{nth}"));
    in_children("a_lost_device_is_reported_as_an_error", options, || {
        let Ok(device) = CudaDevice::get(0) else { return };
        let Ok(pool) = DevicePool::new(&device) else {
            return;
        };
        let outcome = (0..100).try_for_each(|_| program(&device, &pool));
        outcome.expect_err("the device is lost before that");
        let again = program(&device, &pool).expect_err("it stays lost");
        assert!(!again.to_string().is_empty());
        pool.compact();
        drop(pool);
    });
}

/// A forked process gets errors, waits for nothing, and does not use the device.
#[test]
fn a_forked_child_gets_errors() {
    in_children(
        "a_forked_child_gets_errors",
        std::iter::once(String::new()),
        || {
            let device = CudaDevice::get(0).expect("a device");
            let pool = DevicePool::new(&device).expect("a pool");
            let stream = CudaStream::new(&device).expect("a stream");
            let buffer = pool.alloc_from(&[1u32, 2, 3], &stream).expect("memory");
            let calls = emulator::calls(None);
            // SAFETY: the child only uses what this test covers, and leaves by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let refused = pool.alloc::<u8>(1, &stream).expect_err("not here").to_string();
                let another = CudaDevice::get(0).expect_err("not here").to_string();
                let told =
                    refused.contains("forked") && another.contains("spawn") && buffer.to_vec().is_err();
                drop((buffer, pool, stream, device));
                let untouched = emulator::calls(None) == calls;
                // SAFETY: the call ends the child at once.
                unsafe { libc::_exit(if told && untouched { 0 } else { 1 }) };
            }
            assert!(child > 0);
            let mut status = -1;
            // SAFETY: waits for the child that was just made; the status is a local variable.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0);
            assert_eq!(buffer.to_vec().expect("a copy"), [1, 2, 3]);
        },
    );
}
