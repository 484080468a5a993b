//! Changes of the recorded program, for commands with `--edit`, and their text.

use crate::exit::CliError;
use crate::terminal::{bold, green, width};
use crate::text::{Unit, counted, item, size, wrap};
use millpond_engine::display_size_up;
use millpond_replay::{AppliedEdit, Edit, Edited, Proposal, apply_edits};
use millpond_trace::Trace;

/// Reads the text of an edit for the command line.
pub(crate) fn parse(text: &str) -> Result<Edit, String> {
    text.parse()
        .map_err(|error: millpond_replay::EditError| error.to_string())
}

/// Applies the edits, if there are any.
pub(crate) fn apply(trace: &Trace, edits: &[Edit]) -> Result<Option<Edited>, CliError> {
    if edits.is_empty() {
        return Ok(None);
    }
    Ok(Some(apply_edits(trace, edits)?))
}

/// Returns what each edit did and what it assumes. Every line ends with a newline.
pub(crate) fn text(edits: &[AppliedEdit]) -> String {
    let columns = width();
    let mut out = String::new();
    for edit in edits {
        let head = format!(
            "edited: {}: {} changed{}",
            edit.edit,
            counted(edit.changed_blocks, "block"),
            moved(edit)
        );
        out.push_str(&format!("{}\n", bold(&wrap(&head, columns, 2))));
        for sentence in &edit.assumes {
            out.push_str(&format!("{}\n", item(" ", sentence, columns)));
        }
    }
    out
}

fn moved(edit: &AppliedEdit) -> String {
    edit.moved_bytes_per_step
        .map_or_else(String::new, |bytes| format!(", {} moved per step", size(bytes)))
}

/// Returns a sentence about the first proposal. Returns `None` if there is none.
pub(crate) fn best(proposals: &[Proposal]) -> Option<String> {
    let first = proposals.first()?;
    let also = match first.best_needs_bytes < first.needs_bytes && !first.best_conf.is_empty() {
        true => format!(" and {}", first.best_conf),
        false => String::new(),
    };
    Some(format!(
        "A change of the program saves more: with {}{also}, it needs {}.",
        first.words(),
        display_size_up(first.best_needs_bytes)
    ))
}

/// Returns the proposals as a list. Empty if there are none. `applied` are the edits that the program went through before.
pub(crate) fn proposals(proposals: &[Proposal], applied: &[AppliedEdit], limited: bool) -> String {
    let Some(first) = proposals.first() else {
        return String::new();
    };
    let columns = width();
    let unit = Unit::for_largest(first.unchanged_bytes);
    let with = match first.best_conf.as_str() {
        "" => String::new(),
        conf => format!(" with {conf}"),
    };
    let head = format!(
        "Memory needed{with} after a change. Each line is a replay; `millpond replay --edit` tries others:"
    );
    let mut out = format!("\n{}\n\n", wrap(&head, columns, 0));
    for proposal in proposals {
        let after = unit.show_needed(proposal.best_needs_bytes);
        let best = match proposal.best_needs_bytes < proposal.needs_bytes {
            true => format!(", {} without that setting", display_size_up(proposal.needs_bytes)),
            false => String::new(),
        };
        let fits = if limited && !proposal.fits {
            ", still too much"
        } else {
            ""
        };
        let moved: String = proposal.edits.iter().map(moved).collect();
        let line = format!("{}{best}{moved}{fits}", proposal.words());
        out.push_str(&format!(
            "{}\n",
            item(&bold(&format!("{after:>10}")), &line, columns)
        ));
        let flags = flags(applied, proposal.edits.iter().map(|edit| edit.edit.as_str()));
        out.push_str(&format!("{}\n", item(&format!("{:10}", ""), &flags, columns)));
    }
    out.push('\n');
    for edit in &first.edits {
        let kind = edit.edit.split('=').next().unwrap_or_default();
        let assumed = format!("{kind} assumes: {}", edit.assumes.join(" "));
        out.push_str(&format!("{}\n", item(&green("→"), &assumed, columns)));
    }
    out
}

/// Returns edits as they are written on a command line, after those that were applied before.
pub(crate) fn flags<'a>(applied: &'a [AppliedEdit], edits: impl Iterator<Item = &'a str>) -> String {
    let applied = applied.iter().map(|edit| edit.edit.as_str());
    let flags: Vec<String> = applied
        .chain(edits)
        .map(|edit| format!("--edit '{}'", edit.replace('\'', r"'\''")))
        .collect();
    flags.join(" ")
}
