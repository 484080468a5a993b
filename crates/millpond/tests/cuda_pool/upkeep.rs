//! Tests which memory is freed in the background, and the report of blocks that a process still holds when it ends.

use crate::support::emulator;
use crate::{MIB, builder, device, is_alone};
use millpond::cuda::{CudaDevice, CudaModule, CudaStream, DevicePool, DevicePoolBuilder};
use millpond::{Pools, pressure::Share};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Far longer than anything in these tests.
const LONG: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(5);
/// A duration of many ticks.
const A_WHILE: Duration = Duration::from_millis(150);

fn quick() -> DevicePoolBuilder {
    DevicePool::builder().settings("trim-every:5ms,decay:3")
}

fn reserved(pool: &DevicePool) -> u64 {
    pool.stats().reserved.current
}

/// Makes the pool free nothing in the background.
fn keep(pool: &DevicePool) {
    pool.configure("decay:1000000").expect("it has it");
}

/// Makes the pool free idle memory at once.
fn let_go(pool: &DevicePool) {
    pool.configure("decay:3").expect("it has it");
}

/// Returns the number of calls of these functions.
fn calls(functions: &[&CStr]) -> u64 {
    functions
        .iter()
        .map(|function| emulator::calls(Some(function)))
        .sum()
}

fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "never");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn idle_memory_is_trimmed_in_the_background() {
    if !is_alone("upkeep::idle_memory_is_trimmed_in_the_background") {
        return;
    }
    let Some((device, stream)) = device() else { return };
    let pool = quick().build(&device).expect("a pool");
    keep(&pool);
    let held = pool.alloc_from(&[3u8; 1000], &stream).expect("fits");
    drop(pool.alloc::<u8>(32 << 20, &stream).expect("fits"));
    assert!(reserved(&pool) >= 32 * MIB);
    let_go(&pool);
    until(|| reserved(&pool) <= 4 * MIB);
    assert_eq!(held.to_vec().expect("a copy"), [3; 1000], "what is live stays");
    pool.set_trim_every(None).expect("a pace");
    drop(pool.alloc::<u8>(32 << 20, &stream).expect("fits"));
    thread::sleep(A_WHILE);
    assert!(reserved(&pool) >= 32 * MIB, "off by one option");
    pool.configure("trim-every:5ms").expect("it has it");
    until(|| reserved(&pool) <= 4 * MIB);
    assert!(pool.set_trim_every(Some(Duration::ZERO)).is_err());
    assert!(builder().trim_every(Some(Duration::ZERO)).build(&device).is_err());

    // Without ticks nothing is freed, and an explicit call replaces a tick.
    let still = DevicePool::builder()
        .settings("trim-every:off,decay:1")
        .build(&device)
        .expect("a pool");
    drop(still.alloc::<u8>(32 << 20, &stream).expect("fits"));
    thread::sleep(A_WHILE);
    assert!(reserved(&still) >= 32 * MIB);
    (0..4).for_each(|_| still.collect_garbage());
    assert_eq!(reserved(&still), 0);

    // A bound on kept memory applies from the first tick.
    let bounded = DevicePool::builder()
        .settings("trim-every:5ms,decay:0,cache-size:0")
        .build(&device)
        .expect("a pool");
    drop(bounded.alloc::<u8>(32 << 20, &stream).expect("fits"));
    until(|| reserved(&bounded) == 0);
}

/// The driver is not called as long as no memory can have been idle for long enough.
#[test]
fn ticks_of_a_new_pool_make_no_driver_calls() {
    if !is_alone("upkeep::ticks_of_a_new_pool_make_no_driver_calls") {
        return;
    }
    let Some((device, stream)) = device() else { return };
    let pool = DevicePool::builder()
        .settings("trim-every:5ms,decay:1000000")
        .build(&device)
        .expect("a pool");
    drop(pool.alloc::<u8>(32 << 20, &stream).expect("fits"));
    let before = emulator::calls(None);
    thread::sleep(A_WHILE);
    assert_eq!(emulator::calls(None), before);
}

/// Nothing waits for a busy device, and no capture is invalidated, whichever library began it.
#[test]
fn background_work_does_not_wait_for_a_busy_device() {
    let options = ["streams:threads", "streams:threads,strict:on"].map(str::to_owned);
    emulator::in_children(
        "upkeep::background_work_does_not_wait_for_a_busy_device",
        options.into_iter(),
        || {
            let Some((device, stream)) = device() else { return };
            let pool = quick().build(&device).expect("a pool");
            let input = pool.alloc_from(&[5u32; 1000], &stream).expect("fits");
            keep(&pool);
            drop(pool.alloc::<u8>(32 << 20, &stream).expect("fits"));
            let syncs = || calls(&[c"cuCtxSynchronize", c"cuStreamSynchronize"]);

            let capture = pool.capture(&stream).expect("it begins");
            let mut output = pool.alloc::<u32>(1000, &stream).expect("fits");
            output.copy_from(&input).expect("it is written down");
            let before = syncs();
            let_go(&pool);
            thread::sleep(A_WHILE);
            assert_eq!(syncs(), before, "nobody waits");
            assert!(reserved(&pool) >= 32 * MIB);
            let graph = capture.end().expect("it was not spoilt");
            // SAFETY: the input exists, and the stream is its own.
            unsafe { graph.launch(&stream) }.expect("it is launched");
            assert_eq!(output.to_vec().expect("a copy"), [5; 1000]);
            until(|| reserved(&pool) <= 4 * MIB);

            // Another library captures a stream that the pool knows.
            keep(&pool);
            drop(pool.alloc::<u8>(32 << 20, &stream).expect("fits"));
            stream.synchronize().expect("it ends");
            emulator::begin_capture(stream.as_raw());
            let before = syncs();
            let_go(&pool);
            thread::sleep(A_WHILE);
            assert_eq!(syncs(), before);
            assert!(reserved(&pool) >= 32 * MIB);
            assert!(stream.is_capturing().expect("it says"), "it was not spoilt");
            emulator::end_capture(stream.as_raw());
            until(|| reserved(&pool) <= 4 * MIB);

            // A stream of another pool is captured. Freeing memory waits for the whole device.
            let other = builder().build(&device).expect("a pool");
            let theirs = CudaStream::new(&device).expect("a stream");
            let held = other.alloc::<u8>(1 << 20, &theirs).expect("fits");
            keep(&pool);
            drop(pool.alloc::<u8>(32 << 20, &stream).expect("fits"));
            emulator::begin_capture(theirs.as_raw());
            let_go(&pool);
            thread::sleep(A_WHILE);
            assert!(reserved(&pool) >= 32 * MIB);
            emulator::end_capture(theirs.as_raw());
            until(|| reserved(&pool) <= 4 * MIB);
            drop(held);
        },
    );
}

/// Nothing waits for a kernel that runs for three seconds.
#[test]
fn background_work_does_not_wait_for_a_running_kernel() {
    let options = ["streams:threads,pace:on".to_owned()];
    emulator::in_children(
        "upkeep::background_work_does_not_wait_for_a_running_kernel",
        options.into_iter(),
        || {
            let Some((device, stream)) = device() else { return };
            emulator::register(c"slow", 3_000_000_000);
            let module = CudaModule::load(&device, ".version 8.0\n.target sm_70\n.visible .entry slow() { }")
                .expect("code");
            let kernel = module.kernel("slow").expect("it is there");
            let pool = quick().build(&device).expect("a pool");
            keep(&pool);
            drop(pool.alloc::<u8>(32 << 20, &stream).expect("fits"));
            // SAFETY: the kernel takes no parameters and does nothing.
            unsafe { kernel.launch(&stream).launch() }.expect("it begins");
            let syncs = || calls(&[c"cuCtxSynchronize", c"cuStreamSynchronize"]);
            let before = syncs();
            let_go(&pool);
            thread::sleep(A_WHILE);
            assert!(reserved(&pool) >= 32 * MIB);
            assert_eq!(syncs(), before);
            until(|| reserved(&pool) <= 4 * MIB);
        },
    );
}

#[test]
fn cached_memory_is_freed_when_the_device_has_little_left() {
    let options = ["memory:64M".to_owned()];
    emulator::in_children(
        "upkeep::cached_memory_is_freed_when_the_device_has_little_left",
        options.into_iter(),
        || {
            let Some((device, stream)) = device() else { return };
            let pool = DevicePool::builder()
                .settings("decay:1000000")
                .memory_fraction(1.0)
                .trim_every(Some(TICK))
                .trim_at_pressure(Some(Share::percent(75)))
                .build(&device)
                .expect("a pool");
            drop(pool.alloc::<u8>(32 << 20, &stream).expect("fits"));
            thread::sleep(A_WHILE);
            assert!(reserved(&pool) >= 32 * MIB, "half is not scarce");
            // This allocation bypasses every pool of this crate.
            let theirs = emulator::allocate(20 << 20);
            until(|| reserved(&pool) == 0);
            emulator::free(theirs);
            pool.configure("trim-at-pressure:off").expect("it has it");
        },
    );
}

/// The pool ends with its last handle, although background work maintains it. A set's settings apply to it as to
/// the host's pools.
#[test]
fn background_work_does_not_keep_a_pool_alive() {
    if !is_alone("upkeep::background_work_does_not_keep_a_pool_alive") {
        return;
    }
    let Some((device, stream)) = device() else { return };
    // The called function depends on the kind of memory.
    let frees = || calls(&[c"cuMemRelease", c"cuMemFreeAsync", c"cuMemFree_v2"]);
    let pool = quick().trim_every(Some(Duration::from_secs(3600))).build(&device);
    let pool = pool.expect("a pool");
    drop(pool.alloc::<u8>(8 << 20, &stream).expect("fits"));
    let before = frees();
    drop(pool);
    assert!(frees() > before);

    let set = Pools::builder().cuda_template(builder()).build();
    set.configure("trim-every:5ms,decay:2").expect("all have it");
    let of_set = set.cuda(0).expect("a pool");
    let of_host = set.host().expect("a pool");
    drop(of_set.alloc::<u8>(32 << 20, &stream).expect("fits"));
    drop(of_host.alloc_zeroed::<u8>(32 << 20).expect("fits"));
    until(|| reserved(&of_set) == 0 && of_host.stats().reserved.current < 32 * MIB);
}

#[test]
fn a_forked_child_does_no_background_work() {
    emulator::in_children(
        "upkeep::a_forked_child_does_no_background_work",
        std::iter::once(String::new()),
        || {
            let Some((device, stream)) = device() else { return };
            let pool = quick().build(&device).expect("a pool");
            drop(pool.alloc::<u8>(32 << 20, &stream).expect("fits"));
            // SAFETY: the child only uses what this test covers, and leaves by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let calls = emulator::calls(None);
                // A pool of the host starts the thread again.
                let host = millpond::Pool::builder()
                    .settings("trim-every:1ms,decay:1")
                    .host();
                thread::sleep(A_WHILE);
                let fine = host.is_ok() && emulator::calls(None) == calls;
                // SAFETY: the call ends the child at once.
                unsafe { libc::_exit(i32::from(!fine)) };
            }
            let mut status = -1;
            // SAFETY: waits for the child that was just made; the status is a local variable.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0);
            until(|| reserved(&pool) == 0);
        },
    );
}

/// Returns the output of a child that holds blocks when it ends.
fn said_at_exit(test: &str, conf: &str) -> String {
    let (passed, text) = emulator::child_with(test, &[("MILLPOND_CONF", conf)]);
    assert!(passed, "{text}");
    text
}

#[test]
fn live_blocks_are_reported_at_exit() {
    const TEST: &str = "upkeep::live_blocks_are_reported_at_exit";
    if !emulator::load() {
        return;
    }
    if !emulator::is_child(TEST) {
        let told = "when the process ended, pool 'weights' had ";
        let text = said_at_exit(TEST, "leak-report:on");
        assert!(text.contains(told) && text.contains("in 2 blocks"), "{text}");
        assert_eq!(text.matches("when the process ended").count(), 1, "{text}");
        assert!(!said_at_exit(TEST, "leak-report:off").contains(told));
        assert!(!said_at_exit(TEST, "track:off").contains(told));
        let of_debug = said_at_exit(TEST, "").contains(told);
        assert_eq!(of_debug, cfg!(debug_assertions));
        return;
    }
    let device = CudaDevice::get(0).expect("a device");
    let stream = CudaStream::new(&device).expect("a stream");
    let pool = DevicePool::builder()
        .name("weights")
        .build(&device)
        .expect("a pool");
    for _ in 0..2 {
        std::mem::forget(pool.alloc::<f32>(1000, &stream).expect("fits"));
    }
    drop(pool.alloc::<f32>(1000, &stream).expect("fits"));
    let empty = DevicePool::builder()
        .name("empty")
        .build(&device)
        .expect("a pool");
    std::mem::forget(empty);
}

#[test]
fn a_leak_check_reports_the_blocks_that_its_scope_left() {
    let Some((device, stream)) = device() else { return };
    let pool = builder().track(None).build(&device).expect("a pool");
    let before = pool.alloc::<f32>(10, &stream).expect("fits");
    let check = pool.leak_check();
    let kept = pool.alloc::<f32>(1000, &stream).expect("fits");
    drop(pool.alloc::<f32>(1000, &stream).expect("fits"));
    let elsewhere = AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            std::mem::forget(pool.alloc::<f32>(1, &stream).expect("fits"));
            elsewhere.store(1, Ordering::Relaxed);
        });
    });
    assert_eq!(elsewhere.load(Ordering::Relaxed), 1);
    let report = check.finish();
    assert_eq!(report.blocks, 1, "of this thread, since then: {report}");
    assert!(pool.ledger().is_some());
    drop((before, kept));
}
