//! What a probe prints: one JSON object a line, so that what it found until then is kept where it ends too early.

use serde_json::{Value, json};
use std::io::Write;

fn line(value: &Value) {
    let mut out = std::io::stdout().lock();
    // Nobody who stopped listening is told.
    let _ = writeln!(out, "{value}");
    let _ = out.flush();
}

/// Begins a table; its rows follow.
pub(crate) fn table(name: &str, columns: &[&str]) {
    line(&json!({ "table": name, "columns": columns }));
}

/// A row of a table that was begun.
pub(crate) fn row(table: &str, cells: &[Value]) {
    line(&json!({ "row": cells, "of": table }));
}

/// Something that the library relies on, whether it holds here, and what was seen.
pub(crate) fn check(what: &str, holds: bool, seen: &str) {
    line(&json!({ "check": what, "holds": holds, "seen": seen }));
}

/// Anything else worth keeping.
pub(crate) fn note(text: &str) {
    line(&json!({ "note": text }));
}

/// A file that the probe made, beside the result.
pub(crate) fn file(name: &str, text: &str) {
    line(&json!({ "file": name, "text": text }));
}

/// The device that is probed.
pub(crate) fn device(facts: &Value) {
    line(&json!({ "device": facts }));
}

/// Microseconds, to a hundredth.
pub(crate) fn us(seconds: f64) -> Value {
    json!((seconds * 1e8).round() / 100.0)
}
