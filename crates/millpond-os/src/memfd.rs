//! Memory that is mapped at several addresses.
//!
//! The child of a fork would share this memory with its parent, and each would overwrite the other's data. Therefore every [`Map`] that may
//! contain this memory is listed, and all of its addresses are closed in the child before `fork` returns in the child.

use crate::fork::{Participant, Resting};
use crate::listed::Listed;
use crate::map::{self, Errno, Map, Part};
use crate::ranked::Rank;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::process::{Resource, getrlimit};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

static FORKS: Participant = Participant::new(Rank::Maps, || Box::new(Listed::lock()));

/// The number of forks between the first process of the library and this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

impl Resting for Listed {
    fn forget_others(&mut self) {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        for (address, bytes) in self.iter() {
            map::close_in_child(address, bytes);
        }
    }
}

/// An anonymous file in memory (`memfd_create`). Only pages that were written take memory.
///
/// Every part of it can be mapped at any number of addresses. The file is larger than any machine can use, so it never grows. All of its
/// memory is freed when it is dropped. Maps that still contain parts of it then read as zero.
///
/// The file belongs to the process that created it. In the child of a fork it cannot be mapped, and freeing parts of it has no effect.
#[derive(Debug)]
pub struct Memfd {
    file: OwnedFd,
    generation: u64,
}

impl Memfd {
    /// The size of the file in bytes.
    pub const BYTES: u64 = 1 << 62;

    /// Creates a file. An error names the call that the system refused.
    pub fn new() -> Result<Self, (&'static str, Errno)> {
        // From here on, every fork changes `GENERATION` in the child.
        FORKS.register();
        let this = Self {
            file: create().map_err(|error| ("memfd_create", error))?,
            generation: GENERATION.load(Ordering::Relaxed),
        };
        // Past this limit, the system would end the process instead of refusing the call.
        let limit = getrlimit(Resource::Fsize).current;
        if limit.is_some_and(|limit| limit < Self::BYTES) {
            return Err(("ftruncate", Errno::FBIG));
        }
        ftruncate(&this.file, Self::BYTES).map_err(|error| ("ftruncate", error))?;
        let page = Part {
            offset: 0,
            bytes: crate::page_bytes(),
        };
        this.free(page).map_err(|error| ("fallocate", error))?;
        Ok(this)
    }

    /// Maps closed addresses like [`Map::new`], in which parts of the file can be opened.
    pub fn map(&self, bytes: u64, align: u64) -> Result<Map, Errno> {
        Map::listed(bytes, align)
    }

    /// Makes a part of a map from [`map`](Self::map) readable and writable, with the memory of the file from the offset `at` on. A failed
    /// call changes nothing. It fails in the child of a fork, and if the system would have to split a mapping but the process has reached
    /// its limit of mappings.
    pub fn open(&self, map: &Map, part: Part, at: u64) -> Result<(), Errno> {
        if at.checked_add(part.bytes).is_none_or(|end| end > Self::BYTES) {
            return Err(Errno::INVAL);
        }
        if self.is_inherited() {
            return Err(Errno::PERM);
        }
        map.open_file(part, &self.file, at)
    }

    /// Returns the memory of a part to the system, wherever the part is mapped. The part then reads as zero.
    pub fn free(&self, part: Part) -> Result<(), Errno> {
        if self.is_inherited() {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, flags, part.offset, part.bytes)
    }

    /// Returns the bytes of memory that the file has.
    #[cfg(any(test, feature = "testing"))]
    pub fn resident_bytes(&self) -> Result<u64, Errno> {
        const BLOCK: u64 = 512;
        Ok(rustix::fs::fstat(&self.file)?.st_blocks as u64 * BLOCK)
    }

    /// Returns whether this process is the child of a fork and has the file from its parent.
    pub fn is_inherited(&self) -> bool {
        self.generation != GENERATION.load(Ordering::Relaxed)
    }
}

impl Drop for Memfd {
    fn drop(&mut self) {
        // Closing the file frees nothing while a part is mapped, or while the child of a fork has the file too.
        let _ = self.free(Part {
            offset: 0,
            bytes: Self::BYTES,
        });
    }
}

fn create() -> Result<OwnedFd, Errno> {
    const NAME: &str = "millpond";
    // A system can be set to refuse files that could be made executable. Linux before 6.3 does not have the flag.
    let sealed = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL);
    match sealed {
        Err(Errno::INVAL) => memfd_create(NAME, MemfdFlags::CLOEXEC),
        outcome => outcome,
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;
    use crate::{end_of_child, page_bytes};
    use std::sync::atomic::AtomicBool;

    fn pages(first: u64, count: u64) -> Part {
        Part {
            offset: first * page_bytes(),
            bytes: count * page_bytes(),
        }
    }

    fn map(memfd: &Memfd) -> Map {
        memfd.map(8 * page_bytes(), page_bytes()).expect("addresses")
    }

    fn byte(map: &Map, page: u64) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut((map.address() + page * page_bytes()) as usize)
    }

    fn read(map: &Map, page: u64) -> u8 {
        // SAFETY: the tests read only pages that they have opened.
        unsafe { byte(map, page).read_volatile() }
    }

    fn write(map: &Map, page: u64, value: u8) {
        // SAFETY: the tests write only pages that they have opened.
        unsafe { byte(map, page).write_volatile(value) }
    }

    #[test]
    fn a_page_has_one_content_at_two_addresses_and_is_freed_at_both() {
        let memfd = Memfd::new().expect("a file");
        let (one, two) = (map(&memfd), map(&memfd));
        let far = Memfd::BYTES - 4 * page_bytes();
        memfd.open(&one, pages(0, 4), far).expect("memory");
        memfd.open(&two, pages(4, 2), far + page_bytes()).expect("memory");
        write(&one, 1, 5);
        write(&two, 5, 6);
        assert_eq!((read(&two, 4), read(&one, 2)), (5, 6));
        assert_eq!(memfd.resident_bytes(), Ok(2 * page_bytes()));
        one.close(pages(0, 4)).expect("fewer mappings");
        assert_eq!((read(&two, 4), read(&two, 5)), (5, 6));
        let part = Part {
            offset: far + page_bytes(),
            bytes: page_bytes(),
        };
        memfd.free(part).expect("a part of the file");
        assert_eq!(memfd.resident_bytes(), Ok(page_bytes()));
        assert_eq!((read(&two, 4), read(&two, 5)), (0, 6));
    }

    #[test]
    fn only_listed_maps_contain_parts_of_a_file_and_only_whole_pages() {
        let memfd = Memfd::new().expect("a file");
        let page = page_bytes();
        let other = Map::new(8 * page, page).expect("addresses");
        assert_eq!(memfd.open(&other, pages(0, 1), 0), Err(Errno::INVAL));
        let map = map(&memfd);
        for (part, at) in [
            (pages(7, 2), 0),
            (pages(0, 1), 8),
            (pages(0, 2), Memfd::BYTES - page),
            (pages(0, 1), u64::MAX - page + 1),
        ] {
            assert_eq!(memfd.open(&map, part, at), Err(Errno::INVAL), "{part:?} {at}");
        }
    }

    #[test]
    fn a_child_can_neither_touch_nor_free_the_memory_of_its_parent() {
        let memfd = Memfd::new().expect("a file");
        let map = map(&memfd);
        memfd.open(&map, pages(2, 2), 0).expect("memory");
        write(&map, 2, 5);
        let calls = end_of_child(|| {
            let refused = memfd.open(&map, pages(4, 1), 0) == Err(Errno::PERM);
            memfd.free(pages(0, 2)).is_ok() && refused && Memfd::new().is_ok_and(|own| !own.is_inherited())
        });
        assert_eq!(calls, 0);
        let touch = end_of_child(|| read(&map, 2) == 5);
        assert!(libc::WIFSIGNALED(touch) && libc::WTERMSIG(touch) == libc::SIGSEGV);
        assert_eq!(read(&map, 2), 5);
        assert_eq!(memfd.resident_bytes(), Ok(page_bytes()));
    }

    #[test]
    fn a_child_has_files_of_its_own_and_its_child_does_not() {
        let memfd = Memfd::new().expect("a file");
        let child = end_of_child(|| {
            let own = Memfd::new().expect("a file");
            let map = map(&own);
            own.open(&map, pages(2, 1), 0).expect("memory");
            write(&map, 2, 6);
            let calls = end_of_child(|| own.is_inherited() && memfd.is_inherited());
            let touch = end_of_child(|| read(&map, 2) == 6);
            let closed = libc::WIFSIGNALED(touch) && libc::WTERMSIG(touch) == libc::SIGSEGV;
            calls == 0 && closed && !own.is_inherited() && read(&map, 2) == 6
        });
        assert_eq!(child, 0);
    }

    #[test]
    fn a_child_can_map_although_other_threads_were_mapping_at_the_fork() {
        let memfd = Memfd::new().expect("a file");
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    drop(map(&memfd));
                }
            });
            let fine = (0..100).all(|_| end_of_child(|| memfd.map(page_bytes(), page_bytes()).is_ok()) == 0);
            is_done.store(true, Ordering::Relaxed);
            assert!(fine);
        });
    }

    #[test]
    fn a_dropped_file_frees_its_memory_although_it_is_mapped_and_open_elsewhere() {
        let memfd = Memfd::new().expect("a file");
        let map = map(&memfd);
        memfd.open(&map, pages(0, 2), 0).expect("memory");
        write(&map, 1, 5);
        let other = Memfd {
            file: memfd.file.try_clone().expect("a descriptor"),
            generation: memfd.generation,
        };
        assert_eq!(other.resident_bytes(), Ok(page_bytes()));
        drop(memfd);
        assert_eq!(other.resident_bytes(), Ok(0));
        assert_eq!(read(&map, 1), 0);
    }

    #[test]
    fn an_unmapped_map_is_removed_from_the_list() {
        let memfd = Memfd::new().expect("a file");
        // No other test maps as much, so none can have the first address of this map later.
        let map = memfd.map(1 << 30, page_bytes()).expect("addresses");
        let address = map.address() as usize;
        assert!(Listed::lock().iter().any(|(first, _)| first == address));
        map.unmap().expect("fewer mappings");
        assert!(!Listed::lock().iter().any(|(first, _)| first == address));
    }
}
