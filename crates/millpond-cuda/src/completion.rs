//! The completion of work that was queued on a stream. The host can wait for it, and it can wake a task.

use super::callback;
use super::error::{CudaError, insist};
use super::fork;
use super::stream::CudaStream;
use super::stream::mark::Mark;
use super::wake::{Place, Signal};
use millpond_pool::pool::{Alarm, wake_at};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The time until the next poll if the driver cannot wake the task.
const POLL_AGAIN: Duration = Duration::from_millis(1);

/// A mark at the end of work, and the task that waits for it.
#[derive(Debug)]
pub(super) struct Completion {
    mark: Mark,
    place: Place,
    signal: Option<Arc<Signal>>,
    /// The timer that wakes the task if the driver cannot wake it.
    alarm: Option<Alarm>,
}

impl Completion {
    /// Creates a mark that is not recorded yet.
    pub(super) fn new(stream: &CudaStream) -> Result<Self, CudaError> {
        Ok(Self {
            mark: Mark::new(stream.device())?,
            place: Place {
                of: stream.raw().number(),
                number: 0,
            },
            signal: None,
            alarm: None,
        })
    }

    /// Records the mark at the present end of the stream's work.
    pub(super) fn record(&mut self, stream: &CudaStream) -> Result<(), CudaError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        // A mark that is recorded before this has a lower number.
        self.place.number = NUMBERS.fetch_add(1, Ordering::AcqRel);
        self.mark.record(stream)
    }

    pub(super) fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Returns whether a task waits for this.
    pub(super) fn is_polled(&self) -> bool {
        self.signal.is_some() || self.alarm.is_some()
    }

    /// Returns whether the work is complete. Otherwise, the task of `context` is woken when the work is complete. Returns the errors of the
    /// driver.
    pub(super) fn poll(&mut self, context: &Context<'_>) -> Poll<Result<(), CudaError>> {
        // In a forked process, the thread that holds the lock may not exist.
        fork::check()?;
        if callback::is_inside() {
            return self.poll_later(context.waker());
        }
        // Wakers run code of the program, so the waker is cloned outside every lock. It is stored before the driver is queried.
        if let Some(signal) = &self.signal {
            signal.replace(Some(context.waker().clone()));
        }
        if insist(|| self.mark.is_past())? {
            return Poll::Ready(Ok(()));
        }
        if self.signal.as_ref().is_none_or(|signal| signal.has_fired()) {
            let signal = Signal::new(context.waker().clone());
            if self.mark.fire(self.place, &signal).is_err() {
                return self.poll_later(context.waker());
            }
            (self.signal, self.alarm) = (Some(signal), None);
        }
        Poll::Pending
    }

    /// Forgets the task, so that it is not woken.
    pub(super) fn forget_task(&mut self) {
        self.alarm = None;
        if let Some(signal) = &self.signal
            && !fork::is_forked()
        {
            signal.replace(None);
        }
    }

    fn poll_later(&mut self, waker: &Waker) -> Poll<Result<(), CudaError>> {
        self.alarm = wake_at(Instant::now() + POLL_AGAIN, waker.clone());
        match self.alarm {
            Some(_) => Poll::Pending,
            None => Poll::Ready(insist(|| self.mark.wait())),
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.forget_task();
    }
}

/// The state of a [`StreamEnd`].
enum State {
    Waits(Completion),
    Known(Result<(), CudaError>),
    Done,
}

struct StreamEnd(State);

impl Future for StreamEnd {
    type Output = Result<(), CudaError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.0 {
            State::Waits(completion) => std::task::ready!(completion.poll(context)),
            State::Known(answer) => *answer,
            State::Done => return Poll::Pending,
        };
        self.0 = State::Done;
        Poll::Ready(answer)
    }
}

impl CudaStream {
    /// Waits until the work that is queued on the stream now is complete, without blocking the thread. This does not wait for work that is
    /// queued after this call.
    ///
    /// The future works in any runtime. The driver wakes its task; no thread waits. Dropping it changes nothing: the work continues.
    /// After it has completed, further polls return [`Poll::Pending`].
    ///
    /// ```
    /// use millpond::cuda::{CudaError, CudaKernel, CudaStream, DeviceBuffer, KernelError};
    ///
    /// async fn scale(kernel: &CudaKernel, x: &mut DeviceBuffer<f32>, stream: &CudaStream) -> Result<(), KernelError> {
    ///     let launch = kernel.launch(stream).block(256).arg_mut(x).arg(2.0f32);
    ///     // SAFETY: the arguments are those that the kernel expects.
    ///     unsafe { launch.launch() }?;
    ///     Ok(stream.synchronize_async().await?)
    /// }
    /// ```
    ///
    /// # Errors
    /// Returns [`CudaError::Captured`] if the stream is captured at this call, and the errors of the driver, including those of work that
    /// failed earlier.
    pub fn synchronize_async(
        &self,
    ) -> impl Future<Output = Result<(), CudaError>> + Send + Sync + Unpin + 'static + use<> {
        // A retired stream has no work.
        if self.raw().is_retired() {
            return StreamEnd(State::Known(Ok(())));
        }
        let marked = Completion::new(self).and_then(|mut completion| {
            completion.record(self)?;
            Ok(completion)
        });
        StreamEnd(marked.map_or_else(|error| State::Known(Err(error)), State::Waits))
    }
}
