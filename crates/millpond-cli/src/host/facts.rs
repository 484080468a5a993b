//! The result of a replay on real memory, in the shape of its JSON.

use millpond_bench::host::recording::{Replay, Replayed, Row};
use millpond_replay::Program;
use millpond_trace::{Caution, Trace};
use serde::Serialize;

/// The result of one recording.
#[derive(Debug, Serialize)]
pub(super) struct Facts {
    pub(super) schema: u32,
    pub(super) trace: String,
    pub(super) source: &'static str,
    pub(super) events: u64,
    pub(super) allocations: u64,
    /// Blocks older than the first event. They are allocated first.
    pub(super) initial_blocks: u64,
    /// Blocks that the program never frees. They are freed at its end.
    pub(super) freed_at_the_end: u64,
    /// Frees of blocks that the program does not have. They are ignored.
    pub(super) unknown_frees: u64,
    /// The number of streams in the recording, which host memory does not have.
    pub(super) streams: usize,
    /// The divisor of every size.
    pub(super) scale: u64,
    /// Whether the divisor was chosen so that the program fits the memory that was free.
    pub(super) scale_chosen: bool,
    pub(super) touch: &'static str,
    /// Whether both ends of each block were checked when it was freed.
    pub(super) checked: bool,
    pub(super) rounds: usize,
    pub(super) peak_recorded_bytes: u64,
    /// The most bytes held at once, with divided sizes.
    pub(super) peak_bytes: u64,
    /// The average number of 4 KiB pages in a block.
    pub(super) pages_per_allocation: f64,
    pub(super) results: Vec<Result>,
    /// Runs that failed.
    pub(super) failed: Vec<String>,
    /// Allocators that this build does not contain.
    pub(super) not_built: Option<String>,
    pub(super) cautions: Vec<String>,
}

/// The result of one allocator.
#[derive(Debug, Serialize)]
pub(super) struct Result {
    pub(super) allocator: &'static str,
    /// The policy, for our pools.
    pub(super) policy: Option<String>,
    /// Time for an allocation, the writes to it and its free, in the median round.
    pub(super) ns_per_pair: f64,
    pub(super) ns_fastest_round: f64,
    pub(super) ns_slowest_round: f64,
    pub(super) time_of_glibc: Option<f64>,
    pub(super) faults_per_pair: f64,
    /// Resident bytes minus those at the start.
    pub(super) peak_rss_bytes: u64,
    pub(super) peak_rss_of_peak: Option<f64>,
    pub(super) peak_rss_of_glibc: Option<f64>,
    pub(super) freed_rss_bytes: u64,
    pub(super) trimmed_rss_bytes: u64,
}

impl Facts {
    pub(super) fn new(
        label: &str,
        trace: &Trace,
        program: &Program,
        what: &Replay<'_>,
        replayed: Replayed,
    ) -> Self {
        let mut streams: Vec<u16> = program.ops.iter().map(|op| op.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        let glibc = replayed.rows.iter().find(|row| row.allocator == "glibc").cloned();
        let result = |row: Row| Result {
            time_of_glibc: ratio(row.nanoseconds, glibc.as_ref().map(|g| g.nanoseconds)),
            peak_rss_of_peak: ratio(row.peak as f64, Some(replayed.peak as f64)),
            peak_rss_of_glibc: ratio(row.peak as f64, glibc.as_ref().map(|g| g.peak as f64)),
            allocator: row.allocator,
            policy: row.policy,
            ns_per_pair: row.nanoseconds,
            ns_fastest_round: row.least,
            ns_slowest_round: row.most,
            faults_per_pair: row.faults,
            peak_rss_bytes: row.peak,
            freed_rss_bytes: row.freed,
            trimmed_rss_bytes: row.trimmed,
        };
        Self {
            schema: 1,
            trace: label.to_owned(),
            source: "host",
            events: program.events,
            allocations: replayed.allocations,
            initial_blocks: program.initial_blocks,
            freed_at_the_end: replayed.left,
            unknown_frees: replayed.unknown_frees,
            streams: streams.len(),
            scale: replayed.divisor,
            scale_chosen: replayed.chosen,
            touch: what.touch.name(),
            checked: what.check,
            rounds: what.rounds,
            peak_recorded_bytes: program.peak_requested,
            peak_bytes: replayed.peak,
            pages_per_allocation: replayed.pages,
            results: replayed.rows.iter().cloned().map(result).collect(),
            failed: replayed.failed,
            not_built: replayed.missing,
            cautions: trace.cautions.iter().flat_map(Caution::sentences).collect(),
        }
    }
}

fn ratio(of: f64, to: Option<f64>) -> Option<f64> {
    to.filter(|to| *to > 0.0).map(|to| of / to)
}
