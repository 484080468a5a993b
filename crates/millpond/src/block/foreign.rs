//! Memory that no source of ours gave: who has it back in the end, and how much of it there is.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

static BLOCKS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Memory of others that tensors of this process stand on. No pool, budget or limit counts it: it is neither taken from a
/// source of ours nor given back to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForeignMemory {
    /// Pieces of it, each with an owner of its own.
    pub blocks: u64,
    /// Bytes from the first element of each to its last.
    pub bytes: u64,
}

/// The memory of others that this process's tensors stand on now: that of a `Vec` by
/// [`Tensor::from_vec`](crate::Tensor::from_vec), of an array of ndarray's, or another library's by DLPack. What of ours is
/// lent to others by DLPack its pool counts as ever.
///
/// ```
/// use millpond::{Tensor, foreign_memory};
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

/// A piece of memory of others, which has it back when this is dropped.
pub(crate) struct Foreign {
    bytes: u64,
    writable: bool,
    /// Dropped once, from any thread: that gives the memory back.
    _keeper: Box<dyn Any + Send + Sync>,
}

impl Foreign {
    pub(crate) fn new(bytes: usize, writable: bool, keeper: Box<dyn Any + Send + Sync>) -> Self {
        let bytes = bytes as u64;
        BLOCKS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes, Ordering::Relaxed);
        Self {
            bytes,
            writable,
            _keeper: keeper,
        }
    }

    /// Whether it may be written.
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
