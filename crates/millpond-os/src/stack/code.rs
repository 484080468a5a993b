//! The unwind information of the code in this process: how to find the registers of the caller of each address.
//!
//! The tables are copied while the loader's lock is held, so a table is never read after it was unloaded. The rules for
//! code that has been replaced since may be wrong until [`changes`] shows it.

use super::may_ask_loader;
use framehop::x86_64::UnwinderX86_64;
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder};
use std::ops::Range;
use std::sync::{Arc, RwLock, TryLockError};

/// A copy of a table.
type Table = Arc<[u8]>;

/// The pointers in a table's header are relative to themselves, with 32 bits and a sign. All linkers write this format.
const RELATIVE_32: u8 = 0x1b;

pub(super) struct Code {
    pub(super) unwinder: UnwinderX86_64<Table>,
    /// The address ranges of code with a table, in order.
    ranges: Vec<Range<u64>>,
    /// The value of [`changes`].
    changes: u64,
}

impl Code {
    /// Returns the information for the current process, or for its state at the fork. Returns `None` if another thread
    /// is reading it.
    pub(super) fn current() -> Option<Arc<Self>> {
        static CURRENT: RwLock<Option<Arc<Code>>> = RwLock::new(None);
        let known = match CURRENT.try_read() {
            Ok(current) => current.clone(),
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => return None,
        };
        if !may_ask_loader() || known.as_ref().is_some_and(|known| known.changes == changes()) {
            return known;
        }
        let mut current = CURRENT.try_write().ok()?;
        let code = Arc::new(Self::read());
        *current = Some(Arc::clone(&code));
        Some(code)
    }

    fn read() -> Self {
        let mut code = Self {
            unwinder: UnwinderX86_64::new(),
            ranges: Vec::new(),
            changes: changes(),
        };
        each_object(&mut |object| {
            code.add(object);
            true
        });
        code.ranges.sort_by_key(|range| range.start);
        code
    }

    fn add(&mut self, object: &Object<'_>) {
        let Some(code) = object.code() else { return };
        let Some(tables) = object.tables() else { return };
        let relative = |at: u64, table: &Table| {
            let from = at.wrapping_sub(object.base);
            from..from.saturating_add(table.len() as u64)
        };
        let sections = ExplicitModuleSectionInfo {
            eh_frame_hdr_svma: Some(relative(tables.index_at, &tables.index)),
            eh_frame_hdr: Some(tables.index),
            eh_frame_svma: Some(relative(tables.frames_at, &tables.frames)),
            eh_frame: Some(tables.frames),
            ..ExplicitModuleSectionInfo::default()
        };
        self.unwinder
            .add_module(Module::new(String::new(), code.clone(), object.base, sections));
        self.ranges.push(code);
    }

    /// Returns true if code has been loaded or unloaded since.
    pub(super) fn is_old(&self) -> bool {
        may_ask_loader() && self.changes != changes()
    }

    /// Returns the range of the code with this address, if it has a table.
    pub(super) fn range_of(&self, address: u64) -> Option<Range<u64>> {
        let after = self.ranges.partition_point(|range| range.start <= address);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        range.contains(&address).then(|| range.clone())
    }
}

/// Returns the number of times that code was loaded and unloaded.
fn changes() -> u64 {
    let mut changes = 0;
    each_object(&mut |object| {
        changes = object.changes;
        false
    });
    changes
}

/// A code file as shown by the loader, while it cannot be unloaded.
struct Object<'a> {
    base: u64,
    segments: &'a [libc::Elf64_Phdr],
    changes: u64,
}

struct Tables {
    index_at: u64,
    index: Table,
    frames_at: u64,
    frames: Table,
}

impl Object<'_> {
    fn place(&self, segment: &libc::Elf64_Phdr) -> Range<u64> {
        let from = self.base.wrapping_add(segment.p_vaddr);
        from..from.saturating_add(segment.p_memsz)
    }

    /// Returns the range from its first to its last instruction.
    fn code(&self) -> Option<Range<u64>> {
        let of_code = self
            .segments
            .iter()
            .filter(|segment| segment.p_type == libc::PT_LOAD && segment.p_flags & libc::PF_X != 0);
        of_code
            .map(|segment| self.place(segment))
            .reduce(|all, place| all.start.min(place.start)..all.end.max(place.end))
    }

    fn tables(&self) -> Option<Tables> {
        let index = self
            .segments
            .iter()
            .find(|segment| segment.p_type == libc::PT_GNU_EH_FRAME)?;
        let index_place = self.place(index);
        let index = self.copy(index_place.clone())?;
        if index.get(..2)? != [1, RELATIVE_32] {
            return None;
        }
        let offset = i32::from_le_bytes(index.get(4..8)?.try_into().ok()?);
        let frames_at = index_place
            .start
            .wrapping_add(4)
            .wrapping_add_signed(offset.into());
        let segment = self.segment_of(frames_at)?;
        // The end is stated only in the table itself.
        let frames = self.copy(frames_at..segment.end)?;
        Some(Tables {
            index_at: index_place.start,
            index,
            frames_at,
            frames,
        })
    }

    /// Returns the loaded, readable segment around an address.
    fn segment_of(&self, address: u64) -> Option<Range<u64>> {
        let mut loaded = self
            .segments
            .iter()
            .filter(|segment| segment.p_type == libc::PT_LOAD && segment.p_flags & libc::PF_R != 0);
        loaded.find_map(|segment| Some(self.place(segment)).filter(|place| place.contains(&address)))
    }

    fn copy(&self, place: Range<u64>) -> Option<Table> {
        let segment = self.segment_of(place.start)?;
        let bytes = place.end.checked_sub(place.start)?;
        if place.end > segment.end {
            return None;
        }
        let from = std::ptr::with_exposed_provenance::<u8>(usize::try_from(place.start).ok()?);
        // SAFETY: it is part of a readable segment, which the loader cannot unload while it shows the segment to us. No code writes to
        // these tables.
        let table = unsafe { std::slice::from_raw_parts(from, usize::try_from(bytes).ok()?) };
        Some(table.into())
    }
}

type Visit<'a> = &'a mut dyn FnMut(&Object<'_>) -> bool;

/// Visits all code files until `visit` returns false.
fn each_object(mut visit: Visit<'_>) {
    unsafe extern "C" fn show(
        info: *mut libc::dl_phdr_info,
        _bytes: libc::size_t,
        data: *mut libc::c_void,
    ) -> libc::c_int {
        // SAFETY: the loader owns the information and keeps it valid during this call.
        let info = unsafe { &*info };
        // SAFETY: this is the pointer that `each_object` passed.
        let visit = unsafe { &mut *data.cast::<Visit<'_>>() };
        let segments = match info.dlpi_phdr.is_null() {
            true => &[],
            // SAFETY: the loader owns the headers and keeps them valid during this call.
            false => unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) },
        };
        let object = Object {
            base: info.dlpi_addr,
            segments,
            changes: info.dlpi_adds.wrapping_add(info.dlpi_subs),
        };
        libc::c_int::from(!visit(&object))
    }
    // SAFETY: the loader calls `show` only during this call, with `visit`.
    unsafe { libc::dl_iterate_phdr(Some(show), (&raw mut visit).cast()) };
}

/// Calls `what` until it returns a value. It returns `None` while another thread is reading.
#[cfg(test)]
pub(super) fn patient<T>(what: impl Fn() -> Option<T>) -> T {
    loop {
        if let Some(there) = what() {
            return there;
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_this_program_and_of_its_libraries_is_known() {
        let code = patient(Code::current);
        let here = Code::current as fn() -> Option<Arc<Code>> as usize as u64;
        let library = libc::qsort as *const () as usize as u64;
        let (here, library) = (code.range_of(here), code.range_of(library));
        assert!(here.is_some() && library.is_some() && here != library);
        assert_eq!(code.range_of(0), None);
        assert_eq!(
            code.range_of(&raw const code as u64),
            None,
            "the stack is no code"
        );
    }

    #[test]
    fn a_child_of_a_fork_does_not_wait_for_the_loader() {
        use std::sync::atomic::{AtomicBool, Ordering};
        patient(Code::current);
        let (holds, over) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                each_object(&mut |_| {
                    holds.store(true, Ordering::Release);
                    while !over.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    false
                });
            });
            // This thread has not walked a stack yet.
            let status = scope.spawn(|| {
                while !holds.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                // SAFETY: the child leaves by `_exit`. The calls that it makes before are the subject of this test.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: the call takes a number.
                    unsafe { libc::alarm(10) };
                    let mut frames = 0;
                    super::super::walk(10, |_| frames += 1);
                    // SAFETY: the call ends the child without running exit handlers of the parent.
                    unsafe { libc::_exit(i32::from(frames == 0)) };
                }
                let mut status = -1;
                // SAFETY: the child is ours, and the number lives through the call.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                status
            });
            let status = status.join();
            over.store(true, Ordering::Release);
            assert_eq!(status.ok(), Some(0), "the child hung or found nothing");
        });
    }

    #[test]
    fn libraries_that_are_loaded_later_are_known() {
        let before = Code::read();
        // A part of the C library that nothing here needs.
        // SAFETY: the library's initialisation does nothing.
        let library = unsafe { libc::dlopen(c"libutil.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return eprintln!("skipped: there is no library to load");
        }
        assert!(before.is_old());
        let now = Code::read();
        assert!(!now.is_old());
        assert_eq!(now.ranges.len(), before.ranges.len() + 1);
    }
}
