//! The output of a probe: one JSON object per line, so that the results so far are kept if the probe ends early.

use serde_json::{Value, json};
use std::io::Write;

fn line(value: &Value) {
    let mut out = std::io::stdout().lock();
    // An error means that the reader has gone, so there is nobody to report it to.
    let _ = writeln!(out, "{value}");
    let _ = out.flush();
}

/// Begins a table; its rows follow.
pub(crate) fn table(name: &str, columns: &[&str]) {
    line(&json!({ "table": name, "columns": columns }));
}

/// Adds a row to a table that was begun.
pub(crate) fn row(table: &str, cells: &[Value]) {
    line(&json!({ "row": cells, "of": table }));
}

/// Reports an assumption of the library, whether it holds here, and what the probe saw.
pub(crate) fn check(what: &str, holds: bool, seen: &str) {
    line(&json!({ "check": what, "holds": holds, "seen": seen }));
}

/// Reports any other fact.
pub(crate) fn note(text: &str) {
    line(&json!({ "note": text }));
}

/// Reports a file that the runner is to write next to the result.
pub(crate) fn file(name: &str, text: &str) {
    line(&json!({ "file": name, "text": text }));
}

/// Reports the facts about the probed device.
pub(crate) fn device(facts: &Value) {
    line(&json!({ "device": facts }));
}

/// Converts seconds to microseconds, rounded to a hundredth.
pub(crate) fn us(seconds: f64) -> Value {
    json!((seconds * 1e8).round() / 100.0)
}
