//! Sends ticks to a policy during a replay, because a policy has no clock.

use crate::error::ReplayError;
use crate::program::Op;
use crate::run::Observer;
use crate::steps::Steps;
use millpond_engine::{Engine, Mark, Source};
use std::num::NonZeroU64;

/// When a tick is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickEvery {
    /// At the beginning of each repeating step of the program.
    Step,
    /// Each time after this number of calls.
    Calls(NonZeroU64),
}

/// The ticks of one program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks<'a> {
    every: Option<NonZeroU64>,
    /// The numbers of calls after which a tick is sent, ascending.
    after: &'a [usize],
}

impl<'a> Ticks<'a> {
    /// Sends no ticks.
    pub const NEVER: Self = Self {
        every: None,
        after: &[],
    };

    /// Returns the ticks of a program that repeats these steps, if any.
    ///
    /// # Errors
    /// Returns an error if a tick is requested for each step and no step repeats.
    pub fn new(every: Option<TickEvery>, steps: Option<&'a Steps>, trace: &str) -> Result<Self, ReplayError> {
        match (every, steps) {
            (None, _) => Ok(Self::NEVER),
            (Some(TickEvery::Calls(calls)), _) => Ok(Self {
                every: Some(calls),
                after: &[],
            }),
            (Some(TickEvery::Step), Some(steps)) => Ok(Self {
                every: None,
                after: &steps.starts,
            }),
            (Some(TickEvery::Step), None) => Err(ReplayError::NoStep {
                trace: trace.to_owned(),
            }),
        }
    }

    /// Returns a clock that sends these ticks, starting with the first call.
    #[must_use]
    pub fn clock(self) -> TickClock<'a> {
        TickClock {
            ticks: self,
            calls: 0,
            next: 0,
        }
    }
}

/// Sends ticks to a policy during a replay.
#[derive(Clone, Copy, Debug)]
pub struct TickClock<'a> {
    ticks: Ticks<'a>,
    calls: usize,
    next: usize,
}

impl<S: Source> Observer<S> for TickClock<'_> {
    #[inline]
    fn stepped(&mut self, _op: &Op, engine: &mut Engine<S>) {
        self.calls += 1;
        let every = self.ticks.every;
        let mut due = every.is_some_and(|every| (self.calls as u64).is_multiple_of(every.get()));
        while self
            .ticks
            .after
            .get(self.next)
            .is_some_and(|after| *after <= self.calls)
        {
            self.next += 1;
            due = true;
        }
        if due {
            engine.mark(Mark::Ticks(1));
        }
    }
}
