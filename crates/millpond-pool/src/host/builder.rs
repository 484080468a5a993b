//! The settings of a host source, and the errors of creating one.

use super::Host;
use super::backing::Backing;
use millpond_engine::display_size;
pub(crate) use millpond_os::{self as os, Errno, Map};
use thiserror::Error;

/// The page sizes that the system uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HugePages {
    /// Requests transparent huge pages for memory that the program is [about to
    /// use](crate::MemorySource::expect_use). A pool calls `expect_use` for the blocks that it allocates from fresh memory. A huge page
    /// needs one page fault for 2 MiB instead of 512, and causes fewer TLB misses.
    ///
    /// The source requests a huge page only if
    /// - the program is about to use all of it, because a huge page is resident as a whole;
    /// - the source has given at least [16 MiB](HostBuilder::SMALL_BYTES);
    /// - the source's own [pages](HostBuilder::page_bytes) are at least as large;
    /// - the system is not slow to find huge pages, which the source measures occasionally with one huge page.
    #[default]
    Auto,
    /// Leaves the choice to the system.
    System,
    /// Requests transparent huge pages. This is advice: the system may use none, and the source does not check whether it
    /// did. Ranges are aligned to huge pages.
    ///
    /// A [discarded](crate::MemorySource::discard) part of a huge page is no longer resident. The system may reuse its
    /// memory only when it runs short and splits the page.
    Transparent,
    /// Uses explicit huge pages of this many bytes each, from the system's reserved store. The source is then *plain*: the
    /// system cannot move such pages without unmapping the addresses that they leave.
    Explicit(u64),
}

/// The NUMA node of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// Uses this node as long as it has memory, and other nodes otherwise.
    Prefer(u32),
    /// Uses this node only. When it is full, *touching* fresh memory ends the process, because the system cannot report an
    /// error for a page fault.
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

/// The reason why a host source could not be created.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The source cannot have this page size.
    #[error(
        "a source cannot have pages of {bytes} bytes: use a power of two from {system} (the page size of the system) to {most}, or the size of the explicit huge pages"
    )]
    PageBytes {
        /// The requested bytes.
        bytes: u64,
        /// The bytes of the system's page.
        system: u64,
        /// The largest page size.
        most: u64,
    },
    /// The system does not support huge pages of this size.
    #[error("this system has no huge pages of {}", display_size(*.bytes))]
    HugePageBytes {
        /// The requested bytes.
        bytes: u64,
    },
    /// The system's store of huge pages is empty.
    #[error(
        "the system has reserved no huge pages of {}: reserve some (sysctl -w vm.nr_hugepages=N, or hugepages=N at boot), or use transparent huge pages",
        display_size(*.bytes)
    )]
    NoHugePages {
        /// The bytes of one huge page.
        bytes: u64,
    },
    /// The NUMA node does not exist, or it has no memory that this process may use.
    #[error("memory cannot come from NUMA node {node}: the nodes of this machine are {online}")]
    NoNode {
        /// The requested node.
        node: u32,
        /// The online nodes, in the system's notation.
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

/// Creates a [`Host`] and checks the settings.
#[derive(Clone, Debug)]
#[must_use = "a builder creates nothing before `build`"]
pub struct HostBuilder {
    pub(super) page: u64,
    pub(super) huge: HugePages,
    pub(super) node: Option<Node>,
    pub(super) populate: bool,
    pub(super) capacity: Option<u64>,
    pub(super) mappings: Option<u64>,
    aliases: bool,
    pub(crate) lock: bool,
}

impl HostBuilder {
    /// The number of bytes up to which [`HugePages::Auto`] requests no huge pages.
    pub const SMALL_BYTES: u64 = 16 << 20;
    /// The largest page size.
    pub const MOST_PAGE_BYTES: u64 = 1 << 30;

    pub(super) fn new() -> Self {
        Self {
            page: 2 << 20,
            huge: HugePages::Auto,
            node: None,
            populate: false,
            capacity: None,
            mappings: None,
            aliases: false,
            lock: false,
        }
    }

    /// Sets the bytes of a page, which is the unit of committing: a power of two from the system's page (usually 4 KiB) to
    /// 1 GiB. The default is 2 MiB. Smaller pages follow the need more closely, but use more of the system's limit on
    /// mappings.
    pub fn page_bytes(mut self, bytes: u64) -> Self {
        self.page = bytes;
        self
    }

    /// Sets the page sizes that the system uses. Explicit huge pages also set [`page_bytes`](Self::page_bytes).
    pub fn huge_pages(mut self, huge: HugePages) -> Self {
        self.huge = huge;
        if let HugePages::Explicit(bytes) = huge {
            self.page = bytes;
        }
        self
    }

    /// Sets the NUMA node of the memory. By default the system chooses.
    pub fn node(mut self, node: Node) -> Self {
        self.node = Some(node);
        self
    }

    /// Sets whether pages are backed with physical memory when they are committed, instead of on the first access.
    pub fn populate(mut self, populate: bool) -> Self {
        self.populate = populate;
        self
    }

    /// Sets the maximum number of bytes that are committed or taken at any time. The default is no limit. Without a limit, memory
    /// is refused only if the system refuses it, and the system usually does not do that before the memory is touched.
    pub fn capacity(mut self, bytes: Option<u64>) -> Self {
        self.capacity = bytes;
        self
    }

    /// Sets the number of memory mappings of the whole *process* at which this source makes no more. The default is the
    /// system's limit (`vm.max_map_count`) minus a 32nd of it.
    pub fn mappings(mut self, most: u64) -> Self {
        self.mappings = Some(most);
        self
    }

    /// Sets whether handles can be mapped at a second address ([`Source::alias`](millpond_engine::Source::alias)). The
    /// default is off. Then the memory of reserved ranges is private to this process, and pages move by `mremap`.
    ///
    /// If it is on, all ranges of the source have their memory in one file without a name (`memfd_create`). Pages move
    /// without a copy, and a handle can have any number of mappings. All of them have the same contents at every moment, and
    /// can be read and written until [`unmap`](millpond_engine::Source::unmap). Segments stay private, and so the setting
    /// has no effect with [explicit huge pages](HugePages::Explicit), which come in segments only. The differences are:
    ///
    /// - *Forks.* The child of a fork would share the memory of the file with its parent. So all addresses of the ranges are
    ///   closed in the child, and any access to them raises `SIGSEGV`. Commits and moves fail there with
    ///   [`SourceError::Unsupported`](millpond_engine::SourceError::Unsupported), and returning pages leaves the parent's
    ///   memory as it is. A pool over this source has no usable memory in the child, but a new source can be built. (By
    ///   default the child has its own copy of the memory, and the source works there.) This relies on the C library's
    ///   `fork`: after a direct system call or `_Fork`, parent and child write to the same memory. The child keeps the file
    ///   open until it drops the source or executes a program. If the parent ends before that without dropping the source,
    ///   the memory stays allocated until then.
    /// - *Lack of memory.* Under strict overcommit (`vm.overcommit_memory=2`) the system counts a page of the file when it is
    ///   first accessed and not when it is committed. At its limit the access raises `SIGBUS`. With
    ///   [`populate`](Self::populate) the commit fails instead.
    /// - *Accounts of the system.* The memory counts as shared memory: `RssShmem` of the process, and `shmem` of its control
    ///   group, whose limits apply as before. The group counts a page once. The process counts it once for each address at
    ///   which it was accessed.
    /// - *Huge pages.* The system gives the file transparent huge pages only if
    ///   `/sys/kernel/mm/transparent_hugepage/shmem_enabled` permits it, which is not the default. If it says
    ///   `always` and the [pages](Self::page_bytes) are smaller, the file can use more memory than is committed.
    ///   [`HugePages::Auto`] does not measure whether huge pages are slow to get.
    /// - *Mappings.* Neighbouring pages are one mapping for the system only while they are in their original order, and each
    ///   stale mapping is one more. At the limit ([`mappings`](Self::mappings)) the error is
    ///   [`SourceError::Mappings`](millpond_engine::SourceError::Mappings).
    /// - *Locked memory.* Each mapping of a [pinned](Self::build_pinned) page counts against `RLIMIT_MEMLOCK`. Moving a page
    ///   makes a second one for a moment.
    /// - *Transfers.* [`transfer`](crate::MemorySource::transfer) is refused in ranges, so a pool copies a block that grows
    ///   to another place.
    ///
    /// A sandbox or a limit on the size of files (`RLIMIT_FSIZE`) may refuse the file. There is no fallback:
    /// [`build`](Self::build) then returns [`HostError::System`] with the refused call.
    ///
    /// ```
    /// use millpond::Host;
    /// use millpond::engine::Source;
    ///
    /// let mut host = Host::builder().page_bytes(4096).aliases(true).build()?;
    /// let range = host.reserve(1 << 20)?;
    /// host.commit(&range, 0, 4096, 4096)?;
    /// assert_eq!(host.alias(&[(&range, 0, 4096)], (&range, 8192))?, 1);
    ///
    /// let [old, new] = [0, 8192].map(|at| (range.address() + at) as *mut u64);
    /// // SAFETY: both addresses are mapped, and nothing else accesses them.
    /// unsafe {
    ///     old.write(7);
    ///     assert_eq!(new.read(), 7);
    /// }
    /// assert_eq!(host.unmap(range.address(), 4096), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn aliases(mut self, aliases: bool) -> Self {
        self.aliases = aliases;
        self
    }

    /// Creates the source.
    ///
    /// # Errors
    /// Returns an error if the page size is invalid, if the machine does not have such huge pages or such a node, or if
    /// the system refuses memory for [`aliases`](Self::aliases).
    pub fn build(self) -> Result<Host, HostError> {
        self.check()?;
        let is_paged = !matches!(self.huge, HugePages::Explicit(_));
        let backing = (self.aliases && is_paged).then(Backing::new).transpose()?;
        Ok(Host::with(self, backing))
    }

    fn check(&self) -> Result<(), HostError> {
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

/// Checks with one page whether the system can provide memory of a node.
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
                online: os::online_nodes().unwrap_or_else(|| "unknown".to_owned()),
            },
            other => failed("mbind", other),
        })
}
