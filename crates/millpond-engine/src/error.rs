//! Errors, grouped by what the caller can do about them.

use crate::size::display_size;
use thiserror::Error;

/// Why a [`Source`](crate::Source) refused a call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The device does not have enough memory left. Returning some memory may help.
    #[error("{} requested, but the device has {} of {} left", display_size(*.requested), display_size(*.free), display_size(*.capacity))]
    OutOfMemory {
        /// Bytes requested.
        requested: u64,
        /// Bytes the device has left.
        free: u64,
        /// Bytes the device has in all.
        capacity: u64,
    },
    /// No address range of this size is left. The request can never be served.
    #[error("no address range of {} can be reserved", display_size(*.requested))]
    AddressSpace {
        /// Bytes requested.
        requested: u64,
    },
    /// The system allows this process no more memory mappings. Larger pages or a higher limit help.
    #[error(
        "the process has {mappings} memory mappings of the {limit} it may have: raise vm.max_map_count (sysctl -w vm.max_map_count=N), or choose larger pages"
    )]
    Mappings {
        /// Mappings that the process has.
        mappings: u64,
        /// Maximum number of mappings for this source.
        limit: u64,
    },
    /// The system does not let this process lock more memory. Returning pinned memory may help.
    #[error(
        "{} more cannot be locked: RLIMIT_MEMLOCK is {} and {} are locked by this process; raise it with ulimit -l, LimitMEMLOCK= of a systemd unit, memlock in /etc/security/limits.conf or --ulimit memlock= of a container, or grant CAP_IPC_LOCK",
        display_size(*.requested), display_size(*.limit), display_size(*.locked)
    )]
    Locked {
        /// Bytes that were to be locked.
        requested: u64,
        /// Bytes the process has locked.
        locked: u64,
        /// RLIMIT_MEMLOCK in bytes.
        limit: u64,
    },
    /// The part named in the call does not belong to this source, or its state does not permit the call. Nothing was
    /// changed.
    #[error("this source cannot {operation} {} at {address:#x}: it does not hold this range", display_size(*.bytes))]
    NotHeld {
        /// The operation that was requested.
        operation: &'static str,
        /// First address of the part.
        address: u64,
        /// Bytes of the part.
        bytes: u64,
    },
    /// Memory is short and none can be freed, because a stream that uses the free memory is being captured.
    #[error(
        "{} cannot be provided while a stream that uses this memory is being captured: end the capture or free blocks, then try again",
        display_size(*.requested)
    )]
    Held {
        /// Bytes requested.
        requested: u64,
    },
    /// The source does not support this operation, for example committing pages on a plain source.
    #[error("this source cannot {operation}")]
    Unsupported {
        /// The operation that was requested.
        operation: &'static str,
    },
    /// The call failed for a reason other than a lack of memory.
    #[error("the driver's {call} failed with code {code}")]
    Driver {
        /// The call that failed.
        call: &'static str,
        /// The driver's error code.
        code: i32,
    },
}

impl SourceError {
    /// Returns whether a retry may succeed after memory has been returned.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::Locked { .. })
    }
}

/// Why an allocation failed. The engine stays usable for later requests.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The request can never fit, even if all memory is freed.
    #[error("a request of {} can never fit: the limit is {}", display_size(*.requested), display_size(*.limit))]
    TooLarge {
        /// Bytes requested.
        requested: u64,
        /// The most bytes that could ever be served.
        limit: u64,
    },
    /// The request does not fit now. Freeing or trimming may help.
    #[error(
        "out of memory: {} requested, {} free on the device, largest hole {} among {} cached",
        display_size(*.requested), display_size(*.device_free), display_size(*.largest_hole), display_size(*.cached)
    )]
    Exhausted {
        /// Bytes requested.
        requested: u64,
        /// Bytes that the device had left after all possible memory was returned.
        device_free: u64,
        /// Bytes of the largest contiguous free block.
        largest_hole: u64,
        /// Bytes reserved from the device that no block uses.
        cached: u64,
    },
    /// The request does not fit into the share of the device that a setting such as `memory-fraction` allows. Freeing,
    /// trimming or a larger share may help.
    #[error(
        "out of memory: {} requested, {} of {} allowed are reserved, largest hole {} among {} cached",
        display_size(*.requested), display_size(*.reserved), display_size(*.limit),
        display_size(*.largest_hole), display_size(*.cached)
    )]
    Limited {
        /// Bytes requested.
        requested: u64,
        /// The most that may be reserved.
        limit: u64,
        /// Bytes reserved after all possible memory was returned.
        reserved: u64,
        /// Bytes of the largest contiguous free block.
        largest_hole: u64,
        /// Bytes reserved from the device that no block uses.
        cached: u64,
    },
    /// The source failed for a reason other than a lack of memory.
    #[error(transparent)]
    Source(SourceError),
    /// The alignment is not a power of two, or it is larger than the policy supports.
    #[error("alignment {align} is not a power of two of at most {most}")]
    Alignment {
        /// Alignment requested.
        align: u64,
        /// The largest alignment that this policy supports.
        most: u64,
    },
}

impl AllocError {
    /// Returns whether a retry may succeed after memory has been freed.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Exhausted { .. } | Self::Limited { .. })
    }
}
