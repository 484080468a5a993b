//! The figures of the memory that a process took from the driver.

/// The memory that a process took from the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The program's file name.
    pub program: String,
    /// The number of allocations.
    pub allocations: u64,
    /// The number of frees.
    pub frees: u64,
    /// The number of requests that were refused for lack of memory.
    pub refused: u64,
    /// The number of requests that the limit refused, not the driver.
    pub limited: u64,
    /// The number of nodes of graphs that allocate.
    pub nodes: u64,
    /// The most bytes on all devices together that the driver had given at any time.
    pub peak: u64,
    /// The libraries that held these bytes, the largest first. Reserved memory that no block used has an entry that names no library.
    pub owners: Vec<Owned>,
    /// Whether the process exited normally. Otherwise it was killed, called `_exit`, or still runs.
    pub ended: bool,
    /// The number of events that could not be written to the log.
    pub lost: u64,
}

/// The bytes of an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Owned {
    /// The library.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}
