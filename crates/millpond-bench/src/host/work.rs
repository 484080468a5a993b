//! The workloads that `Spec` names, over any allocator.

pub(crate) mod batch;
mod handoff;
mod hot;
mod live;
pub(crate) mod seeds;
pub(crate) mod tape;
mod zeroed;

use crate::host::allocator::Allocator;
use crate::host::control::Control;
use crate::host::figures::{Figures, Memory, Time};
use crate::host::gauge::{forget_most_resident, most_resident, resident};
use crate::host::spec::Spec;

/// The result of a run.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The number of repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// As documented: a first pass, and the median of the later ones.
    Full,
    /// A first pass and one more, to check that everything runs.
    Quick,
    /// Only the first pass, for tools that count instructions and for tests.
    Once,
}

impl Effort {
    /// Returns its name between parent and child.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Quick => "quick",
            Self::Once => "once",
        }
    }

    /// Parses the name that a parent passed.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let all = [Self::Full, Self::Quick, Self::Once];
        let found = all.into_iter().find(|effort| effort.name() == name);
        found.ok_or_else(|| format!("there is no effort '{name}'"))
    }
}

/// Runs a workload.
///
/// # Errors
/// Returns an error if the allocator refuses a block, or breaks a promise that the workload checks.
pub(crate) fn run<A: Allocator + Sync>(spec: Spec, effort: Effort, from: &A) -> Outcome<Figures> {
    match spec {
        Spec::Hot { size, align, touch } => hot::run(from, size, align, touch, effort),
        Spec::Batch => batch::run(from, effort),
        Spec::Batches => batch::run_twice([from, from], effort),
        Spec::Live { steps } => live::run(from, steps),
        Spec::LiveThreads => live::run_threads(from),
        Spec::Handoff => handoff::run(from),
        Spec::Zeroed { size, align } => zeroed::run(from, size, align, effort),
        Spec::Half => live::run_half(from),
        Spec::Seed(seed) => seeds::run(from, seed, effort),
    }
}

/// Runs a workload over the control. Returns `None` if the control does not support it.
///
/// # Errors
/// Returns the errors of [`run`].
pub(crate) fn run_control(spec: Spec, effort: Effort) -> Outcome<Option<Figures>> {
    let control = Control::new();
    let figures = match spec {
        Spec::Hot { size, align, touch } => hot::run(&control, size, align, touch, effort)?,
        Spec::Batch => batch::run(&control, effort)?,
        Spec::Batches => batch::run_twice([control, Control::new()], effort)?,
        Spec::Zeroed { size, align } => zeroed::run(&control, size, align, effort)?,
        Spec::Seed(seed) => seeds::run(&control, seed, effort)?,
        Spec::Live { .. } | Spec::LiveThreads | Spec::Handoff | Spec::Half => return Ok(None),
    };
    Ok(Some(figures))
}

/// Repeats a pass. The first one is reported as `cold`, and the median of the others as `hot`.
fn passes(
    hot: usize,
    effort: Effort,
    mut pass: impl FnMut(&str) -> Outcome<Vec<Time>>,
) -> Outcome<Vec<Time>> {
    let cold = pass("cold")?;
    let hot = match effort {
        Effort::Once => return Ok(cold),
        Effort::Quick => 1,
        Effort::Full => hot,
    };
    let passes = (0..hot).map(|_| pass("hot")).collect::<Outcome<Vec<_>>>()?;
    let mut times = median_times(passes);
    times.extend(cold.into_iter().filter(|time| time.part == "cold"));
    Ok(times)
}

/// Returns for each part the pass with the median time, with its faults, and with the operations of all passes.
fn median_times(passes: Vec<Vec<Time>>) -> Vec<Time> {
    let parts = passes.iter().map(Vec::len).min().unwrap_or(0);
    let part = |at: usize| {
        let mut of: Vec<&Time> = passes.iter().map(|pass| &pass[at]).collect();
        of.sort_by(|a, b| a.nanoseconds.total_cmp(&b.nanoseconds));
        Time {
            operations: of.iter().map(|t| t.operations).sum(),
            ..of[of.len() / 2].clone()
        }
    };
    (0..parts).map(part).collect()
}

/// Returns memory of the program itself that lies above the blocks of a batch after all are allocated, as in any real program.
/// Without it, glibc would trim its heap after each pass, because its heap is also the program's. This would make a call five
/// times as expensive here. W1 and W3 show this effect.
fn anchor() -> Vec<u8> {
    // This is larger than any hole below, and smaller than an allocation with its own mapping.
    vec![1; 100 << 10]
}

/// Records resident bytes during a workload.
struct ResidentMemory(Memory);

impl ResidentMemory {
    /// Starts after all data of the workload itself exists.
    fn start() -> Self {
        forget_most_resident();
        Self(Memory {
            start: resident(),
            ..Memory::default()
        })
    }

    /// Ends after the frees, when `left` bytes are still held. Measures, trims, and measures again.
    fn end<A: Allocator>(mut self, from: &A, live: u64, left: u64) -> Memory {
        self.0.peak = most_resident();
        self.0.live = live;
        self.0.left = left;
        self.0.freed = resident();
        from.trim();
        self.0.trimmed = resident();
        self.0
    }
}
