//! Tasks that wait for a device, and work that lasts until a test ends it.

use crate::support::emulator::in_children;
use crate::{Place, numbers};
use cudarc::driver::sys;
use millpond::Buffer;
use millpond::cuda::{CudaDevice, CudaStream, DeviceBuffer, Transfer};
use std::ffi::c_void;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The time after which a test counts as hanging.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Work of a stream that lasts until it is opened.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(crate) fn on(stream: &CudaStream) -> Self {
        unsafe extern "C" fn hold(gate: *mut c_void) {
            // SAFETY: the pointer was made from a gate for this call.
            Gate(unsafe { Arc::from_raw(gate.cast()) }).wait();
        }
        let gate = Self::default();
        let data = Arc::into_raw(Arc::clone(&gate.0)).cast_mut().cast();
        // SAFETY: the stream lives, and the function takes the gate.
        let code = unsafe { sys::cuLaunchHostFunc(stream.as_raw().cast(), Some(hold), data) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
        gate
    }

    pub(crate) fn open(&self) {
        *self.0.0.lock().expect("no panic") = true;
        self.0.1.notify_all();
    }

    pub(crate) fn wait(&self) {
        let open = self.0.0.lock().expect("no panic");
        let (_open, late) = self
            .0
            .1
            .wait_timeout_while(open, LONG, |open| !*open)
            .expect("no panic");
        assert!(!late.timed_out(), "a gate stays closed");
    }
}

/// Counts how often a task is woken.
#[derive(Default)]
pub(crate) struct Count(pub(crate) AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    pub(crate) fn now(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Waits until the task was woken.
    pub(crate) fn wait(&self) {
        until(|| self.now() > 0);
    }
}

pub(crate) fn until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "nobody is woken");
        thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn counted() -> (Arc<Count>, Waker) {
    let count = Arc::new(Count::default());
    (Arc::clone(&count), Waker::from(count))
}

pub(crate) fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future on this thread when it is woken. Returns its outcome and the number of polls.
pub(crate) fn polls<F: Future>(future: F) -> (F::Output, usize) {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    for polls in 1.. {
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
            return (outcome, polls);
        }
        let parked = Instant::now();
        thread::park_timeout(LONG);
        assert!(parked.elapsed() < LONG, "the task is never woken");
    }
    unreachable!("it is polled until it is complete")
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    polls(future).0
}

pub(crate) fn place() -> Place {
    Place::on(CudaDevice::get(0).expect("a device"))
}

pub(crate) type Upload = Transfer<(Buffer<u32>, DeviceBuffer<u32>)>;

/// Begins a copy of 1,000 elements whose device end belongs to `place.second`, so that a free waits for nothing else.
pub(crate) fn upload(place: &Place, stream: &CudaStream) -> Upload {
    let host = place.pinned.alloc_from(&numbers(1000)).expect("memory");
    let there = place.pool.alloc(1000, &place.second).expect("memory");
    stream.upload(host, there).expect("it begins")
}

pub(crate) fn held(place: &Place) -> (u64, u64) {
    let stats = [place.pool.stats(), place.pinned.stats()];
    (stats[0].requested.current, stats[1].requested.current)
}

pub(crate) fn in_threads(test: &str, body: impl FnOnce()) {
    let options = ["streams:threads,strict:on"].map(str::to_owned);
    in_children(test, options.into_iter(), body);
}
