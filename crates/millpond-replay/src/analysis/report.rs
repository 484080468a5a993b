//! Collects the complete analysis of a window. Independent parts run in parallel, because a large recording
//! is walked several times and a machine has several processors.
//!
//! ```text
//!   steps ─────────┬─▶ growth
//!   summary, finds ┴─▶ timeline
//! ```

use super::findings::{self, Finding, examine};
use super::steps::{RecordedSteps, recorded_steps};
use super::summary::Summary;
use super::timeline::{Timeline, TimelineOptions, timeline};
use super::window::Window;
use millpond_trace::history::{History, HistoryError, Symbols};
use std::panic::resume_unwind;
use std::thread::{ScopedJoinHandle, scope};

/// The complete analysis of a window.
#[derive(Clone, Debug)]
pub struct Report {
    /// Sums and groups.
    pub summary: Summary,
    /// The program's steps in the whole recording. `None` if there are none.
    pub steps: Option<RecordedSteps>,
    /// Findings that are worth a change, with the most bytes first.
    pub findings: Vec<Finding>,
}

/// Analyses a window and lists the `largest` largest blocks.
///
/// # Errors
/// Returns an error if the recording can no longer be read.
pub fn report(
    history: &History,
    symbols: &dyn Symbols,
    window: Window,
    largest: usize,
) -> Result<Report, HistoryError> {
    beside(history, symbols, window, largest, |_| Ok(())).map(|(report, ())| report)
}

/// Analyses a window like [`report`], and also computes bytes by group over time.
///
/// # Errors
/// Returns an error if the recording can no longer be read.
pub fn report_with_timeline(
    history: &History,
    symbols: &dyn Symbols,
    window: Window,
    largest: usize,
    options: &TimelineOptions,
) -> Result<(Report, Timeline), HistoryError> {
    beside(history, symbols, window, largest, |summary| {
        timeline(history, symbols, summary, options)
    })
}

/// Makes a report. Runs `more` on its summary in parallel with the rest.
fn beside<T>(
    history: &History,
    symbols: &dyn Symbols,
    window: Window,
    largest: usize,
    more: impl FnOnce(&Summary) -> Result<T, HistoryError>,
) -> Result<(Report, T), HistoryError> {
    let (examined, steps) = scope(|scope| {
        let steps = scope.spawn(|| recorded_steps(history));
        (examine(history, symbols, window, largest, None), joined(steps))
    });
    let ((summary, mut findings), steps) = (examined?, steps?);
    let (more, growing) = scope(|scope| {
        let growing = steps
            .as_ref()
            .map(|steps| scope.spawn(|| findings::growth(history, window, &summary, steps)));
        (more(&summary), growing.map_or(Ok(None), joined))
    });
    findings.extend(growing?);
    findings::sort(&mut findings);
    let report = Report {
        summary,
        steps,
        findings,
    };
    Ok((report, more?))
}

/// Returns the result of a thread. Panics if the thread has panicked.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}
