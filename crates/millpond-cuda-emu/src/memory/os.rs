//! All code that requests memory from the system, and all code that accesses bytes.
//!
//! ```text
//!  store of a device (memfd)    0 ........................................ its memory
//!      alias: read and write    |xxxx|        |xxxxxxxx|                   used by work
//!  arena: device addresses          |xxxx|       |xxxx|xxxx|               used by the client
//! ```
//!
//! A device's bytes are the pages of one sparse file, so unused memory has no backing. The client's addresses map pieces of it,
//! accessible to the host or not. Work always uses the alias, which maps the whole file and never changes.

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

const CLOSED: ProtFlags = ProtFlags::empty();
const OPEN: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Addresses that belong to the emulator. Invariant: from `reserve` until drop, `base..base + len` is one mapping of the
/// emulator, and pieces of it may be remapped. Nothing else in the process lies there.
#[derive(Debug)]
pub(crate) struct Arena {
    base: usize,
    len: usize,
}

impl Arena {
    /// Reserves as many addresses as the system allows, up to 4 TiB. Under valgrind, only a few gigabytes are available.
    pub(crate) fn reserve() -> Result<Self, Errno> {
        let mut len = 4usize << 40;
        loop {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: no address is requested, so no other mapping is replaced.
            match unsafe { mmap_anonymous(std::ptr::null_mut(), len, CLOSED, flags) } {
                Ok(base) => {
                    return Ok(Self {
                        base: base.addr(),
                        len,
                    });
                }
                Err(error) if len <= 4 << 30 => return Err(error),
                Err(_) => len /= 2,
            }
        }
    }

    pub(crate) fn base(&self) -> u64 {
        self.base as u64
    }

    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Maps bytes of a store at an address. The host cannot access them until they are opened.
    pub(crate) fn map(&self, at: u64, len: u64, store: &Store, offset: u64) -> Result<(), Errno> {
        let ptr = self.check(at, len)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the range is inside the arena (`check`), so by its invariant only a mapping of the emulator is replaced.
        unsafe { mmap(ptr, len as usize, CLOSED, flags, &store.file, offset) }?;
        Ok(())
    }

    /// Allows or forbids reads and writes by the host.
    pub(crate) fn open(&self, at: u64, len: u64, open: bool) -> Result<(), Errno> {
        let ptr = self.check(at, len)?;
        let flags = if open {
            MprotectFlags::READ | MprotectFlags::WRITE
        } else {
            MprotectFlags::empty()
        };
        // SAFETY: the range is inside the arena (`check`), and no Rust reference points there.
        unsafe { mprotect(ptr, len as usize, flags) }
    }

    /// Maps zeroed host memory at an address, for pinned and managed blocks.
    pub(crate) fn host(&self, at: u64, len: u64) -> Result<(), Errno> {
        self.replace(at, len, OPEN, MapFlags::SHARED)
    }

    /// Unmaps everything at these addresses. They stay reserved.
    pub(crate) fn clear(&self, at: u64, len: u64) -> Result<(), Errno> {
        self.replace(at, len, CLOSED, MapFlags::PRIVATE)
    }

    fn replace(&self, at: u64, len: u64, access: ProtFlags, kind: MapFlags) -> Result<(), Errno> {
        let ptr = self.check(at, len)?;
        let flags = kind | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: as in `map`.
        unsafe { mmap_anonymous(ptr, len as usize, access, flags) }?;
        Ok(())
    }

    fn check(&self, at: u64, len: u64) -> Result<*mut c_void, Errno> {
        let offset = at.checked_sub(self.base as u64).ok_or(Errno::INVAL)?;
        let end = offset.checked_add(len).ok_or(Errno::INVAL)?;
        if len == 0 || end > self.len as u64 {
            return Err(Errno::INVAL);
        }
        Ok(std::ptr::without_provenance_mut(at as usize))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let base = std::ptr::without_provenance_mut(self.base);
        // SAFETY: by the invariant the whole range belongs to the arena, which ends here.
        let _ = unsafe { munmap(base, self.len) };
    }
}

/// The bytes of a device, or of a shared piece of one. Invariant: until drop, `alias` maps the whole of `file`, `len` bytes,
/// readable and writable. The file is sealed against shrinking.
#[derive(Debug)]
pub(crate) struct Store {
    file: OwnedFd,
    alias: usize,
    len: usize,
}

impl Store {
    /// Creates zeroed memory. Other processes identify it by its name. Its length cannot be changed, so that its pages stay valid as long
    /// as a mapping exists.
    pub(crate) fn new(name: &str, len: u64) -> Result<Self, Errno> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::adopt(file)
    }

    /// Opens a memory file that `new` created in this or another process.
    pub(crate) fn adopt(file: OwnedFd) -> Result<Self, Errno> {
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(Errno::INVAL);
        }
        let len = usize::try_from(fstat(&file)?.st_size).map_err(|_| Errno::INVAL)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: no address is requested, so no other mapping is replaced.
        let alias = unsafe { mmap(std::ptr::null_mut(), len, OPEN, flags, &file, 0) }?;
        let alias = alias.expose_provenance();
        Ok(Self { file, alias, len })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns the bytes at an offset for work to access.
    pub(crate) fn span(&self, offset: u64, len: u64) -> Option<Span> {
        let end = offset.checked_add(len)?;
        (end <= self.len as u64).then(|| Span {
            at: self.alias + offset as usize,
            len: len as usize,
        })
    }

    /// Returns pages to the system. They then read as zeros.
    pub(crate) fn punch(&self, offset: u64, len: u64) {
        // If the system cannot do this, the pages stay. A new owner may find any data there, as on a device.
        let _ = fallocate(
            &self.file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            offset,
            len,
        );
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let alias = std::ptr::with_exposed_provenance_mut(self.alias);
        // SAFETY: the invariant's mapping ends with the store.
        let _ = unsafe { munmap(alias, self.len) };
    }
}

/// Numbers that processes share. Invariant: the store has exactly `COUNT` words, and every process accesses them only as atomic words.
#[derive(Debug)]
pub(crate) struct Words(Store);

impl Words {
    /// The number of words, which is one system page.
    pub(crate) const COUNT: usize = 512;
    const BYTES: usize = Self::COUNT * size_of::<AtomicU64>();

    /// Creates words that are all zero. Other processes identify them by their name.
    pub(crate) fn new(name: &str) -> Result<Self, Errno> {
        Store::new(name, Self::BYTES as u64).map(Self)
    }

    /// Opens words that `new` created in another process. The caller has checked the name of the file.
    pub(crate) fn adopt(file: OwnedFd) -> Result<Self, Errno> {
        let store = Store::adopt(file)?;
        if store.len != Self::BYTES {
            return Err(Errno::INVAL);
        }
        Ok(Self(store))
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.0.file()
    }

    /// Returns a word. An index beyond the last word returns the last word.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        let words: *mut u64 = std::ptr::with_exposed_provenance_mut(self.0.alias);
        let word = words.wrapping_add(index.min(Self::COUNT - 1));
        // SAFETY: by the store's invariant the word is mapped as long as `self` exists. It is aligned, because mappings begin with a
        // page. By the invariant all processes access it atomically.
        unsafe { AtomicU64::from_ptr(word) }
    }
}

/// Bytes that work may access. Invariant: they are mapped, readable and writable as long as the span is used. They are part of
/// a store's alias (stores stay mapped while spans exist: `Memory::hold`), or memory that a caller of the C interface passed
/// for this work and is responsible for, as with the real driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    at: usize,
    len: usize,
}

impl Span {
    /// Returns a span of host memory.
    ///
    /// # Safety
    /// The memory must be readable and writable as far as it is read and written, until the work has run.
    pub(crate) unsafe fn host(at: usize, len: usize) -> Self {
        Self { at, len }
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    fn part(self, from: usize, len: usize) -> Self {
        Self {
            at: self.at + from,
            len,
        }
    }

    /// Returns a copy of the bytes.
    pub(crate) fn read(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read_to(&mut bytes);
        bytes
    }

    /// Reads as many bytes as fit, and returns their number.
    fn read_to(self, bytes: &mut [u8]) -> usize {
        let len = self.len.min(bytes.len());
        let from: *const u8 = std::ptr::with_exposed_provenance(self.at);
        // SAFETY: the span is readable for at least `len` bytes (invariant), and nothing else refers to the bytes of the slice.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len) };
        len
    }

    /// Overwrites the span with as many of the bytes as fit.
    pub(crate) fn write(self, bytes: &[u8]) {
        let to: *mut u8 = std::ptr::with_exposed_provenance_mut(self.at);
        let len = self.len.min(bytes.len());
        // SAFETY: the span is writable for at least `len` bytes (invariant); `copy` allows for overlap.
        unsafe { std::ptr::copy(bytes.as_ptr(), to, len) };
    }

    fn copy_from(self, from: Self) {
        let to: *mut u8 = std::ptr::with_exposed_provenance_mut(self.at);
        let source: *const u8 = std::ptr::with_exposed_provenance(from.at);
        let len = self.len.min(from.len);
        // SAFETY: both spans are valid for `len` bytes (invariant); `copy` allows for overlap.
        unsafe { std::ptr::copy(source, to, len) };
    }
}

/// A sequence of spans, for access to a few bytes at a time.
#[derive(Debug)]
pub(crate) struct Reach {
    /// Each span with the position of its first byte.
    spans: Vec<(u64, Span)>,
}

impl Reach {
    pub(crate) fn new(spans: impl IntoIterator<Item = Span>) -> Self {
        let mut start = 0;
        let placed = spans.into_iter().map(|span| {
            let at = start;
            start += span.len as u64;
            (at, span)
        });
        Self {
            spans: placed.collect(),
        }
    }

    /// Returns the rest of the span that contains a byte, from this byte on. Returns `None` beyond the last span.
    fn find(&self, at: u64) -> Option<Span> {
        let after = self.spans.partition_point(|(start, _)| *start <= at);
        let (start, span) = self.spans.get(after.checked_sub(1)?)?;
        let from = (at - start) as usize;
        (from < span.len).then(|| span.part(from, span.len - from))
    }

    /// Reads bytes from a position. Bytes beyond the end are zero.
    pub(crate) fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0_u8; N];
        let mut done = 0;
        while done < N
            && let Some(span) = self.find(at + done as u64)
        {
            done += span.read_to(&mut bytes[done..]);
        }
        bytes
    }

    /// Writes bytes at a position, as many as fit.
    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len()
            && let Some(span) = self.find(at + done as u64)
        {
            span.write(&bytes[done..]);
            done += span.len.min(bytes.len() - done);
        }
    }
}

/// Copies the bytes of one sequence of spans to another, as many as the shorter one contains.
pub(crate) fn copy(to: &[Span], from: &[Span]) {
    let mut to = to.iter().copied();
    let mut from = from.iter().copied();
    let (mut into, mut source) = (to.next(), from.next());
    while let (Some(t), Some(f)) = (into, source) {
        let len = t.len.min(f.len);
        t.part(0, len).copy_from(f.part(0, len));
        into = if t.len > len {
            Some(t.part(len, t.len - len))
        } else {
            to.next()
        };
        source = if f.len > len {
            Some(f.part(len, f.len - len))
        } else {
            from.next()
        };
    }
}

/// Fills spans with a repeated pattern. Each span begins with the start of the pattern, because device memory is divided only
/// at pages.
pub(crate) fn fill(to: &[Span], pattern: &[u8]) {
    const STEP: usize = 64 << 10;
    let repeats = (STEP / pattern.len().max(1)).max(1);
    let block = pattern.repeat(repeats);
    for span in to {
        let mut done = 0;
        while done < span.len {
            let len = block.len().min(span.len - done);
            span.part(done, len).write(&block[..len]);
            done += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;

    #[test]
    fn two_addresses_of_one_page_show_the_same_bytes() {
        let arena = Arena::reserve().unwrap();
        let store = Store::new("cuda-emu", 4 * PAGE).unwrap();
        let (one, two) = (arena.base(), arena.base() + 8 * PAGE);
        for at in [one, two] {
            arena.map(at, PAGE, &store, PAGE).unwrap();
            arena.open(at, PAGE, true).unwrap();
        }
        store.span(PAGE + 5, 3).unwrap().write(b"abc");
        for at in [one, two] {
            // SAFETY: the page was mapped and opened above.
            let span = unsafe { Span::host(at as usize + 5, 3) };
            assert_eq!(span.read(), b"abc");
        }
        assert_eq!(arena.map(arena.base() - PAGE, PAGE, &store, 0), Err(Errno::INVAL));
        assert_eq!(store.span(4 * PAGE - 1, 2), None);
    }

    #[test]
    fn spans_of_unequal_lengths_are_copied_and_filled() {
        let store = Store::new("cuda-emu", PAGE).unwrap();
        let spans = |parts: &[(u64, u64)]| {
            parts
                .iter()
                .map(|p| store.span(p.0, p.1).unwrap())
                .collect::<Vec<_>>()
        };
        fill(&spans(&[(0, 8), (100, 4)]), &[1, 2]);
        copy(&spans(&[(200, 3), (300, 9)]), &spans(&[(0, 8), (100, 4)]));
        assert_eq!(store.span(200, 3).unwrap().read(), [1, 2, 1]);
        assert_eq!(
            store.span(300, 10).unwrap().read(),
            [2, 1, 2, 1, 2, 1, 2, 1, 2, 0]
        );
    }
}
