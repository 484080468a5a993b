//! Sources that are used without a pool.

#[cfg(any(test, feature = "testing"))]
pub mod fake;

use crate::block::{Direct, Memory, Owner, origin};
use crate::host::{Host, HostError};
use crate::memory::MemorySource;
use millpond_account::MemoryKind;
use std::fmt;
use std::sync::Arc;

/// A source of memory without a pool: each buffer is mapped when it is allocated and unmapped when it is freed.
///
/// There is no pool, so no memory is kept and none is shared between buffers, and each request makes system calls. This
/// suits few, large and long-lived buffers, and shows the savings of a pool. Cloning creates another handle. The source is
/// dropped with the last handle and buffer.
///
/// ```
/// use millpond::{DType, Unpooled};
///
/// let source = Unpooled::host()?;
/// let mut weights = source.storage(DType::F32, 1 << 20)?;
/// weights.as_mut_slice::<f32>()?[7] = 1.0;
/// assert!(weights.pool().is_none());
/// assert_eq!(source.held_bytes(), 4 << 20);
/// weights.free();
/// assert_eq!(source.held_bytes(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Unpooled(Arc<Direct>);

impl fmt::Debug for Unpooled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unpooled")
            .field("kind", &self.kind())
            .field("held_bytes", &self.held_bytes())
            .finish_non_exhaustive()
    }
}

impl Unpooled {
    /// Creates a source of ordinary memory of this process.
    ///
    /// # Errors
    /// Returns an error if the source cannot be created.
    pub fn host() -> Result<Self, HostError> {
        Ok(Self::over(Box::new(Host::builder().build()?)))
    }

    /// Creates a handle over any source of memory.
    #[must_use]
    pub fn over(source: Box<dyn MemorySource + Send>) -> Self {
        Self(Arc::new(Direct::new(source)))
    }

    /// Returns the kind of the memory.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.0.kind()
    }

    /// Returns the bytes that buffers hold. Each buffer holds whole pages.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.0.held_bytes()
    }
}

impl Memory for Unpooled {
    fn owner(&self) -> Owner {
        Owner::Direct(Arc::clone(&self.0))
    }
}

origin!(Unpooled);
