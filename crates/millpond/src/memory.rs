//! Which sources give memory, and what may be done with it.

use millpond_engine::{Counted, Faulty, Limited, Logged, Source, SourceEvent};

/// What kind of memory a source gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary memory of this process, which the system may swap out.
    Host,
    /// Memory of this process that is locked in place.
    Pinned,
    /// Memory of a device, which the host cannot touch.
    Device,
    /// Memory that a CUDA driver moves between the host and devices, at one address for all of them.
    Managed,
}

/// A source whose ranges are memory of this process: the bytes behind its addresses can be read and written.
///
/// A plain [`Source`] is numbers, and calling it touches nothing. What makes a pointer of its addresses is an
/// unsafe block, and that block rests on this trait.
///
/// # Safety
///
/// For whoever holds the source and lets nobody else call it, an implementation keeps all of this:
///
/// 1. *Access.* The bytes of a segment, from [`take`](Source::take) to the moment [`give`](Source::give) is
///    called with it, and the bytes of a committed part of a range, from [`commit`](Source::commit) to the
///    moment [`decommit`](Source::decommit) or [`move_pages`](Source::move_pages) is called for it or
///    [`release`](Source::release) for its range, are memory that this process may read and write from any
///    thread, at the addresses of the token. All of it ends when the source is dropped.
/// 2. *Apart.* No two of these, of this source or of any other owner in the process, share a byte.
/// 3. *Contents.* The source neither reads nor writes these bytes, but for moving them: after
///    [`move_pages`](Source::move_pages) has answered, the target holds what the origin held when it was
///    called. [`discard`](Self::discard) makes them read as zero, if it answers so, and
///    [`populate`](Self::populate) changes nothing. A call that failed has changed neither contents nor access.
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
/// The source itself stays safe whatever tokens it is called with: tokens can be made by anyone, so one that
/// is not its own is refused, and no address is touched that it did not map.
pub unsafe trait MemorySource: Source {
    /// The kind of memory.
    fn kind(&self) -> MemoryKind;

    /// Whether fresh memory reads as zero.
    fn fresh_is_zero(&self) -> bool;

    /// Forgets what some bytes hold and lets the system have the memory behind them until they are written again:
    /// they stay accessible and read as zero. They are whole pages of the system (4 KiB, mostly) within one segment or
    /// the committed parts of one range. Answers whether it was done; if not, nothing has changed.
    ///
    /// The bytes count as held all the same: it is not [`decommit`](Source::decommit), which takes whole pages of the
    /// source only.
    fn discard(&mut self, _address: u64, _bytes: u64) -> bool {
        false
    }

    /// Puts memory behind some bytes now, so that no page faults when it is first touched; for the same parts.
    /// Answers whether it was done. It is no promise that the system will not take it away again.
    fn populate(&self, address: u64, bytes: u64) -> bool {
        let _ = (address, bytes);
        false
    }

    /// Takes the memory under `bytes` bytes from one address to another without copying them, and leaves zeros; answers
    /// whether it did. Both parts lie in segments or committed parts of this source, begin and end at pages of the system,
    /// and share no byte; where they do not, or it cannot be done, nothing is done.
    ///
    /// What a block holds changes places so, not the block: the account of both stays as it is.
    fn transfer(&mut self, _from: u64, _to: u64, _bytes: u64) -> bool {
        false
    }

    /// Whether [`protect`](Self::protect) can be done here at all, in pages of the system.
    fn can_protect(&self) -> bool {
        false
    }

    /// Has every access to some bytes fault, if `closed`, or makes them as they were; answers whether it was done. The
    /// bytes are whole pages of the system, within one segment or the committed parts of one range. Before they go back
    /// to the source, or are moved, discarded or transferred, they are open again.
    fn protect(&mut self, _address: u64, _bytes: u64, _closed: bool) -> bool {
        false
    }
}

/// For a wrapper that hands its callers what the source below has given, and that source what they give back.
macro_rules! wrapped_memory {
    ($($wrapper:ty $(, $sink:ident)?;)*) => {
        $(
            // SAFETY: each call reaches the source below with the very tokens it was made with, or fails without
            // reaching it; the wrapper makes no token and keeps none. What the source below keeps, it keeps.
            unsafe impl<S: MemorySource $(, $sink: FnMut(&SourceEvent<'_>))?> MemorySource for $wrapper {
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
    Limited<S>;
    Counted<S>;
    Faulty<S>;
    Logged<S, F>, F;
}

// SAFETY: a box calls what it holds, and adds nothing.
unsafe impl<S: MemorySource + ?Sized> MemorySource for Box<S> {
    fn kind(&self) -> MemoryKind {
        (**self).kind()
    }
    fn fresh_is_zero(&self) -> bool {
        (**self).fresh_is_zero()
    }
    fn discard(&mut self, address: u64, bytes: u64) -> bool {
        (**self).discard(address, bytes)
    }
    fn populate(&self, address: u64, bytes: u64) -> bool {
        (**self).populate(address, bytes)
    }
    fn transfer(&mut self, from: u64, to: u64, bytes: u64) -> bool {
        (**self).transfer(from, to, bytes)
    }
    fn can_protect(&self) -> bool {
        (**self).can_protect()
    }
    fn protect(&mut self, address: u64, bytes: u64, closed: bool) -> bool {
        (**self).protect(address, bytes, closed)
    }
}
