//! The output of a probe: one JSON object per line, so that the results so far are kept if the probe ends early.

use serde_json::{Value, json};
use std::io::Write;
use std::time::Instant;

fn line(value: &Value) {
    let mut out = std::io::stdout().lock();
    // An error means that the reader has gone, so it cannot be reported.
    let _ = writeln!(out, "{value}");
    let _ = out.flush();
}

/// Begins a table; its rows follow.
pub(crate) fn table(name: &str, columns: &[&str]) {
    line(&json!({ "table": name, "columns": columns }));
}

/// Adds a row to a table that was begun.
pub(crate) fn cells(table: &str, cells: &[Value]) {
    line(&json!({ "row": cells, "of": table }));
}

/// Adds a row to a table that was begun, from values that can be JSON.
macro_rules! row {
    ($table:expr, $($cell:expr),* $(,)?) => {
        $crate::say::cells($table, &[$(serde_json::json!($cell)),*])
    };
}
pub(crate) use row;

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

/// Calls a function. Returns its result and its time in seconds.
pub(crate) fn timed<T>(call: impl FnOnce() -> T) -> (T, f64) {
    let begun = Instant::now();
    let result = call();
    (result, begun.elapsed().as_secs_f64())
}

/// Converts seconds to microseconds, rounded to a hundredth.
pub(crate) fn us(seconds: f64) -> Value {
    json!((seconds * 1e8).round() / 100.0)
}
