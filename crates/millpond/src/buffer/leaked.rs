//! Buffers that are never given back, on purpose.

use super::Buffer;
use bytemuck::AnyBitPattern;
use std::sync::atomic::{AtomicU64, Ordering};

static BUFFERS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// What this process has leaked on purpose. Leaked memory is live as its pool counts it, and keeps the pool's memory; a
/// [`LeakReport`](crate::LeakReport) tells of it apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaks {
    /// Buffers leaked.
    pub buffers: u64,
    /// Bytes of their blocks.
    pub bytes: u64,
}

/// What this process has leaked with [`Buffer::leak`].
#[must_use]
pub fn leaks() -> Leaks {
    Leaks {
        buffers: BUFFERS.load(Ordering::Relaxed),
        bytes: BYTES.load(Ordering::Relaxed),
    }
}

impl<T: AnyBitPattern> Buffer<T> {
    /// The elements for as long as the process runs. Their memory is never given back, which [`leaks`] counts.
    ///
    /// ```
    /// let pool = millpond::Pool::host()?;
    /// let before = millpond::leaks().buffers;
    /// let table: &'static mut [u32] = pool.alloc_from(&[1, 2, 3])?.leak();
    /// drop(pool);
    /// assert_eq!(table[2], 3);
    /// assert_eq!(millpond::leaks().buffers, before + 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn leak(self) -> &'static mut [T] {
        BUFFERS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(self.block.bytes() as u64, Ordering::Relaxed);
        let len = self.len;
        self.block.note_leaked();
        let first = self.block.leak().as_ptr().cast();
        // SAFETY: by the invariant these are `len` values of `T`, and the block is neither given back nor used by anyone
        // else, ever.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }
}
