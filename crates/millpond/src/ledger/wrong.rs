//! A free that is wrong, and who was there first.

use super::Ledger;
use super::record::Record;
use super::shard::Removal;
use super::stack::Stack;
use super::stacks::StackId;
use crate::tag::Tag;
use crate::time::Time;
use std::fmt;
use thiserror::Error;

/// Who freed a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FreedBlock {
    /// The tag of the thread that freed it.
    pub tag: Tag,
    /// That thread's [number](crate::thread_number).
    pub thread: u32,
    /// When, if times are kept.
    pub time: Option<Time>,
    pub(super) stack: Option<StackId>,
}

/// A block that was given back wrongly, or whose bounds or end were not kept. But for [`Overrun`](Self::Overrun) and
/// [`UsedAfterFree`](Self::UsedAfterFree), which are told beside a free that is right, it must not be taken back and
/// nothing has changed. Shown with the places where it was allocated and freed, as far as they are known.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WrongFree {
    /// No block in callers' hands begins there, and none was freed there lately: the address is another pool's or
    /// allocator's, or points into a block, or its block was freed long ago.
    #[error("wrong free: no block of this pool begins at {address:#x}")]
    Foreign {
        /// The address.
        address: usize,
    },
    /// The block has been freed before.
    #[error(
        "double free of {address:#x}: {}, freed first by thread {}{}",
        Block(.block, .allocated.as_ref()), .freed.thread, By(.freed.tag, .freed_at.as_ref())
    )]
    AlreadyFree {
        /// The address.
        address: usize,
        /// The block, as it was while it lived.
        block: Record,
        /// Where it was allocated.
        allocated: Option<Stack>,
        /// Who freed it first.
        freed: FreedBlock,
        /// Where that was.
        freed_at: Option<Stack>,
    },
    /// The caller names another size than was asked for.
    #[error(
        "wrong size in the free of {address:#x}: {given} B given for {}",
        Block(.block, .at.as_ref())
    )]
    WrongSize {
        /// The address.
        address: usize,
        /// Bytes asked for when it was allocated.
        allocated: usize,
        /// Bytes that the free names.
        given: usize,
        /// The block, which is still in its owner's hands.
        block: Record,
        /// Where it was allocated.
        at: Option<Stack>,
    },
    /// The caller names another alignment than was asked for.
    #[error(
        "wrong alignment in the free of {address:#x}: {given} given, {allocated} asked for, {}",
        Block(.block, .at.as_ref())
    )]
    WrongAlign {
        /// The address.
        address: usize,
        /// The alignment asked for when it was allocated.
        allocated: usize,
        /// The alignment that the free names.
        given: usize,
        /// The block, which is still in its owner's hands.
        block: Record,
        /// Where it was allocated.
        at: Option<Stack>,
    },
    /// Bytes around the block were written that are not its caller's. Told when it is freed, by a pool that
    /// [guards](crate::PoolBuilder::guard) its blocks; it was taken back all the same.
    #[error("{} of the block at {address:#x}: {}", Offset(*.offset, .block.requested), Block(.block, .at.as_ref()))]
    Overrun {
        /// The address.
        address: usize,
        /// The first byte that was written, from the block's first: below nothing, or the bytes asked for and more.
        offset: isize,
        /// The block, as it was while it lived.
        block: Record,
        /// Where it was allocated.
        at: Option<Stack>,
    },
    /// The block was written to after it had been freed. Told when its pages leave quarantine, by a pool that
    /// [guards](crate::PoolBuilder::guard) its blocks, where they could not be closed.
    #[error(
        "use after free: byte {offset} of the block at {address:#x} was written: {}, freed by thread {}{}",
        Block(.block, .allocated.as_ref()), .freed.thread, By(.freed.tag, .freed_at.as_ref())
    )]
    UsedAfterFree {
        /// The address.
        address: usize,
        /// The first byte that was written, from the block's first.
        offset: isize,
        /// The block, as it was while it lived.
        block: Record,
        /// Where it was allocated.
        allocated: Option<Stack>,
        /// Who freed it.
        freed: FreedBlock,
        /// Where that was.
        freed_at: Option<Stack>,
    },
}

/// Where something was written that is no part of a block of so many bytes.
struct Offset(isize, usize);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match usize::try_from(self.0) {
            Ok(at) => write!(f, "overrun: a write {} B past the end", at.saturating_sub(self.1)),
            Err(_) => write!(
                f,
                "underrun: a write {} B before the begin",
                self.0.unsigned_abs()
            ),
        }
    }
}

/// A block and its allocation, in words.
struct Block<'a>(&'a Record, Option<&'a Stack>);

impl fmt::Display for Block<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record {
            requested,
            thread,
            tag,
            ..
        } = *self.0;
        write!(f, "{requested} B allocated by thread {thread}{}", By(tag, self.1))
    }
}

/// A tag, and the innermost frame of the program.
pub(crate) struct By<'a>(pub(crate) Tag, pub(crate) Option<&'a Stack>);

impl fmt::Display for By<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 != Tag::NONE {
            write!(f, " under tag {}", self.0)?;
        }
        match self.1.and_then(|stack| stack.user_frames().into_iter().next()) {
            Some(frame) => write!(f, " in {frame}"),
            None => Ok(()),
        }
    }
}

/// Says what is wrong, after the locks are let go.
#[cold]
pub(super) fn wrong_free(
    ledger: &Ledger,
    address: usize,
    given: Option<(usize, usize)>,
    removal: Removal,
) -> Box<WrongFree> {
    let stack = |id: Option<StackId>| ledger.stacks.get(id?);
    Box::new(match (removal, given) {
        (Removal::Past(past), _) => WrongFree::AlreadyFree {
            address,
            block: past.record,
            allocated: stack(past.record.stack),
            freed: past.by,
            freed_at: stack(past.by.stack),
        },
        (Removal::Differs(block), Some((given, _))) if given != block.requested => WrongFree::WrongSize {
            address,
            allocated: block.requested,
            given,
            block,
            at: stack(block.stack),
        },
        (Removal::Differs(block), Some((_, given))) => WrongFree::WrongAlign {
            address,
            allocated: block.align,
            given,
            block,
            at: stack(block.stack),
        },
        (Removal::Done(_) | Removal::Differs(_) | Removal::Unknown, _) => WrongFree::Foreign { address },
    })
}
