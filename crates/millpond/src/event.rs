//! Events: what happens to memory, told to whoever asked.
//!
//! ```text
//!   event        what happened                               a value, borrowed while it is told
//!   subscriber   who is told
//!   context      a caller's value that goes with each event
//!   watchers     all of that for one pool, never changed: a pool holds one and replaces it as a whole
//! ```
//!
//! A pool that nobody watches has no watchers and pays one load. Subscribers are called outside every lock, on the thread
//! that caused the event, and may allocate, from that very pool too.

mod context;
mod subscriber;
#[cfg(test)]
mod tests;
#[cfg(feature = "tracing")]
mod tracing;
mod watchers;

#[cfg(feature = "tracing")]
pub use self::tracing::TracingSubscriber;
pub use context::Context;
pub use subscriber::{Subscriber, SubscriptionId};
pub use watchers::{Sees, Watchers};

use crate::ledger::Record;
use crate::memory::MemoryKind;
use crate::tag::Tag;
use crate::time::Time;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A block was handed out.
    Allocated,
    /// A block is given back. It is told before anyone else can have the block.
    Freed,
    /// A pool has taken memory from its source: `bytes` of it.
    Refilled,
    /// A pool has given memory back to its source: `bytes` of it.
    Trimmed,
    /// A request of `requested` bytes was refused.
    Refused,
}

impl EventKind {
    /// In one word, as in a log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Freed => "freed",
            Self::Refilled => "refilled",
            Self::Trimmed => "trimmed",
            Self::Refused => "refused",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which pool it is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolLabel {
    /// A number that no other pool of this process ever has.
    pub id: u64,
    /// Its name, which may be empty.
    pub name: Arc<str>,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The device it is on; 0 for the host's memory.
    pub device: u32,
    /// The policy that places its blocks; empty where there is none.
    pub policy: Arc<str>,
}

impl PoolLabel {
    /// A pool's label.
    #[must_use]
    pub fn new(id: u64, name: &str, kind: MemoryKind, device: u32) -> Self {
        Self {
            id,
            name: name.into(),
            kind,
            device,
            policy: "".into(),
        }
    }

    /// The same of a pool under this policy.
    #[must_use]
    pub fn under(mut self, policy: &str) -> Self {
        self.policy = policy.into();
        self
    }
}

/// A block or a request, as a pool tells of it. What does not apply is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Where the block is.
    pub address: usize,
    /// Bytes asked for; with a free, those that the caller names.
    pub requested: usize,
    /// Bytes of the block.
    pub bytes: usize,
    /// The alignment asked for. With a free, 0 says that the caller named the address only.
    pub align: usize,
    /// The number of the stream it happens on, on a device.
    pub stream: u32,
}

/// What happened to a block or a pool. Borrowed while it is told; every field is a value.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// What happened.
    pub kind: EventKind,
    /// Where.
    pub pool: &'a PoolLabel,
    /// The block's address; 0 where there is none.
    pub address: usize,
    /// Bytes asked for.
    pub requested: usize,
    /// Bytes of the block, or taken from the source or given back to it.
    pub bytes: usize,
    /// The alignment asked for.
    pub align: usize,
    /// The tag of the thread that did it. With a free the block's own tag may be another one: see `record`.
    pub tag: Tag,
    /// The [number](crate::thread_number) of that thread.
    pub thread: u32,
    /// The number of the stream it happened on, on a device: the pool's own count of streams.
    pub stream: u32,
    /// What was set on the pool.
    pub context: Option<&'a Context>,
    /// When, if some subscriber [wants](Subscriber::wants_time) it.
    pub time: Option<Time>,
    /// The `tracing` span it happened in, if some subscriber [wants](Subscriber::wants_span) it.
    pub span: Option<NonZeroU64>,
    /// What the account of live blocks says of the block, if there is one and it has the block: with a free, whose it
    /// was, and when it was allocated.
    pub record: Option<&'a Record>,
}
