//! Gives advice in one or two plain sentences with numbers.

use crate::options::Options;
use crate::outcome::{PolicyResult, Report};
use millpond_engine::{TorchBackend, display_size};
use millpond_trace::{Format, Trace};

/// The smallest share of the peak for which a difference is reported.
const WORTH: f64 = 0.01;

/// Returns the advice for a report, the most useful sentence first. It is never empty.
pub(crate) fn advise(report: &Report, trace: &Trace, options: &Options) -> Vec<String> {
    let mut advice = Vec::new();
    if options.device.bytes.is_some() {
        advice.extend(on_device(report, options));
    }
    advice.extend(compare(report, trace, options));
    if report.results.iter().any(|r| r.fit.is_some()) {
        advice.extend(smallest(report));
    }
    if advice.is_empty() {
        advice.push(nothing_to_gain(report));
    }
    advice
}

fn find<'a>(report: &'a Report, policy: &str) -> Option<&'a PolicyResult> {
    report.results.iter().find(|r| r.policy == policy)
}

fn best(report: &Report) -> Option<&PolicyResult> {
    report.best().and_then(|index| report.results.get(index))
}

/// Returns the policy that the program runs under. The settings decide, then the recording, then
/// [`usual_policy`].
fn in_use<'a>(report: &'a Report, trace: &Trace, options: &Options) -> Option<&'a PolicyResult> {
    if options.settings.torch.backend == TorchBackend::CudaMallocAsync {
        return find(report, "cuda-async");
    }
    let named = report
        .recorded
        .as_ref()
        .and_then(|recorded| find(report, &recorded.policy));
    named.or_else(|| find(report, usual_policy(trace.origin.format)))
}

/// Returns the policy that most programs with recordings of this format run under.
#[must_use]
pub fn usual_policy(format: Format) -> &'static str {
    match format {
        Format::TorchSnapshot | Format::MillpondCsv | Format::ChromeTrace => "torch-native",
        Format::RmmCsv => "rmm-pool",
        Format::MillpondRecording => "millpond",
    }
}

fn on_device(report: &Report, options: &Options) -> Option<String> {
    let device = options.device.bytes?;
    let (finished, failed): (Vec<_>, Vec<_>) = report.results.iter().partition(|r| r.first_failure.is_none());
    if failed.is_empty() {
        return (finished.len() > 1).then(|| format!("Every policy finishes in {}.", display_size(device)));
    }
    if report.peak_requested_bytes > device {
        let over = report.peak_requested_bytes - device;
        return Some(format!(
            "No allocator can run this in {}: the program itself holds {} at its peak, {} too much. Reduce what it holds, or use a larger device.",
            display_size(device),
            display_size(report.peak_requested_bytes),
            display_size(over)
        ));
    }
    if finished.is_empty() {
        return Some(format!(
            "None of these policies finishes in {}, although the program never holds more than {}: the rest is lost to fragmentation.",
            display_size(device),
            display_size(report.peak_requested_bytes)
        ));
    }
    let names = |list: &[&PolicyResult]| {
        list.iter()
            .map(|r| r.policy.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut advice = format!(
        "In {} the program runs out of memory under {} and finishes under {}.",
        display_size(device),
        names(&failed),
        names(&finished)
    );
    let has = |list: &[&PolicyResult], name: &str| list.iter().any(|r| r.policy == name);
    let native = options.settings.torch.backend == TorchBackend::Native;
    if native && has(&failed, "torch-native") && has(&finished, "torch-expandable") {
        advice.push_str(" With PyTorch, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.");
    }
    Some(advice)
}

/// Returns what the policy in use wastes, and which policy or setting avoids it.
fn compare(report: &Report, trace: &Trace, options: &Options) -> Vec<String> {
    let Some(now) = in_use(report, trace, options).filter(|r| r.first_failure.is_none()) else {
        return Vec::new();
    };
    let peak = report.peak_requested_bytes;
    let waste = now.peak_reserved_bytes.saturating_sub(peak);
    if waste as f64 <= WORTH * now.peak_reserved_bytes as f64 {
        return Vec::new();
    }
    let mut advice = vec![format!(
        "{} reserves {} where the program never holds more than {}: {} ({:.0} %) of what it takes is never in use at once.",
        now.policy,
        display_size(now.peak_reserved_bytes),
        display_size(peak),
        display_size(waste),
        100.0 * waste as f64 / now.peak_reserved_bytes as f64
    )];
    let gain = |r: &PolicyResult| now.peak_reserved_bytes.saturating_sub(r.peak_reserved_bytes);
    let worth = |r: &PolicyResult| gain(r) as f64 > WORTH * now.peak_reserved_bytes as f64;
    let setting = find(report, "torch-expandable")
        .filter(|r| now.policy == "torch-native" && r.first_failure.is_none() && worth(r));
    if let Some(expandable) = setting {
        let extra = expandable.modelled_driver_ms - now.modelled_driver_ms;
        let price = if extra < 1.0 {
            "at no more driver time".to_owned()
        } else {
            format!("for {extra:.0} ms more in driver calls over the run")
        };
        advice.push(format!(
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: the peak falls by {} to {}, {price} (modelled).",
            display_size(gain(expandable)),
            display_size(expandable.peak_reserved_bytes),
        ));
    }
    let base = setting.unwrap_or(now);
    if let Some(least) =
        best(report).filter(|r| r.policy != base.policy && r.policy != now.policy && worth(r))
    {
        let further = base.peak_reserved_bytes.saturating_sub(least.peak_reserved_bytes);
        if further as f64 > WORTH * now.peak_reserved_bytes as f64 {
            advice.push(format!(
                "Lower still is {}: {}, {:.1} % above what the program holds.",
                least.policy,
                display_size(least.peak_reserved_bytes),
                100.0 * (least.overhead - 1.0)
            ));
        }
    }
    advice
}

fn smallest(report: &Report) -> Option<String> {
    let least = report
        .results
        .iter()
        .filter(|r| r.smallest_device_bytes.is_some());
    let least = least.min_by_key(|r| r.smallest_device_bytes)?;
    let fit = least.fit.as_ref()?;
    Some(format!(
        "The smallest device that will do has {} free, under {}, at {} stalls there ({:.0} ms of driver time, modelled).",
        display_size(least.smallest_device_bytes?),
        least.policy,
        fit.stalls,
        fit.modelled_driver_ms
    ))
}

fn nothing_to_gain(report: &Report) -> String {
    match best(report) {
        Some(least) => format!(
            "Little is wasted: {} reserves {:.1} % more than the {} the program holds at its peak.",
            least.policy,
            100.0 * (least.overhead - 1.0),
            display_size(report.peak_requested_bytes)
        ),
        None if report.results.iter().all(|r| r.first_failure.is_some()) => {
            "Every policy ran out of memory; the table says where.".to_owned()
        }
        None => "Every policy that finishes makes the host wait too often to be recommended.".to_owned(),
    }
}
