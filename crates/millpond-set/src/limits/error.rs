//! Errors of limits.

use super::usage::Usage;
use millpond_account::ledger::LeakReport;
use millpond_account::tally::{Site, by_place};
use millpond_engine::{ParseSizeError, display_size};
use std::cmp::Reverse;
use std::fmt;
use thiserror::Error;

/// The number of places that are written, and the number of frames of each.
const PLACES: usize = 5;
const FRAMES: usize = 8;

/// The reason why a scope did not pass.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// A limit was exceeded.
    #[error(transparent)]
    Exceeded(#[from] Box<LimitsExceeded>),
    /// A limit is a text that is not a size. Write it as `"24 MiB"` or as a number.
    #[error("invalid limit: {0}")]
    Size(ParseSizeError),
    /// These pools have an account of only some blocks. Give them an account of all blocks, or name the pools that are measured.
    #[error(
        "limits need an account of every block, but these pools track only some blocks: {}; create them with \
         Tracking::All, or name the pools to measure with Limits::pool",
        pools.join(", ")
    )]
    Sampled {
        /// The names of the pools.
        pools: Vec<String>,
    },
    /// There are more scopes than are supported. End some of them.
    #[error("there are already 1,023 scopes, which is the maximum: end some of them")]
    TooMany,
}

/// A limit that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exceeded {
    /// The bytes that were live at once.
    Peak {
        /// The limit.
        limit: u64,
        /// The measured value.
        measured: u64,
    },
    /// The bytes of all blocks.
    Total {
        /// The limit.
        limit: u64,
        /// The measured value.
        measured: u64,
    },
    /// The bytes that are live at the end.
    Leaked {
        /// The limit.
        limit: u64,
        /// The measured value.
        measured: u64,
    },
    /// The bytes that are live at the end, with one tag and from one place.
    LeakedAtOnePlace {
        /// The limit.
        limit: u64,
        /// The largest measured value of a place.
        measured: u64,
    },
    /// The number of blocks that were allocated.
    Allocations {
        /// The limit.
        limit: u64,
        /// The measured value.
        measured: u64,
    },
    /// The number of blocks that were freed by the next memory operation of their thread.
    Temporary {
        /// The limit.
        limit: u64,
        /// The measured value.
        measured: u64,
    },
}

impl Exceeded {
    pub(super) fn peak(limit: u64, measured: u64) -> Self {
        Self::Peak { limit, measured }
    }

    pub(super) fn total(limit: u64, measured: u64) -> Self {
        Self::Total { limit, measured }
    }

    pub(super) fn leaked(limit: u64, measured: u64) -> Self {
        Self::Leaked { limit, measured }
    }

    pub(super) fn leaked_at_one_place(limit: u64, measured: u64) -> Self {
        Self::LeakedAtOnePlace { limit, measured }
    }

    pub(super) fn allocations(limit: u64, measured: u64) -> Self {
        Self::Allocations { limit, measured }
    }

    pub(super) fn temporary(limit: u64, measured: u64) -> Self {
        Self::Temporary { limit, measured }
    }
}

/// Writes the name of the measurement, its value and the limit.
impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, limit, measured, are_bytes) = match *self {
            Self::Peak { limit, measured } => ("peak", limit, measured, true),
            Self::Total { limit, measured } => ("total", limit, measured, true),
            Self::Leaked { limit, measured } => ("leaked", limit, measured, true),
            Self::LeakedAtOnePlace { limit, measured } => ("leaked at one place", limit, measured, true),
            Self::Allocations { limit, measured } => ("allocations", limit, measured, false),
            Self::Temporary { limit, measured } => ("temporary", limit, measured, false),
        };
        if !are_bytes {
            return write!(f, "{what}: {measured}, and the limit is {limit}");
        }
        let (shown, of) = (
            display_size(measured).to_string(),
            display_size(limit).to_string(),
        );
        write!(f, "{what}: {shown}, and the limit is {of}")?;
        if shown == of {
            write!(f, " ({measured} bytes, and {limit})")?;
        }
        Ok(())
    }
}

/// The limits that were exceeded, and the holders of memory. The text names the holders at the peak, at the end, or of the most
/// blocks, depending on the limits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimitsExceeded {
    /// The limits that were exceeded. There is at least one.
    pub exceeded: Vec<Exceeded>,
    /// The measurements.
    pub usage: Usage,
    /// The number of the measured run, counted from 1.
    pub run: usize,
    /// The number of measured runs.
    pub runs: usize,
    /// The blocks that the runs before the measured ones left behind.
    pub warm_up: Option<LeakReport>,
}

impl std::error::Error for LimitsExceeded {}

impl LimitsExceeded {
    fn is_about(&self, kinds: impl Fn(&Exceeded) -> bool) -> bool {
        self.exceeded.iter().any(kinds)
    }
}

impl fmt::Display for LimitsExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory limits are exceeded")?;
        if self.runs > 1 {
            write!(f, " in run {} of {}", self.run, self.runs)?;
        }
        for exceeded in &self.exceeded {
            write!(f, "\n  {exceeded}")?;
        }
        if self.is_about(|one| matches!(one, Exceeded::Peak { .. })) {
            write!(f, "\nat the peak: {}", self.usage.at_peak())?;
        }
        if self.is_about(|one| matches!(one, Exceeded::Leaked { .. } | Exceeded::LeakedAtOnePlace { .. })) {
            write!(f, "\nat the end: {}", self.usage.leaked)?;
        }
        if self.is_about(|one| matches!(one, Exceeded::Total { .. })) {
            most(f, &self.usage.sites, "bytes", |site| site.total)?;
        }
        if self.is_about(|one| matches!(one, Exceeded::Allocations { .. })) {
            most(f, &self.usage.sites, "allocations", |site| site.allocations)?;
        }
        if self.is_about(|one| matches!(one, Exceeded::Temporary { .. })) {
            most(f, &self.usage.sites, "temporary blocks", |site| site.temporary)?;
        }
        match &self.warm_up {
            Some(left) if !left.is_empty() => write!(f, "\nafter the warm-up, which does not count: {left}"),
            _ => Ok(()),
        }
    }
}

/// Writes the places with the largest values.
fn most(f: &mut fmt::Formatter<'_>, sites: &[Site], what: &str, of: impl Fn(&Site) -> u64) -> fmt::Result {
    let sites = by_place(sites);
    let mut sites: Vec<&Site> = sites.iter().filter(|site| of(site) > 0).collect();
    sites.sort_by_key(|site| Reverse(of(site)));
    write!(f, "\nmost {what}:")?;
    for site in sites.iter().take(PLACES) {
        let of_all = format!("{} of {}", display_size(site.total), site.allocations);
        let s = if site.allocations == 1 { "" } else { "s" };
        write!(
            f,
            "\n  {of_all} allocation{s}, {} temporary: {}",
            site.temporary, site.tag
        )?;
        let frames = site
            .stack
            .as_ref()
            .map(millpond_account::ledger::Stack::user_frames);
        for frame in frames.iter().flatten().take(FRAMES) {
            write!(f, "\n            at {frame}")?;
        }
    }
    match sites.len().checked_sub(PLACES) {
        Some(more @ 1..) => write!(f, "\n  and {more} more"),
        _ => Ok(()),
    }
}
