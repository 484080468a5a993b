//! Checks this machine's memory and this process's limits.

use super::{Finding, State};
use crate::text::{counted, size};
use millpond::pressure::{Level, Readings, Thresholds};
use std::fs;
use std::path::Path;

/// Below this number of mappings, moving pages soon reaches the limit.
const FEW_MAPPINGS: u64 = 262_144;
/// The fewest bytes that a training program may want to lock.
const LITTLE_LOCKED: u64 = 1 << 30;

/// Returns all findings, read below `root`.
pub(super) fn findings(root: &Path) -> Vec<Finding> {
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    vec![
        pressure(root),
        locked(read("proc/self/limits").as_deref()),
        mappings(read("proc/sys/vm/max_map_count").as_deref()),
        transparent(
            read("sys/kernel/mm/transparent_hugepage/enabled").as_deref(),
            read("sys/kernel/mm/transparent_hugepage/defrag").as_deref(),
        ),
        explicit(&root.join("sys/kernel/mm/hugepages")),
        nodes(read("sys/devices/system/node/online").as_deref()),
        overcommit(read("proc/sys/vm/overcommit_memory").as_deref()),
    ]
}

fn pressure(root: &Path) -> Finding {
    let now = Readings::under(root).pressure(&Thresholds::default());
    let Some(limit) = now.limit() else {
        return Finding::new("memory", State::Unknown, "no limit of this process could be read");
    };
    let found = format!(
        "{} available of {} ({:?})",
        size(limit.available()),
        size(limit.bytes),
        limit.kind
    );
    if now.level() < Level::High {
        return Finding::new("memory", State::Good, found);
    }
    Finding::new("memory", State::Limited, found)
        .advise("little is left, so pools return cached memory: lower the pools' limits or add memory, or the system may kill the process")
}

fn locked(limits: Option<&str>) -> Finding {
    let topic = "pinned memory";
    let line = limits.and_then(|text| {
        text.lines()
            .find_map(|line| line.strip_prefix("Max locked memory"))
    });
    let soft = line.and_then(|rest| rest.split_whitespace().next());
    let advice = "raise RLIMIT_MEMLOCK: ulimit -l, LimitMEMLOCK= of a systemd unit, memlock in /etc/security/limits.conf, \
                  --ulimit memlock=-1 of a container; or grant CAP_IPC_LOCK. Memory pinned by CUDA's driver does not count";
    match soft.map(|text| (text, text.parse::<u64>())) {
        Some(("unlimited", _)) => Finding::new(topic, State::Good, "any amount can be locked"),
        Some((_, Ok(bytes))) => {
            let found = format!("{} can be locked", size(bytes));
            if bytes >= LITTLE_LOCKED {
                Finding::new(topic, State::Good, found)
            } else {
                Finding::new(topic, State::Limited, found).advise(advice)
            }
        }
        _ => Finding::new(topic, State::Unknown, "the limit could not be read"),
    }
}

fn mappings(text: Option<&str>) -> Finding {
    let topic = "mappings";
    match text.and_then(|text| text.trim().parse::<u64>().ok()) {
        Some(most) if most >= FEW_MAPPINGS => Finding::new(topic, State::Good, counted(most, "mapping")),
        Some(most) => Finding::new(topic, State::Limited, format!("{} for a process", counted(most, "mapping")))
            .advise(format!(
                "moving pages, and returning pages from the middle of a range, needs mappings: sysctl -w vm.max_map_count={FEW_MAPPINGS}"
            )),
        None => Finding::new(topic, State::Unknown, "vm.max_map_count could not be read"),
    }
}

/// Returns the word in brackets.
fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

fn transparent(enabled: Option<&str>, defrag: Option<&str>) -> Finding {
    let topic = "huge pages";
    match enabled.and_then(chosen) {
        Some("never") => Finding::new(topic, State::Missing, "transparent huge pages are off").advise(
            "pools request them for large blocks: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(mode) => {
            let defrag = defrag.and_then(chosen).unwrap_or("unknown");
            let found = format!("transparent ones: {mode}, defrag: {defrag}");
            Finding::new(topic, State::Good, found)
        }
        None => Finding::new(
            topic,
            State::Unknown,
            "the system says nothing of transparent huge pages",
        ),
    }
}

/// Returns explicit huge pages by size, from folder names such as `hugepages-2048kB`.
fn explicit(folder: &Path) -> Finding {
    let topic = "explicit ones";
    let Ok(entries) = fs::read_dir(folder) else {
        return Finding::new(
            topic,
            State::Unknown,
            "the system says nothing of explicit huge pages",
        );
    };
    let mut sizes: Vec<(u64, u64, u64)> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?;
            let kib: u64 = name
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()?;
            let number = |file: &str| {
                let text = fs::read_to_string(path.join(file)).ok()?;
                text.trim().parse::<u64>().ok()
            };
            Some((kib << 10, number("free_hugepages")?, number("nr_hugepages")?))
        })
        .collect();
    sizes.sort_unstable();
    let kept = sizes.iter().any(|(.., kept)| *kept > 0);
    let each = sizes
        .iter()
        .map(|(bytes, free, kept)| format!("{free} free of {kept} of {}", size(*bytes)));
    let found = each.collect::<Vec<_>>().join(", ");
    match (sizes.is_empty(), kept) {
        (true, _) => Finding::new(topic, State::Unknown, "the system knows no sizes"),
        (_, true) => Finding::new(topic, State::Good, found),
        (_, false) => Finding::new(topic, State::Missing, found).advise(
            "needed only if huge-pages is set to a size: sysctl -w vm.nr_hugepages=N reserves N of 2 MiB",
        ),
    }
}

fn nodes(text: Option<&str>) -> Finding {
    match text.map(str::trim).filter(|text| !text.is_empty()) {
        Some("0") => Finding::new("NUMA nodes", State::Good, "one"),
        Some(several) => Finding::new("NUMA nodes", State::Good, several)
            .advise("a pool can be bound to the node of its threads or of its device: PoolBuilder::node"),
        None => Finding::new("NUMA nodes", State::Unknown, "the system does not say"),
    }
}

fn overcommit(text: Option<&str>) -> Finding {
    let topic = "overcommit";
    match text.map(str::trim) {
        Some("2") => Finding::new(topic, State::Limited, "strict: addresses count as memory").advise(
            "pools reserve addresses without charge, other libraries may not: sysctl -w vm.overcommit_memory=0",
        ),
        Some("0" | "1") => Finding::new(topic, State::Good, "addresses are not charged"),
        _ => Finding::new(topic, State::Unknown, "vm.overcommit_memory could not be read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units
Max processes             96000                96000                processes
Max locked memory         8388608              8388608              bytes
";

    fn state(finding: &Finding) -> State {
        finding.state
    }

    #[test]
    fn limits_are_read_as_the_system_writes_them() {
        let little = locked(Some(LIMITS));
        assert_eq!(
            (state(&little), little.found.as_str()),
            (State::Limited, "8.00 MiB can be locked")
        );
        assert!(little.advice.is_some_and(|advice| advice.contains("ulimit -l")));
        let any = LIMITS.replace("8388608 ", "unlimited ");
        assert_eq!(state(&locked(Some(&any))), State::Good);
        assert_eq!(state(&locked(Some("nothing of it"))), State::Unknown);
        assert_eq!(state(&locked(None)), State::Unknown);
        assert_eq!(state(&mappings(Some("65530\n"))), State::Limited);
        assert_eq!(state(&mappings(Some("1048576\n"))), State::Good);
        assert_eq!(state(&mappings(Some("many\n"))), State::Unknown);
        assert_eq!(state(&overcommit(Some("2\n"))), State::Limited);
        assert_eq!(state(&nodes(Some("0-1\n"))), State::Good);
        assert!(nodes(Some("0-1\n")).advice.is_some() && nodes(Some("0\n")).advice.is_none());
    }

    #[test]
    fn the_chosen_mode_is_the_one_in_brackets() {
        let found = transparent(
            Some("always [madvise] never\n"),
            Some("always defer [madvise] never\n"),
        );
        assert_eq!(found.found, "transparent ones: madvise, defrag: madvise");
        assert_eq!(
            state(&transparent(Some("always madvise [never]"), None)),
            State::Missing
        );
        assert_eq!(state(&transparent(Some("always"), None)), State::Unknown);
    }

    #[test]
    fn every_finding_is_unknown_if_the_system_reports_nothing() {
        let nowhere = std::env::temp_dir().join("millpond-doctor-of-nothing");
        let found = findings(&nowhere);
        assert!(
            found.iter().all(|finding| finding.state == State::Unknown),
            "{found:?}"
        );
        assert_eq!(found.len(), findings(Path::new("/")).len());
    }
}
