//! Writes the last sample as `/stats` in JSON, with the history that a viewer draws.

use super::json::Json;
use super::series::{Quantity, Subject};
use super::snapshot::{BudgetReading, DeviceReading, LimitReading, PoolReading};
use super::{Shared, State, lock};
use millpond_os::pressure::Level;
use std::time::{SystemTime, UNIX_EPOCH};

/// The version of the format. Readers reject other versions. Added fields do not change it.
const VERSION: u64 = 1;

/// The number of values in each history.
const HISTORY: usize = 120;

pub(super) fn json(shared: &Shared) -> String {
    let state = lock(&shared.state);
    let (sample, log) = (&state.last, &state.log);
    let now = &sample.snapshot;
    Json::of(|json| {
        json.text("schema", "millpond-stats");
        json.number("version", VERSION);
        json.text("library", env!("CARGO_PKG_VERSION"));
        json.number("time_ms", unix_ms(now.time));
        json.object("process", |json| {
            let identity = &shared.identity;
            json.number("id", u64::from(identity.process));
            json.text("name", &identity.name);
            json.text("host", &identity.host);
            match &identity.rank {
                Some(rank) => json.text("rank", rank),
                None => json.null("rank"),
            }
            json.maybe("resident", now.resident);
            json.maybe("resident_peak", now.resident_peak);
            limit(json, "limit", now.limit);
            limit(json, "cgroup", now.cgroup);
            json.text("pressure", level(now.pressure));
            let history = log.latest(&Subject::Process, Quantity::Resident, HISTORY);
            json.numbers("resident_history", &history);
        });
        json.object("monitor", |json| {
            json.number("interval_ms", shared.interval.as_millis() as u64);
            json.number("samples", log.samples());
            json.number("elapsed_ms", sample.at.as_millis() as u64);
            json.number("sample_us", sample.took.as_micros() as u64);
        });
        json.objects("pools", &now.pools, |json, of| pool(json, of, &state));
        json.objects("budgets", &now.budgets, budget);
        json.objects("devices", &now.devices, |json, of| device(json, of, &state));
        match &now.tags {
            None => json.null("tags"),
            Some(tags) => json.objects("tags", tags, |json, tag| {
                json.text("name", &tag.name);
                json.number("requested", tag.requested);
                json.number("bytes", tag.bytes);
                json.number("blocks", tag.blocks);
            }),
        }
        json.objects("warnings", &sample.passed, |json, of| {
            json.text("signal", of.signal.name());
            json.text("of", &of.of.to_string());
            json.ratio("at", f64::from(of.at.as_hundredths()) / 1e4);
            json.ratio("share", f64::from(of.share.as_hundredths()) / 1e4);
            json.text("text", &of.to_string());
        });
        json.number("crossed", state.crossed);
        json.object("losses", |json| {
            let losses = &now.losses;
            json.number("untracked", losses.untracked);
            json.number("undelivered", losses.undelivered);
            json.number("subscriber_panics", losses.subscriber_panics);
            json.number("callback_panics", state.panics);
            json.number("samples", state.missed);
            json.number("pools", losses.pools);
            json.number("budgets", losses.budgets);
            json.number("devices", losses.devices);
            json.number("series", log.dropped());
        });
    })
}

fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

pub(super) fn level(level: Level) -> &'static str {
    match level {
        Level::Low => "low",
        Level::Medium => "medium",
        Level::High => "high",
        Level::Critical => "critical",
    }
}

fn limit(json: &mut Json, key: &str, limit: Option<LimitReading>) {
    match limit {
        None => json.null(key),
        Some(limit) => json.object(key, |json| {
            json.text("kind", limit.kind.name());
            json.number("used", limit.used);
            json.number("bytes", limit.bytes);
        }),
    }
}

fn pool(json: &mut Json, of: &PoolReading, state: &State) {
    let stats = &of.stats;
    json.number("id", of.id);
    json.text("name", &of.name);
    json.text("device", &of.device.to_string());
    json.text("kind", of.kind.name());
    json.text("policy", &of.policy);
    for (name, gauge) in [
        ("requested", stats.requested),
        ("allocated", stats.allocated),
        ("reserved", stats.reserved),
    ] {
        json.number(name, gauge.current);
        json.number(&format!("{name}_peak"), gauge.peak);
    }
    json.number("active", stats.active());
    json.number("kept", stats.kept);
    json.maybe("limit", of.limit);
    json.number("allocations", stats.allocations);
    json.number("frees", stats.frees);
    json.number("hits", stats.hits);
    json.number("misses", of.misses());
    json.ratio("hit_rate", stats.hit_rate());
    json.number("refusals", stats.refusals);
    json.number("stalls", of.stalls);
    json.flag("stale", of.stale);
    let subject = Subject::Pool(of.id, of.name.clone());
    for (key, quantity) in [
        ("allocated_history", Quantity::Allocated),
        ("reserved_history", Quantity::Reserved),
        ("hit_rate_history", Quantity::HitRate),
    ] {
        json.numbers(key, &state.log.latest(&subject, quantity, HISTORY));
    }
}

fn budget(json: &mut Json, of: &BudgetReading) {
    json.text("path", &of.path);
    json.text("measure", of.measure);
    json.number("used", of.used);
    json.number("peak", of.peak);
    json.maybe("limit", of.limit);
    json.number("refusals", of.refusals);
    json.number("waiting", of.waiting);
}

fn device(json: &mut Json, of: &DeviceReading, state: &State) {
    json.text("device", &of.device.to_string());
    json.text("name", &of.name);
    json.number("free", of.free);
    json.number("total", of.total);
    json.number("used", of.used());
    json.number("ours", of.ours);
    json.number("unexplained", of.unexplained());
    match &of.processes {
        None => json.null("processes"),
        Some(processes) => json.objects("processes", processes, |json, process| {
            json.number("id", u64::from(process.id));
            json.maybe("used", process.used);
        }),
    }
    let history = state
        .log
        .latest(&Subject::Device(of.device), Quantity::Used, HISTORY);
    json.numbers("used_history", &history);
}
