//! The results of the steps, as JSON and as tables.

use super::Session;
use super::child::Program;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Failed,
    NoTime,
}

impl Outcome {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "FAILED",
            Self::NoTime => "no time left",
        }
    }
}

/// A table with headings.
#[derive(Debug, Default)]
struct Table {
    name: String,
    columns: Vec<String>,
    rows: Vec<Vec<Value>>,
}

/// An assumption of the library, and whether it holds.
#[derive(Debug)]
struct Check {
    what: String,
    holds: bool,
    seen: String,
}

/// The result of a step.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) number: u32,
    pub(super) name: &'static str,
    pub(super) outcome: Outcome,
    pub(super) seconds: f64,
    tables: Vec<Table>,
    checks: Vec<Check>,
    notes: Vec<String>,
    troubles: Vec<String>,
    files: Vec<(String, String)>,
    device: Option<Value>,
    /// JSON values that the step adds to the result, by name.
    answers: Vec<(String, Value)>,
}

impl Step {
    pub(super) fn new(number: u32, name: &'static str) -> Self {
        Self {
            number,
            name,
            outcome: Outcome::Done,
            seconds: 0.0,
            tables: Vec::new(),
            checks: Vec::new(),
            notes: Vec::new(),
            troubles: Vec::new(),
            files: Vec::new(),
            device: None,
            answers: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, text: &str) {
        if self.notes.iter().all(|note| note != text) {
            self.notes.push(text.to_owned());
        }
    }

    /// Records something that did not work, and marks the step as failed.
    pub(super) fn trouble(&mut self, text: String) {
        self.troubles.push(text);
        self.outcome = Outcome::Failed;
    }

    pub(super) fn check(&mut self, what: &str, holds: bool, seen: String) {
        self.checks.push(Check {
            what: what.to_owned(),
            holds,
            seen,
        });
    }

    pub(super) fn table(&mut self, name: &str, columns: &[&str]) {
        if self.tables.iter().all(|table| table.name != name) {
            self.tables.push(Table {
                name: name.to_owned(),
                columns: columns.iter().map(|column| (*column).to_owned()).collect(),
                rows: Vec::new(),
            });
        }
    }

    pub(super) fn row(&mut self, table: &str, cells: Vec<Value>) {
        if let Some(table) = self.tables.iter_mut().find(|found| found.name == table) {
            table.rows.push(cells);
        }
    }

    /// Returns the number of rows of a table.
    pub(super) fn rows(&self, table: &str) -> usize {
        let tables = self.tables.iter().filter(|found| found.name == table);
        tables.map(|found| found.rows.len()).sum()
    }

    pub(super) fn file(&mut self, name: &str, text: &str) {
        self.files.push((name.to_owned(), text.to_owned()));
    }

    pub(super) fn answer(&mut self, name: &str, value: Value) {
        self.answers.push((name.to_owned(), value));
    }

    pub(super) fn failed_checks(&self) -> impl Iterator<Item = String> {
        let failed = self.checks.iter().filter(|check| !check.holds);
        failed.map(|check| format!("{}: {}", check.what, check.seen))
    }

    /// Adds a line that a probe printed to the step. A line that is not JSON becomes a note.
    pub(super) fn take(&mut self, line: &str) {
        let Ok(value) = serde_json::from_str::<Value>(line) else {
            self.note(line);
            return;
        };
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        if let Some(columns) = value["columns"].as_array() {
            let columns: Vec<&str> = columns.iter().filter_map(Value::as_str).collect();
            self.table(&text("table"), &columns);
        } else if let Some(cells) = value["row"].as_array() {
            self.row(&text("of"), cells.clone());
        } else if value["check"].is_string() {
            self.check(&text("check"), value["holds"] == true, text("seen"));
        } else if value["note"].is_string() {
            self.note(&text("note"));
        } else if value["file"].is_string() {
            self.file(&text("file"), &text("text"));
        } else if value["device"].is_object() {
            self.device = Some(value["device"].clone());
        }
    }

    fn json(&self) -> Value {
        let tables: Vec<Value> = self
            .tables
            .iter()
            .map(|table| json!({ "name": table.name, "columns": table.columns, "rows": table.rows }))
            .collect();
        let checks: Vec<Value> = self
            .checks
            .iter()
            .map(|check| json!({ "what": check.what, "holds": check.holds, "seen": check.seen }))
            .collect();
        let answers: serde_json::Map<String, Value> = self.answers.iter().cloned().collect();
        json!({
            "step": self.number,
            "name": self.name,
            "outcome": self.outcome.name(),
            "seconds": (self.seconds * 1e3).round() / 1e3,
            "checks": checks,
            "tables": tables,
            "notes": self.notes,
            "troubles": self.troubles,
            "answers": answers,
        })
    }
}

/// The result of the whole run.
pub(super) struct Report {
    begun: Instant,
    at: u64,
    device: Value,
    machine: Value,
    rehearsal: bool,
    quick: bool,
    steps: Vec<Step>,
}

impl Report {
    /// Begins a report with the facts about the device. Returns an error if there is no device, or if it is emulated and this is not a
    /// rehearsal.
    pub(super) fn begin(session: &Session) -> Result<Self, String> {
        let mut device = Program::new(session, "millpond-card", "device", 60).args([
            "device",
            "--driver",
            &session.driver,
        ]);
        if session.rehearse {
            device = device.args(["--rehearse"]);
        }
        let ran = device.run(session)?;
        if let Some(trouble) = ran.trouble() {
            return Err(trouble);
        }
        let device = serde_json::from_str(&ran.out).map_err(|error| format!("{error}: {}", ran.out))?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Self {
            begun: Instant::now(),
            at: since.map_or(0, |since| since.as_secs()),
            device,
            machine: machine(),
            rehearsal: session.rehearse,
            quick: session.quick,
            steps: Vec::new(),
        })
    }

    /// Returns the version of CUDA that the driver supports, or 0 if it is unknown.
    pub(super) fn cuda(&self) -> u64 {
        self.device["driver_version"].as_u64().unwrap_or(0)
    }

    pub(super) fn add(&mut self, step: Step) {
        self.steps.push(step);
    }

    pub(super) fn is_complete(&self) -> bool {
        self.steps.iter().all(|step| step.outcome == Outcome::Done)
    }

    pub(super) fn write(&self, session: &Session) -> Result<(), String> {
        let put = |name: &str, text: &str| {
            let path = session.out.join(name);
            std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
        };
        put("card.json", &format!("{:#}\n", self.json()))?;
        put("card.md", &self.markdown())?;
        let files = self.steps.iter().flat_map(|step| &step.files);
        // Text files are already part of card.md.
        for (name, text) in files.filter(|(name, _)| !name.ends_with(".txt")) {
            put(name, text)?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        json!({
            "format": 1,
            "rehearsal": self.rehearsal,
            "quick": self.quick,
            "unix_time": self.at,
            "seconds": (self.begun.elapsed().as_secs_f64() * 1e3).round() / 1e3,
            "device": self.device,
            "machine": self.machine,
            "steps": self.steps.iter().map(Step::json).collect::<Vec<_>>(),
        })
    }

    fn markdown(&self) -> String {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mut out = String::new();
        let mut say = |line: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{line}");
        };
        say(&format!("# {}", text(&self.device["name"])));
        say("");
        if self.rehearsal {
            say("**A rehearsal on the emulated driver. Nothing here was measured on a card.**");
            say("");
        }
        say("| what | |");
        say("|---|---|");
        for facts in [&self.device, &self.machine] {
            for (key, value) in facts.as_object().into_iter().flatten() {
                say(&format!("| {} | {} |", key.replace('_', " "), cell(value)));
            }
        }
        say(&format!(
            "| seconds in all | {:.0} |",
            self.begun.elapsed().as_secs_f64()
        ));
        say("\n## Steps\n\n| step | | seconds | |\n|---|---|---:|---|");
        for step in &self.steps {
            let troubles = step.troubles.join("; ").replace('|', "\\|");
            let outcome = step.outcome.name();
            say(&format!(
                "| {} | {} | {:.1} | {outcome} {troubles} |",
                step.number, step.name, step.seconds
            ));
        }
        say("\n## What was assumed\n\n| step | assumption | holds | seen |\n|---|---|---|---|");
        for step in &self.steps {
            for check in &step.checks {
                let holds = if check.holds { "yes" } else { "**no**" };
                let seen = check.seen.replace('|', "\\|");
                say(&format!(
                    "| {} | {} | {holds} | {seen} |",
                    step.number, check.what
                ));
            }
        }
        for step in &self.steps {
            say(&format!("\n## {}. {}", step.number, step.name));
            for note in &step.notes {
                say(&format!("\n{note}"));
            }
            for table in &step.tables {
                say(&format!("\n### {}\n", table.name));
                say(&format!("| {} |", table.columns.join(" | ")));
                say(&format!("|{}", "---|".repeat(table.columns.len())));
                for row in &table.rows {
                    let cells: Vec<String> = row.iter().map(cell).collect();
                    say(&format!("| {} |", cells.join(" | ")));
                }
            }
            for (name, text) in step.files.iter().filter(|(name, _)| name.ends_with(".txt")) {
                say(&format!("\n### {name}\n\n```text\n{}\n```", text.trim_end()));
            }
        }
        out
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.replace('|', "\\|"),
        other => other.to_string(),
    }
}

/// Returns the facts about the machine that are known without running another program.
fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let module = read("/proc/driver/nvidia/version");
    json!({
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "processor": model.map_or("", |model| model.trim_start_matches([' ', '\t', ':'])),
        "threads": std::thread::available_parallelism().map_or(0, usize::from),
        "driver_module": module.lines().next().unwrap_or("").trim(),
    })
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn lines_of_a_probe_become_tables_and_checks() {
        let mut step = Step::new(1, "a step");
        for line in [
            r#"{"table":"calls","columns":["call","answer"]}"#,
            r#"{"row":["cuInit","0"],"of":"calls"}"#,
            r#"{"check":"it holds","holds":false,"seen":"a | b"}"#,
            r#"{"note":"a note"}"#,
            "not JSON",
        ] {
            step.take(line);
        }
        let facts = step.json();
        assert_eq!(facts["tables"][0]["rows"][0][0], "cuInit");
        assert_eq!(facts["checks"][0]["holds"], false);
        assert_eq!(facts["notes"], json!(["a note", "not JSON"]));
        let report = Report {
            begun: Instant::now(),
            at: 0,
            device: json!({ "name": "a card" }),
            machine: json!({}),
            rehearsal: true,
            quick: true,
            steps: vec![step],
        };
        let text = report.markdown();
        assert!(
            text.contains("| cuInit | 0 |") && text.contains("**no** | a \\| b |"),
            "{text}"
        );
        assert!(text.contains("A rehearsal"));
    }
}
