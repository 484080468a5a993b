//! Writes the page's frame: all text, the script, the style and the content security policy.
//!
//! Names in a recording are untrusted data. Text is escaped. Numbers and names for the script are JSON
//! without `<`. The content security policy allows only the one script whose hash it names, and loads
//! nothing.

use std::io::{self, Write};

use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    blobs::{Blobs, PAGE_BYTES},
    encode::{Blob, base64},
    input::Page,
    overview::Glance,
    places::segments_cut,
    story,
    text::{Count, Human, Json, Text},
};

const STYLE: &str = concat!(
    include_str!("assets/tokens.css"),
    include_str!("assets/layout.css"),
    include_str!("assets/parts.css")
);

const SCRIPT: &str = concat!(
    "(() => {\n'use strict';\n",
    include_str!("assets/bytes.js"),
    include_str!("assets/units.js"),
    include_str!("assets/series.js"),
    include_str!("assets/story.js"),
    include_str!("assets/places.js"),
    include_str!("assets/watched.js"),
    include_str!("assets/state.js"),
    include_str!("assets/ink.js"),
    include_str!("assets/theme.js"),
    include_str!("assets/axis.js"),
    include_str!("assets/pens.js"),
    include_str!("assets/cover.js"),
    include_str!("assets/names.js"),
    include_str!("assets/plot.js"),
    include_str!("assets/strip.js"),
    include_str!("assets/minimap.js"),
    include_str!("assets/rows.js"),
    include_str!("assets/tags.js"),
    include_str!("assets/cards.js"),
    include_str!("assets/history.js"),
    include_str!("assets/map.js"),
    include_str!("assets/readout.js"),
    include_str!("assets/table.js"),
    include_str!("assets/controls.js"),
    include_str!("assets/main.js"),
    "})();\n",
);

pub(crate) const LOGO: &str = r#"<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" aria-hidden="true"><path d="M3 8c3-2.4 6-2.4 9 0s6 2.4 9 0"/><path d="M5.500 13c2.200-1.700 4.300-1.700 6.500 0s4.300 1.700 6.500 0"/><path d="M8.500 18c1.200-1 2.300-1 3.500 0s2.300 1 3.500 0"/></svg>"#;

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
    let mut frame = Vec::new();
    head(page, &mut frame)?;
    lead(page, &mut frame)?;
    frame.write_all(include_str!("assets/body.html").as_bytes())?;
    results(page, &mut frame)?;
    writeln!(frame, "</main>")?;
    footer(page, &mut frame)?;
    frame.write_all(include_str!("assets/help.html").as_bytes())?;
    // This allowance includes the threshold's digits and the element names around the blobs.
    let glance = serde_json::to_value(&glance).map_err(io::Error::other)?;
    let frame_bytes = (frame.len() + glance.to_string().len() + SCRIPT.len() + 32_768) as u64;
    let blobs = Blobs::new(page.trace, &lives, page.runs, limit.saturating_sub(frame_bytes));
    out.write_all(&frame)?;
    // The script comes before the data, so that it can paint while the browser still reads the rest.
    writeln!(
        out,
        "<script type=\"application/json\" id=\"meta\">{}</script>",
        Json(&meta(page, &requested, glance, &blobs))
    )?;
    writeln!(out, "<script>{SCRIPT}</script>")?;
    blob(out, "story", &blobs.story)?;
    blob(out, "tags", &blobs.tags)?;
    for (index, curve) in blobs.curves.iter().enumerate() {
        blob(out, &format!("curve-{index}"), curve)?;
    }
    for (index, addresses) in blobs.addresses.iter().enumerate() {
        blob(out, &format!("address-{index}"), addresses)?;
    }
    if let Some(times) = &blobs.times {
        blob(out, "times", times)?;
    }
    writeln!(out, "</body>\n</html>")
}

fn blob(out: &mut impl Write, id: &str, blob: &Blob) -> io::Result<()> {
    writeln!(
        out,
        "<script type=\"application/octet-stream\" id=\"{id}\">{}</script>",
        blob.base64()
    )
}

fn head(page: &Page<'_>, out: &mut impl Write) -> io::Result<()> {
    let hash = |text: &str| base64(&Sha256::digest(text.as_bytes()));
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"generator\" content=\"millpond\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-{}'; \
         style-src 'sha256-{}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{} – Millpond</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <div class=\"bar\">{LOGO}<b>Millpond</b><span>what-if report</span><span class=\"space\"></span>\
         <button type=\"button\" class=\"plain\" id=\"keys\">Keys <kbd>?</kbd></button>\
         <button type=\"button\" class=\"plain\" id=\"theme\">Dark</button></div>\n<main>\n",
        hash(SCRIPT),
        hash(STYLE),
        Text(&page.title),
    )
}

fn lead(page: &Page<'_>, out: &mut impl Write) -> io::Result<()> {
    let trace = page.trace;
    writeln!(out, "<section class=\"lead\">\n<h1>{}</h1>", Text(&page.title))?;
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
        "device": page.device_bytes,
        "peakEvent": peak.unwrap_or(0),
        "timed": blobs.times.is_some(),
        "threshold": blobs.threshold.0,
        "glance": glance,
    })
}
