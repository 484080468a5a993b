//! Memory that does not come from a source of this crate: its owner, and its size.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

static BLOCKS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Memory of other owners that tensors of this process use. No pool, budget or limit counts it, because no source of this
/// crate provides it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForeignMemory {
    /// The number of pieces. Each has its own owner.
    pub blocks: u64,
    /// The bytes from the first element of each piece to its last.
    pub bytes: u64,
}

/// Returns the memory of other owners that this process's tensors use now: the memory of a `Vec`
/// (`Tensor::from_vec`), of an ndarray array, or of another library (DLPack). Memory of a pool that
/// is lent to another library by DLPack is not included: its pool counts it as usual.
///
/// ```
/// use millpond::{Tensor, source::foreign_memory};
///
/// let before = foreign_memory();
/// let tensor = Tensor::from_vec(vec![1.0f64; 100], [10, 10])?;
/// assert_eq!(foreign_memory().bytes, before.bytes + 800);
/// drop(tensor);
/// assert_eq!(foreign_memory(), before);
/// # Ok::<(), millpond::TensorError>(())
/// ```
#[must_use]
pub fn foreign_memory() -> ForeignMemory {
    ForeignMemory {
        blocks: BLOCKS.load(Ordering::Relaxed),
        bytes: BYTES.load(Ordering::Relaxed),
    }
}

/// A piece of memory of another owner. Dropping this returns it.
pub struct Foreign {
    bytes: u64,
    writable: bool,
    /// Returns the memory to its owner when it is dropped, on any thread.
    _keeper: Box<dyn Any + Send + Sync>,
}

impl Foreign {
    /// Creates the owner of `bytes` bytes that exist while `keeper` does.
    pub fn new(bytes: usize, writable: bool, keeper: Box<dyn Any + Send + Sync>) -> Self {
        let bytes = bytes as u64;
        BLOCKS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes, Ordering::Relaxed);
        Self {
            bytes,
            writable,
            _keeper: keeper,
        }
    }

    /// Returns whether the memory may be written.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        BLOCKS.fetch_sub(1, Ordering::Relaxed);
        BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign")
            .field("bytes", &self.bytes)
            .field("writable", &self.writable)
            .finish_non_exhaustive()
    }
}
