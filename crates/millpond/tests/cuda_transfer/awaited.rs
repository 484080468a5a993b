//! Copies and streams as futures: when their tasks are woken, and the effect of dropping or forgetting a future.

use crate::example::example;
use crate::numbers;
use crate::support::emulator::{self, in_any_order, in_children};
use crate::tasks::{Count, Gate, Upload, block_on, counted, held, in_threads, place, poll, until, upload};
use millpond::Buffer;
use millpond::cuda::{CudaError, CudaStream, Transfer};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

#[test]
fn futures_can_move_between_threads_and_be_shared() {
    fn can<F: Future + Send + Sync + Unpin + 'static>(_: Option<&F>) {}
    fn stream_can(stream: &CudaStream) {
        can(Some(&stream.synchronize_async()));
    }
    can::<Upload>(None);
    can::<Transfer<Buffer<u8>>>(None);
    let _ = stream_can;
}

#[test]
fn awaited_copies_are_complete_in_any_order_of_work() {
    in_any_order(
        "awaited::awaited_copies_are_complete_in_any_order_of_work",
        10,
        || {
            let place = place();
            let sent = numbers(1000);
            let back = block_on(async {
                let (mut host, there) = upload(&place, &place.first).await?;
                host.fill(0);
                let other = place.pool.alloc(1000, &place.second)?;
                let (mut there, other) = place.second.copy(there, other)?.await?;
                there.fill_zero()?;
                place.second.synchronize_async().await?;
                let coming = place.first.download(other, host)?;
                let (host, _) = coming.await?;
                Ok::<_, Box<dyn std::error::Error>>(host)
            });
            assert_eq!(back.expect("copies")[..], sent);
            assert_eq!(emulator::findings(), (0, String::new()));
        },
    );
}

#[test]
fn a_task_is_woken_before_later_work_and_does_not_delay_it() {
    in_threads(
        "awaited::a_task_is_woken_before_later_work_and_does_not_delay_it",
        || {
            struct Blocks(Gate, Count);
            impl Wake for Blocks {
                fn wake(self: Arc<Self>) {
                    self.1.0.fetch_add(1, Ordering::SeqCst);
                    self.0.wait();
                }
            }
            let place = place();
            let before = Gate::on(&place.first);
            let mut copy = upload(&place, &place.first);
            let after = Gate::on(&place.first);
            let slow = Arc::new(Blocks(Gate::default(), Count::default()));
            assert!(poll(&mut copy, &Waker::from(Arc::clone(&slow))).is_pending());
            assert!(!copy.is_complete());
            before.open();
            // Work that was queued before the poll and comes after the copy is still waiting.
            slow.1.wait();
            assert!(copy.is_complete());
            after.open();
            // The waker has not returned yet.
            place.first.synchronize().expect("done");
            slow.0.open();
            assert_eq!(block_on(copy).expect("a copy").0[..], numbers(1000));
        },
    );
}

#[test]
fn tasks_are_woken_in_the_order_of_the_work_and_not_of_the_polls() {
    in_threads(
        "awaited::tasks_are_woken_in_the_order_of_the_work_and_not_of_the_polls",
        || {
            let place = place();
            let first = Gate::on(&place.first);
            let mut early = upload(&place, &place.first);
            let between = Gate::on(&place.first);
            let mut late = upload(&place, &place.first);
            let second = Gate::on(&place.second);
            let mut other = place.second.synchronize_async();
            let [
                (early_count, early_waker),
                (late_count, late_waker),
                (other_count, other_waker),
            ] = [(); 3].map(|()| counted());
            assert!(poll(&mut late, &late_waker).is_pending());
            assert!(poll(&mut other, &other_waker).is_pending());
            assert!(poll(&mut early, &early_waker).is_pending());
            first.open();
            early_count.wait();
            assert_eq!((late_count.now(), other_count.now()), (0, 0));
            second.open();
            other_count.wait();
            assert_eq!(late_count.now(), 0);
            between.open();
            late_count.wait();
            assert!(poll(&mut other, &other_waker).is_ready());
            for copy in [early, late] {
                // A copy that was polled can still be waited for.
                copy.wait().expect("a copy");
            }
            assert_eq!(
                (early_count.now(), late_count.now(), other_count.now()),
                (1, 1, 1)
            );
        },
    );
}

#[test]
fn the_last_waker_is_woken_once_and_a_complete_future_stays_pending() {
    in_threads(
        "awaited::the_last_waker_is_woken_once_and_a_complete_future_stays_pending",
        || {
            let place = place();
            let gate = Gate::on(&place.first);
            let mut copy = upload(&place, &place.first);
            let [(first, first_waker), (second, second_waker)] = [(); 2].map(|()| counted());
            assert!(poll(&mut copy, &first_waker).is_pending());
            // The task moves to another thread and another runtime.
            let mut copy = thread::spawn(move || {
                assert!(poll(&mut copy, &second_waker).is_pending());
                copy
            })
            .join()
            .expect("no panic");
            drop(first_waker);
            assert_eq!(Arc::strong_count(&first), 1, "the old waker is still held");
            gate.open();
            second.wait();
            let Poll::Ready(Ok(ends)) = poll(&mut copy, Waker::noop()) else {
                panic!("it is complete")
            };
            until(|| Arc::strong_count(&second) == 1);
            assert_eq!((first.now(), second.now()), (0, 1));
            assert!(poll(&mut copy, Waker::noop()).is_pending());
            let error = copy.wait().expect_err("it has no ends");
            assert_eq!(error.error(), CudaError::AlreadyComplete);
            let mut end = place.first.synchronize_async();
            assert_eq!(block_on(&mut end), Ok(()));
            assert!(poll(&mut end, Waker::noop()).is_pending());
            drop(ends);
            assert_eq!(held(&place), (0, 0));
        },
    );
}

#[test]
fn a_cancelled_copy_keeps_its_buffers_and_blocks_no_other_work() {
    in_threads(
        "awaited::a_cancelled_copy_keeps_its_buffers_and_blocks_no_other_work",
        || {
            let place = place();
            let gate = Gate::on(&place.first);
            let mut cancelled = upload(&place, &place.first);
            let mut forgotten = upload(&place, &place.first);
            let mut end = place.first.synchronize_async();
            let (count, waker) = counted();
            assert!(poll(&mut cancelled, &waker).is_pending());
            assert!(poll(&mut forgotten, &waker).is_pending());
            assert!(poll(&mut end, &waker).is_pending());
            // This returns although the gate is closed.
            drop((cancelled, end));
            std::mem::forget(forgotten);
            assert_eq!(held(&place), (8000, 8000));
            // The memory is in use, so later requests do not get it.
            drop(
                place
                    .pool
                    .alloc_zeroed::<u32>(1000, &place.second)
                    .expect("memory"),
            );
            assert_eq!(held(&place), (8000, 8000));
            gate.open();
            place.first.synchronize().expect("done");
            count.wait();
            drop(
                place
                    .pool
                    .alloc_zeroed::<u32>(1000, &place.second)
                    .expect("memory"),
            );
            assert_eq!(held(&place), (4000, 4000));
            thread::sleep(Duration::from_millis(20));
            assert_eq!(count.now(), 1, "the tasks of dropped futures are not woken");
            assert_eq!(emulator::findings(), (0, String::new()));
        },
    );
}

#[test]
fn a_copy_can_be_left_after_a_timeout_and_awaited_later() {
    in_threads(
        "awaited::a_copy_can_be_left_after_a_timeout_and_awaited_later",
        || {
            let place = place();
            let gate = Gate::on(&place.first);
            let mut copy = upload(&place, &place.first);
            let mut polls = 0;
            let first = block_on(poll_fn(|context| {
                polls += 1;
                if let Poll::Ready(ends) = Pin::new(&mut copy).poll(context) {
                    return Poll::Ready(Some(ends));
                }
                context.waker().wake_by_ref();
                if polls < 3 {
                    Poll::Pending
                } else {
                    Poll::Ready(None)
                }
            }));
            assert!(first.is_none() && !copy.is_complete());
            gate.open();
            let (host, there) = block_on(copy)
                .and_then(|(host, there)| {
                    let again = place.second.upload(host, there)?;
                    block_on(again)
                })
                .expect("copies");
            assert_eq!(
                (host[..].to_vec(), there.to_vec().expect("a copy")),
                (numbers(1000), numbers(1000))
            );
        },
    );
}

#[test]
fn many_copies_share_few_streams_and_no_thread() {
    let options = ["streams:threads"].map(str::to_owned);
    in_children(
        "awaited::many_copies_share_few_streams_and_no_thread",
        options.into_iter(),
        || {
            const COPIES: usize = 500;
            let place = place();
            let created = || emulator::calls(Some(c"cuStreamCreate"));
            let streams = [&place.first, &place.second];
            let before = created();
            for _ in 0..3 {
                let gates = streams.map(Gate::on);
                let mut copies: Vec<_> = (0..COPIES).map(|n| upload(&place, streams[n % 2])).collect();
                let (count, waker) = counted();
                for copy in &mut copies {
                    assert!(poll(copy, &waker).is_pending());
                }
                gates.iter().for_each(Gate::open);
                until(|| count.now() == COPIES);
                for copy in &mut copies {
                    assert!(poll(copy, &waker).is_ready());
                }
            }
            assert_eq!(created() - before, 2);
            assert_eq!(held(&place), (0, 0));
        },
    );
}

/// The example checks the copies, and that its threads are few.
#[test]
fn the_example_awaits_copies_in_two_runtimes() {
    if emulator::is_real() || !emulator::load() {
        return;
    }
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("awaited-driver");
    std::fs::create_dir_all(&folder).expect("a folder");
    let link = folder.join("libcuda.so.1");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(emulator::library().expect("it is loaded"), &link).expect("a link");
    let output = std::process::Command::new(example("awaited", "awaited"))
        .env("LD_LIBRARY_PATH", &folder)
        .env("MILLPOND_CUDA_EMU", "streams:threads")
        .env_remove("MILLPOND_CONF")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("proven"),
        "{said}{error}"
    );
}
