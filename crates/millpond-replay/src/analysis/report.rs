//! All there is to say of a window. What does not wait for each other is found side by side: a large recording is walked several times, and
//! a machine has several processors.
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

/// A window, in full.
#[derive(Clone, Debug)]
pub struct Report {
    /// Sums, and who held what.
    pub summary: Summary,
    /// The program's steps, of the whole recording; none where it has none.
    pub steps: Option<RecordedSteps>,
    /// What is worth changing, the most bytes first.
    pub findings: Vec<Finding>,
}

/// Finds all there is to say of a window, with so many of the largest blocks.
///
/// # Errors
/// The recording cannot be walked any more.
pub fn report(
    history: &History,
    symbols: &dyn Symbols,
    window: Window,
    largest: usize,
) -> Result<Report, HistoryError> {
    beside(history, symbols, window, largest, |_| Ok(())).map(|(report, ())| report)
}

/// The same, and bytes by group over time.
///
/// # Errors
/// The recording cannot be walked any more.
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

/// A report, and what is made of its summary beside the last of it.
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

/// What a thread has found; where it has panicked, so does this one.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}
