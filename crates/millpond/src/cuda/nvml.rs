//! NVIDIA's management library: the few of its functions that say what each process has of a device. Looked for when it is first
//! needed.

use super::library::{functions, open};
use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::ptr;

/// Where the library is, if it is not where the loader looks.
const VARIABLE: &str = "MILLPOND_NVML";
const NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

const SUCCESS: c_int = 0;
const INSUFFICIENT_SIZE: c_int = 7;

/// What the system does not let us see.
const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;

/// Processes of one device that are listed at most.
const MOST: usize = 1024;

/// `nvmlProcessInfo_v2_t`, which the third version of the functions fills too.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ProcessInfo {
    process: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

functions! {
    Functions(c_int)
    {
        init = "nvmlInit_v2"();
        shutdown = "nvmlShutdown"();
        device = "nvmlDeviceGetHandleByPciBusId_v2"(bus: *const c_char, device: *mut *mut c_void);
        compute = "nvmlDeviceGetComputeRunningProcesses_v3"(
            device: *mut c_void, count: *mut c_uint, infos: *mut ProcessInfo
        );
    }
    {
        graphics = "nvmlDeviceGetGraphicsRunningProcesses_v3"(
            device: *mut c_void, count: *mut c_uint, infos: *mut ProcessInfo
        );
    }
}

/// The library. Invariant: it was begun (`nvmlInit_v2`), and `functions` are its own.
pub(crate) struct ManagementLibrary {
    functions: Functions,
    /// Loaded as long as its functions are called.
    _library: Library,
}

impl fmt::Debug for ManagementLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagementLibrary").finish_non_exhaustive()
    }
}

impl ManagementLibrary {
    /// Or why it cannot be used.
    pub(crate) fn load() -> Result<Self, String> {
        let library = open(VARIABLE, &NAMES)?;
        // SAFETY: the library's header gives its functions these signatures; it stays loaded beside them.
        let functions = unsafe { Functions::of(&library) }.map_err(|name| format!("it has no {name}"))?;
        // SAFETY: takes nothing.
        let code = unsafe { (functions.init)() };
        if code != SUCCESS {
            return Err(format!("nvmlInit_v2 failed with code {code}"));
        }
        Ok(Self {
            functions,
            _library: library,
        })
    }

    /// Each process on the device at this place of the bus, with its bytes where the system lets us see them.
    pub(crate) fn processes(&self, bus: &str) -> Option<Vec<(u32, Option<u64>)>> {
        let bus = CString::new(bus).ok()?;
        let mut device = ptr::null_mut();
        // SAFETY: the library was begun; the text ends with a null, and the pointer is to a local.
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
                // One that computes and draws is in both lists.
                if !all.iter().any(|(process, _)| *process == info.process) {
                    all.push((info.process, used));
                }
            }
        }
        Some(all)
    }
}

type Ask = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut ProcessInfo) -> c_int;

fn list(ask: Ask, device: *mut c_void) -> Option<Vec<ProcessInfo>> {
    let mut infos = vec![ProcessInfo::default(); 64];
    loop {
        let mut count = c_uint::try_from(infos.len()).ok()?;
        // SAFETY: the handle is the library's own, and `infos` has room for so many.
        let code = unsafe { ask(device, &raw mut count, infos.as_mut_ptr()) };
        match code {
            SUCCESS => {
                infos.truncate(count as usize);
                return Some(infos);
            }
            INSUFFICIENT_SIZE if infos.len() < MOST => infos.resize(MOST, ProcessInfo::default()),
            _ => return None,
        }
    }
}

impl Drop for ManagementLibrary {
    fn drop(&mut self) {
        // SAFETY: it was begun once, and nothing of it is used from here on.
        let _ = unsafe { (self.functions.shutdown)() };
    }
}
