//! What a process took from the driver, in a few figures.

/// What a process took from the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The program's file name.
    pub program: String,
    /// The number of allocations.
    pub allocations: u64,
    /// The number of frees.
    pub frees: u64,
    /// The number of requests that were refused because memory was short.
    pub refused: u64,
    /// The number of requests that only the limit refused.
    pub limited: u64,
    /// The number of nodes of graphs that allocate.
    pub nodes: u64,
    /// The most bytes of all devices that the driver had given at once.
    pub peak: u64,
    /// Who held them, the largest first. Memory of pools that no block used has the name of no library.
    pub owners: Vec<Owned>,
    /// Whether the process ended by itself. Otherwise it was killed, or it still runs.
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
