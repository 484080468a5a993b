//! Explains why policies ran out of memory, once for all policies that stopped at the same request.

use crate::terminal::{bold, dim, red};
use crate::text::{counted, item, number, short, size, wrap};
use millpond_replay::{Failure, PolicyResult, Report, tag_frames};

/// The most frames of a stack that are shown.
const FRAMES: usize = 6;

/// The most holders that are shown for each of several failures. A single failure shows all.
const HOLDERS: usize = 4;

/// Returns the failures of a report as text. It is empty if there are none.
pub(crate) fn text(report: &Report, width: usize) -> String {
    let mut groups: Vec<(&Failure, Vec<&PolicyResult>)> = Vec::new();
    for result in &report.results {
        let Some(failure) = &result.first_failure else {
            continue;
        };
        let same = |other: &Failure| other.event == failure.event && other.held_bytes == failure.held_bytes;
        match groups.iter_mut().find(|(other, _)| same(other)) {
            Some((_, results)) => results.push(result),
            None => groups.push((failure, vec![result])),
        }
    }
    groups.sort_by_key(|(failure, _)| failure.event.map_or(0, |event| u64::from(event) + 1));
    let most = if groups.len() > 1 { HOLDERS } else { usize::MAX };
    let told = groups
        .iter()
        .map(|(failure, results)| group(failure, results, most, width));
    told.collect()
}

fn group(failure: &Failure, results: &[&PolicyResult], most: usize, width: usize) -> String {
    let place = match failure.event {
        Some(event) => format!("at event {}", number(u64::from(event))),
        None => "before the first event".to_owned(),
    };
    let asked = format!(
        "{} asked for on stream {:#x}",
        size(failure.bytes),
        failure.stream
    );
    let asked = asked.replace("0x0", "0 (the default)");
    let mut out = format!("\n{} {place}: {asked}\n", red("Out of memory"));
    for line in where_from(&failure.tag) {
        out.push_str(&format!("  {}\n", short(&line, width.saturating_sub(2))));
    }
    if failure.holders.is_empty() {
        out.push_str("  the program held nothing yet\n");
    } else {
        out.push_str(&format!(
            "  held by the program: {}; the largest groups:\n",
            bold(&size(failure.held_bytes))
        ));
    }
    for holder in failure.holders.iter().take(most) {
        let line = format!(
            "    {:>9}  {:>13}  {}",
            size(holder.bytes),
            counted(holder.blocks, "block"),
            holder.tag
        );
        out.push_str(&format!("{}\n", short(&line, width)));
    }
    for result in results {
        let Some(failure) = &result.first_failure else {
            continue;
        };
        let free = if failure.free_bytes == u64::MAX {
            "no limit".to_owned()
        } else {
            size(failure.free_bytes)
        };
        let state = format!(
            "{free} free on the device, {} cached, largest hole {}",
            size(failure.cached_bytes),
            size(failure.largest_hole_bytes)
        );
        let state =
            wrap(&format!("{}: {state}", result.policy), width.saturating_sub(2), 2).replace('\n', "\n  ");
        out.push_str(&format!(
            "  {}\n",
            state.replacen(&result.policy, &bold(&result.policy), 1)
        ));
        out.push_str(&format!(
            "    {}\n",
            item(&dim("→"), &failure.remedy, width.saturating_sub(4)).replace('\n', "\n    ")
        ));
    }
    out
}

/// Returns the tag of an allocation on a few lines: the labels, then the innermost frames.
fn where_from(tag: &str) -> Vec<String> {
    if tag.is_empty() {
        return vec!["(the recording has no tag for it)".to_owned()];
    }
    let (labels, frames) = match tag.rsplit_once(';') {
        Some((labels, frames)) => (labels, frames),
        None => ("", tag),
    };
    let labels: Vec<&str> = labels.split(';').filter(|label| !label.is_empty()).collect();
    let mut lines = Vec::new();
    if !labels.is_empty() {
        lines.push(format!("in {}", labels.join("; ")));
    }
    let frames: Vec<&str> = tag_frames(frames).filter(|frame| !frame.is_empty()).collect();
    lines.extend(frames.iter().take(FRAMES).map(|frame| format!("at {frame}")));
    if frames.len() > FRAMES {
        lines.push(format!("   … {} more frames", frames.len() - FRAMES));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_both_kinds_are_readable() {
        assert_eq!(
            where_from("forward;layers.3.mlp;mm;models.py:forward:80<train.py:step:9"),
            [
                "in forward; layers.3.mlp; mm",
                "at models.py:forward:80",
                "at train.py:step:9"
            ]
        );
        assert_eq!(where_from("a.py:f:1<b.py:g:2"), ["at a.py:f:1", "at b.py:g:2"]);
        assert_eq!(
            where_from("w.py:<lambda>:1<b.py:g:2"),
            ["at w.py:<lambda>:1", "at b.py:g:2"]
        );
        assert_eq!(where_from("init;;empty;"), ["in init; empty"]);
        assert_eq!(where_from(""), ["(the recording has no tag for it)"]);
    }
}
