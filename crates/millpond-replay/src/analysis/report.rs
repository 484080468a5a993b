//! All there is to say of a window. What does not wait for each other is found side by side: a large recording is walked several times, and
//! a machine has several processors.

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
    /// Bytes by group over time.
    pub timeline: Timeline,
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
    options: &TimelineOptions,
) -> Result<Report, HistoryError> {
    // Growth waits for the steps, the timeline for the summary.
    let (examined, steps) = scope(|scope| {
        let steps = scope.spawn(|| recorded_steps(history));
        (examine(history, symbols, window, largest, None), joined(steps))
    });
    let ((summary, mut findings), steps) = (examined?, steps?);
    let (timeline, growing) = scope(|scope| {
        let growing = steps
            .as_ref()
            .map(|steps| scope.spawn(|| findings::growth(history, window, &summary, steps)));
        (
            timeline(history, symbols, &summary, options),
            growing.map_or(Ok(None), joined),
        )
    });
    findings.extend(growing?);
    findings::sort(&mut findings);
    Ok(Report {
        summary,
        steps,
        findings,
        timeline: timeline?,
    })
}

/// What a thread has found; where it has panicked, so does this one.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}
