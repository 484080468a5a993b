//! Explains why memory ran out: in full for the recorded program or the policy in use, and in one line for each other policy.

use crate::edits;
use crate::terminal::{bold, dim, green, red};
use crate::text::{self, counted, duration_us, item, number, short, size, wrap};
use millpond_replay::analysis::NO_STACK;
use millpond_replay::{
    AppliedEdit, CacheState, Holder, OomOrigin, OutOfMemory, RefusedRequest, Remedy, RemedyKind, Report,
    tag_frames,
};

/// The name of the group of blocks without a tag.
const NO_TAG: &str = "(no tag)";

/// The column at which values begin.
const VALUES: usize = 15;

/// The most frames of a stack that are shown.
const FRAMES: usize = 6;

/// The most groups that are shown of each list.
const HOLDERS: usize = 6;

/// The most groups that are listed by age.
const OLDEST: usize = 3;

/// Returns the explanation of an out-of-memory event: two or three sentences, then a table of the figures. `applied` are the edits that
/// the program went through before.
pub(crate) fn text(oom: &OutOfMemory, applied: &[AppliedEdit], width: usize) -> String {
    let mut out = String::new();
    for (at, sentence) in oom.sentences().iter().enumerate() {
        let line = wrap(sentence, width, 0);
        out.push_str(&if at == 0 { red(&line).to_string() } else { line });
        out.push('\n');
    }
    out.push('\n');
    let mut facts = Facts { out, width };
    facts.request(&oom.request);
    if let Some(first) = &oom.first {
        facts.line("first", &format!("{}, {}", size(first.bytes), place(first)));
    }
    if let Some(error) = &oom.error {
        for (at, line) in error.lines().enumerate() {
            facts.line(if at == 0 { "error" } else { "" }, line);
        }
    }
    facts.device(oom);
    facts.cache(oom);
    facts.holders(oom);
    facts.remedies(&oom.remedies, applied);
    facts.out
}

/// Returns a line for each other policy of a report that ran out of memory.
pub(crate) fn others(report: &Report, width: usize) -> String {
    let explained = report.out_of_memory.as_ref();
    let is_explained =
        |policy: &str| explained.is_some_and(|oom| oom.origin == OomOrigin::Replayed && oom.policy == policy);
    let mut out = String::new();
    for result in &report.results {
        let Some(failure) = result
            .first_failure
            .as_ref()
            .filter(|_| !is_explained(&result.policy))
        else {
            continue;
        };
        let place = match failure.event {
            Some(event) => format!("at event {}", number(u64::from(event))),
            None => "before the first event".to_owned(),
        };
        let line = format!(
            "{} runs out of memory {place}, at a request of {}: {}",
            result.policy,
            size(failure.bytes),
            failure.why
        );
        out.push_str(&format!("{}\n", item(&red("✗"), &line, width)));
    }
    out
}

/// Returns the place of a request in the recording.
pub(crate) fn place(request: &RefusedRequest) -> String {
    let event = match request.event {
        Some(event) => format!("event {}", number(u64::from(event))),
        None => "before the first event".to_owned(),
    };
    match request.time_us {
        Some(us) => format!("{event}, {} in", duration_us(us as f64)),
        None => event,
    }
}

/// Lines that consist of a name and a value.
struct Facts {
    out: String,
    width: usize,
}

impl Facts {
    fn line(&mut self, name: &str, value: &str) {
        self.out.push_str(&text::fact(name, value, VALUES, self.width));
    }

    /// Adds a line that is cut and not wrapped. Only the first line of a table has a name.
    fn row(&mut self, name: &str, value: &str) {
        let room = self.width.saturating_sub(VALUES).max(20);
        self.out.push_str(&format!(
            "  {name:<names$}{}\n",
            short(value, room),
            names = VALUES - 2
        ));
    }

    fn request(&mut self, request: &RefusedRequest) {
        let stream = match request.stream {
            0 => "the default stream".to_owned(),
            handle => format!("stream {handle:#x}"),
        };
        let pool = request
            .pool
            .map_or_else(String::new, |(a, b)| format!(", private pool ({a}, {b})"));
        self.line(
            "request",
            &format!("{} on {stream}{pool}", bold(&size(request.bytes))),
        );
        for line in where_from(&request.tag) {
            self.row("", &line);
        }
    }

    fn device(&mut self, oom: &OutOfMemory) {
        let free = oom.device_free_bytes.map(|free| format!("{} free", size(free)));
        let value = match (oom.device_bytes, free) {
            (Some(bytes), Some(free)) => format!("{free} of the {} that the program could have", size(bytes)),
            (Some(bytes), None) => format!("at least {} that the program could have", size(bytes)),
            (None, Some(free)) => free,
            (None, None) => return,
        };
        self.line("device", &value);
        if let Some(others) = oom.others_bytes.filter(|others| *others > 0) {
            let value = format!(
                "{} of the device named, by other processes, libraries or contexts",
                size(others)
            );
            self.line("held outside", &value);
        }
    }

    fn cache(&mut self, oom: &OutOfMemory) {
        let Some(after) = oom.after.as_ref().filter(|after| after.reserved_bytes > 0) else {
            return;
        };
        if let Some(before) = oom
            .before
            .as_ref()
            .filter(|before| before.reserved_bytes > after.reserved_bytes)
        {
            let given = before.reserved_bytes - after.reserved_bytes;
            self.line(
                "cache before",
                &format!("{}; {} of it were given back", cached(before), size(given)),
            );
        }
        self.line("cache", &cached(after));
        let classes = after.by_size.iter().rev().map(|class| {
            let size = match class.from_bytes >> 20 {
                0 => "under 1 MiB".to_owned(),
                from @ ..256 => format!("of {from} to {} MiB", 4 * from),
                256 => "of 256 MiB to 1 GiB".to_owned(),
                _ => "over 1 GiB".to_owned(),
            };
            format!("{} {size}", number(class.holes))
        });
        if after.by_size.len() > 1 {
            self.line("holes", &classes.collect::<Vec<_>>().join(", "));
        }
        let mut lost = Vec::new();
        if after.waiting_bytes > 0 {
            lost.push(format!("{} waiting for streams", size(after.waiting_bytes)));
        }
        if after.rounding_bytes > 0 {
            lost.push(format!("{} lost to rounding", size(after.rounding_bytes)));
        }
        if !lost.is_empty() {
            self.line("not usable", &lost.join(", "));
        }
    }

    fn holders(&mut self, oom: &OutOfMemory) {
        if oom.held_blocks == 0 {
            self.line("held", "nothing yet");
            return;
        }
        self.line(
            "held",
            &format!(
                "{} in {}",
                bold(&size(oom.held_bytes)),
                counted(oom.held_blocks, "block")
            ),
        );
        let mut list = |name: &str, groups: &[Holder]| {
            for (at, holder) in groups.iter().take(HOLDERS).enumerate() {
                self.row(if at == 0 { name } else { "" }, &row(holder));
            }
        };
        let names = |groups: &[Holder]| groups.iter().map(|holder| holder.tag.clone()).collect::<Vec<_>>();
        let (tags, sites) = (names(&oom.holders), names(&oom.sites));
        // A table with one row, for blocks without a tag or a stack, tells nothing.
        let has_sites = sites != tags && sites != [NO_STACK];
        if tags != [NO_TAG] || !has_sites {
            list("by tag", &oom.holders);
        }
        if has_sites {
            list("by site", &oom.sites);
        }
        let oldest = &oom.oldest[..oom.oldest.len().min(OLDEST)];
        if !tags.starts_with(&names(oldest)) {
            list("oldest", oldest);
        }
    }

    fn remedies(&mut self, remedies: &[Remedy], applied: &[AppliedEdit]) {
        let change = match applied {
            [] => "a change of the program",
            _ => "one more change of the program",
        };
        let mut last = None;
        for remedy in remedies {
            // The variable is named once for all of its settings.
            let (head, text) = match remedy.kind {
                RemedyKind::Policy => ("another allocator", remedy.text.as_str()),
                RemedyKind::Change => (change, remedy.text.as_str()),
                _ => remedy.text.split_once('=').unwrap_or(("a setting", &remedy.text)),
            };
            if last != Some(head) {
                let name = if last.is_none() { "would serve" } else { "" };
                self.line(name, head);
                last = Some(head);
            }
            let spare = format!("{:>9} unused", size(remedy.spare_bytes));
            self.row("", &format!("{spare}  {}", green(text)));
            if !remedy.edits.is_empty() {
                // Users paste this text, so it is not cut.
                let edits = remedy.edits.iter().map(String::as_str);
                self.line("", &edits::flags(applied, edits));
            }
        }
    }
}

/// Describes the memory that an allocator has reserved and does not use.
fn cached(state: &CacheState) -> String {
    format!(
        "{} reserved; {} free in {}, largest {}",
        size(state.reserved_bytes),
        size(state.free_bytes),
        counted(state.holes, "hole"),
        size(state.largest_hole_bytes)
    )
}

/// Returns the line of a group.
fn row(holder: &Holder) -> String {
    let age = match (holder.oldest_steps, holder.oldest_us) {
        (Some(steps), _) if steps > 0 => format!("for {}", counted(steps, "step")),
        (_, Some(us)) => format!("for {}", duration_us(us as f64)),
        (Some(_), None) => "in this step".to_owned(),
        (None, None) => String::new(),
    };
    let blocks = counted(holder.blocks, "block");
    format!(
        "{:>9}  {blocks:>13}  {}  {}",
        size(holder.bytes),
        dim(&format!("{age:<12}")),
        holder.tag
    )
}

/// Returns the tag of an allocation on a few lines: the labels, then the innermost frames.
pub(crate) fn where_from(tag: &str) -> Vec<String> {
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
    // Python frames are lines of the program. Frames of the libraries below it, and of the command that runs it, are only counted.
    let of_program: Vec<&str> = frames
        .iter()
        .copied()
        .filter(|frame| frame.contains(".py:") && !frame.starts_with("millpond/__main__.py:"))
        .collect();
    let told = if of_program.is_empty() {
        &frames
    } else {
        &of_program
    };
    lines.extend(told.iter().take(FRAMES).map(|frame| format!("at {frame}")));
    let left = frames.len() - told.len().min(FRAMES);
    if left > 0 {
        lines.push(format!("   … {}", counted(left as u64, "more frame")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_program_come_before_those_of_libraries() {
        assert_eq!(
            where_from("at::empty<x.cpp:at::add<optimizer.py:step:78<train.py:run:54"),
            [
                "at optimizer.py:step:78",
                "at train.py:run:54",
                "   … 2 more frames"
            ]
        );
    }

    #[test]
    fn the_command_that_runs_a_program_is_not_shown() {
        assert_eq!(
            where_from("train.py:load:5<millpond/__main__.py:run:54<millpond/__main__.py:main:20"),
            ["at train.py:load:5", "   … 2 more frames"]
        );
    }

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
