//! The figures of a post-mortem, and how each is told.

use super::Blocks;
use super::measure::Measure;
use super::text::Text;
use millpond_engine::display_size;
use std::fmt;

/// The budget that refused, as it was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetFigures {
    /// The names from the root to it.
    pub path: Text<96>,
    /// Which bytes it counts.
    pub measure: Measure,
    /// Its limit.
    pub limit: u64,
    /// Bytes charged to it.
    pub used: u64,
    /// Bytes by which the request was over the limit; 0 where it only had to wait for others.
    pub over_by: u64,
    /// Requests that waited there.
    pub waiting: usize,
}

impl BudgetFigures {
    /// One line.
    pub(crate) fn write_refusal(&self, requested: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        let [request, over, used, limit] = [requested, self.over_by, self.used, self.limit].map(display_size);
        let measure = self.measure;
        let (waiting, s) = (self.waiting, if self.waiting == 1 { " waits" } else { "s wait" });
        if requested > self.limit {
            return write!(
                f,
                "out of memory: {request} requested, and budget '{path}' allows {limit} {measure} in all"
            );
        }
        if self.over_by == 0 {
            return write!(
                f,
                "out of memory: {request} requested, and {waiting} other request{s} for budget '{path}' ({used} of {limit} {measure})"
            );
        }
        write!(
            f,
            "out of memory: {request} requested, {over} over budget '{path}' ({used} of {limit} {measure})"
        )?;
        if waiting > 0 {
            write!(f, ", where {waiting} other request{s}")?;
        }
        Ok(())
    }
}

/// What pools have besides their live blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceFigures {
    /// Bytes the source could still give.
    pub free: u64,
    /// The largest contiguous free block.
    pub largest_hole: u64,
    /// Bytes held from the source that no block uses.
    pub cached: u64,
}

impl fmt::Display for SpaceFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [free, hole, cached] = [self.free, self.largest_hole, self.cached].map(display_size);
        write!(f, "{free} free, largest hole {hole} among {cached} cached")
    }
}

/// How the least that would have to go was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// The bytes over the limit; which blocks is not known, or they would be more than 32.
    Need,
    /// The smallest block that is enough alone.
    OneBlock,
    /// The largest blocks, and at last the smallest of them that is enough for the rest.
    LargestFirst,
    /// The neighbours with the fewest live bytes whose place is large enough.
    Neighbours,
    /// The same, where there are so many blocks that not every place was tried.
    NeighboursRoughly,
}

/// The least that would have to go, so that the request fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Least {
    /// No fewer bytes than this; with [`Method::NeighboursRoughly`] fewer may do.
    pub need: u64,
    /// Blocks of the set that would do; 0 if none is known.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How the set was found.
    pub method: Method,
}

impl fmt::Display for Least {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (need, bytes, blocks) = (
            display_size(self.need),
            display_size(self.bytes),
            Blocks(self.blocks),
        );
        match self.method {
            Method::Need => write!(f, "to go at least: {need}"),
            Method::OneBlock => write!(
                f,
                "to go at least: {need}; the smallest block that is enough has {bytes}"
            ),
            Method::LargestFirst => write!(
                f,
                "to go at least: {need}; {blocks} of {bytes} would do, no fewer can"
            ),
            Method::Neighbours => write!(f, "to go at least: {bytes} in {blocks} that lie together"),
            Method::NeighboursRoughly => write!(f, "to go: {bytes} in {blocks} that lie together, or fewer"),
        }
    }
}
