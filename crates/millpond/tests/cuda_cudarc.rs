//! Interoperation with cudarc: its streams, views and slices, and the driver's pool from which it allocates.

#![cfg(target_os = "linux")]

mod support;

use cudarc::driver::CudaContext;
use millpond::cuda::{
    CudaDevice, CudaError, CudaMemory, CudaModule, CudaStream, DeviceBuffer, DevicePool, DeviceTensor,
    DriverPool, UnpooledDevice,
};
use std::sync::Arc;
use support::emulator::{self, alone, in_children};

/// Returns options for orders of work drawn from each of `many` seeds.
fn seeds(many: u32) -> impl Iterator<Item = String> {
    (0..many).map(|seed| format!("streams:seeded,seed:{seed},strict:on"))
}

fn device() -> (CudaDevice, DevicePool, Arc<CudaContext>) {
    let device = CudaDevice::get(0).expect("a device");
    let pool = DevicePool::builder().settings("").build(&device).expect("a pool");
    (device, pool, CudaContext::new(0).expect("a context"))
}

const LEN: usize = 200_000;

fn numbers(turn: u32) -> Vec<u32> {
    (0..LEN as u32).map(|at| at ^ (turn << 20)).collect()
}

/// Work of cudarc on lent elements runs after earlier work of this crate and before later work.
#[test]
fn lent_elements_are_ordered_with_work_of_cudarc() {
    alone("lent_elements_are_ordered_with_work_of_cudarc", seeds(30), || {
        let (device, pool, context) = device();
        let ours = CudaStream::new(&device).expect("a stream");
        let theirs = context.new_stream().expect("a stream");
        let other = context.new_stream().expect("a stream");
        let mut buffer = pool.alloc_from(&numbers(0), &ours).expect("memory");
        for turn in 1..4 {
            buffer.fill_zero().expect("zeros");
            {
                let mut lent = buffer.lend(&theirs).expect("lent");
                assert_eq!((lent.view().len(), lent.buffer().len()), (LEN, LEN));
                let there = theirs.clone_dtoh(&lent.view()).expect("a copy");
                theirs.synchronize().expect("it ends");
                assert!(there.iter().all(|number| *number == 0));
                // Two streams of cudarc write the elements.
                theirs
                    .memcpy_htod(&numbers(turn), &mut lent.view_mut())
                    .expect("a copy");
                let mut all = lent.view_mut();
                other.memset_zeros(&mut all.slice_mut(0..10)).expect("zeros");
            }
            let there = buffer.to_vec().expect("a copy");
            assert!(there[..10].iter().all(|number| *number == 0));
            assert_eq!(there[10..], numbers(turn)[10..]);
            // The buffer is freed while cudarc's work may still run, and allocated again.
            drop(buffer);
            buffer = pool.alloc_from(&numbers(turn), &ours).expect("memory");
        }
        drop(buffer);
        assert_eq!(pool.stats().requested.current, 0);
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// A buffer on a stream of cudarc keeps the stream alive.
#[test]
fn a_stream_lives_as_long_as_either_library_uses_it() {
    alone(
        "a_stream_lives_as_long_as_either_library_uses_it",
        seeds(5),
        || {
            let (_, pool, context) = device();
            let theirs = context.new_stream().expect("a stream");
            let ours = CudaStream::of_cudarc(&theirs).expect("the same");
            assert_eq!(ours.as_raw(), theirs.cu_stream().cast());
            let buffer = pool.alloc_from(&numbers(3), &ours).expect("memory");
            drop((theirs, ours));
            assert_eq!(buffer.to_vec().expect("a copy"), numbers(3));
        },
    );
}

/// Handles of one stream of cudarc are separate. While one lives, its blocks belong to no other stream.
#[test]
fn several_handles_of_a_stream_are_the_same_stream() {
    alone(
        "several_handles_of_a_stream_are_the_same_stream",
        seeds(20),
        || {
            let (device, pool, context) = device();
            let theirs = context.new_stream().expect("a stream");
            let first = pool
                .alloc_from(&numbers(1), &CudaStream::of_cudarc(&theirs).expect("the same"))
                .expect("memory");
            let mut second = pool
                .alloc_from(&numbers(2), &CudaStream::of_cudarc(&theirs).expect("the same"))
                .expect("memory");
            drop(first);
            let other = CudaStream::new(&device).expect("a stream");
            drop(pool.alloc_from(&numbers(3), &other).expect("memory"));
            second.fill_zero().expect("zeros");
            drop(second);
            let third = pool.alloc_from(&numbers(4), &other).expect("memory");
            assert_eq!(third.to_vec().expect("a copy"), numbers(4));
            assert_eq!(emulator::findings(), (0, String::new()));
        },
    );
}

/// A forgotten loan never ends. The memory waits for the device before it is reused.
#[test]
fn memory_of_a_forgotten_loan_waits_for_the_device() {
    alone(
        "memory_of_a_forgotten_loan_waits_for_the_device",
        seeds(10),
        || {
            let (device, pool, context) = device();
            let ours = CudaStream::new(&device).expect("a stream");
            let theirs = context.new_stream().expect("a stream");
            let mut buffer = pool.alloc_from(&numbers(0), &ours).expect("memory");
            let mut lent = buffer.lend(&theirs).expect("lent");
            theirs.memset_zeros(&mut lent.view_mut()).expect("zeros");
            std::mem::forget(lent);
            drop(buffer);
            let next = pool.alloc_from(&numbers(5), &ours).expect("memory");
            assert_eq!(next.to_vec().expect("a copy"), numbers(5));
            assert_eq!(emulator::findings(), (0, String::new()));
            let told =
                CudaStream::of_cudarc(&context.per_thread_stream()).expect_err("another on each thread");
            assert!(matches!(told, CudaError::PerThread), "{told}");
        },
    );
}

/// The same holds for a rented buffer, which is not rented again.
#[test]
fn a_rented_buffer_with_a_forgotten_loan_is_not_kept() {
    alone(
        "a_rented_buffer_with_a_forgotten_loan_is_not_kept",
        seeds(10),
        || {
            let (device, pool, context) = device();
            let ours = CudaStream::new(&device).expect("a stream");
            let theirs = context.new_stream().expect("a stream");
            let rental = pool.rental();
            let mut rented = rental.rent::<u32>(LEN, &ours).expect("memory");
            let mut lent = rented.lend(&theirs).expect("lent");
            let third = context.new_stream().expect("a stream");
            third.memset_zeros(&mut lent.view_mut()).expect("zeros");
            std::mem::forget(lent);
            drop(rented);
            let mut next = rental.rent::<u32>(LEN, &ours).expect("memory");
            let ones = vec![1; next.len()];
            next.copy_from_host(&ones).expect("a copy");
            assert_eq!(next.to_vec().expect("a copy"), ones);
            assert_eq!(emulator::findings(), (0, String::new()));
        },
    );
}

/// A loan is forgotten, and its buffer is freed while another library captures a stream. The loan ends with the next free.
#[test]
fn a_loan_ended_late_holds_no_lock() {
    alone(
        "a_loan_ended_late_holds_no_lock",
        ["strict:on".to_owned()],
        || {
            let (device, _, context) = device();
            let direct = UnpooledDevice::new(&device).expect("a device");
            let ours = CudaStream::new(&device).expect("a stream");
            let theirs = context.new_stream().expect("a stream");
            let free = || device.memory().expect("it says so").free;
            let before = free();
            let mut lent = direct.alloc_from(&numbers(1), &ours).expect("memory");
            let next = direct.alloc_from(&numbers(2), &ours).expect("memory");
            std::mem::forget(lent.lend(&theirs).expect("lent"));
            emulator::begin_capture(theirs.cu_stream().cast());
            let held = free();
            drop(lent);
            assert_eq!(free(), held, "a captured stream cannot be waited for");
            assert!(
                emulator::end_capture(theirs.cu_stream().cast()),
                "the capture is broken"
            );
            drop(next);
            // After these calls the work of both streams is done, even on a device that delays it.
            theirs.synchronize().expect("it ends");
            ours.synchronize().expect("it ends");
            // The dropped buffer is only queued. The next allocation makes the driver's calls.
            drop(direct.alloc_from(&numbers(3), &ours).expect("memory"));
            assert_eq!(free(), before);
            assert_eq!(emulator::findings(), (0, String::new()));
        },
    );
}

/// Streams of other libraries need not outlive a module.
#[test]
fn a_module_may_outlive_streams_of_other_libraries() {
    alone(
        "a_module_may_outlive_streams_of_other_libraries",
        ["strict:on".to_owned()],
        || {
            let (device, _, context) = device();
            emulator::register(c"nothing", 1000);
            let theirs = context.new_stream().expect("a stream");
            // SAFETY: a stream of the context, which lives longer than this handle, and no pool knows it.
            let stream = unsafe { CudaStream::from_raw(&device, theirs.cu_stream().cast()) };
            let text = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";
            let kernel = CudaModule::load(&device, text).and_then(|module| module.kernel("nothing"));
            let kernel = kernel.expect("it loads");
            // SAFETY: the kernel takes no parameters and does nothing.
            unsafe { kernel.launch(&stream).launch() }.expect("it goes");
            stream.synchronize().expect("it ends");
            drop((stream, theirs));
            let unloaded = || emulator::calls(Some(c"cuModuleUnload"));
            let before = unloaded();
            drop(kernel);
            assert_eq!(unloaded(), before + 1);
            assert_eq!(emulator::findings(), (0, String::new()));
        },
    );
}

const NOTHING: &str = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

/// Returns the number of waits for the whole context. Such a wait breaks all captures. cudarc makes one for a context's first stream.
fn context_waits() -> u64 {
    emulator::calls(Some(c"cuCtxSynchronize"))
}

/// A module, a pool and a forgotten loan were used on streams of another library. They are freed when these streams have done their work.
/// No call waits for the whole device, because that would break a capture that the library does not know of.
#[test]
fn nothing_waits_for_the_whole_device() {
    alone("nothing_waits_for_the_whole_device", seeds(10), || {
        let (device, pool, context) = device();
        emulator::register(c"nothing", 1000);
        let unknown = context.new_stream().expect("a stream");
        let waits = context_waits();
        let unloaded = || emulator::calls(Some(c"cuModuleUnload"));
        for mode in [0, 1, 2] {
            let theirs = context.new_stream().expect("a stream");
            let free = device.memory().expect("it says so").free;
            // SAFETY: the stream is of the context, which lives longer than this handle and the pool.
            let stream = unsafe { CudaStream::from_raw(&device, theirs.cu_stream().cast()) };
            let ours = CudaStream::new(&device).expect("a stream");
            let kernel = CudaModule::load(&device, NOTHING).and_then(|module| module.kernel("nothing"));
            let kernel = kernel.expect("it loads");
            let own = DevicePool::builder().settings("").build(&device).expect("a pool");
            let mut buffer = own.alloc::<u32>(LEN, &stream).expect("memory");
            buffer.fill_zero().expect("zeros");
            // SAFETY: the kernel takes no arguments and accesses no memory.
            unsafe { kernel.launch(&stream).launch() }.expect("it goes");
            // This block keeps the pool from ending for now.
            drop(own.alloc::<u32>(LEN, &ours).expect("memory"));
            let mut lent = pool.alloc_from(&numbers(0), &ours).expect("memory");
            let mut loan = lent.lend(&theirs).expect("lent");
            theirs.memset_zeros(&mut loan.view_mut()).expect("zeros");
            std::mem::forget(loan);

            emulator::begin_capture(ours.as_raw());
            drop((buffer, own));
            assert!(emulator::end_capture(ours.as_raw()), "the capture is broken");
            emulator::begin_capture_in(mode, unknown.cu_stream().cast());
            drop(lent);
            drop((stream, theirs));
            let before = unloaded();
            drop(kernel);
            assert_eq!(unloaded(), before + 1, "its streams have done their work");
            drop(ours);
            // The next maintenance call finishes the deferred work.
            pool.collect_garbage();
            pool.compact();
            assert_eq!(device.memory().expect("it says so").free, free);
            assert!(
                emulator::end_capture(unknown.cu_stream().cast()),
                "mode {mode}: the capture is broken"
            );
        }
        drop(pool);
        assert_eq!(
            (context_waits(), emulator::findings()),
            (waits, (0, String::new()))
        );
    });
}

/// A stream of another library is captured when its pool ends, so no event can be recorded on it. The memory stays until a wait for the
/// device.
#[test]
fn memory_of_a_captured_stream_that_ended_is_kept_until_a_wait_for_the_device() {
    let name = "memory_of_a_captured_stream_that_ended_is_kept_until_a_wait_for_the_device";
    alone(name, seeds(5), || {
        let (device, pool, context) = device();
        let free = || device.memory().expect("it says so").free;
        let theirs = context.new_stream().expect("a stream");
        let unknown = context.new_stream().expect("a stream");
        let (before, waits) = (free(), context_waits());
        // SAFETY: the stream is of the context, which lives longer than this handle and the pool.
        let stream = unsafe { CudaStream::from_raw(&device, theirs.cu_stream().cast()) };
        let own = DevicePool::builder().settings("").build(&device).expect("a pool");
        let mut buffer = own.alloc::<u32>(LEN, &stream).expect("memory");
        buffer.fill_zero().expect("zeros");
        emulator::begin_capture(theirs.cu_stream().cast());
        drop((buffer, own, stream));
        assert!(
            emulator::end_capture(theirs.cu_stream().cast()),
            "the capture is broken"
        );
        drop(theirs);
        emulator::begin_capture_in(0, unknown.cu_stream().cast());
        pool.compact();
        assert!(free() < before, "nobody knows whether its work is done");
        assert!(
            emulator::end_capture(unknown.cu_stream().cast()),
            "the capture is broken"
        );
        assert_eq!(context_waits(), waits);
        device.synchronize().expect("nothing is captured");
        assert_eq!(free(), before);
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// The last handle of a device unloads its kernels once the streams they ran on have done their work.
#[test]
fn the_last_handle_of_a_device_breaks_no_capture() {
    alone("the_last_handle_of_a_device_breaks_no_capture", seeds(10), || {
        let context = CudaContext::new(0).expect("a context");
        let theirs = context.new_stream().expect("a stream");
        let waits = context_waits();
        emulator::begin_capture_in(2, theirs.cu_stream().cast());
        let unloaded = emulator::calls(Some(c"cuModuleUnload"));
        {
            let device = CudaDevice::get(0).expect("a device");
            let pool = DevicePool::builder().settings("").build(&device).expect("a pool");
            let stream = CudaStream::new(&device).expect("a stream");
            let queue = pool.on(&stream).expect("a queue");
            let mut ones = DeviceTensor::full(&queue, [100], 1.0f32).expect("memory");
            ones.fill(2.0).expect("it goes");
        }
        assert_eq!(emulator::calls(Some(c"cuModuleUnload")), unloaded + 1);
        assert!(
            emulator::end_capture(theirs.cu_stream().cast()),
            "the capture is broken"
        );
        assert_eq!(
            (context_waits(), emulator::findings()),
            (waits, (0, String::new()))
        );
    });
}

/// A slice of cudarc is used as a buffer, and returned to cudarc.
#[test]
fn a_slice_of_cudarc_can_be_used_as_a_buffer() {
    alone("a_slice_of_cudarc_can_be_used_as_a_buffer", seeds(20), || {
        let (device, pool, context) = device();
        let theirs = context.new_stream().expect("a stream");
        // If the driver has no pools, cudarc calls the other function. On a real driver only this library's own calls
        // are counted, and cudarc makes these.
        let frees = || {
            if emulator::is_real() {
                return 0;
            }
            [c"cuMemFreeAsync", c"cuMemFree_v2"]
                .map(|call| emulator::calls(Some(call)))
                .iter()
                .sum::<u64>()
        };
        let slice = theirs.clone_htod(&numbers(1)).expect("a slice");
        let before = frees();
        let mut buffer = DeviceBuffer::from_cudarc(slice)
            .map_err(|(error, _)| error)
            .expect("taken over");
        assert!(buffer.pool().is_none() && buffer.len() == LEN);
        assert_eq!(buffer.to_vec().expect("a copy"), numbers(1));
        let ours = CudaStream::new(&device).expect("a stream");
        let source = pool.alloc_from(&numbers(2), &ours).expect("memory");
        buffer.copy_from(&source).expect("a copy");
        let mut copy = pool.alloc::<u32>(LEN, &ours).expect("memory");
        copy.copy_from(&buffer).expect("a copy");
        buffer.record_use(&ours).expect("of the device");
        assert_eq!(frees(), before);
        drop(buffer);
        let given_back = u64::from(!emulator::is_real());
        assert_eq!(frees(), before + given_back, "cudarc gives it back");
        assert_eq!(copy.to_vec().expect("a copy"), numbers(2));
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

#[test]
fn streams_of_another_context_are_refused() {
    alone("streams_of_another_context_are_refused", [String::new()], || {
        let (device, pool, _) = device();
        let foreign = CudaContext::new_non_primary(0, 0).expect("a context");
        let stream = foreign.new_stream().expect("a stream");
        let told =
            |error: CudaError| assert!(matches!(error, CudaError::OtherContext { device: 0 }), "{error}");
        told(CudaStream::of_cudarc(&stream).expect_err("another context"));
        let ours = CudaStream::new(&device).expect("a stream");
        let mut buffer = pool.alloc::<u32>(10, &ours).expect("memory");
        told(buffer.lend(&stream).map(|_| ()).expect_err("another context"));
        let slice = stream.clone_htod(&[1u32, 2]).expect("a slice");
        let (error, slice) = DeviceBuffer::from_cudarc(slice).expect_err("another context");
        told(error);
        assert_eq!(stream.clone_dtoh(&slice).expect("it is whole"), [1, 2]);
    });
}

/// An unmodified program on cudarc allocates from a pool with a limit, and gets an error when it exceeds the limit.
#[test]
fn programs_on_cudarc_allocate_from_a_limited_pool() {
    alone(
        "programs_on_cudarc_allocate_from_a_limited_pool",
        ["strict:on".to_owned()],
        || {
            let (device, _, context) = device();
            if !device.has_pools() {
                eprintln!("skipped: this driver has no pools");
                return;
            }
            let program = |bytes: usize| context.default_stream().alloc_zeros::<u8>(bytes);
            let limited = DriverPool::builder()
                .limit(64 << 20)
                .keep(64 << 20)
                .build(&device)
                .expect("a pool");
            assert!(DriverPool::builder().limit(0).build(&device).is_err());
            let installed = limited.install().expect("it is the device's");
            assert!(installed.pool().limit() == Some(64 << 20));
            let held = program(40 << 20).expect("fits");
            let stats = limited.stats().expect("figures");
            assert!(
                stats.allocated.current >= 40 << 20 && stats.reserved.current <= 64 << 20,
                "{stats}"
            );
            assert!(program(40 << 20).is_err(), "over the limit");
            drop(held);
            context.synchronize().expect("it ends");
            let stats = limited.stats().expect("figures");
            assert_eq!(stats.allocated.current, 0);
            assert!(stats.reserved.current >= 40 << 20, "it is kept: {stats}");
            assert!(stats.allocated.peak >= 40 << 20);
            limited.trim(0).expect("it goes");
            limited.reset_peak().expect("anew");
            let stats = limited.stats().expect("figures");
            assert_eq!((stats.reserved.current, stats.allocated.peak), (0, 0));

            // Of two installed pools the later one serves, in whatever order they are removed.
            let larger = DriverPool::builder().build(&device).expect("a pool");
            let second = larger.install().expect("it is the device's");
            drop(installed);
            let held = program(100 << 20).expect("fits there");
            assert!(larger.stats().expect("figures").allocated.current >= 100 << 20);
            assert_eq!(limited.stats().expect("figures").allocated.current, 0);
            drop(second);
            drop(held);
            context.synchronize().expect("it ends");
            assert_eq!(
                larger.stats().expect("figures").reserved.current,
                0,
                "nothing is kept"
            );
            drop(larger);

            // Two pools are installed one after the other and removed in the same order. No freed pool may be used.
            let make = || DriverPool::builder().build(&device).expect("a pool");
            let (first, second) = (make(), make());
            let outer = first.install().expect("it is the device's");
            let inner = second.install().expect("it is the device's");
            drop((outer, first));
            drop((inner, second));
            assert!(program(1 << 20).is_ok());
            assert!(program(50 << 20).is_ok());
            assert_eq!(emulator::findings(), (0, String::new()));
        },
    );
}

#[test]
fn a_driver_without_pools_is_an_error() {
    in_children(
        "a_driver_without_pools_is_an_error",
        ["without:pools".to_owned()].into_iter(),
        || {
            let (device, _, _) = device();
            let error = DriverPool::builder().build(&device).expect_err("there are none");
            assert!(matches!(error, CudaError::Missing { .. }), "{error}");
            assert!(
                DevicePool::builder()
                    .memory(CudaMemory::Pooled)
                    .build(&device)
                    .is_err()
            );
        },
    );
}
