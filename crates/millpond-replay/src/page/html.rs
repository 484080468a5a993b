//! Writes the report page: its text, its tables, and the data for its script.

use std::io::{self, Write};

use serde_json::json;

use super::{
    blobs::{Blobs, PAGE_BYTES},
    input::Page,
    overview::Glance,
    places::segments_cut,
    story,
    text::{Count, Human, Text},
};
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
/// Up to about a million events and ten policies it stays below 15 MB. Every curve is exact at every event.
/// If space is short, the blocks that cover the least area of the address picture are counted there and not
/// drawn one by one.
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
    lead(page, &mut frame)?;
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

fn lead(page: &Page<'_>, out: &mut impl Write) -> io::Result<()> {
    let trace = page.trace;
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
    if !page.advice.is_empty() {
        writeln!(out, "<ol class=\"advice\">")?;
        for sentence in &page.advice {
            writeln!(out, "<li>{}</li>", Text(sentence))?;
        }
        writeln!(out, "</ol>")?;
    }
    figures(page, out)?;
    writeln!(out, "</section>")
}

/// Writes four figures: the lower bound, the policy in use, the best policy, and the difference.
fn figures(page: &Page<'_>, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "<div class=\"answer\"><dl class=\"figures\">")?;
    writeln!(
        out,
        "<div><dt><span>Peak requested</span></dt><dd>{}<small>no policy can hold less</small></dd></div>",
        Human(page.peak_requested)
    )?;
    let run = |index: Option<usize>| index.and_then(|index| page.runs.get(index).map(|run| (index, run)));
    let mut policy = |label: &str, index: Option<usize>| -> io::Result<Option<u64>> {
        let Some((index, run)) = run(index) else {
            return Ok(None);
        };
        let peak = run.peak_reserved();
        write!(
            out,
            "<div><dt><i class=\"swatch policy-{}\"></i><span>{label}: {}</span></dt>",
            index % 12,
            Text(run.name)
        )?;
        let over = peak as f64 / page.peak_requested.max(1) as f64;
        match run.placement.stopped_at {
            None => writeln!(
                out,
                "<dd>{}<small>{over:.4} × requested</small></dd></div>",
                Human(peak)
            )?,
            Some(event) => writeln!(
                out,
                "<dd>{}<small>then out of memory at event {}</small></dd></div>",
                Human(peak),
                Count(u64::from(event))
            )?,
        }
        Ok(run.placement.stopped_at.is_none().then_some(peak))
    };
    let used = policy("In use", page.in_use)?;
    let best = if page.best == page.in_use {
        used
    } else {
        policy("Best", page.best)?
    };
    if let (Some(used), Some(best)) = (used, best) {
        let saved = used.saturating_sub(best);
        let part = 100.0 * saved as f64 / used.max(1) as f64;
        let note = if page.best == page.in_use {
            "what is in use is already best".to_owned()
        } else {
            format!("{part:.1} % less reserved at the peak")
        };
        writeln!(
            out,
            "<div class=\"good\"><dt><span>To be won</span></dt><dd>{}<small>{note}</small></dd></div>",
            Human(saved)
        )?;
    }
    writeln!(out, "</dl>")?;
    if !page.cautions.is_empty() {
        writeln!(
            out,
            "<aside class=\"cautions\"><h2>What this cannot tell</h2><ul>"
        )?;
        for sentence in &page.cautions {
            writeln!(out, "<li>{}</li>", Text(sentence))?;
        }
        writeln!(out, "</ul></aside>")?;
    }
    writeln!(out, "</div>")
}

fn results(page: &Page<'_>, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "<section class=\"panel\" aria-label=\"Results\"><div class=\"head\"><h2>Results</h2>\
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
    writeln!(out, "</tbody></table></div></section>")
}

fn footer(page: &Page<'_>, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "<footer>Written by {}. Every curve is exact at every event, at any zoom. This file holds everything it shows and loads nothing.</footer>",
        Text(&page.version)
    )
}

fn meta(page: &Page<'_>, requested: &[u64], glance: serde_json::Value, blobs: &Blobs) -> serde_json::Value {
    let peak = requested
        .iter()
        .max()
        .and_then(|peak| requested.iter().position(|bytes| bytes == peak));
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
        "peakEvent": peak.unwrap_or(0),
        "timed": blobs.times.is_some(),
        "threshold": blobs.threshold.0,
        "glance": glance,
    })
}
