//! Writes the page with the recordings in it, as one self-contained file.
//!
//! The overview comes before the table, so that it is painted while the browser still reads the table.

use super::page::{Served, write};
use super::{MOST_EMBEDDED, WhatIf, WhatIfError, glance, offsets, stacks, told};
use crate::analysis::{AnalysisError, Overview, TableError, TableSize, blocks};
use crate::web::encode::Blob;
use crate::web::{blob, json};
use millpond_trace::export::ExportError;
use millpond_trace::history::{History, HistoryError, Symbols};
use serde_json::Value;
use std::io::{self, Write};

/// A recording to put into a page.
#[derive(Clone, Copy)]
pub struct Embedded<'a> {
    /// Its name.
    pub name: &'a str,
    /// The recording.
    pub history: &'a History,
    /// The overview of it.
    pub overview: &'a Overview,
    /// Resolves its addresses to names.
    pub symbols: &'a dyn Symbols,
    /// The policies under which it is replayed.
    pub policies: &'a [String],
    /// The sentences at the top of the page, from [`answer`](super::answer()).
    pub answer: &'a Value,
}

/// The size of each table in a page.
type Sizes = Vec<TableSize>;

/// Writes the page of some recordings as one file. At most `most` blocks are listed one by one, by default a
/// million. The recordings share this number equally.
///
/// # Errors
/// Returns an error if a recording can no longer be read, or if writing to `out` fails.
pub fn embed(
    recordings: &[Embedded<'_>],
    version: &str,
    most: Option<u64>,
    out: &mut dyn Write,
) -> Result<Sizes, TableError> {
    let names: Vec<String> = recordings.iter().map(|of| of.name.to_owned()).collect();
    let page = Served {
        names: &names,
        version,
        policies: recordings.first().map_or(&[], |of| of.policies),
        offsets: offsets(names.iter().zip(recordings.iter().map(|of| of.history))),
    };
    let most = most.unwrap_or(MOST_EMBEDDED) / (recordings.len() as u64).max(1);
    let mut outcome = Ok(Vec::new());
    write(&page, false, out, |out| {
        outcome = recordings
            .iter()
            .enumerate()
            .map(|(index, of)| recording(index, of, most, out))
            .collect();
        Ok(())
    })?;
    outcome
}

fn recording(
    index: usize,
    of: &Embedded<'_>,
    most: u64,
    out: &mut dyn Write,
) -> Result<TableSize, TableError> {
    json(&format!("answer-{index}"), of.answer, out)?;
    json(&format!("glance-{index}"), &glance(of.history, of.overview), out)?;
    let told = told(of.history, of.symbols).map_err(walked)?;
    json(&format!("told-{index}"), &told, out)?;
    compressed(&format!("stacks-{index}"), &stacks(of.history, of.symbols), out)?;
    for (policy, line) in replayed(of)? {
        compressed(&format!("replay-{policy}-{index}"), &line, out)?;
    }
    write!(
        out,
        "<script type=\"application/octet-stream\" id=\"blocks-{index}\">"
    )?;
    let size = blocks(
        of.history,
        of.symbols,
        of.overview.sizes.keeping(most),
        &mut |part| {
            let mut blob = Blob::default();
            part.iter().for_each(|section| blob.section(section));
            writeln!(out, "{}", blob.base64())
        },
    )?;
    writeln!(out, "</script>")?;
    Ok(size)
}

/// Replays the recording under each of its policies. If it cannot be replayed, the error takes the place of
/// the line.
fn replayed<'a>(of: &Embedded<'a>) -> Result<Vec<(&'a str, Value)>, TableError> {
    if of.policies.is_empty() {
        return Ok(Vec::new());
    }
    let what_if = match WhatIf::new(of.history) {
        Err(WhatIfError::Traces(ExportError::History(error))) => return Err(error.into()),
        other => other,
    };
    let line = |policy: &'a String| {
        let line = match &what_if {
            Ok(what_if) => what_if.under(policy).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let line = line.unwrap_or_else(|why| serde_json::json!({ "policy": policy, "failed": why }));
        (policy.as_str(), line)
    };
    Ok(of.policies.iter().map(line).collect())
}

fn walked(error: AnalysisError) -> TableError {
    match error {
        AnalysisError::History(error) => error.into(),
        AnalysisError::Moment(_) => HistoryError::Changed.into(),
    }
}

fn compressed(id: &str, value: &Value, out: &mut dyn Write) -> io::Result<()> {
    let mut text = Blob::default();
    text.section(value.to_string().as_bytes());
    blob(id, &text, out)
}
