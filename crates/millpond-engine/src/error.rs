//! What can go wrong, by what the caller may do about it.

use crate::size::display_size;
use thiserror::Error;

/// Why a [`Source`](crate::Source) did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The device has not enough memory left; giving some back may help.
    #[error("the device has {} left of {} and was asked for {}", display_size(*.free), display_size(*.capacity), display_size(*.requested))]
    OutOfMemory {
        /// Bytes asked for.
        requested: u64,
        /// Bytes the device has left.
        free: u64,
        /// Bytes the device has in all.
        capacity: u64,
    },
    /// No addresses are left for a range of this size; it can never be served.
    #[error("no address range of {} can be reserved", display_size(*.requested))]
    AddressSpace {
        /// Bytes asked for.
        requested: u64,
    },
    /// The system allows no more memory mappings to this process; larger pages or a higher limit help.
    #[error(
        "the process has {mappings} memory mappings of the {limit} it may have: raise vm.max_map_count (sysctl -w vm.max_map_count=N), or choose larger pages"
    )]
    Mappings {
        /// Mappings the process has.
        mappings: u64,
        /// Mappings it may have for this source.
        limit: u64,
    },
    /// The system lets this process lock no more memory; giving pinned memory back may help.
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
    /// The part named in the call is not this source's, or not in the state the call needs; nothing was changed.
    #[error("this source cannot {operation} {} at {address:#x}: it does not hold them so", display_size(*.bytes))]
    NotHeld {
        /// What was asked.
        operation: &'static str,
        /// First address of the part.
        address: u64,
        /// Bytes of the part.
        bytes: u64,
    },
    /// Memory is short, and none can be made free: a stream that uses what is free is being captured.
    #[error(
        "{} are not there, and room cannot be made while a stream that uses this memory is being captured: end the capture, or give blocks back, and ask again",
        display_size(*.requested)
    )]
    Held {
        /// Bytes asked for.
        requested: u64,
    },
    /// The source cannot do this at all, for example commit pages on a plain source.
    #[error("this source cannot {operation}")]
    Unsupported {
        /// What was asked.
        operation: &'static str,
    },
    /// The call failed for a reason that is not memory.
    #[error("the driver's {call} failed with code {code}")]
    Driver {
        /// The call that failed.
        call: &'static str,
        /// The driver's code for it.
        code: i32,
    },
}

impl SourceError {
    /// Whether giving memory back and asking again may succeed.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::Locked { .. })
    }
}

/// Why an allocation was refused. Nothing is lost: the engine serves the next request if it can.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The request can never fit, whatever is freed first.
    #[error("a request of {} can never fit: the limit is {}", display_size(*.requested), display_size(*.limit))]
    TooLarge {
        /// Bytes asked for.
        requested: u64,
        /// The most that could ever be served.
        limit: u64,
    },
    /// It does not fit now; freeing or trimming may change that.
    #[error(
        "out of memory: {} requested, {} free on the device, largest hole {} among {} cached",
        display_size(*.requested), display_size(*.device_free), display_size(*.largest_hole), display_size(*.cached)
    )]
    Exhausted {
        /// Bytes asked for.
        requested: u64,
        /// Bytes the device still had after everything that could be given back was.
        device_free: u64,
        /// The largest contiguous free block this request could have used.
        largest_hole: u64,
        /// Bytes held from the device that no block uses.
        cached: u64,
    },
    /// It does not fit into the share of the device that a setting such as `memory-fraction` leaves to the program;
    /// freeing, trimming or a larger share may change that.
    #[error(
        "out of memory: {} requested, {} of {} allowed are reserved, largest hole {} among {} cached",
        display_size(*.requested), display_size(*.reserved), display_size(*.limit),
        display_size(*.largest_hole), display_size(*.cached)
    )]
    Limited {
        /// Bytes asked for.
        requested: u64,
        /// The most that may be reserved.
        limit: u64,
        /// Bytes reserved, after everything that could be given back was.
        reserved: u64,
        /// The largest contiguous free block this request could have used.
        largest_hole: u64,
        /// Bytes held from the device that no block uses.
        cached: u64,
    },
    /// The source failed for a reason that is not memory.
    #[error(transparent)]
    Source(SourceError),
    /// The alignment is not a power of two, or larger than the policy can give.
    #[error("alignment {align} is not a power of two of at most {most}")]
    Alignment {
        /// Alignment asked for.
        align: u64,
        /// The largest this policy can give.
        most: u64,
    },
}

impl AllocError {
    /// Whether freeing memory and asking again may succeed.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Exhausted { .. } | Self::Limited { .. })
    }
}
