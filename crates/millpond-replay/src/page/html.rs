//! Writes the report page: its text, its tables, and the data for its script.

use std::io::{self, Write};

use millpond_engine::display_size_up;
use serde_json::json;

use super::{
    blobs::{Blobs, PAGE_BYTES},
    input::Page,
    overview::Glance,
    places::segments_cut,
    story,
    text::{Count, Human, Text},
};
use crate::oom::{moment, time_us};
use crate::web::{Frame, blob};

const SCRIPT: &str = concat!(
    include_str!("assets/story.js"),
    include_str!("assets/places.js"),
    include_str!("assets/state.js"),
    include_str!("assets/history.js"),
    include_str!("assets/plot.js"),
    include_str!("assets/minimap.js"),
    include_str!("assets/tags.js"),
    include_str!("assets/cards.js"),
    include_str!("assets/map.js"),
    include_str!("assets/readout.js"),
    include_str!("assets/table.js"),
    include_str!("assets/controls.js"),
    include_str!("assets/main.js"),
);

/// Writes `page` as one self-contained file that needs no network and no other file.
///
/// The file stays below 15 MB for up to about a million events and ten policies. Every curve is exact at every
/// event. If there is not enough space, the blocks that cover the least area of the address picture are counted
/// and not drawn one by one.
///
/// # Errors
/// Returns the errors of `out`.
pub fn write(page: &Page<'_>, out: &mut impl Write) -> io::Result<()> {
    write_within(page, PAGE_BYTES, out)
}

/// Writes a page like [`write`], but with another size limit.
pub(crate) fn write_within(page: &Page<'_>, limit: u64, out: &mut impl Write) -> io::Result<()> {
    let lives = story::lives(page.trace);
    let requested = story::held(page.trace, &lives, |serial| lives[serial].requested);
    let glance = Glance::new(page.trace, &requested, page.runs);
    let page_frame = Frame::new(SCRIPT, false);
    let mut frame = Vec::new();
    page_frame.begin(&page.title, "what-if report", &mut frame)?;
    lead(page, &requested, &mut frame)?;
    frame.write_all(include_str!("assets/body.html").as_bytes())?;
    results(page, &mut frame)?;
    writeln!(frame, "</main>")?;
    footer(page, &mut frame)?;
    frame.write_all(include_str!("assets/help.html").as_bytes())?;
    // This allowance includes the threshold's digits and the element names around the blobs.
    let glance = serde_json::to_value(&glance).map_err(io::Error::other)?;
    let frame_bytes = (frame.len() + glance.to_string().len() + page_frame.script_bytes() + 32_768) as u64;
    let blobs = Blobs::new(page.trace, &lives, page.runs, limit.saturating_sub(frame_bytes));
    out.write_all(&frame)?;
    page_frame.script(&meta(page, &requested, glance, &blobs), out)?;
    blob("story", &blobs.story, out)?;
    blob("tags", &blobs.tags, out)?;
    for (index, curve) in blobs.curves.iter().enumerate() {
        blob(&format!("curve-{index}"), curve, out)?;
    }
    for (index, addresses) in blobs.addresses.iter().enumerate() {
        blob(&format!("address-{index}"), addresses, out)?;
    }
    if let Some(times) = &blobs.times {
        blob("times", times, out)?;
    }
    writeln!(out, "</body>\n</html>")
}

/// Writes the answer, the facts about the recording, and the figures.
fn lead(page: &Page<'_>, requested: &[u64], out: &mut impl Write) -> io::Result<()> {
    let trace = page.trace;
    if !page.advice.is_empty() {
        let class = if page.opens_at.is_some() {
            "advice failed"
        } else {
            "advice"
        };
        writeln!(out, "<ol class=\"{class}\">")?;
        for sentence in &page.advice {
            writeln!(out, "<li>{}</li>", Text(sentence))?;
        }
        writeln!(out, "</ol>")?;
    }
    write!(
        out,
        "<p class=\"facts-line\"><span>{} events</span>",
        Count(trace.events.len() as u64)
    )?;
    write!(
        out,
        "<span>{} allocations</span>",
        Count(u64::from(trace.allocations))
    )?;
    if trace.streams.len() > 1 {
        write!(out, "<span>{} streams</span>", trace.streams.len())?;
    }
    write!(out, "<span>{} policies</span>", page.runs.len())?;
    if let Some(device) = page.device_bytes {
        write!(out, "<span>device of {}</span>", Human(device))?;
    }
    writeln!(out, "</p>")?;
    figures(page, requested, out)?;
    writeln!(out, "</section>")
}

/// Writes four figures: the lower bound, the policy in use, the recommended policy, and the difference. Figures of
/// different moments name their moment.
fn figures(page: &Page<'_>, requested: &[u64], out: &mut impl Write) -> io::Result<()> {
    let at = |event| moment(event, time_us(page.trace, event));
    writeln!(out, "<div class=\"answer\"><dl class=\"figures\">")?;
    write!(
        out,
        "<div><dt><i class=\"swatch requested\"></i><span>Requested at peak</span></dt><dd>{}<small>{}; no allocator needs less</small></dd></div>",
        Human(page.peak_requested),
        at(peak_event(requested))
    )?;
    let mut policy = |label: &str, index: Option<usize>| -> io::Result<()> {
        let Some((index, run)) = index.and_then(|index| Some((index, page.runs.get(index)?))) else {
            return Ok(());
        };
        let (event, peak) = run.peak_reserved_at();
        let reserved = format!("reserved at peak, {}", at(event));
        let (figure, note) = match (run.placement.stopped_at, run.needs) {
            (Some(stop), _) => (
                Human(peak).to_string(),
                format!("{reserved}; out of memory {}", at(stop)),
            ),
            (None, Some(needs)) => (
                display_size_up(needs).to_string(),
                format!("needed; {} {reserved}", Human(peak)),
            ),
            (None, None) => (Human(peak).to_string(), reserved),
        };
        writeln!(
            out,
            "<div><dt><i class=\"swatch policy-{}\"></i><span>{label}</span></dt><dd>{}<small>{}</small><small>{note}</small></dd></div>",
            index % 12,
            figure,
            Text(run.name)
        )
    };
    policy("Your allocator", page.in_use)?;
    if page.best != page.in_use {
        policy("Recommended", page.best)?;
    }
    if let Some((saved, of, what)) = saving(page) {
        writeln!(
            out,
            "<div class=\"good\"><dt><span>Potential saving</span></dt><dd>{}<small>{:.1} % less {what}</small></dd></div>",
            Human(saved),
            100.0 * saved as f64 / of.max(1) as f64
        )?;
    }
    writeln!(out, "</dl>")?;
    if !page.cautions.is_empty() {
        writeln!(
            out,
            "<aside class=\"cautions\"><h2>Limits of these figures</h2><ul>"
        )?;
        for sentence in &page.cautions {
            writeln!(out, "<li>{}</li>", Text(sentence))?;
        }
        writeln!(out, "</ul></aside>")?;
    }
    writeln!(out, "</div>")
}

/// Returns the bytes that the recommended policy saves, the bytes of the policy in use, and a description of these
/// bytes. `None` if either is missing or runs out of memory.
fn saving(page: &Page<'_>) -> Option<(u64, u64, &'static str)> {
    let finished = |index: Option<usize>| {
        page.runs
            .get(index?)
            .filter(|run| run.placement.stopped_at.is_none())
    };
    let used = finished(page.in_use)?;
    let best = finished(page.best.filter(|_| page.best != page.in_use))?;
    let (of, then, what) = match (used.needs, best.needs) {
        (Some(used), Some(best)) => (used, best, "needed"),
        _ => (used.peak_reserved(), best.peak_reserved(), "reserved at peak"),
    };
    Some((of.saturating_sub(then), of, what))
}

/// Returns the first event after which the most bytes are held.
fn peak_event(requested: &[u64]) -> u32 {
    let most = requested.iter().max();
    let at = requested.iter().position(|bytes| Some(bytes) == most);
    at.unwrap_or(0) as u32
}

fn results(page: &Page<'_>, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "<section class=\"panel\" aria-label=\"Results\"><div class=\"head\"><h2>Results of all policies</h2>\
         <small id=\"results-more\" hidden>more columns to the right: scroll →</small></div>"
    )?;
    writeln!(
        out,
        "<div class=\"scroll\" tabindex=\"0\"><table id=\"results\">\n<thead><tr>"
    )?;
    for column in &page.columns {
        write!(out, "<th scope=\"col\">{}</th>", Text(column))?;
    }
    writeln!(out, "</tr></thead>\n<tbody>")?;
    for row in &page.rows {
        let run = row
            .first()
            .and_then(|name| page.runs.iter().position(|run| run.name == name));
        match run {
            Some(index) => write!(out, "<tr data-run=\"{index}\">")?,
            None => write!(out, "<tr>")?,
        }
        for cell in row {
            write!(out, "<td>{}</td>", Text(cell))?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(
        out,
        "</tbody></table></div><p class=\"note\">Peak reserved is the peak of each policy, which may be at another event than the peak of requested bytes.</p></section>"
    )
}

fn footer(page: &Page<'_>, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "<footer>Written by {}. Every curve is exact at every event, at any zoom. This file holds everything it shows and loads nothing.</footer>",
        Text(&page.version)
    )
}

fn meta(page: &Page<'_>, requested: &[u64], glance: serde_json::Value, blobs: &Blobs) -> serde_json::Value {
    let runs = page.runs.iter().map(|run| {
        json!({
            "name": run.name,
            "fidelity": run.fidelity,
            "peak": run.peak_reserved(),
            "stopped": run.placement.stopped_at,
            "segmentsCut": segments_cut(run.placement),
        })
    });
    json!({
        "events": page.trace.events.len(),
        "allocations": page.trace.allocations,
        "older": page.trace.initial_blocks.iter().map(|block| u8::from(block.pending)).collect::<Vec<u8>>(),
        "streams": page.trace.streams,
        "runs": runs.collect::<Vec<_>>(),
        "inUse": page.in_use,
        "best": page.best,
        "opensAt": page.opens_at,
        "device": page.device_bytes,
        "peakEvent": peak_event(requested),
        "timed": blobs.times.is_some(),
        "threshold": blobs.threshold.0,
        "glance": glance,
    })
}
