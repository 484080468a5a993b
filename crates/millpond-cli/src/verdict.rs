//! Formats the first sentences of `replay`, `tune` and `report`.

use crate::terminal::{green, width};
use crate::text::item;
use millpond_replay::Verdict;

/// Returns the sentences of a verdict. Each begins on a new line, and every line ends with a newline.
pub(crate) fn text(verdict: &Verdict) -> String {
    verdict.sentences.iter().map(|one| sentence(one)).collect()
}

/// Returns a sentence with the mark of an answer.
pub(crate) fn sentence(text: &str) -> String {
    format!("{}\n", item(&green("→"), text, width()))
}
