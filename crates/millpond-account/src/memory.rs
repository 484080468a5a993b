//! The kinds of memory that sources provide.

/// The kind of memory that a source provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary memory of this process, which the system may swap out.
    Host,
    /// Memory of this process that is locked in place.
    Pinned,
    /// Memory of a device, which the host cannot access.
    Device,
    /// Memory that a CUDA driver moves between the host and devices, at one address for all of them.
    Managed,
}

impl MemoryKind {
    /// Returns the name of the kind, in lower case.
    #[doc(hidden)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Pinned => "pinned",
            Self::Device => "device",
            Self::Managed => "managed",
        }
    }
}
