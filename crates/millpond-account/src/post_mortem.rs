//! The post-mortem of an out-of-memory error: the request, the limit that refused it, the holders of memory, and the smallest set
//! of blocks that would have to be freed.
//!
//! A post-mortem is created when memory has just run out, possibly in the program's global allocator. So it is a value of fixed
//! size, whose texts and lists have a fixed capacity. The [`Survey`] that collects its data has a fixed size as well and lives on
//! the stack. An arena that is allocated in advance would hold no more data and would need another lock. Growing lists would
//! allocate from the pool that has just failed. Entries that do not fit are added up under "more".
//!
//! ```text
//!   text      texts of limited length
//!   top       the largest entries, and the sum of the rest
//!   holders   bytes by tag, in a table of fixed size
//!   heaviest  the fewest blocks that free a number of bytes
//!   window    the cheapest range for a hole
//!   survey    collects all of this from a pool's lister
//! ```

mod figures;
mod heaviest;
mod holders;
mod measure;
mod survey;
mod text;
mod top;
mod window;

pub use figures::{BudgetFigures, Least, Method, SpaceFigures};
pub use measure::Measure;
pub use survey::{Lister, Survey};
pub use text::Text;
pub use top::{Holding, Top};

use millpond_engine::display_size;
use std::fmt;
use std::path::Path;

/// The maximum number of children and tags that are listed. The rest is added up.
const CHILDREN: usize = 4;
const TAGS: usize = 5;

/// Formats the file with all blocks as the last line of an error, if there is one.
pub(crate) struct In<'a>(pub(crate) Option<&'a Path>);

impl fmt::Display for In<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(path) => write!(f, "\n  all blocks: millpond report {}", path.display()),
            None => Ok(()),
        }
    }
}

/// The reason for an out-of-memory error. It is displayed in at most twelve lines, and every field is a value.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PostMortem {
    /// The requested bytes.
    pub requested: u64,
    /// The budget that refused, if there is one.
    pub budget: Option<BudgetFigures>,
    /// The limit of the pool, if it is the reason for the refusal.
    pub limit: Option<u64>,
    /// Whether the reason for the refusal is that there is no memory for the pool's own tables.
    pub tables_are_full: bool,
    /// The free bytes and holes, if a pool reported them.
    pub space: Option<SpaceFigures>,
    /// The children of the refusing budget with the most charged bytes.
    pub children: Top<CHILDREN>,
    /// The holders of blocks, by tag.
    pub holders: Top<TAGS>,
    /// The number of surveyed pools that keep no account of their blocks.
    pub without_account: u64,
    /// The used bytes of a device that belong to no pool of this process: other processes, other libraries and the
    /// driver itself.
    pub elsewhere: u64,
    /// The least memory that must be freed, if it is known.
    pub least: Option<Least>,
}

impl fmt::Display for PostMortem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.budget {
            Some(budget) => budget.write_refusal(self.requested, f)?,
            None => write!(f, "out of memory: {} requested", display_size(self.requested))?,
        }
        if let (None, Some(limit)) = (&self.budget, self.limit) {
            let shown = display_size(limit);
            match self.requested.checked_sub(limit) {
                Some(above @ 1..) => {
                    let above = display_size(above);
                    write!(f, ", which is {above} above the pool's limit of {shown}")?;
                }
                _ => write!(f, ", and the pool's limit is {shown}")?,
            }
        }
        if self.tables_are_full {
            f.write_str(", and there is no memory for the pool's own tables")?;
        }
        if let Some(space) = &self.space {
            write!(f, "\n  {space}")?;
        }
        if self.children.count() > 0 {
            f.write_str("\n  below it: ")?;
            for (at, child) in self.children.named().iter().enumerate() {
                let comma = if at == 0 { "" } else { ", " };
                write!(f, "{comma}{} {}", child.name, display_size(child.bytes))?;
            }
            if self.children.others() > 0 {
                let (others, bytes) = (self.children.others(), display_size(self.children.other_bytes()));
                write!(f, ", {others} more {bytes}")?;
            }
        }
        for holder in self.holders.named() {
            let (bytes, blocks) = (display_size(holder.bytes), Count(holder.blocks, "block"));
            write!(f, "\n  {bytes:>9} in {blocks} held by {}", holder.name)?;
        }
        if self.holders.others() > 0 {
            let (others, bytes) = (self.holders.others(), display_size(self.holders.other_bytes()));
            let blocks = Count(self.holders.other_blocks(), "block");
            write!(
                f,
                "\n  {bytes:>9} in {blocks} held by {}",
                Count(others, "more tag")
            )?;
        }
        match self.without_account {
            0 => {}
            1 => write!(
                f,
                "\n  a pool keeps no account of the holders of its blocks: {ACCOUNT}"
            )?,
            n => write!(
                f,
                "\n  {n} pools keep no account of the holders of their blocks: {ACCOUNT}"
            )?,
        }
        if self.elsewhere > 0 {
            let bytes = display_size(self.elsewhere);
            write!(
                f,
                "\n  {bytes:>9} of the device used by others: processes, libraries, the driver"
            )?;
        }
        if let Some(least) = &self.least {
            write!(f, "\n  {least}")?;
        }
        Ok(())
    }
}

/// The hint how to enable an account.
const ACCOUNT: &str = "enable one with track:all or PoolBuilder::track";

/// Formats a count with its noun.
pub(crate) struct Count(pub(crate) u64, pub(crate) &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}
