//! `millpond doctor`: reports the memory features of this machine, and how to enable missing ones.

mod cuda;
mod host;

use crate::args::DoctorArgs;
use crate::exit::{CliError, Exit};
use crate::text::wrap;
use crate::{output, terminal};
use serde::Serialize;
use std::path::Path;

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// The state of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// The feature is available.
    Good,
    /// The feature is available, but less than some programs need.
    Limited,
    /// The feature is missing.
    Missing,
    /// The system does not report it.
    Unknown,
}

/// The result of one check.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// The name of the feature.
    topic: &'static str,
    state: State,
    /// The observed state.
    found: String,
    /// The use of the feature, and how to get more of it. `None` if nothing needs to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn new(topic: &'static str, state: State, found: impl Into<String>) -> Self {
        Self {
            topic,
            state,
            found: found.into(),
            advice: None,
        }
    }

    fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

#[derive(Serialize)]
struct Report {
    schema: u32,
    host: Vec<Finding>,
    cuda: Vec<Finding>,
}

/// Runs the command.
pub(crate) fn command(args: &DoctorArgs) -> Result<Exit, CliError> {
    let report = Report {
        schema: SCHEMA,
        host: host::findings(Path::new("/")),
        cuda: cuda::findings(),
    };
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&render(&report, terminal::width()))?;
    }
    Ok(Exit::Done)
}

fn render(report: &Report, width: usize) -> String {
    let groups = [("This machine's memory", &report.host), ("CUDA", &report.cuda)];
    let topics = groups.iter().flat_map(|(_, findings)| findings.iter());
    let widest = topics.map(|finding| finding.topic.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (head, findings) in groups {
        if !out.is_empty() {
            out.push('\n');
        }
        out += &format!("{}\n", terminal::bold(head));
        for finding in findings {
            out += &line(finding, widest, width);
        }
    }
    out
}

fn line(finding: &Finding, widest: usize, width: usize) -> String {
    let mark = match finding.state {
        State::Good => terminal::green("ok     "),
        State::Limited => terminal::yellow("limited"),
        State::Missing => terminal::yellow("missing"),
        State::Unknown => terminal::dim("unknown"),
    };
    let indent = 2 + 7 + 2 + widest + 2;
    let mut out = format!(
        "  {mark}  {:widest$}  {}\n",
        finding.topic,
        wrap(&finding.found, width, indent).trim_start()
    );
    if let Some(advice) = &finding.advice {
        let blank = " ".repeat(indent);
        let advice = wrap(advice, width, indent);
        out += &format!("{blank}{}\n", terminal::dim(advice.trim_start()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_is_a_line_with_its_advice_below() {
        let report = Report {
            schema: SCHEMA,
            host: vec![
                Finding::new("pinned", State::Limited, "8.00 MiB can be locked").advise("raise it"),
                Finding::new("nodes", State::Good, "1"),
            ],
            cuda: vec![Finding::new("driver", State::Missing, "no driver")],
        };
        let text = render(&report, 80);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "This machine's memory",
                "  limited  pinned  8.00 MiB can be locked",
                "                   raise it",
                "  ok       nodes   1",
                "",
                "CUDA",
                "  missing  driver  no driver",
            ]
        );
    }
}
