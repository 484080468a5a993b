//! One owned map of addresses, closed or open part by part.

use rustix::mm::{self, Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::ffi::c_void;
use std::ptr;

pub(crate) use rustix::io::Errno;

/// A part of a map: bytes from its base, and how many. Multiples of the system's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Part {
    pub(crate) fn end(self) -> u64 {
        self.offset + self.bytes
    }
}

/// Addresses mapped by this process for itself: private, anonymous memory.
///
/// ```text
///   outer                base                 base + bytes       outer + outer_bytes
///     | closed, alignment | closed | open | closed | closed, alignment |
/// ```
///
/// Invariant: every address of `[outer, outer + outer_bytes)` is mapped by this token and by nothing else
/// from its making to its end; no other code is told to map, protect, move or unmap there. `[base, base +
/// bytes)` lies inside. A *closed* part cannot be accessed and has no memory; an *open* one can be read and
/// written. No reference to any of it is ever made here, other than by raw copies inside one call.
#[derive(Debug)]
pub(crate) struct Map {
    outer: u64,
    outer_bytes: u64,
    base: u64,
    bytes: u64,
}

/// Not named where rustix calls the system through the C library, as it does under Miri.
const DONT_UNMAP: MremapFlags = MremapFlags::from_bits_retain(libc::MREMAP_DONTUNMAP as u32);

fn pointer(address: u64) -> *mut c_void {
    ptr::without_provenance_mut(address as usize)
}

/// Fails without asking the system where a size cannot be a size of this machine.
fn length(bytes: u64) -> Result<usize, Errno> {
    usize::try_from(bytes)
        .ok()
        .filter(|b| *b > 0 && *b <= isize::MAX as usize)
        .ok_or(Errno::NOMEM)
}

impl Map {
    /// Maps `bytes` of closed addresses at a multiple of `align`, a power of two.
    ///
    /// Where the alignment is more than a page, more addresses are taken than asked for and the rest stays
    /// closed: cutting it off would need calls that can fail, and addresses cost nothing.
    pub(crate) fn new(bytes: u64, align: u64) -> Result<Self, Errno> {
        let page = super::page_bytes();
        let bytes = bytes.max(1).checked_next_multiple_of(page).ok_or(Errno::NOMEM)?;
        let outer_bytes = bytes
            .checked_add(align.saturating_sub(page))
            .ok_or(Errno::NOMEM)?;
        let length = length(outer_bytes)?;
        // Not NORESERVE: what cannot be written is not charged to the system's commit limit, and what is
        // opened later shall be, so that a limit answers with an error and not with a kill.
        // SAFETY: without FIXED the system chooses addresses that nothing else has mapped.
        let outer =
            unsafe { mm::mmap_anonymous(ptr::null_mut(), length, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        let outer = outer as u64;
        Ok(Self {
            outer,
            outer_bytes,
            base: outer.next_multiple_of(align),
            bytes,
        })
    }

    /// Maps `bytes` of explicit huge pages of `huge` bytes each, all open.
    pub(crate) fn new_huge(bytes: u64, huge: u64) -> Result<Self, Errno> {
        let bytes = bytes.max(1).checked_next_multiple_of(huge).ok_or(Errno::NOMEM)?;
        let length = length(bytes)?;
        let huge = MapFlags::hugetlb_with_size_log2(huge.trailing_zeros()).ok_or(Errno::INVAL)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without FIXED the system chooses addresses that nothing else has mapped.
        let outer = unsafe { mm::mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE | huge) }?;
        let outer = outer as u64;
        Ok(Self {
            outer,
            outer_bytes: bytes,
            base: outer,
            bytes,
        })
    }

    /// First address.
    pub(crate) fn address(&self) -> u64 {
        self.base
    }

    /// The whole of it.
    pub(crate) fn whole(&self) -> Part {
        Part {
            offset: 0,
            bytes: self.bytes,
        }
    }

    /// Address and length of a part; an error where it is empty, crooked or not inside.
    fn locate(&self, part: Part) -> Result<(*mut c_void, usize), Errno> {
        let page = super::page_bytes();
        let end = part.offset.checked_add(part.bytes).ok_or(Errno::INVAL)?;
        let whole = part.offset.is_multiple_of(page) && part.bytes.is_multiple_of(page);
        if !whole || end > self.bytes {
            return Err(Errno::INVAL);
        }
        Ok((pointer(self.base + part.offset), length(part.bytes)?))
    }

    /// Makes a part readable and writable. What was closed reads as zero.
    pub(crate) fn open(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: the part is ours alone by the type's invariant, and gaining access invalidates nothing.
        unsafe { mm::mprotect(address, length, MprotectFlags::READ | MprotectFlags::WRITE) }
    }

    /// Makes a part inaccessible and gives its memory back to the system. Fails where the system would have to
    /// cut a map in two and may not; the part is then as it was.
    ///
    /// A fresh map is put over it. Taking the access away instead would leave maps that never join again once
    /// they had memory, and would keep their bytes charged to the commit limit.
    pub(crate) fn close(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: what lies at these addresses is ours alone by the type's invariant, and the caller means to
        // lose what is in it.
        let closed = unsafe { mm::mmap_anonymous(address, length, ProtFlags::empty(), flags) };
        let Err(error) = closed else { return Ok(()) };
        // The system checks its limits before it unmaps, but one that runs out of memory of its own between the
        // two leaves a hole. Addresses of ours must stay ours: fill it, if there is one.
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: with NOREPLACE the call fails where anything is mapped.
        let filled = unsafe { mm::mmap_anonymous(address, length, ProtFlags::empty(), flags) };
        filled.map(|_| ()).map_err(|_| error)
    }

    /// Makes a part inaccessible as it is. A fresh map, as [`close`](Self::close) makes, is better, but this can be
    /// had where the system makes no more maps.
    pub(crate) fn shut(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: what lies at these addresses is ours alone by the type's invariant, and the caller means not to
        // use it.
        unsafe { mm::mprotect(address, length, MprotectFlags::empty()) }
    }

    /// Gives the memory of an open part back, locked or not; it stays open and reads as zero.
    pub(crate) fn empty(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: the part is ours alone by the type's invariant, and the caller means to lose what is in it.
        let emptied = unsafe { mm::madvise(address, length, Advice::LinuxDontNeed) };
        if emptied != Err(Errno::INVAL) {
            return emptied;
        }
        // SAFETY: as above; the plain call refuses locked memory.
        unsafe { mm::madvise(address, length, Advice::LinuxDontneedLocked) }
    }

    /// Asks for transparent huge pages, which the system may or may not give.
    pub(crate) fn advise_huge(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: the advice changes no contents.
        unsafe { mm::madvise(address, length, Advice::LinuxHugepage) }
    }

    /// Asks for ordinary pages from now on. A huge one that is there stays.
    pub(crate) fn advise_small(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: the advice changes no contents.
        unsafe { mm::madvise(address, length, Advice::LinuxNoHugepage) }
    }

    /// Puts memory behind every page of an open part now. Linux can from 5.14 on, and answers
    /// [`Errno::INVAL`] before.
    pub(crate) fn populate(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: the advice changes no contents.
        unsafe { mm::madvise(address, length, Advice::LinuxPopulateWrite) }
    }

    /// Writes a zero to every page of a part, which puts memory behind it.
    ///
    /// # Safety
    /// The part is open, and nothing but zeros is in it.
    pub(crate) unsafe fn touch(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        for offset in (0..length).step_by(rustix::param::page_size()) {
            let byte = address.cast::<u8>().wrapping_add(offset);
            // SAFETY: the address is ours alone by the type's invariant, and open as the caller promises.
            unsafe { byte.write_volatile(0) };
        }
        Ok(())
    }

    /// Takes memory for a part from one NUMA node: only from it if `only`, else as long as it has some.
    pub(crate) fn bind(&self, part: Part, node: u32, only: bool) -> Result<(), Errno> {
        const NODES: u32 = 1024;
        let (address, length) = self.locate(part)?;
        let mut mask = [0u64; NODES as usize / 64];
        *mask.get_mut(node as usize / 64).ok_or(Errno::INVAL)? = 1 << (node % 64);
        let mode = if only {
            libc::MPOL_BIND
        } else {
            libc::MPOL_PREFERRED
        };
        // The system reads one bit less than it is told of.
        let bits = libc::c_ulong::from(NODES + 1);
        // SAFETY: the mask lives through the call and has the bits announced, the rest being a documented off by
        // one; where memory comes from changes no contents.
        let answer = unsafe { libc::syscall(libc::SYS_mbind, address, length, mode, mask.as_ptr(), bits, 0) };
        if answer == 0 {
            return Ok(());
        }
        let code = std::io::Error::last_os_error().raw_os_error();
        Err(code.map_or(Errno::NOSYS, Errno::from_raw_os_error))
    }

    /// Locks an open part in memory, faulting it in.
    pub(crate) fn lock(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: locking changes no contents.
        unsafe { mm::mlock(address, length) }
    }

    /// Lets the system move and swap out an open part again.
    pub(crate) fn unlock(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: unlocking changes no contents.
        unsafe { mm::munlock(address, length) }
    }

    /// Takes the pages of an open part to a part of the same size, here or in another map, which ends up open
    /// with them. The part they leave stays open and empty, so that its addresses are ours at every moment.
    /// The open part must be of one piece: opened, or moved there, by one call. A failed call changes nothing.
    ///
    /// The part must not be locked: Linux then forgets the lock of all the map it was cut from, and counts what
    /// was moved twice for ever (seen on 6.18).
    pub(crate) fn move_pages(&self, from: Part, to: &Self, at: u64) -> Result<(), Errno> {
        let bytes = from.bytes;
        self.move_or_fill(from, to, Part { offset: at, bytes })
    }

    fn move_or_fill(&self, from: Part, to: &Self, place: Part) -> Result<(), Errno> {
        let (source, length) = self.locate(from)?;
        let (target, _) = to.locate(place)?;
        if length > (source as usize).abs_diff(target as usize) {
            return Err(Errno::INVAL);
        }
        let flags = MremapFlags::MAYMOVE | DONT_UNMAP;
        // SAFETY: both parts are ours alone by the type's invariant; the caller means to lose what the target
        // holds, and they do not overlap.
        let moved = unsafe { mm::mremap_fixed(source, length, length, flags, target) };
        let Err(error) = moved else { return Ok(()) };
        // The system unmaps the target before it looks at some of its limits, and leaves a hole (RLIMIT_DATA, seen on
        // 6.18). Addresses of ours must stay ours: fill it, if there is one.
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: with NOREPLACE the call fails where anything is mapped.
        let _ = unsafe { mm::mmap_anonymous(target, length, ProtFlags::empty(), flags) };
        Err(error)
    }

    /// The same between two open parts of whole pages: the target ends up with the pages, the origin open and empty.
    ///
    /// After a failure the origin is as it was and the target open; what the target held may be lost. The pages of neither
    /// may be locked.
    pub(crate) fn transfer_pages(&self, from: Part, to: &Self, at: u64) -> Result<(), Errno> {
        let (_, length) = self.locate(from)?;
        let place = Part {
            offset: at,
            bytes: from.bytes,
        };
        // For the time of the call the system charges the pages twice, and should a limit be met it has unmapped the
        // target already, which then could not be opened again for the same reason. So room for as much is asked for
        // first, and given back.
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without FIXED the system chooses addresses that nothing else has mapped.
        let room = unsafe { mm::mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE) }?;
        // SAFETY: it was mapped just now, and nothing was made of it.
        unsafe { mm::munmap(room, length) }?;
        self.move_or_fill(from, to, place).inspect_err(|_| {
            let _ = to.open(place);
        })
    }

    /// Makes an open part zero.
    ///
    /// # Safety
    /// The part is open.
    pub(crate) unsafe fn clear(&self, part: Part) -> Result<(), Errno> {
        let (address, length) = self.locate(part)?;
        // SAFETY: the part is ours alone by the type's invariant, and open as the caller promises.
        unsafe { address.cast::<u8>().write_bytes(0, length) };
        Ok(())
    }

    /// Copies a part to one of the same size, here or in another map.
    ///
    /// # Safety
    /// Both parts are open.
    pub(crate) unsafe fn copy(&self, from: Part, to: &Self, at: u64) -> Result<(), Errno> {
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

    /// Gives all addresses back, and with them all memory; answers the token where the system refuses.
    ///
    /// It does where a neighbour, perhaps not ours, has grown together with this map, and no further map may be
    /// made for the cut.
    pub(crate) fn unmap(self) -> Result<(), Self> {
        let map = std::mem::ManuallyDrop::new(self);
        // SAFETY: the addresses are ours alone by the type's invariant, and the token ends here unless the
        // system refused.
        let unmapped = unsafe { mm::munmap(pointer(map.outer), map.outer_bytes as usize) };
        unmapped.map_err(|_| std::mem::ManuallyDrop::into_inner(map))
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the addresses are ours alone by the type's invariant, and the token ends here.
        let unmapped = unsafe { mm::munmap(pointer(self.outer), self.outer_bytes as usize) };
        if unmapped.is_err() {
            // The addresses are lost; the memory need not be.
            let _ = self.empty(self.whole());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::process::Command;

    /// In a process of its own, as limits are the process's.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_move_past_a_limit_lets_go_of_no_address() {
        let test = "os::map::tests::alone_a_move_past_a_limit_lets_go_of_no_address";
        let this = std::env::current_exe().expect("this program");
        let run = Command::new(this)
            .args(["--exact", test, "--ignored"])
            .output()
            .expect("runs");
        let text = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    #[ignore = "changes a limit of the whole process: the test above runs it"]
    fn alone_a_move_past_a_limit_lets_go_of_no_address() {
        let page = super::super::page_bytes();
        let part = |first: u64| Part {
            offset: first * page,
            bytes: 16 * page,
        };
        let map = Map::new(32 * page, page).expect("addresses");
        map.open(part(0)).expect("memory");
        let before = getrlimit(Resource::Data);
        let limited = |current| Rlimit { current, ..before };
        setrlimit(Resource::Data, limited(Some(1))).expect("a lower limit");
        let moved = map.move_pages(part(0), &map, 16 * page);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        let hole = pointer(map.address() + 16 * page);
        // SAFETY: with NOREPLACE the call fails where anything is mapped.
        let mapped = unsafe { mm::mmap_anonymous(hole, page as usize, ProtFlags::empty(), flags) };
        setrlimit(Resource::Data, before).expect("the limit that was");
        assert!(moved.is_err());
        assert_eq!(mapped.err(), Some(Errno::EXIST));
    }
}
