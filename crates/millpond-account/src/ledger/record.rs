//! The record of one block.

use super::stacks::StackId;
use crate::memory::MemoryKind;
use crate::scope::Charged;
use crate::tags::Tag;
use millpond_os::time::Time;

/// An entry of the account: the request, its thread and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The requested bytes.
    pub requested: usize,
    /// The bytes of the block.
    pub bytes: usize,
    /// The requested alignment.
    pub align: usize,
    /// The serial number in the order of entry, from 1.
    pub serial: u64,
    /// The tag of the allocating thread.
    pub tag: Tag,
    /// The [number](millpond_os::thread_number) of that thread.
    pub thread: u32,
    /// The stack, if stacks are stored.
    pub(crate) stack: Option<StackId>,
    /// The scopes to which the block is charged.
    pub(crate) charged: Charged,
    /// The time of the allocation, if times are stored.
    pub time: Option<Time>,
    /// True if the block is leaked on purpose.
    pub leaked: bool,
    /// The kind of memory.
    pub kind: MemoryKind,
}

impl Record {
    /// Returns the number of the stack in the account, or 0 without a stack.
    #[cfg(target_os = "linux")]
    #[doc(hidden)]
    pub fn stack_number(&self) -> u32 {
        self.stack.map_or(0, StackId::number)
    }
}
