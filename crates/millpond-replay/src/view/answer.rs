//! The sentences at the top of the page, which say what the recorded program needs.

use crate::oom::OutOfMemory;
use crate::options::Options;
use crate::report::{self, Verdict};
use millpond_trace::Trace;
use serde_json::{Value, json};

/// Replays a recording. Returns why memory ran out on each device and what the program needs, as JSON for the page.
#[must_use]
pub fn answer(traces: &[Trace]) -> Value {
    let options = Options::default();
    let answers = traces.iter().map(|trace| {
        let failure = OutOfMemory::recorded(trace, &options);
        let sentences = match Verdict::of(trace, &options, &|_, _| {}) {
            Ok(verdict) => report::answer(failure.as_ref(), Some(&verdict)),
            Err(error) => vec![format!("It cannot be replayed: {error}.")],
        };
        let device = (traces.len() > 1).then_some(trace.origin.device);
        json!({ "device": device, "sentences": sentences, "failed": failure.is_some() })
    });
    answers.collect()
}

/// Returns the sentence that replaces the answer for a recording of more than [`Verdict::MOST_ALLOCATIONS`] allocations.
#[must_use]
pub fn too_long() -> Value {
    let sentence = "This recording is too long to be replayed for this page: `millpond replay` says what the program needs.";
    json!([{ "device": null, "sentences": [sentence], "failed": false }])
}
