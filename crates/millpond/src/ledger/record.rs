//! What is known of one block.

use super::stacks::StackId;
use crate::memory::MemoryKind;
use crate::scope::Charged;
use crate::tag::Tag;
use crate::time::Time;

/// An entry of the account: what was asked for, by whom and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Bytes asked for.
    pub requested: usize,
    /// Bytes of the block.
    pub bytes: usize,
    /// The alignment asked for.
    pub align: usize,
    /// In order of entry, from 1.
    pub serial: u64,
    /// The tag of the thread that allocated it.
    pub tag: Tag,
    /// That thread's [number](crate::thread_number).
    pub thread: u32,
    /// Which stack, if stacks are kept.
    pub(crate) stack: Option<StackId>,
    /// The scopes that count it.
    pub(crate) charged: Charged,
    /// When, if times are kept.
    pub time: Option<Time>,
    /// Whether it is never to be given back, on purpose.
    pub leaked: bool,
    /// The kind of memory.
    pub kind: MemoryKind,
}

impl Record {
    /// The number of its stack in its account; 0 where it has none.
    #[cfg(all(feature = "record", target_os = "linux"))]
    pub(crate) fn stack_number(&self) -> u32 {
        self.stack.map_or(0, StackId::number)
    }
}
