//! A source used without a pool.

#[cfg(test)]
pub(crate) mod fake;

use crate::block::{Direct, Memory, Owner, origin};
use crate::host::{Host, HostError};
use crate::memory::{MemoryKind, MemorySource};
use std::fmt;
use std::sync::Arc;

/// A source of memory used as it is: each buffer is mapped when it is made and unmapped when it is freed.
///
/// No pool stands between, so nothing is kept back, nothing is shared with other buffers, and each request costs calls to
/// the system. That suits few, large and long-lived buffers, and shows what a pool saves. Cloning makes another handle; the
/// source is dropped with the last handle and buffer.
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
    /// Ordinary memory of this process.
    ///
    /// # Errors
    /// Where the source cannot be made.
    pub fn host() -> Result<Self, HostError> {
        Ok(Self::over(Box::new(Host::builder().build()?)))
    }

    /// Any source of memory.
    #[must_use]
    pub fn over(source: Box<dyn MemorySource + Send>) -> Self {
        Self(Arc::new(Direct::new(source)))
    }

    /// The kind of memory.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.0.kind()
    }

    /// Bytes that buffers hold, whole pages each.
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
