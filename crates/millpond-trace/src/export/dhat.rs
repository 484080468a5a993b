//! Writes a DHAT profile for valgrind's `dh_view.html`: for each stack all bytes, the maximum at once, and the bytes at
//! the peak and at the end.

use super::events::Source;
use super::profile::Profile;
use super::stacks::{Numbers, clean};
use super::{ExportError, Exported};
use crate::history::Frame;
use serde_json::json;
use std::io::Write;

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let profile = Profile::of(source)?;
    let mut numbers: Numbers<Frame> = Numbers::default();
    let mut table = vec!["[root]".to_owned()];
    let mut points = Vec::new();
    for site in &profile.sites {
        let stack = source.folded(site.origin);
        let numbered = stack.into_iter().map(|frame| {
            let (number, new) = numbers.of(frame.clone());
            if new {
                table.push(line(&frame, number));
            }
            number + 1
        });
        points.push(json!({
            "fs": numbered.collect::<Vec<u32>>(),
            "tb": site.total.bytes, "tbk": site.total.blocks,
            "tl": micros(site.lifetimes),
            "mb": site.most.bytes, "mbk": site.most.blocks,
            "gb": site.peak.bytes, "gbk": site.peak.blocks,
            "eb": site.end.bytes, "ebk": site.end.blocks,
        }));
    }
    let file = json!({
        "dhatFileVersion": 2,
        "mode": "rust-heap",
        "verb": "Allocated",
        "bklt": true,
        "bkacc": false,
        "tu": "µs",
        "Mtu": "s",
        "tuth": 10,
        "cmd": clean(source.program()),
        "pid": source.pid(),
        "tg": profile.peak_time / 1_000,
        "te": profile.end_time / 1_000,
        "pps": points,
        "ftbl": table,
    });
    serde_json::to_writer(out, &file).map_err(std::io::Error::from)?;
    Ok(Exported::new(
        profile.events,
        "single blocks and their times, streams, the tags of blocks with stacks",
    ))
}

fn micros(nanos: i128) -> u64 {
    u64::try_from(nanos.max(0) / 1_000).unwrap_or(u64::MAX)
}

/// Formats a frame as the viewer parses it: an address, the function, and its location in parentheses.
fn line(frame: &Frame, number: u32) -> String {
    let place = match (frame.file.as_str(), frame.line) {
        ("", _) => String::new(),
        (file, 0) => format!(" ({file})"),
        (file, line) => format!(" ({file}:{line})"),
    };
    format!("{number:#x}: {}{place}", frame.function)
}
