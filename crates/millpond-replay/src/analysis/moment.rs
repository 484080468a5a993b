//! Finds moments of a recording that users name, and the blocks that are held then.

use super::groups::Lines;
use super::held::Held;
use super::steps::recorded_steps;
use super::summary::{Summary, summary};
use super::{AnalysisError, Window};
use millpond_trace::history::{History, Symbols};
use serde::Serialize;

/// A moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Moment {
    /// The moment at which most is held.
    #[default]
    Peak,
    /// The end of the window.
    End,
    /// The moment after all events up to a time, in nanoseconds since the recording began.
    Time(u64),
    /// The moment at which most is held in the step of this number.
    Step(u64),
}

/// A moment that a recording does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MomentError {
    /// The recording has no steps.
    #[error(
        "{recording} has no known steps: it marks none, and its allocations do not repeat up to its peak; use a time instead, such as --at 2s"
    )]
    NoSteps {
        /// Name of the recording.
        recording: String,
    },
    /// The recording has other steps.
    #[error("{recording} has no step {wanted}: its steps are {first} to {last}")]
    NoSuchStep {
        /// Name of the recording.
        recording: String,
        /// The step's number.
        wanted: u64,
        /// The first known step.
        first: u64,
        /// The last known step.
        last: u64,
    },
}

/// A moment that was looked up.
#[derive(Clone, Debug)]
pub struct At {
    /// The summary of the window that contains the moment: the time itself, the step, or the given window.
    pub summary: Summary,
    is_end: bool,
}

impl At {
    /// Returns the moment at which most is held in a window whose summary is known.
    #[must_use]
    pub fn peak(summary: Summary) -> Self {
        Self {
            summary,
            is_end: false,
        }
    }

    /// Returns the blocks that are held at the moment.
    #[must_use]
    pub fn held(&self) -> &Held {
        if self.is_end {
            &self.summary.end
        } else {
            &self.summary.peak
        }
    }
}

/// Finds a moment of a window. The window is ignored for a time or a step.
///
/// # Errors
/// Returns an error if the recording can no longer be read, or if it has no such step.
pub fn at(
    history: &History,
    symbols: &dyn Symbols,
    lines: Lines,
    window: Window,
    moment: Moment,
    largest: usize,
) -> Result<At, AnalysisError> {
    let window = match moment {
        Moment::Peak | Moment::End => window,
        Moment::Time(time) => Window::Times { from: time, to: time },
        Moment::Step(number) => window_of_step(history, number)?,
    };
    Ok(At {
        summary: summary(history, symbols, lines, window, largest)?,
        is_end: matches!(moment, Moment::End | Moment::Time(_)),
    })
}

/// Returns the rows of a step.
fn window_of_step(history: &History, number: u64) -> Result<Window, AnalysisError> {
    let recording = || name(history).to_owned();
    let Some(known) = recorded_steps(history)? else {
        return Err(MomentError::NoSteps {
            recording: recording(),
        }
        .into());
    };
    let numbers = || known.steps.iter().map(|step| step.number);
    let found = known.steps.iter().find(|step| step.number == number);
    let step = found.ok_or_else(|| MomentError::NoSuchStep {
        recording: recording(),
        wanted: number,
        first: numbers().min().unwrap_or(0),
        last: numbers().max().unwrap_or(0),
    })?;
    Ok(Window::Rows {
        from: step.first_row,
        end: step.end_row,
    })
}

/// Returns the name of a recording.
fn name(history: &History) -> &str {
    let program = history.facts.iter().find(|(key, _)| key == "program");
    program.map_or("the recording", |(_, name)| name)
}
