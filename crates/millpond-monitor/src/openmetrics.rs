//! Writes the last sample as `/metrics`, in the OpenMetrics format or in Prometheus's older text format.

use super::snapshot::{BudgetReading, DeviceReading, PoolReading, Snapshot, TagReading};
use super::{Shared, lock};
use std::fmt::Write;
use std::sync::Arc;

/// The format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    OpenMetrics,
    Prometheus,
}

impl Dialect {
    /// Returns the format for a client's `Accept` header.
    pub(super) fn accepted_by(accept: &str) -> Self {
        if accept
            .to_ascii_lowercase()
            .contains("application/openmetrics-text")
        {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

pub(super) fn text(shared: &Shared, dialect: Dialect) -> String {
    let (last, samples, panics, missed, dropped) = {
        let state = lock(&shared.state);
        let log = &state.log;
        (
            Arc::clone(&state.last),
            log.samples(),
            state.panics,
            state.missed,
            log.dropped(),
        )
    };
    let identity = &shared.identity;
    let mut common = vec![("host", identity.host.clone())];
    common.extend(identity.rank.iter().map(|rank| ("rank", rank.clone())));
    let mut out = Exposition {
        text: String::new(),
        dialect,
        common,
    };
    let now = &last.snapshot;
    out.info(
        "millpond",
        "The library.",
        &[("version", env!("CARGO_PKG_VERSION").to_owned())],
    );
    out.process(now);
    out.pools(&now.pools);
    out.budgets(&now.budgets);
    out.devices(&now.devices);
    out.tags(now.tags.as_deref().unwrap_or_default());
    let one = [()];
    out.counter(
        "millpond_monitor_samples",
        "",
        "Samples that were taken.",
        &one,
        |()| (vec![], Some(samples)),
    );
    out.counter(
        "millpond_monitor_callback_panics",
        "",
        "Callbacks that panicked.",
        &one,
        |()| (vec![], Some(panics)),
    );
    let losses = &now.losses;
    let lost = [
        ("blocks that accounts had no room for", losses.untracked),
        ("events that were not delivered", losses.undelivered),
        ("subscribers that panicked", losses.subscriber_panics),
        ("pools left out", losses.pools),
        ("budgets left out", losses.budgets),
        ("devices that did not answer", losses.devices),
        ("samples left out", missed),
        ("series left out", dropped),
    ];
    out.gauge(
        "millpond_monitor_lost",
        "",
        "Data that is not shown, or was lost.",
        &lost,
        |(what, count)| (vec![("what", (*what).to_owned())], Some(*count)),
    );
    if dialect == Dialect::OpenMetrics {
        out.text.push_str("# EOF\n");
    }
    out.text
}

type Labels = Vec<(&'static str, String)>;

/// A metric family: its name, its help text, and its value for a subject.
type Told<T, V> = (&'static str, &'static str, fn(&T) -> V);

struct Exposition {
    text: String,
    dialect: Dialect,
    /// The labels of every sample.
    common: Labels,
}

impl Exposition {
    /// Writes the description of a family. The suffix of the samples is part of the family's name only in the older
    /// format.
    fn head(&mut self, name: &str, kind: &str, unit: &str, help: &str, suffix: &str) {
        let (told, kind) = match self.dialect {
            Dialect::OpenMetrics => ("", kind),
            Dialect::Prometheus if kind == "info" => (suffix, "gauge"),
            Dialect::Prometheus => (suffix, kind),
        };
        let _ = writeln!(self.text, "# TYPE {name}{told} {kind}");
        if self.dialect == Dialect::OpenMetrics && !unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(self.text, "# HELP {name}{told} {help}");
    }

    fn sample(&mut self, name: &str, labels: &Labels, value: u64) {
        self.text.push_str(name);
        let mut open = '{';
        for (label, value) in self.common.iter().chain(labels) {
            let _ = write!(self.text, "{open}{label}=\"");
            escape(&mut self.text, value);
            self.text.push('"');
            open = ',';
        }
        if open == ',' {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    fn info(&mut self, name: &str, help: &str, labels: &[(&'static str, String)]) {
        self.head(name, "info", "", help, "_info");
        self.sample(&format!("{name}_info"), &labels.to_vec(), 1);
    }

    fn gauge<T>(
        &mut self,
        name: &str,
        unit: &str,
        help: &str,
        all: &[T],
        of: impl Fn(&T) -> (Labels, Option<u64>),
    ) {
        self.family(name, "gauge", unit, help, "", all, of);
    }

    fn counter<T>(
        &mut self,
        name: &str,
        unit: &str,
        help: &str,
        all: &[T],
        of: impl Fn(&T) -> (Labels, Option<u64>),
    ) {
        self.family(name, "counter", unit, help, "_total", all, of);
    }

    #[expect(clippy::too_many_arguments, reason = "all that a family has")]
    fn family<T>(
        &mut self,
        name: &str,
        kind: &str,
        unit: &str,
        help: &str,
        suffix: &str,
        all: &[T],
        of: impl Fn(&T) -> (Labels, Option<u64>),
    ) {
        let samples: Vec<(Labels, u64)> = all
            .iter()
            .filter_map(|one| {
                let (labels, value) = of(one);
                Some((labels, value?))
            })
            .collect();
        if samples.is_empty() {
            return;
        }
        self.head(name, kind, unit, help, suffix);
        for (labels, value) in samples {
            self.sample(&format!("{name}{suffix}"), &labels, value);
        }
    }

    fn process(&mut self, now: &Snapshot) {
        let one = [now];
        let bytes: [Told<Snapshot, Option<u64>>; 6] = [
            ("process_resident", "Resident memory of the process.", |of| {
                of.resident
            }),
            ("process_resident_peak", "Peak of the resident memory.", |of| {
                of.resident_peak
            }),
            ("process_limit", "The limit that binds the process.", |of| {
                of.limit.map(|limit| limit.bytes)
            }),
            (
                "process_limit_used",
                "Memory used under this limit, without memory that the system reclaims by itself.",
                |of| of.limit.map(|limit| limit.used),
            ),
            (
                "cgroup_limit",
                "The tightest limit of the process's cgroups.",
                |of| of.cgroup.map(|limit| limit.bytes),
            ),
            (
                "cgroup_used",
                "Memory used under this limit, without memory that the system reclaims by itself.",
                |of| of.cgroup.map(|limit| limit.used),
            ),
        ];
        for (name, help, value) in bytes {
            let name = format!("millpond_{name}_bytes");
            self.gauge(&name, "bytes", help, &one, |of| (vec![], value(of)));
        }
        let help = "Pressure on the memory of the process: 0 low, 1 medium, 2 high, 3 critical.";
        self.gauge("millpond_pressure_level", "", help, &one, |of| {
            (vec![], Some(of.pressure as u64))
        });
    }

    fn pools(&mut self, pools: &[PoolReading]) {
        let labels = |of: &PoolReading| -> Labels {
            vec![
                ("pool", of.name.clone()),
                ("id", of.id.to_string()),
                ("kind", of.kind.name().to_owned()),
                ("device", of.device.to_string()),
            ]
        };
        let bytes: [Told<PoolReading, Option<u64>>; 9] = [
            (
                "requested",
                "Bytes of live blocks, as callers requested them.",
                |of| Some(of.stats.requested.current),
            ),
            ("requested_peak", "Peak of the requested bytes.", |of| {
                Some(of.stats.requested.peak)
            }),
            ("allocated", "Bytes of live blocks, as allocated.", |of| {
                Some(of.stats.allocated.current)
            }),
            ("allocated_peak", "Peak of the allocated bytes.", |of| {
                Some(of.stats.allocated.peak)
            }),
            (
                "active",
                "Bytes of live blocks, and of freed blocks that wait for a stream.",
                |of| Some(of.stats.active()),
            ),
            (
                "reserved",
                "Bytes taken from the source: the pool's capacity.",
                |of| Some(of.stats.reserved.current),
            ),
            ("reserved_peak", "Peak of the reserved bytes.", |of| {
                Some(of.stats.reserved.peak)
            }),
            ("kept", "Bytes that threads cache for later requests.", |of| {
                Some(of.stats.kept)
            }),
            ("limit", "Maximum of the reserved bytes.", |of| of.limit),
        ];
        for (name, help, value) in bytes {
            let name = format!("millpond_pool_{name}_bytes");
            self.gauge(&name, "bytes", help, pools, |of| (labels(of), value(of)));
        }
        let counts: [Told<PoolReading, u64>; 6] = [
            ("allocations", "Successful allocations.", |of| {
                of.stats.allocations
            }),
            ("frees", "Freed blocks.", |of| of.stats.frees),
            ("hits", "Allocations without a call of the source.", |of| {
                of.stats.hits
            }),
            (
                "misses",
                "Allocations with a call of the source.",
                PoolReading::misses,
            ),
            ("refusals", "Refused allocations.", |of| of.stats.refusals),
            (
                "stalls",
                "Calls that returned or moved pages, or waited for the device.",
                |of| of.stalls,
            ),
        ];
        for (name, help, value) in counts {
            let name = format!("millpond_pool_{name}");
            self.counter(&name, "", help, pools, |of| (labels(of), Some(value(of))));
        }
    }

    fn budgets(&mut self, budgets: &[BudgetReading]) {
        let labels = |of: &BudgetReading| -> Labels {
            vec![("budget", of.path.clone()), ("measure", of.measure.to_owned())]
        };
        let bytes: [Told<BudgetReading, Option<u64>>; 3] = [
            ("used", "Bytes charged to the budget.", |of| Some(of.used)),
            ("used_peak", "Peak of the charged bytes.", |of| Some(of.peak)),
            ("limit", "Limit of the budget.", |of| of.limit),
        ];
        for (name, help, value) in bytes {
            let name = format!("millpond_budget_{name}_bytes");
            self.gauge(&name, "bytes", help, budgets, |of| (labels(of), value(of)));
        }
        let help = "Requests that wait for the budget.";
        self.gauge("millpond_budget_waiting", "", help, budgets, |of| {
            (labels(of), Some(of.waiting))
        });
        let help = "Requests that the budget refused.";
        self.counter("millpond_budget_refusals", "", help, budgets, |of| {
            (labels(of), Some(of.refusals))
        });
    }

    fn devices(&mut self, devices: &[DeviceReading]) {
        let labels = |of: &DeviceReading| -> Labels {
            vec![("device", of.device.to_string()), ("name", of.name.clone())]
        };
        let bytes: [Told<DeviceReading, u64>; 5] = [
            ("total", "Memory of the device.", |of| of.total),
            ("free", "Free memory of the device.", |of| of.free),
            (
                "used",
                "Used memory of the device, of all processes.",
                DeviceReading::used,
            ),
            ("ours", "Memory reserved by pools of this process.", |of| of.ours),
            (
                "unexplained",
                "Used memory that belongs to no pool of this process.",
                DeviceReading::unexplained,
            ),
        ];
        for (name, help, value) in bytes {
            let name = format!("millpond_device_{name}_bytes");
            self.gauge(&name, "bytes", help, devices, |of| (labels(of), Some(value(of))));
        }
        let help = "Memory of the device that a process uses, as NVML reports it.";
        let each: Vec<(Labels, Option<u64>)> = devices
            .iter()
            .flat_map(|of| {
                let processes = of.processes.iter().flatten();
                processes.map(|process| {
                    let mut labels = labels(of);
                    labels.push(("process", process.id.to_string()));
                    (labels, process.used)
                })
            })
            .collect();
        self.gauge(
            "millpond_device_process_used_bytes",
            "bytes",
            help,
            &each,
            Clone::clone,
        );
    }

    fn tags(&mut self, tags: &[TagReading]) {
        let labels = |of: &TagReading| -> Labels { vec![("tag", of.name.clone())] };
        let help = "Bytes of live blocks by tag, for the largest tags, in pools that keep an account.";
        self.gauge("millpond_tag_bytes", "bytes", help, tags, |of| {
            (labels(of), Some(of.bytes))
        });
        let help = "Number of these blocks.";
        self.gauge("millpond_tag_blocks", "", help, tags, |of| {
            (labels(of), Some(of.blocks))
        });
    }
}

/// Writes the value of a label, escaped as both formats require. The formats have no escapes for other control characters. A
/// terminal that shows the text must not interpret them, so each becomes U+FFFD.
fn escape(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c if c.is_control() => text.push(char::REPLACEMENT_CHARACTER),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut text = String::new();
        escape(&mut text, "a\"b\\c\nd\u{e9}\u{1b}[2J\u{9b}");
        assert_eq!(text, "a\\\"b\\\\c\\nd\u{e9}\u{fffd}[2J\u{fffd}");
    }

    #[test]
    fn clients_that_do_not_request_openmetrics_get_the_older_format() {
        let prometheus = "application/openmetrics-text; version=1.0.0; charset=utf-8,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        assert_eq!(Dialect::accepted_by(prometheus), Dialect::OpenMetrics);
        assert_eq!(Dialect::accepted_by("text/plain"), Dialect::Prometheus);
        assert_eq!(Dialect::accepted_by(""), Dialect::Prometheus);
    }
}
