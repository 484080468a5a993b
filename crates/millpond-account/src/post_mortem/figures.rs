//! The figures of a post-mortem and their text.

use super::Count;
use super::measure::Measure;
use super::text::Text;
use millpond_engine::display_size;
use std::fmt;

/// The refusing budget at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetFigures {
    /// The names from the root to the budget.
    pub path: Text<96>,
    /// The bytes that it counts.
    pub measure: Measure,
    /// The limit.
    pub limit: u64,
    /// The charged bytes.
    pub used: u64,
    /// The bytes by which the request exceeded the limit, or 0 if it only had to wait for other requests.
    pub over_by: u64,
    /// The number of waiting requests.
    pub waiting: usize,
}

impl BudgetFigures {
    /// Writes the refusal in one line.
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

/// The memory of pools that no live block uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceFigures {
    /// The bytes that the source can still provide.
    pub free: u64,
    /// The largest contiguous free range.
    pub largest_hole: u64,
    /// The bytes taken from the source that no block uses.
    pub cached: u64,
}

impl fmt::Display for SpaceFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [free, hole, cached] = [self.free, self.largest_hole, self.cached].map(display_size);
        write!(f, "{free} free, largest hole {hole} among {cached} cached")
    }
}

/// The method by which the least memory to free was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// Only the bytes over the limit are known. The blocks are unknown, or more than 32 would have to be freed.
    Need,
    /// The smallest block that suffices alone.
    OneBlock,
    /// The largest blocks, and as the last one the smallest block that covers the rest.
    LargestFirst,
    /// The adjacent blocks with the fewest live bytes whose range is large enough.
    Neighbours,
    /// Like `Neighbours`, but there are so many blocks that not every range was checked.
    NeighboursRoughly,
}

/// The least memory that must be freed for the request to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Least {
    /// The lower bound of the bytes to free. With [`Method::NeighboursRoughly`], fewer may suffice.
    pub need: u64,
    /// The number of blocks in the set that suffices, or 0 if none is known.
    pub blocks: u64,
    /// The bytes of these blocks.
    pub bytes: u64,
    /// The method that found the set.
    pub method: Method,
}

impl fmt::Display for Least {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (need, bytes) = (display_size(self.need), display_size(self.bytes));
        let (blocks, adjacent) = (Count(self.blocks, "block"), Count(self.blocks, "adjacent block"));
        match self.method {
            Method::Need => write!(f, "to free: at least {need}"),
            Method::OneBlock => write!(
                f,
                "to free: at least {need}; the smallest sufficient block has {bytes}"
            ),
            Method::LargestFirst => write!(
                f,
                "to free: at least {need}; {blocks} with {bytes} in total suffice, and no fewer"
            ),
            Method::Neighbours => write!(f, "to free: at least {bytes} in {adjacent}"),
            Method::NeighboursRoughly => write!(f, "to free: at most {bytes} in {adjacent}"),
        }
    }
}
