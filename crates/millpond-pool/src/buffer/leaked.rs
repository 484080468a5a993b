//! Buffers that are deliberately never freed.

use super::Buffer;
use bytemuck::AnyBitPattern;
use std::sync::atomic::{AtomicU64, Ordering};

static BUFFERS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// The memory that this process leaked on purpose. Its pool counts it as live and cannot give it back. A
/// [`LeakReport`](millpond_account::LeakReport) lists it separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaks {
    /// The number of leaked buffers.
    pub buffers: u64,
    /// The bytes of their blocks.
    pub bytes: u64,
}

/// Returns the totals of the buffers that this process leaked with [`Buffer::leak`].
#[must_use]
pub fn leaks() -> Leaks {
    Leaks {
        buffers: BUFFERS.load(Ordering::Relaxed),
        bytes: BYTES.load(Ordering::Relaxed),
    }
}

impl<T: AnyBitPattern> Buffer<T> {
    /// Returns the elements as a slice that is valid for as long as the process runs. The memory is never freed. [`leaks`]
    /// counts it.
    ///
    /// ```
    /// let pool = millpond::Pool::host()?;
    /// let before = millpond::ledger::leaks().buffers;
    /// let table: &'static mut [u32] = pool.alloc_from(&[1, 2, 3])?.leak();
    /// drop(pool);
    /// assert_eq!(table[2], 3);
    /// assert_eq!(millpond::ledger::leaks().buffers, before + 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn leak(self) -> &'static mut [T] {
        BUFFERS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(self.block.bytes() as u64, Ordering::Relaxed);
        let len = self.len;
        self.block.note_leaked();
        let first = self.block.leak().as_ptr().cast();
        // SAFETY: by the invariant these are `len` values of `T`. The block is never freed, and no other code uses it.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }
}
