//! An owned mapping of addresses, closed or open in parts.

use crate::listed::Listed;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr;

pub use rustix::io::Errno;

/// A part of a mapping: the offset from its base and the bytes, both multiples of the system's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The distance of the first byte from the start of the mapping.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl Part {
    /// Returns the offset of the first byte after the part.
    pub fn end(self) -> u64 {
        self.offset + self.bytes
    }

    /// Returns whether the two parts of one mapping have a byte in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.offset.max(other.offset) < self.end().min(other.end())
    }
}

/// Addresses that this process has mapped for itself: private, anonymous memory, or parts of a [`Memfd`](crate::Memfd).
///
/// ```text
///   outer                base                 base + bytes       outer + outer_bytes
///     | closed, alignment | closed | open | closed | closed, alignment |
/// ```
///
/// Invariant: from the creation of this token to its end, every address of `[outer, outer + outer_bytes)` is mapped by it and by nothing
/// else, and no other code maps, protects, moves or unmaps anything in that range. `[base, base + bytes)` lies inside. A *closed* part
/// cannot be accessed and has no memory; an *open* one can be read and written. This type makes no reference to these bytes. It accesses
/// them only by raw copies inside one call. Only a *listed* map has parts of a [`Memfd`](crate::Memfd). The contents of these parts may
/// change by writes at other addresses. A listed map is closed in the child of a fork.
#[derive(Debug)]
pub struct Map {
    /// The pointer that the system returned. It has the provenance of every address of the map, which an integer does not have.
    outer: *mut u8,
    outer_bytes: u64,
    /// The bytes from `outer` to the base.
    skipped: u64,
    bytes: u64,
    listed: bool,
}

// SAFETY: by the invariant the addresses belong to the token and not to a thread, and any thread may make these calls.
unsafe impl Send for Map {}
// SAFETY: as above. With a shared token one can only call the system, which orders the calls. The exceptions are the unsafe
// methods, which read or write bytes. Their callers guarantee that no other thread accesses these bytes at the same time.
unsafe impl Sync for Map {}

/// The constant of rustix is not available if rustix calls the system through the C library, as under Miri.
const DONT_UNMAP: MremapFlags = MremapFlags::from_bits_retain(libc::MREMAP_DONTUNMAP as u32);

/// Huge pages stay huge when they move if both places have the same offset from a multiple of this size.
const HUGE: usize = 2 << 20;

/// Converts a size. Fails without a system call if the size is impossible on this machine.
fn length(bytes: u64) -> Result<usize, Errno> {
    usize::try_from(bytes)
        .ok()
        .filter(|b| *b > 0 && *b <= isize::MAX as usize)
        .ok_or(Errno::NOMEM)
}

impl Map {
    /// Maps `bytes` of closed addresses at a multiple of `align`, a power of two.
    ///
    /// If the alignment is more than a page, additional addresses are mapped and stay closed. Unmapping them would need
    /// calls that can fail, and addresses cost nothing.
    pub fn new(bytes: u64, align: u64) -> Result<Self, Errno> {
        let page = super::page_bytes();
        let bytes = bytes.max(1).checked_next_multiple_of(page).ok_or(Errno::NOMEM)?;
        let outer_bytes = bytes
            .checked_add(align.saturating_sub(page))
            .ok_or(Errno::NOMEM)?;
        let length = length(outer_bytes)?;
        // NORESERVE is not used. The system does not charge pages that cannot be written to its commit limit. Pages
        // that are opened later shall be charged, so that a limit causes an error and not a kill.
        // SAFETY: without FIXED the system chooses addresses that nothing else has mapped.
        let outer =
            unsafe { mm::mmap_anonymous(ptr::null_mut(), length, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        let start = outer.addr() as u64;
        Ok(Self {
            outer: outer.cast(),
            outer_bytes,
            skipped: start.next_multiple_of(align) - start,
            bytes,
            listed: false,
        })
    }

    /// Maps closed addresses like [`new`](Self::new), and adds them to the list of maps that are closed in the child of a fork.
    pub(crate) fn listed(bytes: u64, align: u64) -> Result<Self, Errno> {
        let mut map = Self::new(bytes, align)?;
        Listed::lock().add(map.outer.expose_provenance(), map.outer_bytes as usize);
        map.listed = true;
        Ok(map)
    }

    /// Maps `bytes` of explicit huge pages of `huge` bytes each, all open.
    pub fn new_huge(bytes: u64, huge: u64) -> Result<Self, Errno> {
        let bytes = bytes.max(1).checked_next_multiple_of(huge).ok_or(Errno::NOMEM)?;
        let length = length(bytes)?;
        let huge = MapFlags::hugetlb_with_size_log2(huge.trailing_zeros()).ok_or(Errno::INVAL)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without FIXED the system chooses addresses that nothing else has mapped.
        let outer = unsafe { mm::mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE | huge) }?;
        Ok(Self {
            outer: outer.cast(),
            outer_bytes: bytes,
            skipped: 0,
            bytes,
            listed: false,
        })
    }

    /// Returns the first address and exposes its provenance. Pointers may be made from it and from the addresses after it.
    pub fn address(&self) -> u64 {
        self.pointer(0).expose_provenance() as u64
    }

    fn pointer(&self, offset: u64) -> *mut c_void {
        self.outer.wrapping_add((self.skipped + offset) as usize).cast()
    }

    /// Returns the whole mapping as a part.
    pub fn whole(&self) -> Part {
        Part {
            offset: 0,
            bytes: self.bytes,
        }
    }

    /// Returns the address and length of a part. Returns an error if it is empty, misaligned or not inside the mapping.
    fn locate(&self, part: Part) -> Result<(*mut c_void, usize), Errno> {
        let page = super::page_bytes();
        let end = part.offset.checked_add(part.bytes).ok_or(Errno::INVAL)?;
        let whole = part.offset.is_multiple_of(page) && part.bytes.is_multiple_of(page);
        if !whole || end > self.bytes {
            return Err(Errno::INVAL);
        }
        Ok((self.pointer(part.offset), length(part.bytes)?))
    }

    /// Makes a part readable and writable. A part that was closed reads as zero.
    pub fn open(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: the part is ours alone by the type's invariant, and gaining access invalidates nothing.
        unsafe { mm::mprotect(address, length, MprotectFlags::READ | MprotectFlags::WRITE) }
    }

    /// Makes a part of a listed map readable and writable, with the memory of a file from the offset `at` on. Fails if the
    /// system would have to split a mapping but the process has reached its limit of mappings. The part is then unchanged.
    pub(crate) fn open_file(&self, part: Part, file: &OwnedFd, at: u64) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        if !self.listed || !at.is_multiple_of(super::page_bytes()) {
            return Err(Errno::INVAL);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: by the type's invariant the mapping at these addresses is ours alone, and the caller accepts that its
        // contents are lost. The map is listed, and no reference is made to it.
        let opened = unsafe { mm::mmap(address, length, access, flags, file, at) };
        opened.map(|_| ()).inspect_err(|_| {
            let _ = fill_hole(address, length);
        })
    }

    /// Makes a part inaccessible and returns its memory to the system, except that of a [`Memfd`](crate::Memfd). Fails if the system
    /// would have to split a mapping but the process has reached its limit of mappings. The part is then unchanged.
    ///
    /// The part is replaced by a new mapping. Removing the access instead would leave mappings that never merge again after
    /// they had memory, and would keep their bytes charged to the commit limit.
    pub fn close(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: by the type's invariant the mapping at these addresses is ours alone, and the caller accepts that its
        // contents are lost.
        let closed = unsafe { mm::mmap_anonymous(address, length, ProtFlags::empty(), flags) };
        let Err(error) = closed else { return Ok(()) };
        fill_hole(address, length).map_err(|_| error)
    }

    /// Makes a part inaccessible and keeps its contents. A new mapping, as in [`close`](Self::close), is better, but this
    /// also works if the process has reached its limit of mappings.
    pub fn shut(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: by the type's invariant the mapping at these addresses is ours alone, and the caller does not use it
        // afterwards.
        unsafe { mm::mprotect(address, length, MprotectFlags::empty()) }
    }

    /// Returns the memory of an open part to the system, whether it is locked or not. The part stays open and reads as
    /// zero. The memory of a [`Memfd`](crate::Memfd) stays as it is.
    pub fn empty(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: the part is ours alone by the type's invariant, and the caller accepts that its contents are lost.
        let emptied = unsafe { mm::madvise(address, length, Advice::LinuxDontNeed) };
        if emptied != Err(Errno::INVAL) {
            return emptied;
        }
        // SAFETY: as above; the plain call refuses locked memory.
        unsafe { mm::madvise(address, length, Advice::LinuxDontneedLocked) }
    }

    /// Requests transparent huge pages. The system may ignore the request.
    pub fn advise_huge(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: the advice changes no contents.
        unsafe { mm::madvise(address, length, Advice::LinuxHugepage) }
    }

    /// Requests ordinary pages from now on. Existing huge pages stay.
    pub fn advise_small(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: the advice changes no contents.
        unsafe { mm::madvise(address, length, Advice::LinuxNoHugepage) }
    }

    /// Allocates memory for every page of an open part now. Linux supports this from 5.14 on and returns
    /// [`Errno::INVAL`] before.
    pub fn populate(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: the advice changes no contents.
        unsafe { mm::madvise(address, length, Advice::LinuxPopulateWrite) }
    }

    /// Writes zeros to a part, which allocates memory for it.
    ///
    /// # Safety
    /// The part must be open and hold only zeros. No other thread may access its bytes during the call.
    pub unsafe fn zero(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: the addresses are ours alone by the type's invariant, and open as the caller promises.
        unsafe { address.cast::<u8>().write_bytes(0, length) };
        Ok(())
    }

    /// Sets the NUMA node from which the memory of a part is allocated. If `only` is true, no other node is used. Otherwise,
    /// other nodes are used when this node has no memory.
    pub fn bind(&self, part: Part, node: u32, only: bool) -> Result<(), Errno> {
        const NODES: u32 = 1024;
        let (address, length) = self.locate(part)?;
        let mut mask = [0u64; NODES as usize / 64];
        *mask.get_mut(node as usize / 64).ok_or(Errno::INVAL)? = 1 << (node % 64);
        let mode = if only {
            libc::MPOL_BIND
        } else {
            libc::MPOL_PREFERRED
        };
        // The system reads one bit less than the given number.
        let bits = libc::c_ulong::from(NODES + 1);
        // SAFETY: the mask lives through the call, and the system reads no bit after it. The choice of a node changes no
        // contents.
        let answer = unsafe { libc::syscall(libc::SYS_mbind, address, length, mode, mask.as_ptr(), bits, 0) };
        if answer == 0 {
            return Ok(());
        }
        let code = std::io::Error::last_os_error().raw_os_error();
        Err(code.map_or(Errno::NOSYS, Errno::from_raw_os_error))
    }

    /// Locks an open part in memory and allocates its pages.
    pub fn lock(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: locking changes no contents.
        unsafe { mm::mlock(address, length) }
    }

    /// Lets the system move and swap out an open part again.
    pub fn unlock(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: unlocking changes no contents.
        unsafe { mm::munlock(address, length) }
    }

    /// Moves the pages of an open part to a part of the same size, in this or another mapping. The target is open
    /// afterwards. The source stays open and empty, so its addresses are owned at every moment. The source must have
    /// been opened, or moved to its place, by one call. A failed call changes nothing. Maps that may have parts of a
    /// [`Memfd`](crate::Memfd) are refused: its pages are opened at the target instead.
    ///
    /// The part must not be locked. Otherwise Linux loses the lock of the whole mapping from which it was split, and
    /// counts the moved bytes twice forever (seen on 6.18).
    ///
    /// During the call, the moved addresses and bytes count twice against the limits of the process.
    ///
    /// # Safety
    /// The part `from` must be open. No other thread may access the bytes of either part during the call.
    pub unsafe fn move_pages(&self, from: Part, to: &Self, at: u64) -> Result<(), Errno> {
        let bytes = from.bytes;
        // SAFETY: the caller's promise.
        unsafe { self.move_or_fill(from, to, Part { offset: at, bytes }) }
    }

    /// # Safety
    /// The part `from` must be open. No other thread may access the bytes of either part during the call.
    unsafe fn move_or_fill(&self, from: Part, to: &Self, place: Part) -> Result<(), Errno> {
        let (source, length) = self.locate(from)?;
        let (target, _) = to.locate(place)?;
        if self.listed || to.listed || length > source.addr().abs_diff(target.addr()) {
            return Err(Errno::INVAL);
        }
        // If the pages moved directly to the target, the system would unmap the target before it checks its limits (seen on
        // 6.18), and another thread could map something in the hole. So the pages first move to free addresses. If the system
        // refuses that, nothing has changed. From there they move to the target, which counts against no limit.
        let between = Self::lift(source, length)?;
        // SAFETY: the pages at `between` are ours since `lift` moved them there. The target is ours by the type's invariant,
        // and the caller accepts that its contents are lost. They do not overlap, because both were mapped at the same time.
        let moved = unsafe { mm::mremap_fixed(between, length, length, MremapFlags::MAYMOVE, target) };
        let Err(error) = moved else { return Ok(()) };
        // This fails only if the process has as many maps as it may have, which the system checks before it unmaps, or if the
        // system has no memory for tables of its own. In the latter case there may be a hole after all, which is mapped again:
        // our addresses must stay ours.
        let _ = fill_hole(target, length);
        // SAFETY: the source is open by the caller's promise, and so are the pages that were moved from there. Both are ours
        // alone. They are two maps, so they do not overlap.
        unsafe { ptr::copy_nonoverlapping(between.cast::<u8>(), source.cast::<u8>(), length) };
        // SAFETY: `lift` has mapped the addresses, and they are not used again. If the system refuses, only the addresses are
        // lost.
        let _ = unsafe { mm::munmap(between, length) };
        Err(error)
    }

    /// Moves pages to addresses that the system chooses. The addresses that they leave stay mapped. A failed call changes
    /// nothing.
    fn lift(source: *mut c_void, length: usize) -> Result<*mut c_void, Errno> {
        let flags = libc::c_ulong::from((MremapFlags::MAYMOVE | DONT_UNMAP).bits());
        // SAFETY: the system takes a hint only if nothing is mapped there, and otherwise chooses addresses where nothing is
        // mapped. The pages are ours, and their contents are not lost.
        let lifted = unsafe {
            libc::syscall(
                libc::SYS_mremap,
                source,
                length,
                length,
                flags,
                alike(source, length),
            )
        };
        if lifted == -1 {
            let code = std::io::Error::last_os_error().raw_os_error();
            return Err(code.map_or(Errno::NOSYS, Errno::from_raw_os_error));
        }
        Ok(ptr::with_exposed_provenance_mut(lifted as usize))
    }

    /// Moves pages between two open parts of whole pages. The target has the pages afterwards, and the source is open
    /// and empty.
    ///
    /// After a failure the source is unchanged and the target is open, but the contents of the target may be lost. The
    /// pages of neither part may be locked.
    ///
    /// # Safety
    /// The part `from` must be open. No other thread may access the bytes of either part during the call.
    pub unsafe fn transfer_pages(&self, from: Part, to: &Self, at: u64) -> Result<(), Errno> {
        let place = Part {
            offset: at,
            bytes: from.bytes,
        };
        // SAFETY: the caller's promise.
        let moved = unsafe { self.move_or_fill(from, to, place) };
        moved.inspect_err(|_| {
            let _ = to.open(place);
        })
    }

    /// Fills an open part with zeros.
    ///
    /// # Safety
    /// The part must be open. No other thread may access its bytes during the call.
    pub unsafe fn clear(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: the part is ours alone by the type's invariant, and open as the caller promises.
        unsafe { address.cast::<u8>().write_bytes(0, length) };
        Ok(())
    }

    /// Copies a part to one of the same size, in this or another mapping.
    ///
    /// # Safety
    /// Both parts must be open. No other thread may access their bytes during the call.
    pub unsafe fn copy(&self, from: Part, to: &Self, at: u64) -> Result<(), Errno> {
        let (source, length) = self.locate(from)?;
        let (target, _) = to.locate(Part {
            offset: at,
            bytes: from.bytes,
        })?;
        // SAFETY: both parts are ours alone by the type's invariant, and open as the caller promises; `copy`
        // allows overlap.
        unsafe { ptr::copy(source.cast::<u8>(), target.cast::<u8>(), length) };
        Ok(())
    }

    /// Unmaps all addresses and frees their memory. Returns the token if the system refuses.
    ///
    /// The system refuses if it has merged this mapping with a neighbour, perhaps a foreign one, and no more mappings
    /// are available for the split.
    pub fn unmap(self) -> Result<(), Self> {
        let map = std::mem::ManuallyDrop::new(self);
        map.let_go().map_err(|_| std::mem::ManuallyDrop::into_inner(map))
    }

    /// Unmaps all addresses, after which the token must not be used.
    fn let_go(&self) -> Result<(), Errno> {
        // A fork waits for the lock, so that its child does not close addresses that other code has mapped meanwhile.
        let mut listed = self.listed.then(Listed::lock);
        // SAFETY: the addresses are ours alone by the type's invariant, and the callers end the token unless the
        // system refuses.
        unsafe { mm::munmap(self.outer.cast(), self.outer_bytes as usize) }?;
        if let Some(listed) = &mut listed {
            listed.remove(self.outer.addr());
        }
        Ok(())
    }
}

/// Maps closed addresses where nothing is mapped. The system checks its limits before it replaces a mapping. If it runs out
/// of its own memory after that, it leaves a hole. The addresses must stay owned.
fn fill_hole(address: *mut c_void, length: usize) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: with NOREPLACE the call fails if anything is mapped at the addresses.
    unsafe { mm::mmap_anonymous(address, length, ProtFlags::empty(), flags) }.map(|_| ())
}

/// Closes the addresses of a listed map in the child of a fork.
pub(crate) fn close_in_child(address: usize, length: usize) {
    let address = ptr::with_exposed_provenance_mut(address);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: a listed map owns the addresses, and no reference is made to them.
    let closed = unsafe { mm::mmap_anonymous(address, length, ProtFlags::empty(), flags) };
    // Removing the access splits a mapping only if the first or the last page is open.
    // SAFETY: as above.
    if closed.is_err() && unsafe { mm::mprotect(address, length, MprotectFlags::empty()) }.is_err() {
        // Otherwise the child would overwrite its parent's data.
        std::process::abort();
    }
}

/// Returns free addresses with the same offset from a huge page as `source`. Returns null if none were found, or if `length` is
/// less than a huge page.
fn alike(source: *mut c_void, length: usize) -> *mut c_void {
    if length < HUGE {
        return ptr::null_mut();
    }
    // SAFETY: without FIXED the system chooses addresses that nothing else has mapped.
    let room = unsafe {
        mm::mmap_anonymous(
            ptr::null_mut(),
            length + HUGE,
            ProtFlags::empty(),
            MapFlags::PRIVATE,
        )
    };
    let Ok(room) = room else { return ptr::null_mut() };
    // SAFETY: it was mapped just now, and nothing refers to it.
    let unmapped = unsafe { mm::munmap(room, length + HUGE) };
    let ahead = source.addr().wrapping_sub(room.addr()) % HUGE;
    unmapped.map_or(ptr::null_mut(), |()| room.wrapping_byte_add(ahead))
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.let_go().is_err() {
            // The addresses are lost, but the memory can still be freed.
            let _ = self.empty(self.whole());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::alloc::{Layout, alloc, dealloc};
    use std::mem::ManuallyDrop;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Runs a test in a process of its own, because limits apply to a whole process.
    fn alone(test: &str) {
        let test = format!("map::tests::{test}");
        let this = std::env::current_exe().expect("this program");
        let run = Command::new(this)
            .args(["--exact", &test, "--ignored", "--nocapture"])
            .output()
            .expect("runs");
        let text = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && text.contains("1 passed"), "{text}");
    }

    /// Returns a part of sixteen pages.
    fn part(first: u64) -> Part {
        let page = super::super::page_bytes();
        Part {
            offset: first * page,
            bytes: 16 * page,
        }
    }

    /// Makes a map of 32 pages. The first 16 are open.
    fn map() -> Map {
        let page = super::super::page_bytes();
        let map = Map::new(32 * page, page).expect("addresses");
        map.open(part(0)).expect("memory");
        map
    }

    /// Moves the first 16 pages of a map to its last 16 pages.
    fn moves(map: &Map) -> Result<(), Errno> {
        // SAFETY: `map` has opened these pages.
        unsafe { map.move_pages(part(0), map, part(16).offset) }
    }

    /// Returns a pointer to the first byte of an open part.
    fn first_byte(map: &Map, part: Part) -> *mut u8 {
        map.locate(part).expect("a part").0.cast()
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_refused_move_leaves_no_hole_at_any_moment() {
        alone("alone_a_refused_move_leaves_no_hole_at_any_moment");
    }

    #[test]
    #[ignore = "changes a limit of the whole process: the test above runs it"]
    fn alone_a_refused_move_leaves_no_hole_at_any_moment() {
        let map = map();
        let (target, length) = map.locate(part(16)).expect("a part");
        let target = target.expose_provenance();
        let (began, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let intruder = scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let hint = ptr::with_exposed_provenance_mut(target);
                    // SAFETY: without FIXED the system takes the hint only where nothing is mapped.
                    let mapped =
                        unsafe { mm::mmap_anonymous(hint, length, ProtFlags::empty(), MapFlags::PRIVATE) };
                    let mapped = mapped.expect("addresses, which no limit counts");
                    if mapped.addr() == target {
                        return true;
                    }
                    // SAFETY: it was mapped just now, and nothing refers to it.
                    unsafe { mm::munmap(mapped, length) }.expect("it is mapped");
                    began.store(true, Ordering::Relaxed);
                }
                false
            });
            // A thread allocates when it starts, and the limit would refuse that.
            while !began.load(Ordering::Relaxed) && !intruder.is_finished() {
                std::thread::yield_now();
            }
            let before = getrlimit(Resource::Data);
            let limited = |current| Rlimit { current, ..before };
            setrlimit(Resource::Data, limited(Some(1))).expect("a lower limit");
            let refused = (0..20_000).take_while(|_| !intruder.is_finished() && moves(&map).is_err());
            let refused = refused.count();
            setrlimit(Resource::Data, before).expect("the limit that was");
            ended.store(true, Ordering::Relaxed);
            let found = intruder.join().expect("no panic");
            assert!(
                !found,
                "another thread has mapped addresses of the map after {refused} moves"
            );
            assert_eq!(refused, 20_000);
        });
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_move_loses_nothing_where_the_process_has_all_the_maps_it_may_have() {
        alone("alone_a_move_loses_nothing_where_the_process_has_all_the_maps_it_may_have");
    }

    #[test]
    #[ignore = "takes all maps that the process may have: the test above runs it"]
    fn alone_a_move_loses_nothing_where_the_process_has_all_the_maps_it_may_have() {
        let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("a limit");
        let limit: u64 = limit.trim().parse().expect("a number");
        if limit > 1 << 17 {
            println!("skipped: {limit} maps are too many to fill");
            return;
        }
        let page = super::super::page_bytes();
        let one = |at: u64| Part {
            offset: 2 * at * page,
            bytes: page,
        };
        let filler = Map::new(2 * limit * page, page).expect("addresses");
        let last = Part {
            offset: (2 * limit - 1) * page,
            bytes: page,
        };
        let maps: Vec<Map> = (0..40).map(|_| map()).collect();
        let (mut filled, mut kept, mut moved) = (0, 0, 0);
        for (at, map) in maps.iter().enumerate() {
            if at % 20 == 0 {
                if at > 0 {
                    // Adds one map and not two, so that every number of maps that are still possible occurs.
                    filler.open(last).expect("room for a map");
                }
                while filler.open(one(filled)).is_ok() {
                    filled += 1;
                }
            }
            let byte = first_byte(map, part(0));
            // SAFETY: the byte is open, and it is ours alone.
            unsafe { byte.write(at as u8 + 1) };
            let outcome = moves(map);
            let holder = if outcome.is_ok() { part(16) } else { part(0) };
            // SAFETY: a moved part is open, and one that was not moved is as it was.
            let found = unsafe { first_byte(map, holder).read() };
            assert_eq!(usize::from(found), at + 1, "{outcome:?}");
            match outcome {
                Ok(()) => moved += 1,
                Err(_) => kept += 1,
            }
            if at % 2 == 1 {
                filled -= 1;
                filler.close(one(filled)).expect("fewer maps than before");
            }
        }
        assert!(kept > 0 && moved > 0, "{kept} kept, {moved} moved");
    }

    /// Miri rejects accesses by a pointer without provenance.
    #[test]
    fn all_accesses_use_the_provenance_of_the_map_pointer() {
        let page = super::super::page_bytes();
        let layout = Layout::from_size_align(2 * page as usize, page as usize).expect("a layout");
        // SAFETY: the layout has a size.
        let outer = unsafe { alloc(layout) };
        assert!(!outer.is_null());
        // The system has not made this map, so the map must not be dropped.
        let map = ManuallyDrop::new(Map {
            outer,
            outer_bytes: 2 * page,
            skipped: 0,
            bytes: 2 * page,
            listed: false,
        });
        let first = Part {
            offset: 0,
            bytes: page,
        };
        let second = Part {
            offset: page,
            ..first
        };
        // SAFETY: the whole map can be written.
        unsafe { map.clear(second) }.expect("a part");
        // SAFETY: as above.
        unsafe { map.copy(second, &map, 0) }.expect("a part");
        // SAFETY: as above, and it is zero.
        unsafe { map.zero(first) }.expect("a part");
        let byte: *const u8 = ptr::with_exposed_provenance(map.address() as usize);
        // SAFETY: the byte was written, and `address` has exposed the provenance of the map.
        assert_eq!(unsafe { byte.read() }, 0);
        // SAFETY: allocated above with this layout.
        unsafe { dealloc(outer, layout) };
    }
}
