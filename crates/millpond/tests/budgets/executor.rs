//! A minimal executor that counts wakeups.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// Counts its wakeups.
#[derive(Default)]
pub(crate) struct Wakeups(AtomicUsize);

impl Wakeups {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Wakeups {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A future that the test polls explicitly.
pub(crate) struct Task<F: Future> {
    future: Pin<Box<F>>,
    pub(crate) wakeups: Arc<Wakeups>,
}

impl<F: Future> Task<F> {
    pub(crate) fn new(future: F) -> Self {
        Self {
            future: Box::pin(future),
            wakeups: Arc::default(),
        }
    }

    pub(crate) fn poll(&mut self) -> Option<F::Output> {
        let waker = Waker::from(Arc::clone(&self.wakeups));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }
}

/// Runs a future to its end on this thread.
pub(crate) fn run<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = Box::pin(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
