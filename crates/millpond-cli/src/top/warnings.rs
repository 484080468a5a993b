//! Finds warnings in the current and the first statistics of a process.

use super::stats::{PoolStats, Stats};
use millpond_engine::display_size;

/// The number of samples of the hit rate that count as current.
const RECENT: usize = 5;
/// The fewest earlier samples that they are compared with.
const EARLIER: usize = 10;
/// The smallest fall of the hit rate that is reported, in hundredths of a per cent.
const FALL: u64 = 1500;

/// Returns the warnings as sentences, the most urgent first. `first` contains the first statistics of the process.
pub(crate) fn warnings(now: &Stats, first: Option<&Stats>) -> Vec<String> {
    let mut told: Vec<String> = now.warnings.iter().map(|warning| warning.text.clone()).collect();
    if matches!(now.process.pressure.as_str(), "high" | "critical") {
        let limit = now.process.limit.as_ref();
        let of = limit.map(|limit| {
            format!(
                ": {} of {} ({})",
                display_size(limit.used),
                display_size(limit.bytes),
                limit.kind
            )
        });
        told.push(format!(
            "memory pressure is {}{}",
            now.process.pressure,
            of.unwrap_or_default()
        ));
    }
    told.extend(now.pools.iter().filter_map(|pool| refused(pool, first)));
    told.extend(now.pools.iter().filter_map(falling));
    let stale = now.pools.iter().filter(|pool| pool.stale);
    told.extend(stale.map(|pool| {
        format!(
            "{}: busy with its device, the figures are from an earlier sample",
            pool.name
        )
    }));
    let waiting = now.budgets.iter().filter(|budget| budget.waiting > 0);
    told.extend(waiting.map(|budget| {
        format!(
            "budget {}: {} waiting for room",
            budget.path,
            requests(budget.waiting)
        )
    }));
    told.extend(losses(now));
    told
}

fn requests(count: u64) -> String {
    format!("{count} request{}", if count == 1 { "" } else { "s" })
}

fn refused(pool: &PoolStats, first: Option<&Stats>) -> Option<String> {
    let before = first.and_then(|first| first.pools.iter().find(|other| other.id == pool.id));
    let (count, since) = match before {
        Some(before) => (
            pool.refusals.saturating_sub(before.refusals),
            "since this view opened",
        ),
        None => (pool.refusals, "so far"),
    };
    (count > 0).then(|| format!("{}: {} refused {since}", pool.name, requests(count)))
}

fn falling(pool: &PoolStats) -> Option<String> {
    let history = &pool.hit_rate_history;
    let (earlier, recent) = history.split_at(history.len().saturating_sub(RECENT));
    if earlier.len() < EARLIER {
        return None;
    }
    let mean = |of: &[u64]| of.iter().sum::<u64>() / of.len().max(1) as u64;
    let (before, now) = (mean(earlier), mean(recent));
    (before.saturating_sub(now) >= FALL).then(|| {
        format!(
            "{}: hit rate falling, now {} %, before {} %",
            pool.name,
            now / 100,
            before / 100
        )
    })
}

fn losses(now: &Stats) -> Vec<String> {
    let of = &now.losses;
    let told = [
        (
            of.untracked,
            "live blocks are not in the account, for lack of room",
        ),
        (of.undelivered, "events were not delivered to subscribers"),
        (of.subscriber_panics, "calls of subscribers panicked"),
        (of.callback_panics, "callbacks of the monitor panicked"),
        (
            of.samples,
            "samples are left out: the program had no memory for them",
        ),
        (of.pools, "pools are not shown: there are too many"),
        (of.budgets, "budgets are not shown: there are too many"),
        (of.devices, "devices do not answer"),
        (of.series, "series are not followed: there were too many"),
    ];
    told.into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(pool: PoolStats) -> Stats {
        let mut stats: Stats =
            serde_json::from_str(r#"{"schema":"","version":1,"process":{"id":1}}"#).expect("stats");
        stats.pools.push(pool);
        stats
    }

    #[test]
    fn a_falling_hit_rate_is_reported_and_a_low_one_is_not() {
        let of = |history: Vec<u64>| {
            let pool = PoolStats {
                name: "p".to_owned(),
                hit_rate_history: history,
                ..PoolStats::default()
            };
            warnings(&stats(pool), None)
        };
        let then = |before: u64, now: u64| [vec![before; 20], vec![now; RECENT]].concat();
        assert_eq!(
            of(then(9900, 5000)),
            ["p: hit rate falling, now 50 %, before 99 %"]
        );
        for calm in [
            then(9900, 9000),
            then(1000, 1000),
            then(5000, 9900),
            vec![9900, 0, 0, 0, 0, 0],
        ] {
            assert!(of(calm.clone()).is_empty(), "{calm:?}");
        }
    }

    #[test]
    fn refusals_are_counted_since_the_first_statistics() {
        let of = |refusals| {
            stats(PoolStats {
                name: "p".to_owned(),
                refusals,
                ..PoolStats::default()
            })
        };
        assert_eq!(warnings(&of(3), None), ["p: 3 requests refused so far"]);
        assert_eq!(
            warnings(&of(4), Some(&of(3))),
            ["p: 1 request refused since this view opened"]
        );
        assert!(warnings(&of(3), Some(&of(3))).is_empty());
    }

    #[test]
    fn pressure_waits_and_losses_are_reported() {
        let mut now = stats(PoolStats {
            stale: true,
            name: "p".to_owned(),
            ..PoolStats::default()
        });
        now.process.pressure = "high".to_owned();
        now.losses.undelivered = 2;
        now.budgets.push(super::super::stats::BudgetStats {
            path: "a/b".to_owned(),
            waiting: 2,
            ..Default::default()
        });
        assert_eq!(
            warnings(&now, None),
            [
                "memory pressure is high",
                "p: busy with its device, the figures are from an earlier sample",
                "budget a/b: 2 requests waiting for room",
                "2 events were not delivered to subscribers",
            ]
        );
    }
}
