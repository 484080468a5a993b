//! Writes speedscope's JSON format: one sampled profile, weighted by bytes.

use super::events::Source;
use super::profile::{Profile, counted, estimated};
use super::stacks::{Numbers, clean};
use super::{ExportError, Exported};
use crate::history::Frame;
use serde_json::json;
use std::io::Write;

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let profile = Profile::of(source)?;
    let at = source.options.at;
    let mut numbers: Numbers<Frame> = Numbers::default();
    let mut frames = Vec::new();
    let mut samples: Vec<Vec<u32>> = Vec::new();
    let mut weights = Vec::new();
    for site in profile.sites.iter().filter(|site| site.at(at).bytes > 0) {
        let stack = source.folded(site.origin).into_iter().rev();
        let numbered = stack.map(|frame| {
            let (number, new) = numbers.of(frame.clone());
            if new {
                frames.push(frame_json(&frame));
            }
            number
        });
        samples.push(numbered.collect());
        weights.push(site.at(at).bytes);
    }
    let name = clean(source.program()).into_owned();
    let file = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": format!("millpond {}", env!("CARGO_PKG_VERSION")),
        "name": name,
        "activeProfileIndex": 0,
        "shared": { "frames": frames },
        "profiles": [{
            "type": "sampled",
            "name": format!("{name}: {}{}", counted(at), estimated(source)),
            "unit": "bytes",
            "startValue": 0,
            "endValue": profile.bytes(at),
            "samples": samples,
            "weights": weights,
        }],
    });
    serde_json::to_writer(out, &file).map_err(std::io::Error::from)?;
    Ok(Exported::new(
        profile.events,
        format!(
            "times, single blocks, the tags of blocks with stacks: the file has only the {} by stack{}",
            counted(at),
            estimated(source)
        ),
    ))
}

fn frame_json(frame: &Frame) -> serde_json::Value {
    let mut json = json!({ "name": frame.function });
    if !frame.file.is_empty() {
        json["file"] = json!(frame.file);
    }
    if frame.line > 0 {
        json["line"] = json!(frame.line);
    }
    json
}
