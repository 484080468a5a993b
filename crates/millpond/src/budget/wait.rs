//! Waiting for room, as a future or with a thread.

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

/// A request that waits until its budget and all above it have room for it: a future, for any runtime.
///
/// It joins the line when it is first polled, or before with [`join`](Self::join). Dropped, it leaves the line, and
/// room that was kept for it goes to the next. Once it has answered, it answers nothing more.
#[must_use = "a request that is dropped leaves the line"]
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

    /// Bytes asked for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Asks for the charge, and joins the line if it is refused now: from then on
    /// [`Budget::has_waiters`](super::Budget::has_waiters) says that someone waits, and a pool can empty its caches
    /// before it sleeps. Answers the charge if there was room at once.
    ///
    /// # Errors
    /// [`BudgetError::TooLarge`] if no return of bytes could ever serve it, [`BudgetError::NoMemory`] if there is no
    /// memory to note that it waits.
    pub fn join(&mut self) -> Result<Option<Charge>, BudgetError> {
        match self.state {
            State::New => self.begin(None),
            State::Waits(_) | State::Done => Ok(None),
        }
    }

    /// Waits with this thread, at most so long.
    ///
    /// Whoever holds memory while waiting for more can wait for itself; the time limit is what ends that.
    ///
    /// # Errors
    /// As [`join`](Self::join), also when a limit is lowered below the request while it waits;
    /// [`BudgetError::TimedOut`] when the time has passed.
    pub fn block_for(mut self, limit: Duration) -> Result<Charge, BudgetError> {
        let began = Instant::now();
        // Without a waker first: most requests are served at once.
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
            // Others may be waiting for what this thread gave back.
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

    /// Leaves the line, as the time is over; or has the charge, where it was granted just then.
    pub(crate) fn give_up(&mut self, waited: Duration) -> Result<Charge, BudgetError> {
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
        // Cloned here, because a waker's own code runs outside every lock.
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
