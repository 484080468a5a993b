//! Futures of copies: wakers that do more than wake, lost devices, drivers that refuse calls, forks and captures.

use crate::numbers;
use crate::support::emulator::{self, in_children};
use crate::tasks::{
    Count, Gate, Upload, block_on, counted, held, in_threads, place, poll, polls, until, upload,
};
use millpond::cuda::{CudaDevice, CudaError, CudaModule, CudaStream, EmulatedLaunch, emulate_kernel};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn wakers_may_panic_and_use_cuda() {
    in_threads("wakers::wakers_may_panic_and_use_cuda", || {
        struct Panics(Count);
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                self.0.0.fetch_add(1, Ordering::SeqCst);
                panic!("a waker of the test");
            }
        }
        /// A runtime that polls in the waker, and drops complete copies in it.
        struct Inline(Mutex<Option<Upload>>, CudaDevice, Mutex<Vec<bool>>, Count);
        impl Wake for Inline {
            fn wake(self: Arc<Self>) {
                let refused = self.1.memory() == Err(CudaError::InCallback);
                let mut copy = self.0.lock().expect("no panic").take().expect("a copy");
                let ready = poll(&mut copy, &Waker::from(Arc::clone(&self))).is_ready();
                *self.0.lock().expect("no panic") = (!ready).then_some(copy);
                self.2.lock().expect("no panic").push(refused);
                self.3.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let place = place();
        let gate = Gate::on(&place.first);
        let (mut one, mut two, mut three) = (
            upload(&place, &place.first),
            upload(&place, &place.first),
            upload(&place, &place.first),
        );
        let panics = Arc::new(Panics(Count::default()));
        assert!(poll(&mut one, &Waker::from(Arc::clone(&panics))).is_pending());
        let inline = Arc::new(Inline(
            Mutex::default(),
            place.device.clone(),
            Mutex::default(),
            Count::default(),
        ));
        assert!(poll(&mut two, &Waker::from(Arc::clone(&inline))).is_pending());
        *inline.0.lock().expect("no panic") = Some(two);
        let (dropped, waker) = counted();
        assert!(poll(&mut three, &waker).is_pending());
        gate.open();
        panics.0.wait();
        dropped.wait();
        // The driver's thread cannot poll it, so it is polled again on another thread.
        until(|| inline.3.now() == 2);
        assert_eq!(*inline.2.lock().expect("no panic"), [true, false]);
        block_on(one).and(block_on(three)).expect("copies");
        assert_eq!(held(&place), (0, 0));
    });
}

/// A task that ends in its waker drops its copies on the driver's thread.
#[test]
fn a_copy_that_is_dropped_in_a_waker_is_freed_later() {
    in_threads("wakers::a_copy_that_is_dropped_in_a_waker_is_freed_later", || {
        struct Drops(Mutex<Option<(Upload, CudaStream)>>, Count);
        impl Wake for Drops {
            fn wake(self: Arc<Self>) {
                drop(self.0.lock().expect("no panic").take());
                self.1.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let place = place();
        let gate = Gate::on(&place.first);
        let task = Arc::new(Drops(Mutex::default(), Count::default()));
        let own = CudaStream::new(&place.device).expect("a stream");
        let (mut polled, other) = (upload(&place, &place.first), upload(&place, &place.first));
        assert!(poll(&mut polled, &Waker::from(Arc::clone(&task))).is_pending());
        *task.0.lock().expect("no panic") = Some((other, own));
        gate.open();
        task.1.wait();
        block_on(polled).expect("a copy");
        place.first.synchronize().expect("done");
        drop(upload(&place, &place.first));
        assert_eq!(held(&place), (0, 0));
    });
}

#[test]
fn tasks_of_a_lost_device_are_woken_with_the_error() {
    in_threads("wakers::tasks_of_a_lost_device_are_woken_with_the_error", || {
        let place = place();
        let fault = |_: &EmulatedLaunch<'_>, (): ()| {
            let (call, name) = ("the test's kernel", "CUDA_ERROR_ILLEGAL_ADDRESS");
            Err(CudaError::Driver {
                call,
                code: 700,
                name,
            })
        };
        emulate_kernel("fails", fault).expect("a kernel");
        let code = ".version 8.0\n.target sm_70\n.visible .entry fails() { }";
        let module = CudaModule::load(&place.device, code).expect("a module");
        let kernel = module.kernel("fails").expect("a kernel");
        let gate = Gate::on(&place.first);
        // SAFETY: the kernel has no parameters and touches no memory.
        unsafe { kernel.launch(&place.first).launch() }.expect("it is queued");
        let mut copy = upload(&place, &place.first);
        let mut end = place.first.synchronize_async();
        let [(copied, copied_waker), (ended, ended_waker)] = [(); 2].map(|()| counted());
        assert!(poll(&mut copy, &copied_waker).is_pending());
        assert!(poll(&mut end, &ended_waker).is_pending());
        gate.open();
        copied.wait();
        ended.wait();
        let Poll::Ready(Err(error)) = poll(&mut copy, Waker::noop()) else {
            panic!("the device is lost")
        };
        assert!(error.error().is_fatal(), "{error}");
        assert!(error.into_ends().is_some(), "no work continues");
        let Poll::Ready(Err(error)) = poll(&mut end, Waker::noop()) else {
            panic!("the device is lost")
        };
        assert!(error.is_fatal());
        assert!(block_on(place.second.synchronize_async()).is_err());
    });
}

/// Without the driver's help, the task is polled once a millisecond.
#[test]
fn copies_are_polled_repeatedly_if_the_driver_cannot_wake_tasks() {
    let options = [
        "fail:cuStreamAddCallback",
        "fail:cuStreamAddCallback=500",
        "fail:cuStreamCreate@3",
    ];
    let options = options.map(|option| format!("streams:threads,strict:on,{option}"));
    in_children(
        "wakers::copies_are_polled_repeatedly_if_the_driver_cannot_wake_tasks",
        options.into_iter(),
        || {
            let place = place();
            let gate = Gate::on(&place.first);
            let copies = [(); 2].map(|()| upload(&place, &place.first));
            let began = Instant::now();
            let opens = thread::spawn(move || {
                thread::sleep(Duration::from_millis(100));
                gate.open();
            });
            for copy in copies {
                let (ends, polls) = polls(copy);
                let ends = ends.expect("a copy");
                assert_eq!(ends.0[..], numbers(1000));
                let most = began.elapsed().as_millis() as usize + 2;
                assert!(polls <= most, "{polls} polls in {most} ms");
            }
            opens.join().expect("no panic");
            assert_eq!(held(&place), (0, 0));
        },
    );
}

#[test]
fn a_forked_process_gets_an_error() {
    in_threads("wakers::a_forked_process_gets_an_error", || {
        let place = place();
        let gate = Gate::on(&place.first);
        let mut copies = [(); 2].map(|()| upload(&place, &place.first));
        let mut end = place.first.synchronize_async();
        let (count, waker) = counted();
        for copy in &mut copies {
            assert!(poll(copy, &waker).is_pending());
        }
        assert!(poll(&mut end, &waker).is_pending());
        let calls = emulator::calls(None);
        // SAFETY: the child only uses what this test covers, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the call takes only a number.
            unsafe { libc::alarm(60) };
            let [mut polled, dropped] = copies;
            let told = [
                matches!(poll(&mut polled, &waker), Poll::Ready(Err(error)) if error.error() == CudaError::Forked),
                matches!(poll(&mut end, &waker), Poll::Ready(Err(CudaError::Forked))),
                matches!(
                    poll(&mut place.first.synchronize_async(), &waker),
                    Poll::Ready(Err(CudaError::Forked))
                ),
            ];
            drop((dropped, polled, end));
            let fine = told == [true; 3] && emulator::calls(None) == calls;
            // SAFETY: the call ends the child at once.
            unsafe { libc::_exit(i32::from(!fine)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child that was just made; the status is a local variable.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        gate.open();
        until(|| count.now() == 3);
        for copy in copies {
            block_on(copy).expect("a copy");
        }
    });
}

#[test]
fn an_awaited_stream_may_be_captured_or_retired() {
    in_threads("wakers::an_awaited_stream_may_be_captured_or_retired", || {
        let place = place();
        emulator::begin_capture(place.first.as_raw());
        assert_eq!(
            block_on(place.first.synchronize_async()),
            Err(CudaError::Captured)
        );
        // A capture of another stream in the strictest mode neither fails nor notices it.
        let gate = Gate::on(&place.second);
        let mut copy = upload(&place, &place.second);
        assert!(emulator::end_capture(place.first.as_raw()));
        emulator::begin_capture_in(0, place.first.as_raw());
        let (count, waker) = counted();
        assert!(poll(&mut copy, &waker).is_pending());
        gate.open();
        count.wait();
        block_on(copy).expect("a copy");
        assert!(
            emulator::end_capture(place.first.as_raw()),
            "the capture is still valid"
        );
        let raw = emulator::create_stream();
        // SAFETY: the stream lives until it is retired.
        let stream = unsafe { CudaStream::from_raw(&place.device, raw) };
        block_on(stream.synchronize_async()).expect("no work");
        stream.retire().expect("done");
        emulator::destroy_stream(raw);
        assert_eq!(block_on(stream.synchronize_async()), Ok(()));
    });
}
