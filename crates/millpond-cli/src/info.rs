//! `millpond info`: prints the contents of recordings.

use crate::args::InfoArgs;
use crate::exit::{CliError, Exit, complain};
use crate::facts::{DeviceFacts, FileFacts, History, PoolFacts, gather, total};
use crate::progress::Work;
use crate::state::State;
use crate::table::{Align, Grid};
use crate::terminal::{bold, width, yellow};
use crate::text::{self, Unit, counted, duration_us, item, number, short, size, wrap};
use crate::{failure, files, output};
use millpond_replay::RefusedRequest;

/// The most streams that are listed. The others are counted.
const STREAMS: usize = 6;

/// Runs the command.
pub(crate) fn command(args: &InfoArgs) -> Result<Exit, CliError> {
    let paths = files::expand(&args.files)?;
    let mut all = Vec::new();
    let mut failed = 0;
    for path in &paths {
        match files::load(path, &Work::new(args.quiet)) {
            Ok(recording) => all.push(gather(&recording, std::fs::metadata(path).ok().map(|m| m.len()))),
            Err(error) if paths.len() == 1 => return Err(error),
            Err(error) => {
                failed += 1;
                complain(&error);
            }
        }
    }
    match args.json {
        true => output::print_json_list(&all)?,
        false => output::print(&all.iter().map(text).collect::<Vec<_>>().join("\n"))?,
    }
    match failed {
        0 => Ok(Exit::Done),
        some => Err(CliError::Usage(format!(
            "{some} of {} files could not be read",
            paths.len()
        ))),
    }
}

/// The column at which values begin.
const VALUES: usize = 18;

fn fact(out: &mut String, name: &str, value: &str) {
    out.push_str(&text::fact(name, value, VALUES, width()));
}

fn text(facts: &FileFacts) -> String {
    let mut out = format!("{}\n", bold(&facts.name));
    let bytes = facts
        .file_bytes
        .map_or_else(String::new, |bytes| format!(", {}", size(bytes)));
    fact(&mut out, "format", &format!("{}{bytes}", facts.format));
    for (key, value) in &facts.header {
        fact(&mut out, &short(key, VALUES - 4), value);
    }
    let settings: Vec<String> = facts
        .settings
        .iter()
        .map(|(key, value)| format!("{key} {value}"))
        .collect();
    fact(
        &mut out,
        "settings",
        if settings.is_empty() {
            "not recorded".to_owned()
        } else {
            settings.join("; ")
        }
        .as_str(),
    );
    for device in &facts.devices {
        out.push_str(&device_text(device));
    }
    for missing in &facts.missing {
        out.push_str(&format!(
            "  {}\n",
            item(&yellow("!"), missing, width().saturating_sub(2)).replace('\n', "\n  ")
        ));
    }
    if !facts.replayable {
        let hint = "There is no history to replay: call torch.cuda.memory._record_memory_history() before the next dump.";
        out.push_str(&format!(
            "  {}\n",
            wrap(hint, width().saturating_sub(2), 0).replace('\n', "\n  ")
        ));
    }
    out
}

fn device_text(facts: &DeviceFacts) -> String {
    let name = match facts.device {
        -1 => "host".to_owned(),
        device => format!("device {device}"),
    };
    let mut out = format!("\n{}\n", bold(&name));
    match &facts.history {
        Some(history) => history_text(&mut out, history),
        None => fact(&mut out, "history", "none"),
    }
    if !facts.state.is_empty() {
        out.push_str("\n  when the snapshot was written\n");
        out.push_str(&state_text(facts));
    }
    for (name, value) in facts.segments.iter().flat_map(State::facts) {
        fact(&mut out, name, &value);
    }
    for missing in &facts.missing {
        out.push_str(&format!(
            "  {}\n",
            item(&yellow("!"), missing, width().saturating_sub(2)).replace('\n', "\n  ")
        ));
    }
    out
}

fn history_text(out: &mut String, history: &History) {
    let kinds: Vec<String> = history
        .events_by_kind
        .iter()
        .map(|(kind, count)| format!("{} {}", number(*count), of_kind(kind, *count)))
        .collect();
    fact(
        out,
        "events",
        &format!("{}: {}", number(history.events), kinds.join(", ")),
    );
    let span = history
        .time_span_us
        .map_or_else(|| "not recorded".to_owned(), |us| duration_us(us as f64));
    fact(out, "time span", &span);
    let mut streams: Vec<String> = history
        .streams
        .iter()
        .take(STREAMS)
        .map(|s| format!("{s:#x}"))
        .collect();
    if history.streams.len() > STREAMS {
        streams.push(format!("{} more", history.streams.len() - STREAMS));
    }
    fact(
        out,
        "streams",
        &format!("{} ({})", history.streams.len(), streams.join(", ")),
    );
    if history.private_pools > 0 {
        fact(out, "private pools", &number(history.private_pools));
    }
    let groups = counted(history.tag_groups, "group");
    fact(out, "tags", &format!("{}, in {groups}", number(history.tags)));
    if history.initial_segments + history.initial_blocks > 0 {
        let before = format!(
            "{} in {}, {} in {}; a replay allocates these blocks first",
            counted(history.initial_segments, "segment"),
            size(history.initial_segment_bytes),
            counted(history.initial_blocks, "block"),
            size(history.initial_block_bytes)
        );
        fact(out, "before it", &before);
    }
    out_of_memory(out, &history.out_of_memory);
    let mut peak = size(history.peak_requested_bytes);
    if let Some(event) = history.peak_event {
        peak.push_str(&format!(" at event {}", number(event)));
    }
    if let Some(us) = history.peak_time_us {
        peak.push_str(&format!(", {} after the first", duration_us(us as f64)));
    }
    fact(out, "peak requested", &peak);
    for (index, (tag, bytes)) in history.peak_holders.iter().enumerate() {
        let line = short(
            &format!("{:>9}  {tag}", size(*bytes)),
            width().saturating_sub(VALUES),
        );
        out.push_str(&format!(
            "  {:<w$}{line}\n",
            if index == 0 { "held by" } else { "" },
            w = VALUES - 2
        ));
    }
    if let Some(bytes) = history.recorded_peak_reserved_bytes {
        fact(
            out,
            "peak reserved",
            &format!("{} by the recorded allocator", size(bytes)),
        );
    }
    let end = format!(
        "{} in {}",
        size(history.held_at_end_bytes),
        counted(history.held_at_end_blocks, "block")
    );
    fact(out, "held at the end", &end);
}

/// Adds the requests that were refused, each with its innermost frames.
fn out_of_memory(out: &mut String, refused: &[RefusedRequest]) {
    let room = width().saturating_sub(VALUES);
    for (at, request) in refused.iter().enumerate() {
        let name = if at == 0 { "out of memory" } else { "" };
        fact(
            out,
            name,
            &format!("{} at {}", size(request.bytes), failure::place(request)),
        );
        for line in failure::where_from(&request.tag) {
            out.push_str(&format!("{}{}\n", " ".repeat(VALUES), short(&line, room)));
        }
    }
}

/// Returns the name of a kind of events for this count. The name is in the plural, and the singular is used for a count of 1.
fn of_kind(kind: &str, count: u64) -> String {
    let (noun, rest) = kind.split_once(' ').unwrap_or((kind, ""));
    match noun.strip_suffix('s').filter(|_| count == 1) {
        Some(one) => format!("{one} {rest}").trim_end().to_owned(),
        None => kind.to_owned(),
    }
}

fn state_text(facts: &DeviceFacts) -> String {
    let unit = Unit::for_largest(
        facts
            .state
            .iter()
            .map(|pool| pool.reserved_bytes)
            .max()
            .unwrap_or(0),
    );
    let mut grid = Grid::new();
    let total = PoolFacts {
        pool: "together".to_owned(),
        segments: total(facts.state.iter().map(|p| p.segments)),
        blocks: total(facts.state.iter().map(|p| p.blocks)),
        pending_blocks: total(facts.state.iter().map(|p| p.pending_blocks)),
        requested_bytes: total(facts.state.iter().map(|p| p.requested_bytes)),
        allocated_bytes: total(facts.state.iter().map(|p| p.allocated_bytes)),
        active_bytes: total(facts.state.iter().map(|p| p.active_bytes)),
        reserved_bytes: total(facts.state.iter().map(|p| p.reserved_bytes)),
    };
    let column =
        |of: &dyn Fn(&PoolFacts) -> String| facts.state.iter().chain([&total]).map(of).collect::<Vec<_>>();
    grid.column("  pool", Align::Left, column(&|p| format!("  {}", p.pool)));
    grid.column("segments", Align::Right, column(&|p| number(p.segments)));
    grid.column("blocks", Align::Right, column(&|p| number(p.blocks)));
    grid.column(
        "requested",
        Align::Right,
        column(&|p| unit.show(p.requested_bytes)),
    );
    grid.column(
        "allocated",
        Align::Right,
        column(&|p| unit.show(p.allocated_bytes)),
    );
    if facts.state.iter().any(|pool| pool.pending_blocks > 0) {
        grid.column("active", Align::Right, column(&|p| unit.show(p.active_bytes)));
    }
    grid.column("reserved", Align::Right, column(&|p| unit.show(p.reserved_bytes)));
    format!("{}\n\n", grid.render(&[]))
}
