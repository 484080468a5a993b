//! A report in the shape of its JSON.

use super::Told;
use crate::state::State;
use millpond_replay::analysis::{By, Finding, Held, RecordedSteps, Summary, Top, top};
use millpond_replay::{OutOfMemory, Verdict};
use serde::Serialize;

/// Version of the JSON.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
pub(super) struct Value<'a> {
    schema: u32,
    name: &'a str,
    facts: &'a [(String, String)],
    rows: u64,
    duration_ns: u64,
    by: By,
    out_of_memory: &'a [OutOfMemory],
    /// The memory that the program needs. Present only if the recording can be replayed in seconds.
    verdict: Option<&'a Verdict>,
    /// Present only if the user asked for one moment.
    at: Option<HeldValue<'a>>,
    summary: Option<&'a Summary>,
    peak_by: Option<Top>,
    end_by: Option<Top>,
    kept_by: Option<Top>,
    allocated_by: Option<Top>,
    steps: Option<&'a RecordedSteps>,
    findings: &'a [Finding],
    /// The segments of each device without a history.
    states: &'a [State],
    missing: &'a [String],
}

#[derive(Serialize)]
struct HeldValue<'a> {
    #[serde(flatten)]
    held: &'a Held,
    by: Top,
}

pub(super) fn value<'a>(told: &'a Told<'_>) -> Value<'a> {
    let by: By = told.by;
    let most = told.args.top;
    let summary = &told.at.summary;
    let whole = told.whole.as_ref();
    let of = |held: &Held| whole.map(|_| top(held.by(by), most));
    Value {
        schema: SCHEMA,
        name: &told.name,
        facts: &told.history.facts,
        rows: told.history.len,
        duration_ns: told.history.duration,
        by,
        out_of_memory: &told.out_of_memory,
        verdict: told.verdict.as_ref(),
        at: whole.is_none().then(|| HeldValue {
            held: told.at.held(),
            by: top(told.at.held().by(by), most),
        }),
        summary: whole.map(|_| summary),
        peak_by: of(&summary.peak),
        end_by: of(&summary.end),
        kept_by: of(&summary.kept),
        allocated_by: whole.map(|_| top(&summary.allocated_by[by as usize], most)),
        steps: whole.and_then(|whole| whole.steps.as_ref()),
        findings: whole.map_or(&[], |whole| &whole.findings),
        states: &told.states,
        missing: &summary.loss.sentences,
    }
}
