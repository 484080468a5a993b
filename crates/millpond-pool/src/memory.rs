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
/// An implementation guarantees all of the following to an owner of the source that lets nobody else call it:
///
/// 1. *Access.* The bytes of a segment, from [`take`](Source::take) to the moment [`give`](Source::give) is
///    called with it, and the bytes of a committed part of a range, from [`commit`](Source::commit) to the
///    moment [`decommit`](Source::decommit) or [`move_pages`](Source::move_pages) is called for it or
///    [`release`](Source::release) for its range, are memory that this process may read and write from any
///    thread, at the addresses of the token. The same holds for a part from [`alias`](Source::alias), which maps a
///    committed part at its addresses too. The old part is then *stale*. It is the same memory as the new one and may be
///    read and written until [`unmap`](Source::unmap) is called for it, or `decommit` or `release` for the memory at its new
///    place. All of it ends when the source is dropped.
/// 2. *Apart.* No two of these, of this source or of any other owner in the process, share a byte, except a part and the
///    stale parts that are the same memory.
/// 3. *Contents.* The source neither reads nor writes these bytes, but for moving them: after
///    [`move_pages`](Source::move_pages) has answered, the target holds what the origin held when it was
///    called. [`discard`](Self::discard) makes them read as zero, if it answers so, and
///    [`populate`](Self::populate) and [`expect_use`](Self::expect_use) change nothing. A call that failed has changed neither contents nor access.
/// 4. *Zero.* Where [`fresh_is_zero`](Self::fresh_is_zero) says so, every byte reads as zero from `take` or
///    `commit` until it is first written, also where its address was in use before.
/// 5. *Transfer.* Where [`transfer`](Self::transfer) has answered true, the target holds what the origin held, the
///    origin reads as zero, and both may be read and written as before. Where it has answered false, the origin is as
///    it was and both may be read and written; what the target holds is not said.
/// 6. *Closed.* Where [`protect`](Self::protect) has answered true for closing, the bytes may not be touched until it has
///    answered true for opening them again; then they hold what they held. Where it has answered false nothing has changed.
/// 7. *Alignment.* A range begins at a multiple of [`page_bytes`](Source::page_bytes), a segment at a
///    multiple of that if it is at least as large, else of the system's page.
///
/// The source itself must be safe for any tokens. Anyone can make a token, so the source rejects tokens that it did not
/// issue, and accesses no address that it did not map.
pub unsafe trait MemorySource: Source {
    /// Returns the kind of memory.
    fn kind(&self) -> MemoryKind;

    /// Returns true if fresh memory reads as zero.
    fn fresh_is_zero(&self) -> bool;

    /// Discards the contents of some bytes and lets the system reclaim the memory behind them until they are written
    /// again. The bytes stay accessible and read as zero. They must be whole pages of the system (mostly 4 KiB) within
    /// one segment or the committed parts of one range. Returns true if it was done; otherwise nothing has changed.
    ///
    /// The bytes still count as held. Unlike [`decommit`](Source::decommit), this is not limited to whole pages of the
    /// source.
    fn discard(&mut self, _address: u64, _bytes: u64) -> bool {
        false
    }

    /// Allocates memory behind some bytes now, so that the first access causes no page fault. The bytes have the same
    /// restrictions. Returns true if it was done. The system may still reclaim the memory later.
    fn populate(&self, address: u64, bytes: u64) -> bool {
        let _ = (address, bytes);
        false
    }

    /// Tells the source that the program is about to write to all of these bytes for the first time. The source may choose larger pages
    /// for them. The bytes must be within one segment, or within the committed parts of one range.
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
            // SAFETY: each call reaches the inner source with the same tokens with which it was made, or fails without
            // reaching it. The wrapper makes no token and keeps none. The guarantees of the inner source therefore
            // hold.
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
