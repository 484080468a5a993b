//! What a host source is to be like, and why it cannot be.

use super::Host;
use crate::os::{self, Errno, Map};
use millpond_engine::display_size;
use thiserror::Error;

/// Which pages the system is to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HugePages {
    /// Transparent ones for all but the first [16 MiB](HostBuilder::SMALL_BYTES) that a source has given at a time, if
    /// its own [pages](HostBuilder::page_bytes) are as large. Memory that is used from end to end comes in by one fault
    /// for 2 MiB instead of 512, and is found sooner afterwards. Of a page that is used in part all is resident, which a
    /// small program shall not pay for.
    #[default]
    Auto,
    /// The system's own choice.
    System,
    /// Transparent huge pages are asked for. It is advice: the system may give none, and is not asked whether it
    /// did. Ranges are aligned to them.
    ///
    /// A part of one that is [discarded](crate::MemorySource::discard) is no longer resident. The system may have use
    /// of its memory only when it runs short and takes the page apart.
    Transparent,
    /// Explicit huge pages of so many bytes each, which the system keeps in a store of its own. The source is
    /// *plain* then: the system cannot take such pages elsewhere without letting go of the addresses they leave.
    Explicit(u64),
}

/// The NUMA node memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// From this node as long as it has some, else from another.
    Prefer(u32),
    /// From this node only. Once it is full, *touching* fresh memory ends the process, as the system answers no
    /// page fault with an error.
    Only(u32),
}

impl Node {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Prefer(node) | Self::Only(node) => node,
        }
    }

    pub(super) fn is_only(self) -> bool {
        matches!(self, Self::Only(_))
    }
}

/// Why there can be no such host source.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The page size is none the source can have.
    #[error(
        "a page of {bytes} bytes cannot be: a power of two from the system's {system} to {most} is needed, and with explicit huge pages theirs"
    )]
    PageBytes {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes of the system's page.
        system: u64,
        /// The most it can be.
        most: u64,
    },
    /// The system knows no huge pages of this size.
    #[error("this system has no huge pages of {}", display_size(*.bytes))]
    HugePageBytes {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The system's store of huge pages is empty.
    #[error(
        "the system keeps no huge pages of {}: have it keep some (sysctl -w vm.nr_hugepages=N, or hugepages=N at boot), or use transparent ones",
        display_size(*.bytes)
    )]
    NoHugePages {
        /// Bytes of one.
        bytes: u64,
    },
    /// There is no such NUMA node, or it has no memory this process may use.
    #[error("memory cannot come from NUMA node {node}: the nodes of this machine are {online}")]
    NoNode {
        /// The node asked for.
        node: u32,
        /// The nodes online, as the system writes them.
        online: String,
    },
    /// The system refused a call for another reason.
    #[error("the system's {call} failed with code {code}")]
    System {
        /// The call.
        call: &'static str,
        /// The system's code.
        code: i32,
    },
}

/// Makes a [`Host`], and says what is wrong before anything depends on it.
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until told to"]
pub struct HostBuilder {
    pub(super) page: u64,
    pub(super) huge: HugePages,
    pub(super) node: Option<Node>,
    pub(super) populate: bool,
    pub(super) capacity: Option<u64>,
    pub(super) mappings: Option<u64>,
    pub(crate) lock: bool,
}

impl HostBuilder {
    /// Bytes up to which [`HugePages::Auto`] leaves pages as small as the system makes them.
    pub const SMALL_BYTES: u64 = 16 << 20;
    /// The largest page.
    pub const MOST_PAGE_BYTES: u64 = 1 << 30;

    pub(super) fn new() -> Self {
        Self {
            page: 2 << 20,
            huge: HugePages::Auto,
            node: None,
            populate: false,
            capacity: None,
            mappings: None,
            lock: false,
        }
    }

    /// Bytes of a page, the unit of committing: a power of two from the system's page (mostly 4 KiB) to 1 GiB.
    /// 2 MiB unless said. Smaller ones follow need more closely, and use up the system's limit on mappings.
    pub fn page_bytes(mut self, bytes: u64) -> Self {
        self.page = bytes;
        self
    }

    /// Which pages the system is to use. Explicit ones set [`page_bytes`](Self::page_bytes) too.
    pub fn huge_pages(mut self, huge: HugePages) -> Self {
        self.huge = huge;
        if let HugePages::Explicit(bytes) = huge {
            self.page = bytes;
        }
        self
    }

    /// The NUMA node memory comes from. Any, unless said.
    pub fn node(mut self, node: Node) -> Self {
        self.node = Some(node);
        self
    }

    /// Puts memory behind pages when they are committed, instead of when they are first touched.
    pub fn populate(mut self, populate: bool) -> Self {
        self.populate = populate;
        self
    }

    /// The most bytes the source gives at a time. No limit, unless said; memory is then refused when the
    /// system refuses it, which it mostly does not before it is touched.
    pub fn capacity(mut self, bytes: Option<u64>) -> Self {
        self.capacity = bytes;
        self
    }

    /// The most memory mappings the *process* may have for this source to make more. The system's limit
    /// (`vm.max_map_count`) less a 32nd, unless said.
    pub fn mappings(mut self, most: u64) -> Self {
        self.mappings = Some(most);
        self
    }

    /// Makes the source.
    ///
    /// # Errors
    /// When the page size cannot be, or the machine has no such huge pages or no such node.
    pub fn build(self) -> Result<Host, HostError> {
        self.check()?;
        Ok(Host::with(self))
    }

    pub(crate) fn check(&self) -> Result<(), HostError> {
        let (system, most) = (os::page_bytes(), Self::MOST_PAGE_BYTES);
        let bytes = self.page;
        if !bytes.is_power_of_two() || bytes < system || bytes > most {
            return Err(HostError::PageBytes { bytes, system, most });
        }
        if let HugePages::Explicit(huge) = self.huge {
            if huge != bytes {
                return Err(HostError::PageBytes { bytes, system, most });
            }
            match os::explicit_huge_pages(huge) {
                None => return Err(HostError::HugePageBytes { bytes }),
                Some(0) => return Err(HostError::NoHugePages { bytes }),
                Some(_) => {}
            }
        }
        if let Some(node) = self.node {
            probe(node)?;
        }
        Ok(())
    }
}

/// Asks the system whether memory can come from a node, by one page.
fn probe(node: Node) -> Result<(), HostError> {
    let failed = |call, error: Errno| HostError::System {
        call,
        code: error.raw_os_error(),
    };
    let map = Map::new(1, 1).map_err(|error| failed("mmap", error))?;
    map.bind(map.whole(), node.number(), node.is_only())
        .map_err(|error| match error {
            Errno::INVAL => HostError::NoNode {
                node: node.number(),
                online: os::online_nodes().unwrap_or_else(|| "not told".to_owned()),
            },
            other => failed("mbind", other),
        })
}
