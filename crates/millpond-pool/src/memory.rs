//! Sources of memory that this process can read and write.

use millpond_account::MemoryKind;
use millpond_engine::{Counted, Faulty, Limited, Logged, Source, SourceEvent, SourceWrapper};

/// A source whose ranges are memory of this process: the bytes behind its addresses can be read and written.
///
/// A plain [`Source`] handles numbers, and calling it accesses no memory. Converting its addresses to pointers requires
/// an unsafe block, which relies on this trait.
///
/// # Safety
///
/// An implementation guarantees all of the following to the owner of the source, if only the owner calls it:
///
/// 1. *Access.* The following bytes are memory that this process may read and write from any thread, at the addresses of
///    the token:
///    - the bytes of a segment, from [`take`](Source::take) until [`give`](Source::give) is called with it;
///    - the bytes of a committed part of a range, from [`commit`](Source::commit) until [`decommit`](Source::decommit) or
///      [`move_pages`](Source::move_pages) is called for the part or [`release`](Source::release) for the range;
///    - the bytes of a part from [`alias`](Source::alias), which maps a committed part at a second address. The old part
///      is then *stale*. It is the same memory as the new part and may be read and written until
///      [`unmap`](Source::unmap) is called for it, or `decommit` or `release` for the memory at its new place.
///
///    All of this ends when the source is dropped.
/// 2. *Disjointness.* No two of these segments and parts, of this source or of any other owner in the process, share a byte,
///    except a part and the stale parts that are the same memory.
/// 3. *Contents.* The source reads and writes these bytes only to move them: after [`move_pages`](Source::move_pages) has
///    succeeded, the target has the contents that the origin had before the call. If [`discard`](Self::discard) returns
///    true, the bytes read as zero. [`populate`](Self::populate) and [`expect_use`](Self::expect_use) change no contents. A
///    failed call has changed neither contents nor access.
/// 4. *Zero.* If [`fresh_is_zero`](Self::fresh_is_zero) returns true, every byte reads as zero from `take` or `commit` until
///    it is first written, even if its address was in use before.
/// 5. *Transfer.* If [`transfer`](Self::transfer) returns true, the target has the contents that the origin had, the origin
///    reads as zero, and both may be read and written as before. If it returns false, the origin is unchanged, the contents
///    of the target are unspecified, and both may be read and written.
/// 6. *Protection.* After [`protect`](Self::protect) has returned true for closing, the bytes must not be accessed until it
///    has returned true for opening them again. Their contents are then unchanged. If it returns false, nothing has changed.
/// 7. *Alignment.* A range begins at a multiple of [`page_bytes`](Source::page_bytes). A segment of at least that size does
///    too, and a smaller segment begins at a multiple of the system's page.
///
/// The source itself must be safe for any tokens. Anyone can make a token, so the source rejects tokens that it did not
/// issue, and accesses no address that it did not map.
pub unsafe trait MemorySource: Source {
    /// Returns the kind of memory.
    fn kind(&self) -> MemoryKind;

    /// Returns true if fresh memory reads as zero.
    fn fresh_is_zero(&self) -> bool;

    /// Discards the contents of some bytes and lets the system reclaim the memory behind them until they are written
    /// again. The bytes stay accessible and read as zero. They must be whole pages of the system (usually 4 KiB) within
    /// one segment or the committed parts of one range. Returns true if it was done. Otherwise nothing has changed.
    ///
    /// The bytes still count as held. Unlike [`decommit`](Source::decommit), this is not limited to whole pages of the
    /// source.
    fn discard(&mut self, _address: u64, _bytes: u64) -> bool {
        false
    }

    /// Allocates memory behind some bytes now, so that the first access causes no page fault. The bytes have the same
    /// restrictions as for [`discard`](Self::discard). Returns true if it was done. The system may still reclaim the memory
    /// later.
    fn populate(&self, address: u64, bytes: u64) -> bool {
        let _ = (address, bytes);
        false
    }

    /// Notifies the source that the program is about to write to all of these bytes for the first time. The source may choose larger
    /// pages for them. The bytes must be within one segment, or within the committed parts of one range.
    fn expect_use(&mut self, _address: u64, _bytes: u64) {}

    /// Moves the memory under `bytes` bytes from one address to another without copying it, and leaves zeros. Returns
    /// true if it was done. Both parts must be in segments or committed parts of this source, begin and end at pages of
    /// the system, and be disjoint. Otherwise, or if the system cannot do it, nothing is done.
    ///
    /// Only the contents of blocks move. The accounts of both blocks stay unchanged.
    fn transfer(&mut self, _from: u64, _to: u64, _bytes: u64) -> bool {
        false
    }

    /// Returns true if [`protect`](Self::protect) is supported, in pages of the system.
    fn can_protect(&self) -> bool {
        false
    }

    /// Makes every access to some bytes fault if `closed`, or restores the access. Returns true if it was done. The
    /// bytes must be whole pages of the system, within one segment or the committed parts of one range. They must be
    /// open before they are returned to the source, moved, discarded or transferred.
    fn protect(&mut self, _address: u64, _bytes: u64, _closed: bool) -> bool {
        false
    }
}

/// Implements the trait for a wrapper that passes tokens between its callers and an inner source.
macro_rules! wrapped_memory {
    ($([$($bounds:tt)*] $wrapper:ty;)*) => {
        $(
            // SAFETY: each call is passed to the inner source with the same tokens, or fails without reaching it. The
            // wrapper creates no tokens and keeps none. Therefore the guarantees of the inner source hold.
            unsafe impl<$($bounds)*> MemorySource for $wrapper {
                fn kind(&self) -> MemoryKind {
                    self.inner().kind()
                }
                fn fresh_is_zero(&self) -> bool {
                    self.inner().fresh_is_zero()
                }
                fn discard(&mut self, address: u64, bytes: u64) -> bool {
                    self.inner_mut().discard(address, bytes)
                }
                fn populate(&self, address: u64, bytes: u64) -> bool {
                    self.inner().populate(address, bytes)
                }
                fn expect_use(&mut self, address: u64, bytes: u64) {
                    self.inner_mut().expect_use(address, bytes);
                }
                fn transfer(&mut self, from: u64, to: u64, bytes: u64) -> bool {
                    self.inner_mut().transfer(from, to, bytes)
                }
                fn can_protect(&self) -> bool {
                    self.inner().can_protect()
                }
                fn protect(&mut self, address: u64, bytes: u64, closed: bool) -> bool {
                    self.inner_mut().protect(address, bytes, closed)
                }
            }
        )*
    };
}

wrapped_memory! {
    [S: MemorySource + ?Sized] Box<S>;
    [S: MemorySource] Limited<S>;
    [S: MemorySource] Counted<S>;
    [S: MemorySource] Faulty<S>;
    [S: MemorySource, F: FnMut(&SourceEvent<'_>)] Logged<S, F>;
}
