//! Replays a recording under every policy and writes the page about it.
//!
//! `cargo run --release -p millpond-replay --example html_report -- RECORDING OUT.html [DEVICE]`

use std::{env, error::Error, fs::File, io::BufWriter, path::Path};

use millpond_engine::{display_size, parse_size};
use millpond_replay::{
    Device, Options, PolicyResult,
    page::{self, Page},
    replay,
};
use millpond_trace::{ReadOptions, read};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let (Some(recording), Some(out)) = (args.next(), args.next()) else {
        return Err("usage: html_report RECORDING OUT.html [DEVICE]".into());
    };
    let bytes = args.next().map(|size| parse_size(&size)).transpose()?;
    let recording = read(Path::new(&recording), &ReadOptions::default())?;
    let trace = recording.traces.first().ok_or("no device in this recording")?;
    let device = Device {
        bytes,
        ..Device::UNLIMITED
    };
    let options = Options {
        device,
        placements: true,
        verdict: true,
        ..Options::default()
    };
    let replayed = replay(trace, &options, &|_, _| {})?;
    let report = &replayed.report;

    let pairs = report.results.iter().zip(&replayed.placements);
    let runs: Vec<page::Run<'_>> = pairs
        .map(|(result, placement)| page::Run {
            name: &result.policy,
            fidelity: &result.fidelity,
            needs: result.smallest_device_bytes,
            placement,
        })
        .collect();
    let in_use = report
        .recorded
        .as_ref()
        .map_or("torch-native", |recorded| &recorded.policy);
    let finished = report
        .results
        .iter()
        .enumerate()
        .filter(|(_, result)| result.first_failure.is_none());
    let page = Page {
        title: report.trace.clone(),
        version: format!("millpond {}", env!("CARGO_PKG_VERSION")),
        trace,
        runs: &runs,
        in_use: runs.iter().position(|run| run.name == in_use),
        // `none` reserves the least because it calls the driver for each request, which is too slow in practice.
        best: finished
            .filter(|(_, result)| result.policy != "none")
            .min_by(|(_, a), (_, b)| a.overhead.total_cmp(&b.overhead))
            .map(|(index, _)| index),
        opens_at: None,
        columns: [
            "policy",
            "peak reserved",
            "overhead",
            "hit rate",
            "stalls",
            "driver time",
            "host time",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: report.results.iter().map(row).collect(),
        advice: report
            .verdict
            .as_ref()
            .map_or_else(Vec::new, |verdict| verdict.sentences.clone()),
        cautions: report.cautions.clone(),
        device_bytes: bytes,
        peak_requested: report.peak_requested_bytes,
    };
    let mut file = BufWriter::new(File::create(&out)?);
    page::write(&page, &mut file)?;
    Ok(())
}

fn row(result: &PolicyResult) -> Vec<String> {
    vec![
        result.policy.clone(),
        display_size(result.peak_reserved_bytes).to_string(),
        format!("{:.4}", result.overhead),
        format!("{:.2} %", 100.0 * result.hit_rate),
        result.stalls.to_string(),
        format!("{:.1} ms", result.modelled_driver_ms),
        format!("{:.0} ns/event", result.ns_per_event),
    ]
}
