//! NVIDIA's management library. Only the functions that list the memory of each process on a device are used. The library is loaded when it
//! is first needed.

use super::library::{functions, open};
use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::ptr;

/// The environment variable with the path of the library, if it is not in the loader's path.
const VARIABLE: &str = "MILLPOND_NVML";
const NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

const SUCCESS: c_int = 0;
const INSUFFICIENT_SIZE: c_int = 7;

/// The value for memory that the system does not allow this process to see.
const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;

/// The maximum number of listed processes of one device.
const MOST: usize = 1024;

/// The known sizes of an entry of the list in bytes: without instances, with instances, and with protected memory. The
/// functions have the same name and version in all cases: most drivers write 24 bytes, drivers from 535.43 to 535.86 write 32,
/// and 16 were seen with 525. Each entry begins with the process id and the bytes that the process uses.
const ENTRY_SIZES: [usize; 3] = [16, 24, 32];

/// The number of 8-byte words that are reserved for one entry: twice the largest known size.
const ENTRY_ROOM: usize = 8;

/// Fills the list before the call, so that the end of the written bytes can be found. The value is not a valid process id,
/// memory size or instance.
const UNWRITTEN: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// A process that uses a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessInfo {
    process: c_uint,
    used: c_ulonglong,
}

functions! {
    Functions(c_int)
    {
        init = "nvmlInit_v2"();
        shutdown = "nvmlShutdown"();
        device = "nvmlDeviceGetHandleByPciBusId_v2"(bus: *const c_char, device: *mut *mut c_void);
        compute = "nvmlDeviceGetComputeRunningProcesses_v3"(
            device: *mut c_void, count: *mut c_uint, infos: *mut u64
        );
    }
    {
        graphics = "nvmlDeviceGetGraphicsRunningProcesses_v3"(
            device: *mut c_void, count: *mut c_uint, infos: *mut u64
        );
    }
}

/// The library. Invariant: it was initialised (`nvmlInit_v2`), and `functions` are its own.
pub(crate) struct ManagementLibrary {
    functions: Functions,
    /// Keeps the library loaded as long as its functions are called.
    _library: Library,
}

impl fmt::Debug for ManagementLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagementLibrary").finish_non_exhaustive()
    }
}

impl ManagementLibrary {
    /// Loads and initialises the library. Returns the reason if it cannot be used.
    pub(crate) fn load() -> Result<Self, String> {
        let library = open(VARIABLE, &NAMES)?;
        // SAFETY: the library's header gives its functions these signatures. It stays loaded as long as they are stored.
        let functions = unsafe { Functions::of(&library) }.map_err(|name| format!("it has no {name}"))?;
        // SAFETY: it takes no arguments.
        let code = unsafe { (functions.init)() };
        if code != SUCCESS {
            return Err(format!("nvmlInit_v2 failed with code {code}"));
        }
        Ok(Self {
            functions,
            _library: library,
        })
    }

    /// Returns each process on the device at this address of the bus, with its bytes if the system allows this process to see them.
    pub(crate) fn processes(&self, bus: &str) -> Option<Vec<(u32, Option<u64>)>> {
        let bus = CString::new(bus).ok()?;
        let mut device = ptr::null_mut();
        // SAFETY: the library was initialised, the text ends with a zero, and the pointer is to a local.
        let code = unsafe { (self.functions.device)(bus.as_ptr(), &raw mut device) };
        if code != SUCCESS {
            return None;
        }
        let mut all: Vec<(u32, Option<u64>)> = Vec::new();
        for ask in [Some(self.functions.compute), self.functions.graphics]
            .into_iter()
            .flatten()
        {
            for info in list(ask, device)? {
                let used = Some(info.used).filter(|bytes| *bytes != NOT_AVAILABLE);
                // A process that computes and draws is in both lists.
                if !all.iter().any(|(process, _)| *process == info.process) {
                    all.push((info.process, used));
                }
            }
        }
        Some(all)
    }
}

type Ask = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut u64) -> c_int;

fn list(ask: Ask, device: *mut c_void) -> Option<Vec<ProcessInfo>> {
    let mut room = 64;
    loop {
        let mut words = vec![UNWRITTEN; room * ENTRY_ROOM];
        let mut count = c_uint::try_from(room).ok()?;
        // SAFETY: the handle comes from the library. The library writes at most `count` entries, and each is at most half as
        // large as the `ENTRY_ROOM` words that are reserved for it.
        let code = unsafe { ask(device, &raw mut count, words.as_mut_ptr()) };
        match code {
            SUCCESS => return read(&words, count as usize),
            INSUFFICIENT_SIZE if room < MOST => room = MOST,
            _ => return None,
        }
    }
}

/// Reads the entries of a list. The number of bytes that the library has written determines the size of an entry. Returns
/// `None` if no known size fits.
fn read(words: &[u64], count: usize) -> Option<Vec<ProcessInfo>> {
    let bytes: &[u8] = bytemuck::cast_slice(words);
    let unwritten = UNWRITTEN.to_ne_bytes()[0];
    let written = bytes
        .iter()
        .rposition(|byte| *byte != unwritten)
        .map_or(0, |last| last + 1);
    let size = ENTRY_SIZES.into_iter().find(|size| count * size >= written)?;
    let entries = bytes.chunks_exact(size).take(count).map(|entry| {
        Some(ProcessInfo {
            process: c_uint::from_ne_bytes(*entry.first_chunk()?),
            used: c_ulonglong::from_ne_bytes(*entry.get(8..)?.first_chunk()?),
        })
    });
    let entries: Vec<_> = entries.collect::<Option<_>>()?;
    // A library that reports more entries than there is room for has written fewer entries than it reports.
    (entries.len() == count).then_some(entries)
}

impl Drop for ManagementLibrary {
    fn drop(&mut self) {
        // SAFETY: the library was initialised once, and nothing of it is used from here on.
        let _ = unsafe { (self.functions.shutdown)() };
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    const DEVICE: *mut c_void = std::ptr::without_provenance_mut(16);
    /// The number of processes that the fake library lists. Process number `n` uses `n` MiB.
    const FEW: u64 = 3;
    const MANY: u64 = 60;

    extern "C" fn begin() -> c_int {
        SUCCESS
    }

    extern "C" fn find(_: *const c_char, device: *mut *mut c_void) -> c_int {
        // SAFETY: the pointer is to a local of `processes`.
        unsafe { device.write(DEVICE) };
        SUCCESS
    }

    /// Fills a list like a driver whose entries have `BYTES` bytes.
    extern "C" fn fill<const BYTES: usize, const COUNT: u64>(
        device: *mut c_void,
        count: *mut c_uint,
        infos: *mut u64,
    ) -> c_int {
        assert_eq!(device, DEVICE);
        // SAFETY: the pointer is to a local of `list`.
        let room = u64::from(unsafe { count.replace(COUNT as c_uint) });
        if room < COUNT {
            return INSUFFICIENT_SIZE;
        }
        for number in 0..COUNT {
            let entry = infos.wrapping_byte_add(number as usize * BYTES);
            // SAFETY: `list` reserves 64 bytes for each entry. The padding after the process id is not written, as with a real
            // driver.
            unsafe { entry.cast::<c_uint>().write(number as c_uint + 1) };
            let rest = [(number + 1) << 20, NOT_AVAILABLE, 0, 0];
            let words = BYTES / 8 - 1;
            let to = entry.wrapping_add(1);
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), to, words) };
        }
        SUCCESS
    }

    fn library(compute: Ask) -> ManagementLibrary {
        ManagementLibrary {
            functions: Functions {
                init: begin,
                shutdown: begin,
                device: find,
                compute,
                graphics: None,
            },
            _library: libloading::os::unix::Library::this().into(),
        }
    }

    /// The functions of the third version fill entries of three sizes, depending on the driver.
    #[test]
    fn entries_of_every_size_are_read() {
        let few: [Ask; 3] = [fill::<16, FEW>, fill::<24, FEW>, fill::<32, FEW>];
        let many: [Ask; 3] = [fill::<16, MANY>, fill::<24, MANY>, fill::<32, MANY>];
        for (asks, count) in [(few, FEW), (many, MANY)] {
            for (ask, bytes) in asks.into_iter().zip(ENTRY_SIZES) {
                let found = library(ask).processes("0000:01:00.0").expect("a list");
                let expected: Vec<_> = (1..=count)
                    .map(|number| (number as u32, Some(number << 20)))
                    .collect();
                assert_eq!(found, expected, "{count} entries of {bytes} bytes");
            }
        }
    }

    #[test]
    fn an_empty_list_is_read_and_entries_of_unknown_size_are_refused() {
        assert_eq!(library(fill::<24, 0>).processes("0000:01:00.0"), Some(Vec::new()));
        assert_eq!(library(fill::<40, 2>).processes("0000:01:00.0"), None);
        // More entries than any list has room for.
        assert_eq!(library(fill::<24, 2000>).processes("0000:01:00.0"), None);
    }
}
