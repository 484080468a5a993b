//! Prints whole stacks below the rows of a table.

use crate::terminal::{dim, width};
use crate::text::{counted, short, size, wrap};
use millpond_trace::{is_plumbing, tag_site};

/// The columns before a frame.
const INDENT: usize = 6;

/// Adds the stack of each group below its row. `drawn` is a table with one line for each row at its end, and `names` are the
/// names of its first rows.
pub(crate) fn below_rows<'a>(drawn: &str, rows: usize, names: impl Iterator<Item = &'a str>) -> String {
    let first = drawn.lines().count().saturating_sub(rows);
    let mut names = names.fuse();
    let mut out = String::new();
    for (index, line) in drawn.lines().enumerate() {
        out.push_str(line);
        out.push('\n');
        if index >= first
            && let Some(name) = names.next()
            && name.contains('\n')
        {
            out.push_str(&lines(name));
        }
    }
    out
}

/// Returns the frames of a stack on one line each, the innermost first. `stack` is the name of a group, which has a frame on
/// each line. Equal neighbours are one line. Frames that frameworks put around every call are counted.
pub(crate) fn lines(stack: &str) -> String {
    let mut out = String::new();
    let mut around = 0;
    let indent = " ".repeat(INDENT);
    let fold = |out: &mut String, around: &mut u64| {
        if *around > 0 {
            let line = format!("… {} around a call", counted(*around, "frame"));
            out.push_str(&format!("{indent}{}\n", dim(&line)));
        }
        *around = 0;
    };
    let mut before = "";
    for frame in stack.lines() {
        // Overloads of a native function call each other.
        if std::mem::replace(&mut before, frame) == frame {
            continue;
        }
        if is_around(frame) {
            around += 1;
            continue;
        }
        fold(&mut out, &mut around);
        let room = width().saturating_sub(INDENT).max(20);
        out.push_str(&format!("{indent}{}\n", short(frame, room)));
    }
    fold(&mut out, &mut around);
    out
}

/// Returns a sentence for a table in which one stack represents `bytes` bytes.
pub(crate) fn sampling(bytes: u64) -> String {
    let sentence = format!(
        "Estimated from samples: one block for each {} has a stack. `millpond run --stacks all`, or `stacks=all` in \
         MILLPOND_RECORD, records all stacks.",
        size(bytes)
    );
    format!("  {}", wrap(&sentence, width().saturating_sub(2), 2))
}

/// Returns the frame that a person recognises most easily, for places with room for one line.
pub(crate) fn head(stack: &str) -> String {
    let (innermost, rest) = stack.split_once('\n').unwrap_or((stack, ""));
    let text = stack.replace('\n', "<");
    let site = if text.contains(".py:") {
        tag_site(&text)
    } else {
        innermost
    };
    match rest.lines().count() as u64 {
        0 => stack.to_owned(),
        others => format!("{site} and {}", counted(others, "frame")),
    }
}

fn is_around(frame: &str) -> bool {
    let Some((file, rest)) = frame.split_once(':') else {
        return false;
    };
    is_plumbing(file, rest.rsplit_once(':').map_or(rest, |(function, _)| function))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_around_every_call_are_counted() {
        let stack = "at::mul\nat::mul\nm.py:forward:7\ntorch/nn/modules/module.py:_call_impl:1\n\
                     torch/nn/modules/module.py:_wrapped_call_impl:2\nm.py:main:9";
        assert_eq!(
            lines(stack).lines().map(str::trim).collect::<Vec<_>>(),
            [
                "at::mul",
                "m.py:forward:7",
                "… 2 frames around a call",
                "m.py:main:9"
            ]
        );
        assert_eq!(head(stack), "m.py:forward:7 and 5 frames");
        assert_eq!(head("(no stack recorded)"), "(no stack recorded)");
    }
}
