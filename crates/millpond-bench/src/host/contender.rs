//! The measured allocators.

use crate::Program;
use crate::host::allocator::{Allocator, Touch};
use crate::host::figures::Figures;
use crate::host::global::{Global, trim_glibc};
#[cfg(feature = "peers")]
use crate::host::global::{no_trim, trim_jemalloc, trim_mimalloc};
use crate::host::millpond::Millpond;
use crate::host::spec::Spec;
use crate::host::unpooled::Unpooled;
use crate::host::work::{self, Effort, Outcome};
use std::alloc::System;

/// Work over an allocator of any type.
trait Work {
    fn run<A: Allocator + Sync>(self, from: &A) -> Outcome<Figures>;
}

struct Workload {
    spec: Spec,
    effort: Effort,
}

impl Work for Workload {
    fn run<A: Allocator + Sync>(self, from: &A) -> Outcome<Figures> {
        work::run(self.spec, self.effort, from)
    }
}

struct Recorded<'a> {
    program: &'a Program,
    touch: Touch,
    check: bool,
}

impl Work for Recorded<'_> {
    fn run<A: Allocator + Sync>(self, from: &A) -> Outcome<Figures> {
        work::tape::run(from, self.program, self.touch, self.check)
    }
}

/// The way to get the missing allocators.
const PEERS: &str = "build with --features peers";

/// Returns a line that lists the allocators that were not built in, if any.
pub(crate) fn missing() -> Option<String> {
    let all = Contender::ALL.into_iter().filter(|one| !one.is_built());
    let names: Vec<&str> = all.map(Contender::name).collect();
    (!names.is_empty()).then(|| format!("not built in: {}; {PEERS}", names.join(", ")))
}

/// An allocator with its settings. Each run has its own process, because heaps and settings belong to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Loop,
    Glibc,
    GlibcTuned,
    Mimalloc,
    Jemalloc,
    JemallocTuned,
    Snmalloc,
    /// No allocator: a separate mapping for each block.
    Unpooled,
    Millpond,
}

impl Contender {
    pub(crate) const ALL: [Self; 9] = [
        Self::Loop,
        Self::Glibc,
        Self::GlibcTuned,
        Self::Mimalloc,
        Self::Jemalloc,
        Self::JemallocTuned,
        Self::Snmalloc,
        Self::Unpooled,
        Self::Millpond,
    ];

    /// Returns the default set: all allocators that were built in and are a heap.
    pub(crate) fn usual() -> impl Iterator<Item = Self> {
        let usual = |one: &Self| one.is_built() && *one != Self::Unpooled;
        Self::ALL.into_iter().filter(usual)
    }

    /// Returns whether this program contains it.
    pub(crate) fn is_built(self) -> bool {
        let peer = matches!(
            self,
            Self::Mimalloc | Self::Jemalloc | Self::JemallocTuned | Self::Snmalloc
        );
        cfg!(feature = "peers") || !peer
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Loop => "(loop)",
            Self::Glibc => "glibc",
            Self::GlibcTuned => "gl-tuned",
            Self::Mimalloc => "mimalloc",
            Self::Jemalloc => "jemalloc",
            Self::JemallocTuned => "je-tuned",
            Self::Snmalloc => "snmalloc",
            Self::Unpooled => "mmap",
            Self::Millpond => "millpond",
        }
    }

    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL
            .into_iter()
            .find(|c| c.name() == name || c.name().trim_matches(['(', ')']) == name);
        match found {
            Some(found) if found.is_built() => Ok(found),
            Some(found) => Err(format!("{} was not built in: {PEERS}", found.name())),
            None => {
                let names = Self::ALL.map(Self::name).join(", ");
                Err(format!("there is no peer '{name}': use one of {names}"))
            }
        }
    }

    /// Returns its settings, which are read when its process starts. Those of the tuned variants keep freed memory forever.
    pub(crate) fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::GlibcTuned => &[
                ("MALLOC_MMAP_MAX_", "0"),
                ("MALLOC_TRIM_THRESHOLD_", "1000000000000"),
                ("MALLOC_TOP_PAD_", "67108864"),
            ],
            Self::JemallocTuned => &[(
                "_RJEM_MALLOC_CONF",
                "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0",
            )],
            _ => &[],
        }
    }

    /// Returns the settings that this process lacks, if they must be set before the process starts.
    pub(crate) fn lacks(self) -> Option<String> {
        let unset = |(key, value): &&(&str, &str)| std::env::var(key).as_deref() != Ok(*value);
        let lines = self
            .environment()
            .iter()
            .filter(unset)
            .map(|(key, value)| format!("{key}={value}"));
        let lines: Vec<String> = lines.collect();
        (!lines.is_empty()).then(|| lines.join(" "))
    }

    /// Returns whether it runs this workload. Untuned jemalloc needs half a minute for the longest one, which shows no more
    /// than the shorter one.
    pub(crate) fn runs(self, spec: Spec) -> bool {
        match (self, spec) {
            (Self::Loop, Spec::Live { .. } | Spec::LiveThreads | Spec::Handoff | Spec::Half) => false,
            (Self::Jemalloc, Spec::Live { steps }) => steps <= 8_000,
            _ => true,
        }
    }

    /// Runs a workload in this process.
    pub(crate) fn run(self, spec: Spec, effort: Effort) -> Outcome<Figures> {
        match self {
            Self::Loop => {
                let figures = work::run_control(spec, effort)?;
                figures.ok_or_else(|| format!("{} cannot run {spec}", self.name()).into())
            }
            _ => self.over("millpond", Workload { spec, effort }),
        }
    }

    /// Runs a recorded program in this process. A pool of ours uses this policy.
    pub(crate) fn run_program(
        self,
        program: &Program,
        touch: Touch,
        check: bool,
        policy: &str,
    ) -> Outcome<Figures> {
        let recorded = Recorded {
            program,
            touch,
            check,
        };
        self.over(policy, recorded)
    }

    /// Runs some work over this allocator.
    fn over(self, policy: &str, work: impl Work) -> Outcome<Figures> {
        match self {
            Self::Loop => Err(format!("{} cannot run a recording", self.name()).into()),
            // Rust's `System` calls malloc and calloc for alignments up to 16, and posix_memalign above.
            Self::Glibc | Self::GlibcTuned => work.run(&Global::new(System, trim_glibc)),
            #[cfg(feature = "peers")]
            Self::Mimalloc => work.run(&Global::new(mimalloc::MiMalloc, trim_mimalloc)),
            #[cfg(feature = "peers")]
            Self::Jemalloc | Self::JemallocTuned => {
                work.run(&Global::new(tikv_jemallocator::Jemalloc, trim_jemalloc))
            }
            #[cfg(feature = "peers")]
            Self::Snmalloc => work.run(&Global::new(snmalloc_rs::SnMalloc, no_trim)),
            #[cfg(not(feature = "peers"))]
            Self::Mimalloc | Self::Jemalloc | Self::JemallocTuned | Self::Snmalloc => {
                Err(format!("{} was not built in: {PEERS}", self.name()).into())
            }
            Self::Unpooled => work.run(&Unpooled),
            Self::Millpond => work.run(&Millpond::new(policy)?),
        }
    }
}
