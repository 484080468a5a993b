//! Waiting for room, as a future or by blocking a thread.

use super::Charge;
use super::error::{BudgetError, Refusal};
use super::later;
use super::line::Outcome;
use super::node::Node;
use super::room::Turn;
use super::way;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A request that waits until its budget and all budgets above it have room. It is a future for any runtime.
///
/// The request joins the line when it is first polled, or earlier with [`join`](Self::join). Dropping it removes it
/// from the line and gives room that was reserved for it to the next request. After it has completed, further polls
/// return [`Poll::Pending`].
#[must_use = "dropping a request removes it from the line"]
pub struct Wait {
    from: Arc<Node>,
    bytes: u64,
    state: State,
}

enum State {
    New,
    Waits(u64),
    Done,
}

impl Wait {
    pub(super) fn new(from: &Arc<Node>, bytes: u64) -> Self {
        Self {
            from: Arc::clone(from),
            bytes,
            state: State::New,
        }
    }

    /// Returns the requested bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Requests the charge and returns it if there is room now. Otherwise joins the line. From then on
    /// [`Budget::has_waiters`](super::Budget::has_waiters) returns true, and a pool can empty its caches before it
    /// sleeps.
    ///
    /// # Errors
    /// Returns [`BudgetError::TooLarge`] if no refund could ever serve the request. Returns [`BudgetError::NoMemory`]
    /// if the memory for its entry could not be allocated.
    pub fn join(&mut self) -> Result<Option<Charge>, BudgetError> {
        match self.state {
            State::New => self.begin(None),
            State::Waits(_) | State::Done => Ok(None),
        }
    }

    /// Blocks the thread for at most `limit`.
    ///
    /// A thread that holds memory while it waits for more can wait for itself. The time limit ends this wait.
    ///
    /// # Errors
    /// Returns the errors of [`join`](Self::join), also when a limit is lowered below the request while it waits.
    /// Returns [`BudgetError::TimedOut`] if the time limit has passed.
    pub fn block_for(mut self, limit: Duration) -> Result<Charge, BudgetError> {
        let began = Instant::now();
        // The first attempt has no waker because most requests are served immediately.
        if let Some(charge) = self.join()? {
            return Ok(charge);
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(answer) = Pin::new(&mut self).poll(&mut context) {
                return answer;
            }
            let waited = began.elapsed();
            if waited >= limit {
                return self.give_up(waited);
            }
            // Other requests may wait for bytes that this thread returned.
            later::make_calls();
            thread::park_timeout(limit - waited);
        }
    }

    fn begin(&mut self, waker: Option<Waker>) -> Result<Option<Charge>, BudgetError> {
        let granted = match way::take(&self.from, self.bytes, Turn::New) {
            Ok(()) => true,
            Err(refused) => {
                if refused.waited {
                    self.from.line.serve();
                }
                match self.from.line.join(&self.from, self.bytes, waker) {
                    Outcome::Waits(ticket) => {
                        self.state = State::Waits(ticket);
                        false
                    }
                    Outcome::Granted => true,
                    other => return Err(self.fail(other, None)),
                }
            }
        };
        Ok(granted.then(|| self.granted()))
    }

    fn granted(&mut self) -> Charge {
        self.state = State::Done;
        Charge::of(&self.from, self.bytes)
    }

    fn fail(&mut self, outcome: Outcome, waited: Option<Duration>) -> BudgetError {
        self.state = State::Done;
        match outcome {
            Outcome::TooLarge(node, seen) | Outcome::Left(node, seen) => {
                Refusal::counted(&node, self.bytes, seen).into_error(waited)
            }
            Outcome::Waits(_) | Outcome::Granted | Outcome::NoMemory | Outcome::Gone => BudgetError::NoMemory,
        }
    }

    /// Leaves the line after the time limit. Returns the charge if it was granted in the meantime.
    #[doc(hidden)]
    pub fn give_up(&mut self, waited: Duration) -> Result<Charge, BudgetError> {
        let State::Waits(ticket) = self.state else {
            return Err(BudgetError::NoMemory);
        };
        match self.from.line.leave(ticket) {
            Outcome::Granted => Ok(self.granted()),
            other => Err(self.fail(other, Some(waited))),
        }
    }
}

impl Future for Wait {
    type Output = Result<Charge, BudgetError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        // The waker is cloned here because its code is foreign and must run outside every lock.
        let waker = context.waker().clone();
        match this.state {
            State::Done => return Poll::Pending,
            State::New => {}
            State::Waits(ticket) => match this.from.line.ask(ticket, waker.clone()) {
                Outcome::Waits(_) => return Poll::Pending,
                Outcome::Granted => return Poll::Ready(Ok(this.granted())),
                Outcome::Gone => this.state = State::New,
                other => return Poll::Ready(Err(this.fail(other, None))),
            },
        }
        match this.begin(Some(waker)) {
            Ok(Some(charge)) => Poll::Ready(Ok(charge)),
            Ok(None) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let State::Waits(ticket) = self.state
            && let Outcome::Granted = self.from.line.leave(ticket)
        {
            way::give(&self.from, self.bytes);
        }
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("bytes", &self.bytes)
            .field("waits", &matches!(self.state, State::Waits(_)))
            .finish_non_exhaustive()
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
