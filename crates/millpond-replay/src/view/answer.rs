//! Answers for the top of the page what the recorded program needs, as `millpond replay` does.

use crate::options::Options;
use crate::replay::replay;
use millpond_trace::Trace;
use serde_json::{Value, json};

/// The most allocations of a recording that is replayed for the page. A longer one takes minutes.
pub const MOST_ANSWERED: u64 = 1_000_000;

/// Returns the answers for the devices of a recording, as JSON for the page.
#[must_use]
pub fn answer(traces: &[Trace]) -> Value {
    let options = Options {
        // The answer has replays of its own. A table of policies is not shown.
        policies: vec!["none".to_owned()],
        verdict: true,
        ..Options::default()
    };
    let answers = traces.iter().map(|trace| {
        let (sentences, failed) = match replay(trace, &options, &|_, _| {}) {
            Ok(replayed) => {
                let report = replayed.report;
                (report.answer(), report.out_of_memory.is_some())
            }
            Err(error) => (vec![format!("It cannot be replayed: {error}.")], false),
        };
        let device = (traces.len() > 1).then_some(trace.origin.device);
        json!({ "device": device, "sentences": sentences, "failed": failed })
    });
    answers.collect()
}

/// Returns the sentence that takes the place of the answer for a recording of more than [`MOST_ANSWERED`] allocations.
#[must_use]
pub fn too_long() -> Value {
    let sentence = "This recording is too long to be replayed for this page: `millpond replay` says what the program needs.";
    json!([{ "device": null, "sentences": [sentence], "failed": false }])
}
