//! Wrong frees, with the earlier allocation and free of the block.

use super::Ledger;
use super::record::Record;
use super::shard::Removal;
use super::stack::Stack;
use super::stacks::StackId;
use crate::tags::Tag;
use millpond_os::time::Time;
use std::fmt;
use thiserror::Error;

/// The circumstances of a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FreedBlock {
    /// The tag of the freeing thread.
    pub tag: Tag,
    /// The [number](millpond_os::thread_number) of that thread.
    pub thread: u32,
    /// The time, if times are stored.
    pub time: Option<Time>,
    pub(super) stack: Option<StackId>,
}

/// A wrong free, or a write outside of a block. [`Overrun`](Self::Overrun) and [`UsedAfterFree`](Self::UsedAfterFree)
/// are reported although the free itself is correct. In the other cases the block must not be returned, and nothing has
/// changed. The message contains the places of the allocation and the free, as far as they are known.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WrongFree {
    /// No block that a caller holds begins at the address, and none was freed there recently. The address belongs to
    /// another pool or allocator, or points into a block, or its block was freed long ago.
    #[error("wrong free: no block of this pool begins at {address:#x}")]
    Foreign {
        /// The address.
        address: usize,
    },
    /// The block was freed before.
    #[error(
        "double free of {address:#x}: {}, freed first by thread {}{}",
        Block(.block, .allocated.as_ref()), .freed.thread, By(.freed.tag, .freed_at.as_ref())
    )]
    AlreadyFree {
        /// The address.
        address: usize,
        /// The entry of the block while it was live.
        block: Record,
        /// The place of the allocation.
        allocated: Option<Stack>,
        /// The first free.
        freed: FreedBlock,
        /// The place of the first free.
        freed_at: Option<Stack>,
    },
    /// The caller names a size that differs from the requested one.
    #[error(
        "wrong size in the free of {address:#x}: the caller passed {given} B, but the block has {}",
        Block(.block, .at.as_ref())
    )]
    WrongSize {
        /// The address.
        address: usize,
        /// The bytes that were requested at the allocation.
        allocated: usize,
        /// The bytes that the free names.
        given: usize,
        /// The block, which its owner still holds.
        block: Record,
        /// The place of the allocation.
        at: Option<Stack>,
    },
    /// The caller names an alignment that differs from the requested one.
    #[error(
        "wrong alignment in the free of {address:#x}: the caller passed {given}, but {allocated} was requested: {}",
        Block(.block, .at.as_ref())
    )]
    WrongAlign {
        /// The address.
        address: usize,
        /// The alignment that was requested at the allocation.
        allocated: usize,
        /// The alignment that the free names.
        given: usize,
        /// The block, which its owner still holds.
        block: Record,
        /// The place of the allocation.
        at: Option<Stack>,
    },
    /// Bytes next to the block were overwritten. A pool that guards its blocks reports
    /// this at the free. The block is freed nevertheless.
    #[error("{} of the block at {address:#x}: {}", Offset(*.offset, .block.requested), Block(.block, .at.as_ref()))]
    Overrun {
        /// The address.
        address: usize,
        /// The offset of the first overwritten byte from the start of the block. It is negative, or at least the
        /// requested bytes.
        offset: isize,
        /// The entry of the block while it was live.
        block: Record,
        /// The place of the allocation.
        at: Option<Stack>,
    },
    /// The block was written after its free. A pool that guards its blocks reports this
    /// when the pages leave quarantine, if they could not be protected.
    #[error(
        "use after free: byte {offset} of the block at {address:#x} was written: {}, freed by thread {}{}",
        Block(.block, .allocated.as_ref()), .freed.thread, By(.freed.tag, .freed_at.as_ref())
    )]
    UsedAfterFree {
        /// The address.
        address: usize,
        /// The offset of the first overwritten byte from the start of the block.
        offset: isize,
        /// The entry of the block while it was live.
        block: Record,
        /// The place of the allocation.
        allocated: Option<Stack>,
        /// The free.
        freed: FreedBlock,
        /// The place of the free.
        freed_at: Option<Stack>,
    },
}

/// Formats the position of a write outside of a block of the given size.
struct Offset(isize, usize);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match usize::try_from(self.0) {
            Ok(at) => write!(f, "overrun: a write {} B past the end", at.saturating_sub(self.1)),
            Err(_) => write!(
                f,
                "underrun: a write {} B before the start",
                self.0.unsigned_abs()
            ),
        }
    }
}

/// Formats a block and its allocation.
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

/// Formats a tag and the innermost frame of the program.
pub struct By<'a>(pub Tag, pub Option<&'a Stack>);

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

/// Makes the error, after the locks are released.
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
