//! Returns the facts about a recording other than its blocks, as JSON for the page.

use super::COLUMNS;
use crate::Occupancy;
use crate::analysis::{self, AnalysisError, Overview, Window, missing, report};
use millpond_trace::ReadOptions;
use millpond_trace::history::{History, HistoryError, Symbols};
use serde_json::{Value, json};
use std::path::Path;

/// The most steps that are listed one by one.
const MOST_STEPS: usize = 4096;
/// The number of largest blocks that are listed at the peak.
const LARGEST: usize = 5;
/// The largest number that a script can represent exactly.
const MOST_NUMBER: u64 = (1 << 53) - 1;

/// Opens a recording together with the overview that a page shows first.
///
/// # Errors
/// Returns an error if the file cannot be read or is not a recording.
pub fn open(path: &Path, options: &ReadOptions<'_>) -> Result<(History, Overview), HistoryError> {
    analysis::open(path, options, COLUMNS)
}

/// Returns the overview of a recording as JSON.
#[must_use]
pub fn glance(history: &History, overview: &Overview) -> Value {
    let mut value = serde_json::to_value(overview).unwrap_or_default();
    value["missing"] = missing(history).into();
    let states: Vec<Occupancy> = history.standing.iter().map(Occupancy::of_initial).collect();
    value["states"] = serde_json::to_value(states).unwrap_or_default();
    value["state_only"] = history.state_only.into();
    tame(&mut value);
    value
}

/// Returns findings, steps, figures and a list of what is missing.
///
/// # Errors
/// Returns an error if the recording can no longer be read.
pub fn told(history: &History, symbols: &dyn Symbols) -> Result<Value, AnalysisError> {
    let report = report(history, symbols, Window::ALL, LARGEST)?;
    let summary = &report.summary;
    let steps = report.steps.as_ref().map(|known| {
        let told = known.steps.iter().take(MOST_STEPS);
        json!({
            "source": known.source,
            "more": known.more + known.steps.len().saturating_sub(MOST_STEPS) as u64,
            "steps": told.map(|step| json!([step.number, step.from, step.to, step.peak.bytes])).collect::<Vec<_>>(),
        })
    });
    let mut value = json!({
        "facts": history.facts,
        "missing": summary.loss.sentences,
        "findings": report.findings,
        "steps": steps,
        "peak": [summary.peak.time, summary.peak.sum.shown()],
        "requested": summary.peak_requested.bytes,
        "reserved": summary.peak_reserved.map(|peak| peak.bytes),
        "hits": summary.hits,
        "refused": summary.refused,
        "lifetimes": summary.lifetimes,
    });
    tame(&mut value);
    Ok(value)
}

/// Replaces numbers that no script can represent by the largest that it can.
pub(super) fn tame(value: &mut Value) {
    match value {
        Value::Number(number) if number.as_u64().is_some_and(|number| number > MOST_NUMBER) => {
            *value = MOST_NUMBER.into();
        }
        Value::Array(values) => values.iter_mut().for_each(tame),
        Value::Object(values) => values.values_mut().for_each(tame),
        _ => {}
    }
}
