//! Captured work of a stream, and allocations during a capture.

#![cfg(target_os = "linux")]

mod support;

#[path = "cuda_graph/others.rs"]
mod others;

use millpond::cuda::{CudaDevice, CudaGraph, CudaMemory, CudaStream, DeviceBuffer, DevicePool};
use std::error::Error;
use support::emulator::{self, alone, in_any_order};

fn strictly() -> [String; 1] {
    ["strict:on".to_owned()]
}

fn device() -> (CudaDevice, CudaStream, DevicePool) {
    let device = CudaDevice::get(0).expect("a device");
    let stream = CudaStream::new(&device).expect("a stream");
    let pool = DevicePool::builder().settings("").build(&device).expect("a pool");
    (device, stream, pool)
}

const LEN: usize = 100_000;

/// Copies through two temporary buffers. One of them is freed and allocated again.
fn record(
    pool: &DevicePool,
    stream: &CudaStream,
    input: &DeviceBuffer<u32>,
) -> Result<(CudaGraph, DeviceBuffer<u32>), Box<dyn Error>> {
    let capture = pool.capture(stream)?;
    let mut first = pool.alloc::<u32>(LEN, stream)?;
    first.copy_from(input)?;
    let mut second = pool.alloc::<u32>(LEN, stream)?;
    second.copy_from(&first)?;
    let address = first.address();
    drop(first);
    let mut output = pool.alloc::<u32>(LEN, stream)?;
    assert_eq!(output.address(), address, "it serves again at once");
    output.copy_from(&second)?;
    assert!(capture.pool() != pool && output.pool() == Some(capture.pool()));
    drop(second);
    Ok((capture.end()?, output))
}

/// Returns the numbers of a turn.
fn numbers(turn: u32) -> Vec<u32> {
    (0..LEN as u32).map(|at| at ^ (turn << 20)).collect()
}

fn launch(graph: &CudaGraph, stream: &CudaStream) -> Result<(), Box<dyn Error>> {
    // SAFETY: input and output outlive the work, because every caller waits for it while it holds both.
    Ok(unsafe { graph.launch(stream) }?)
}

fn whole(pool: &DevicePool) {
    let stats = pool.stats();
    assert_eq!((stats.requested.current, stats.allocations), (0, stats.frees));
}

/// Repeated launches find their memory in the same place, whatever the pools of the device do in between.
#[test]
fn a_graph_finds_its_memory_at_each_launch() {
    let ways = [
        "strict:on",
        "strict:on,without:vmm",
        "strict:on,without:vmm,without:pools",
    ];
    alone(
        "a_graph_finds_its_memory_at_each_launch",
        ways.map(str::to_owned),
        || {
            let (device, stream, pool) = device();
            let mut input = pool.alloc::<u32>(LEN, &stream).expect("memory");
            let (graph, output) = record(&pool, &stream, &input).expect("it is captured");
            for turn in 0..5 {
                input.copy_from_host(&numbers(turn)).expect("a copy");
                launch(&graph, &stream).expect("it goes");
                assert_eq!(output.to_vec().expect("a copy"), numbers(turn));
                // Frees, allocations, trims and compactions of others do not touch the graph's memory.
                let other = CudaStream::new(&device).expect("a stream");
                let held = pool.alloc_from(&numbers(9), &other).expect("memory");
                graph.pool().compact();
                graph.pool().trim();
                pool.compact();
                drop(held);
            }
            let reserved = graph.pool().stats().reserved.current;
            assert!(reserved >= 2 * 4 * LEN as u64);
            drop(output);
            graph.pool().compact();
            assert_eq!(graph.pool().stats().requested.current, 0);
            assert_eq!(
                graph.pool().stats().reserved.current,
                reserved,
                "it is the graph's"
            );
            launch(&graph, &stream).expect("it goes");
            stream.synchronize().expect("it ends");
            let memory = graph.pool().clone();
            drop(graph);
            whole(&memory);
            drop((memory, input));
            whole(&pool);
            pool.compact();
            if !emulator::is_real() {
                assert_eq!(emulator::findings(), (0, String::new()));
            }
        },
    );
}

/// While a stream is captured, pools serve and wait for the other streams, and free memory to the driver.
#[test]
fn pools_work_while_a_stream_is_captured() {
    alone("pools_work_while_a_stream_is_captured", strictly(), || {
        let (device, stream, pool) = device();
        let other = CudaStream::new(&device).expect("a stream");
        let before = pool.alloc_from(&numbers(1), &stream).expect("memory");
        let mut shared = pool.alloc_from(&numbers(2), &other).expect("memory");
        shared.record_use(&stream).expect("of the device");
        let capture = pool.capture(&stream).expect("it begins");
        // These blocks belong to the captured stream or were used by it, so they wait for the end of the capture.
        drop((before, shared));
        let held = pool.stats();
        for turn in 0..3 {
            let buffer = pool.alloc_from(&numbers(turn), &other).expect("memory");
            assert_eq!(buffer.to_vec().expect("a copy"), numbers(turn));
            drop(buffer);
            pool.compact();
        }
        pool.collect_garbage();
        assert!(pool.stats().reserved.current > 0 && held.requested.current > 0);
        let mut inside = pool.alloc::<u32>(LEN, &stream).expect("memory of the graph");
        inside.fill_zero().expect("it is captured");
        let graph = capture.end().expect("nothing has spoilt it");
        launch(&graph, &stream).expect("it goes");
        assert!(inside.to_vec().expect("a copy").iter().all(|number| *number == 0));
        drop(inside);
        whole(&pool);
        pool.compact();
        assert_eq!(pool.stats().reserved.current, 0);
    });
}

/// A stream that joins a capture has finished its earlier work, so pools need not wait for it.
#[test]
fn streams_that_join_are_captured_too() {
    in_any_order("streams_that_join_are_captured_too", 10, || {
        let (device, stream, pool) = device();
        let joining = CudaStream::new(&device).expect("a stream");
        let mut input = pool.alloc::<u32>(LEN, &joining).expect("memory");
        let capture = pool.capture(&stream).expect("it begins");
        // This work is still queued when the stream joins.
        let mut given = pool.alloc::<u32>(LEN, &joining).expect("memory");
        given.fill_zero().expect("zeros");
        input.copy_from(&given).expect("a copy");
        drop(given);
        let mut output = pool.alloc::<u32>(LEN, &stream).expect("memory");
        joining.wait_for(&stream).expect("it joins");
        emulator::set_bytes(output.address(), 5, 4 * LEN, joining.as_raw());
        stream.wait_for(&joining).expect("they meet again");
        let other = CudaStream::new(&device).expect("a stream");
        let held = pool.alloc_from(&numbers(1), &other).expect("memory");
        pool.compact();
        assert_eq!(held.to_vec().expect("a copy"), numbers(1));
        let graph = capture.end().expect("nothing has spoilt it");
        output.record_use(&joining).expect("of the device");
        launch(&graph, &stream).expect("it goes");
        assert!(
            output
                .to_vec()
                .expect("a copy")
                .iter()
                .all(|number| *number == 0x0505_0505)
        );
        drop((input, held, output));
        pool.compact();
        whole(&pool);
        assert_eq!((pool.lost(), pool.stats().reserved.current), (None, 0));
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

#[test]
fn calls_that_a_capture_forbids_are_errors() {
    alone("calls_that_a_capture_forbids_are_errors", strictly(), || {
        let (device, stream, pool) = device();
        assert!(pool.capture(&CudaStream::legacy(&device)).is_err());
        let capture = pool.capture(&stream).expect("it begins");
        assert!(pool.capture(&stream).is_err(), "once at a time");
        // Waiting for the stream invalidates the capture, which the end of the capture reports.
        let error = pool
            .alloc_from(&numbers(0), &stream)
            .expect_err("nobody can wait for it");
        assert!(error.to_string().contains("CAPTURE"), "{error}");
        assert!(capture.end().is_err());

        // No allocation is possible on a stream that joined.
        let capture = pool.capture(&stream).expect("it begins");
        let joined = CudaStream::new(&device).expect("a stream");
        joined.wait_for(&stream).expect("it joins");
        let error = pool
            .alloc::<u32>(LEN, &joined)
            .expect_err("not there")
            .to_string();
        assert!(error.contains("capture"), "{error}");
        stream.wait_for(&joined).expect("they meet again");
        drop(capture);

        // A capture is abandoned without an end, and everything works as before.
        let (graph, output) = {
            let mut input = pool.alloc::<u32>(LEN, &stream).expect("memory");
            input.fill_zero().expect("zeros");
            let made = record(&pool, &stream, &input).expect("it is captured");
            launch(&made.0, &stream).expect("it goes");
            stream.synchronize().expect("it ends");
            made
        };
        // The graph's own memory cannot be allocated after the capture, because launches write it.
        let error = graph
            .pool()
            .alloc::<u32>(LEN, &stream)
            .expect_err("it is the graph's");
        assert!(error.to_string().contains("a graph's own pool"), "{error}");
        drop((graph, output));
        whole(&pool);
        assert_eq!(pool.lost(), None);

        // A stream that failed to join an invalidated capture has not joined.
        let capture = pool.capture(&stream).expect("it begins");
        assert!(stream.synchronize().is_err(), "that spoils it");
        let late = CudaStream::new(&device).expect("a stream");
        assert!(late.wait_for(&stream).is_err());
        let held = pool.alloc_from(&numbers(1), &late).expect("it serves as ever");
        assert_eq!(held.to_vec().expect("a copy"), numbers(1));
        drop(capture);
    });
}

/// The limit of the pool that began a capture also applies to its graph.
#[test]
fn a_graph_keeps_to_the_limit_of_its_pool() {
    alone("a_graph_keeps_to_the_limit_of_its_pool", strictly(), || {
        let (device, stream, _) = device();
        let pool = DevicePool::builder()
            .settings("limit:16MiB")
            .memory(CudaMemory::Best)
            .build(&device)
            .expect("a pool");
        let held = pool.alloc::<u8>(10 << 20, &stream).expect("fits");
        let capture = pool.capture(&stream).expect("it begins");
        assert!(pool.alloc::<u8>(10 << 20, &stream).is_err());
        let inside = pool.alloc::<u8>(4 << 20, &stream).expect("fits");
        let graph = capture.end().expect("an empty graph");
        drop((held, inside));
        pool.trim();
        assert!(pool.alloc::<u8>(14 << 20, &stream).is_err(), "the graph has some");
        drop(graph);
        assert!(pool.alloc::<u8>(14 << 20, &stream).is_ok());
    });
}

/// The result is correct for any order of work, including launches and reuse.
#[test]
fn results_are_correct_in_any_order_of_work() {
    in_any_order("results_are_correct_in_any_order_of_work", 40, || {
        let (device, stream, pool) = device();
        let second = CudaStream::new(&device).expect("a stream");
        let mut input = pool.alloc_zeroed::<u32>(LEN, &stream).expect("memory");
        let (graph, output) = record(&pool, &stream, &input).expect("it is captured");
        for turn in 0..3 {
            input.copy_from_host(&numbers(turn)).expect("a copy");
            launch(&graph, &stream).expect("it goes");
            let mut copy = pool.alloc::<u32>(LEN, &second).expect("memory");
            copy.copy_from(&output).expect("a copy");
            assert_eq!(copy.to_vec().expect("a copy"), numbers(turn));
        }
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// Each call of the driver fails once. The failure is reported, nothing is lost, and everything works afterwards.
#[test]
fn each_call_fails_in_turn() {
    if emulator::is_left_out("a real driver cannot be told to fail a call") {
        return;
    }
    alone("each_call_fails_in_turn", strictly(), || {
        let (_, stream, pool) = device();
        let program = || -> Result<(), Box<dyn Error>> {
            let input = pool.alloc_from(&numbers(3), &stream)?;
            let (graph, output) = record(&pool, &stream, &input)?;
            launch(&graph, &stream)?;
            // Input and output live until the work is done.
            let same = output.to_vec().map(|there| assert_eq!(there, numbers(3)));
            stream.synchronize()?;
            Ok(same?)
        };
        let before = emulator::calls(None);
        program().expect("nothing fails");
        let calls = emulator::calls(None) - before;
        let mut told = 0;
        for nth in 1..=calls {
            emulator::fail(Some(nth));
            told += u64::from(program().is_err());
            emulator::fail(None);
            // The failed run may have left work that uses the memory that is now freed.
            let _ = stream.synchronize();
            whole(&pool);
            assert_eq!(pool.lost(), None, "call {nth} of {calls}");
            program().unwrap_or_else(|error| panic!("after call {nth} of {calls} failed: {error}"));
        }
        assert!(calls > 50 && told > 10, "{calls} calls, {told} told");
        pool.compact();
        assert_eq!(pool.stats().reserved.current, 0);
    });
}

/// Runs these tests, as on a real driver, on a driver that has none of the emulator's own functions. No test fails
/// because one of these functions is missing.
#[test]
fn the_tests_run_without_the_functions_of_the_emulator() {
    const TEST: &str = "the_tests_run_without_the_functions_of_the_emulator";
    if emulator::is_left_out("this is that run") || emulator::is_given() || !emulator::load() {
        return;
    }
    let folder = emulator::bare();
    let output = std::process::Command::new(std::env::current_exe().expect("a program"))
        .args(["--test-threads=1", "--skip", TEST])
        .env("MILLPOND_TEST_CUDA", "real")
        .env("MILLPOND_CUDA_EMU", "streams:threads")
        .env("LD_LIBRARY_PATH", &folder)
        .output()
        .expect("it starts");
    std::fs::remove_dir_all(&folder).expect("removed");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("test others::a_pool_keeps_what_the_captured_stream_used ... ok"),
        "{text}"
    );
}
