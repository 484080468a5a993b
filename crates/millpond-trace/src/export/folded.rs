//! Writes folded stacks: `root;caller;function 4096` on each line, the input of flame graphs. `flamegraph.pl`,
//! speedscope, Perfetto and inferno read them.

use super::events::Source;
use super::profile::{Profile, counted, estimated};
use super::{ExportError, Exported};
use std::collections::BTreeMap;
use std::io::Write;

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let profile = Profile::of(source)?;
    let at = source.options.at;
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for site in &profile.sites {
        let bytes = site.at(at).bytes;
        if bytes > 0 {
            let sum = lines.entry(line(source, site.origin)).or_insert(0);
            *sum = sum.saturating_add(bytes);
        }
    }
    for (stack, bytes) in &lines {
        writeln!(out, "{stack} {bytes}")?;
    }
    Ok(Exported::new(
        profile.events,
        format!(
            "times, single blocks, files and lines, the tags of blocks with stacks: the file has only the {} by stack{}",
            counted(at),
            estimated(source)
        ),
    ))
}

/// Formats a stack with the root first. `;` occurs only between frames.
fn line(source: &Source<'_>, origin: super::stacks::Origin) -> String {
    let frames = source.folded(origin);
    let names: Vec<String> = frames
        .iter()
        .rev()
        .map(|frame| frame.function.replace(';', ":"))
        .collect();
    let line = names.join(";");
    // A line that starts with this character would be a comment.
    match line.strip_prefix('#') {
        Some(rest) => format!("_{rest}"),
        None => line,
    }
}
