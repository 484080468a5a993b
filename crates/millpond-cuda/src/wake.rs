//! Wakes a task when a device has passed a mark.
//!
//! The driver calls a function of the library when a stream reaches it. On the stream of the work, the function would delay later work, and
//! it would run only after all work that was queued before the task was polled. It is therefore queued on a wake stream, which has no other
//! work and first waits for the mark. The marks of one stream pass in order, so they can share a wake stream. The number of wake streams
//! thus depends on the number of streams that tasks wait for, and not on the number of tasks.
//!
//! The function is queued by `cuStreamAddCallback`. `cuLaunchHostFunc` is newer, but its function is not called after an error of the
//! context, so the tasks would wait forever on a lost device.

use super::abi::{Code, EventHandle, STREAM_NON_BLOCKING, StreamHandle};
use super::callback;
use super::driver::Driver;
use super::error::{CudaError, insist};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The number of unused streams that a device keeps.
const SPARE_STREAMS: usize = 16;

/// A task that waits for a mark.
#[derive(Debug)]
pub(super) struct Signal(Mutex<State>);

#[derive(Debug)]
enum State {
    /// The device has not passed the mark. There is no waker if the task was forgotten.
    Ahead(Option<Waker>),
    Fired,
}

impl Signal {
    pub(super) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::Ahead(Some(waker)))))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the waker. Wakers run code of the program, so the old one is dropped outside the lock.
    pub(super) fn replace(&self, waker: Option<Waker>) {
        let before = match &mut *self.lock() {
            State::Ahead(before) => std::mem::replace(before, waker),
            State::Fired => waker,
        };
        drop(before);
    }

    pub(super) fn has_fired(&self) -> bool {
        matches!(*self.lock(), State::Fired)
    }

    fn fire(&self) {
        let before = std::mem::replace(&mut *self.lock(), State::Fired);
        if let State::Ahead(Some(waker)) = before {
            callback::run(|| waker.wake());
        }
    }
}

/// The function that the driver calls.
unsafe extern "C" fn fire(_: StreamHandle, _: Code, signal: *mut c_void) {
    // SAFETY: `WakeStream::queue` made the pointer from an `Arc` for this one call.
    let signal = unsafe { Arc::from_raw(signal.cast::<Signal>()) };
    signal.fire();
}

/// A stream that only waits for marks and fires signals.
#[derive(Debug)]
pub(super) struct WakeStream {
    handle: StreamHandle,
    /// The number of the stream whose marks it waits for.
    of: u64,
    /// The place of the last mark among all marks.
    place: u64,
    last: Arc<Signal>,
}

/// The place of a mark: the number of its stream, and a number that grows with each mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) of: u64,
    pub(super) number: u64,
}

/// The streams of a device on which signals are queued.
///
/// Invariant: the streams were created in the device's context, and no other code has them.
#[derive(Debug, Default)]
pub(super) struct WakeStreams(Mutex<Vec<WakeStream>>);

impl WakeStreams {
    fn lock(&self) -> MutexGuard<'_, Vec<WakeStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a stream on which a signal waits for no mark but its own and earlier ones of the same stream.
    fn take(&self, place: Place) -> Option<WakeStream> {
        let mut streams = self.lock();
        let follows = |one: &WakeStream| one.of == place.of && one.place <= place.number;
        let at = streams.iter().position(follows);
        let at = at.or_else(|| streams.iter().position(|one| one.last.has_fired()))?;
        Some(streams.swap_remove(at))
    }

    /// Puts back a stream that was taken. Removes and returns the unused streams beyond [`SPARE_STREAMS`].
    fn put(&self, stream: WakeStream) -> Vec<WakeStream> {
        let mut streams = self.lock();
        streams.push(stream);
        let mut unused = 0;
        let more = streams.extract_if(.., |one| {
            unused += usize::from(one.last.has_fired());
            one.last.has_fired() && unused > SPARE_STREAMS
        });
        more.collect()
    }

    /// Fires the signal when the device has passed the event.
    ///
    /// The streams are not locked while the driver is called, because it may call the function at once.
    ///
    /// # Safety
    /// The context of the streams must be current on this thread. The event must belong to this context and be recorded at this place.
    pub(super) unsafe fn fire_after(
        &self,
        driver: &Driver,
        event: EventHandle,
        place: Place,
        signal: &Arc<Signal>,
    ) -> Result<(), CudaError> {
        let handle = match self.take(place) {
            Some(stream) => stream.handle,
            None => {
                let mut handle = StreamHandle::NULL;
                // SAFETY: the pointer is to a local.
                unsafe { driver.stream_create(&raw mut handle, STREAM_NON_BLOCKING) }?;
                handle
            }
        };
        let stream = WakeStream {
            handle,
            of: place.of,
            place: place.number,
            last: Arc::clone(signal),
        };
        // SAFETY: the caller guarantees this.
        if let Err(error) = unsafe { stream.queue(driver, event) } {
            // It is not known what was queued on the stream, so the stream is destroyed.
            stream.end(driver);
            return Err(error);
        }
        for unused in self.put(stream) {
            unused.end(driver);
        }
        Ok(())
    }

    /// Returns whether there is any stream.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Destroys all streams. The context must be current on this thread. Signals that have not fired yet still fire later.
    pub(super) fn end(&self, driver: &Driver) {
        let streams = std::mem::take(&mut *self.lock());
        for stream in streams {
            stream.end(driver);
        }
    }
}

impl WakeStream {
    /// # Safety
    /// The requirements of [`WakeStreams::fire_after`].
    unsafe fn queue(&self, driver: &Driver, event: EventHandle) -> Result<(), CudaError> {
        // SAFETY: the stream is alive, and the caller guarantees that the event is.
        unsafe { driver.stream_wait_event(self.handle, event, 0) }?;
        let signal = Arc::into_raw(Arc::clone(&self.last));
        // If the driver returns an error, it may still have queued the function, so the signal is not taken back.
        // SAFETY: the stream is alive, and the signal lives until the function has taken it.
        unsafe { driver.stream_add_callback(self.handle, Some(fire), signal.cast_mut().cast(), 0) }
    }

    fn end(self, driver: &Driver) {
        // The driver destroys the stream when its work is complete. If it refuses, the stream ends with the context.
        // SAFETY: the stream was made by us, and it is not used any more.
        let _ = insist(|| unsafe { driver.stream_destroy(self.handle) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn stream(handle: usize, of: u64, place: u64, fired: bool) -> WakeStream {
        let last = Signal::new(Waker::noop().clone());
        if fired {
            last.fire();
        }
        WakeStream {
            handle: StreamHandle(std::ptr::without_provenance_mut(handle)),
            of,
            place,
            last,
        }
    }

    #[test]
    fn a_signal_does_not_wait_for_later_marks_or_other_streams() {
        let streams = WakeStreams::default();
        streams
            .lock()
            .extend([stream(1, 1, 10, false), stream(2, 2, 20, false)]);
        let take = |of, number| {
            let taken = streams.take(Place { of, number });
            taken.map(|stream| {
                let handle = stream.handle.0.addr();
                streams.lock().push(stream);
                handle
            })
        };
        assert_eq!(take(1, 11), Some(1));
        assert_eq!(take(2, 21), Some(2));
        assert_eq!(take(1, 9), None, "it would wait for a later mark");
        assert_eq!(take(3, 30), None, "it would wait for another stream");
        streams.lock().push(stream(3, 2, 5, true));
        assert_eq!(take(3, 30), Some(3));
        assert_eq!(take(1, 9), Some(3));
    }

    #[test]
    fn few_unused_streams_are_kept() {
        let streams = WakeStreams::default();
        let mut ended = 0;
        for handle in 0..40 {
            ended += streams.put(stream(handle, 1, 1, handle % 2 == 0)).len();
        }
        assert_eq!(
            (ended, streams.lock().len()),
            (20 - SPARE_STREAMS, 20 + SPARE_STREAMS)
        );
    }

    #[test]
    fn only_the_last_waker_is_woken_and_only_once() {
        let [first, second] = [(); 2].map(|()| Arc::new(Count::default()));
        let signal = Signal::new(Waker::from(Arc::clone(&first)));
        signal.replace(Some(Waker::from(Arc::clone(&second))));
        assert!(!signal.has_fired());
        signal.fire();
        signal.fire();
        signal.replace(Some(Waker::from(Arc::clone(&first))));
        assert!(signal.has_fired());
        let woken = [&first, &second].map(|count| count.0.load(Ordering::Relaxed));
        let held = [&first, &second].map(Arc::strong_count);
        assert_eq!((woken, held), ([0, 1], [1, 1]));
    }
}
