//! Who is measured.

use crate::figures::Figures;
use crate::global::{Global, no_trim, trim_glibc, trim_jemalloc, trim_mimalloc};
use crate::millpond::Millpond;
use crate::spec::Spec;
use crate::work::{self, Effort, Outcome};
use std::alloc::System;

/// An allocator with its settings. Each run has a process of its own, as heaps and settings are the process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Loop,
    Glibc,
    GlibcTuned,
    Mimalloc,
    Jemalloc,
    JemallocTuned,
    Snmalloc,
    Millpond,
}

impl Contender {
    pub(crate) const ALL: [Self; 8] = [
        Self::Loop,
        Self::Glibc,
        Self::GlibcTuned,
        Self::Mimalloc,
        Self::Jemalloc,
        Self::JemallocTuned,
        Self::Snmalloc,
        Self::Millpond,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Loop => "(loop)",
            Self::Glibc => "glibc",
            Self::GlibcTuned => "gl-tuned",
            Self::Mimalloc => "mimalloc",
            Self::Jemalloc => "jemalloc",
            Self::JemallocTuned => "je-tuned",
            Self::Snmalloc => "snmalloc",
            Self::Millpond => "millpond",
        }
    }

    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL
            .into_iter()
            .find(|c| c.name() == name || c.name().trim_matches(['(', ')']) == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no peer '{name}': {names}")
        })
    }

    /// Its settings, read when its process starts. Those of the tuned ones keep freed memory for good.
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

    /// What this process lacks to be measured as it, where its settings had to be there before the start.
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

    /// Whether it runs this workload. jemalloc as it comes takes half a minute for the longest, and says no more
    /// there than in the shorter one.
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
                figures.ok_or_else(|| format!("{} has nothing to run for {spec}", self.name()).into())
            }
            // Rust's own `System` is malloc and calloc up to an alignment of 16, and posix_memalign above.
            Self::Glibc | Self::GlibcTuned => work::run(spec, effort, &Global::new(System, trim_glibc)),
            Self::Mimalloc => work::run(spec, effort, &Global::new(mimalloc::MiMalloc, trim_mimalloc)),
            Self::Jemalloc | Self::JemallocTuned => {
                let heap = Global::new(tikv_jemallocator::Jemalloc, trim_jemalloc);
                work::run(spec, effort, &heap)
            }
            Self::Snmalloc => work::run(spec, effort, &Global::new(snmalloc_rs::SnMalloc, no_trim)),
            Self::Millpond => work::run(spec, effort, &Millpond::new()?),
        }
    }
}
