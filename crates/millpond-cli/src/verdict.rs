//! Formats the answer with which `replay`, `tune` and `report` begin.

use crate::terminal::{green, width};
use crate::text::item;
use millpond_replay::Verdict;

/// Returns the sentences of a verdict, each on lines of its own. Every line ends with a newline.
pub(crate) fn text(verdict: &Verdict) -> String {
    verdict.sentences.iter().map(|one| sentence(one)).collect()
}

/// Returns a sentence that answers the user.
pub(crate) fn sentence(text: &str) -> String {
    format!("{}\n", item(&green("→"), text, width()))
}
