//! The device that the probes work on, and the kernels that they load into it.

use crate::driver::{Access, AllocationProperties, Code, Driver, Failed, Handle, SUCCESS, call, ok};
use crate::say::{self, row};
use serde_json::{Value, json};
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::time::Duration;

/// The kernels, compiled from `kernels/card.cu`.
pub(crate) const PTX: &str = include_str!("kernels/card.ptx");

/// The first device, with its primary context current on the thread that called [`Card::open`].
pub(crate) struct Card {
    pub(crate) driver: Driver,
    pub(crate) device: i32,
    pub(crate) context: Handle,
    pub(crate) name: String,
    pub(crate) version: i32,
    pub(crate) total: u64,
    /// The recommended granularity of physical memory.
    pub(crate) page: u64,
    pub(crate) emulated: bool,
    /// Whether to run fewer rounds, only to test the probes themselves.
    pub(crate) quick: bool,
}

/// Functions of [`PTX`].
pub(crate) struct Kernels {
    fill: Handle,
    compare: Handle,
    spin: Handle,
    poke: Handle,
}

/// Flag of a stream that does not wait for the default stream.
const NON_BLOCKING: u32 = 1;

impl Card {
    /// Opens the first device.
    pub(crate) fn open(path: &str, quick: bool) -> Result<Self, Failed> {
        let driver = Driver::open(path)?;
        ok!(driver, cuInit(0))?;
        let (mut version, mut count, mut device) = (0, 0, 0);
        ok!(driver, cuDriverGetVersion(&raw mut version))?;
        ok!(driver, cuDeviceGetCount(&raw mut count))?;
        if count == 0 {
            return Err(Failed("the driver has no device".to_owned()));
        }
        ok!(driver, cuDeviceGet(&raw mut device, 0))?;
        let mut name = [0u8; 128];
        ok!(
            driver,
            cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), 128, device)
        )?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let name = String::from_utf8_lossy(&name[..end]).into_owned();
        let mut total = 0;
        ok!(driver, cuDeviceTotalMem_v2(&raw mut total, device))?;
        let mut context = 0;
        ok!(driver, cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        ok!(driver, cuCtxSetCurrent(context))?;
        let properties = AllocationProperties::on(device);
        let mut page = 0;
        let recommended = 1;
        ok!(
            driver,
            cuMemGetAllocationGranularity(&raw mut page, &raw const properties, recommended)
        )?;
        let emulated = driver.is_emulated(&name);
        Ok(Self {
            driver,
            device,
            context,
            name,
            version,
            total: total as u64,
            page: page as u64,
            emulated,
            quick,
        })
    }

    /// Returns the number of rounds of a measurement: `quick` in a quick run, `full` otherwise. On the emulated driver, which is no
    /// faster than its host, it is a fiftieth of `full`, but at least `quick`.
    pub(crate) fn rounds(&self, full: u32, quick: u32) -> u32 {
        match (self.quick, self.emulated) {
            (true, _) => quick,
            (false, true) => (full / 50).max(quick),
            (false, false) => full,
        }
    }

    pub(crate) fn attribute(&self, number: i32) -> Option<i32> {
        let mut value = 0;
        let code = call!(
            self.driver,
            cuDeviceGetAttribute(&raw mut value, number, self.device)
        );
        (code == 0).then_some(value)
    }

    /// Returns the facts about the device that begin the result.
    pub(crate) fn facts(&self) -> Value {
        let (mut free, mut total) = (0, 0);
        let _ = call!(self.driver, cuMemGetInfo_v2(&raw mut free, &raw mut total));
        json!({
            "name": self.name,
            "emulated": self.emulated,
            "driver_version": self.version,
            "total_bytes": self.total,
            "free_bytes": free,
            "page_bytes": self.page,
            "compute_capability": format!("{}.{}", self.attribute(75).unwrap_or(0), self.attribute(76).unwrap_or(0)),
            "multiprocessors": self.attribute(16),
            "copy_engines": self.attribute(40),
            "virtual_memory": self.attribute(102),
            "pools": self.attribute(115),
        })
    }

    /// Creates a stream that does not wait for the default stream.
    pub(crate) fn stream(&self) -> Result<Handle, Failed> {
        let mut stream = 0;
        ok!(self.driver, cuStreamCreate(&raw mut stream, NON_BLOCKING))?;
        Ok(stream)
    }

    /// Makes a call, adds a row with its answer and its time to a table, and returns its code.
    pub(crate) fn tell(&self, table: &str, what: &str, call: impl FnOnce() -> Code) -> Code {
        let (code, taken) = say::timed(call);
        row!(table, what, self.driver.name(code), say::us(taken));
        code
    }

    /// Calls `meanwhile` during the capture of a new stream. `meanwhile` has to end the capture.
    pub(crate) fn during_capture<T>(
        &self,
        mode: u32,
        meanwhile: impl FnOnce(Handle) -> T,
    ) -> Result<T, Failed> {
        let (word, stream) = (self.allocate(256)?, self.stream()?);
        ok!(self.driver, cuStreamBeginCapture_v2(stream, mode))?;
        ok!(self.driver, cuMemsetD8Async(word, 1, 256, stream))?;
        let result = meanwhile(stream);
        ok!(self.driver, cuStreamDestroy_v2(stream))?;
        ok!(self.driver, cuMemFree_v2(word))?;
        Ok(result)
    }

    /// Returns the name of a stream's capture status, or of the driver's code if the query fails.
    pub(crate) fn capture_status(&self, stream: Handle) -> String {
        let mut status = 0;
        match call!(self.driver, cuStreamIsCapturing(stream, &raw mut status)) {
            SUCCESS => ["none", "active", "invalidated"]
                .get(status as usize)
                .map_or_else(|| status.to_string(), |name| (*name).to_owned()),
            code => self.driver.name(code),
        }
    }

    /// Ends a capture, destroys the graph if there is one, and returns the driver's code.
    pub(crate) fn end_capture(&self, stream: Handle) -> Code {
        let mut graph = 0;
        let code = call!(self.driver, cuStreamEndCapture(stream, &raw mut graph));
        if graph != 0 {
            let _ = call!(self.driver, cuGraphDestroy(graph));
        }
        code
    }

    pub(crate) fn synchronize(&self, stream: Handle) -> Result<(), Failed> {
        ok!(self.driver, cuStreamSynchronize(stream))
    }

    pub(crate) fn reserve(&self, bytes: u64) -> Result<u64, Failed> {
        let mut at = 0;
        ok!(
            self.driver,
            cuMemAddressReserve(&raw mut at, bytes as usize, 0, 0, 0)
        )?;
        Ok(at)
    }

    pub(crate) fn create(&self, bytes: u64) -> Result<u64, Failed> {
        let properties = AllocationProperties::on(self.device);
        let mut handle = 0;
        ok!(
            self.driver,
            cuMemCreate(&raw mut handle, bytes as usize, &raw const properties, 0)
        )?;
        Ok(handle)
    }

    pub(crate) fn map(&self, at: u64, bytes: u64, handle: u64) -> Result<(), Failed> {
        ok!(self.driver, cuMemMap(at, bytes as usize, 0, handle, 0))
    }

    /// Makes a range accessible to the device and returns the driver's code.
    pub(crate) fn access(&self, at: u64, bytes: u64) -> i32 {
        let access = &Access::on(self.device);
        call!(self.driver, cuMemSetAccess(at, bytes as usize, access, 1))
    }

    pub(crate) fn unmap(&self, at: u64, bytes: u64) -> Result<(), Failed> {
        ok!(self.driver, cuMemUnmap(at, bytes as usize))
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Result<u64, Failed> {
        let mut at = 0;
        ok!(self.driver, cuMemAlloc_v2(&raw mut at, bytes))?;
        Ok(at)
    }

    /// Loads a module from PTX.
    pub(crate) fn module(&self, ptx: &str) -> Result<Handle, Failed> {
        let text = CString::new(ptx).map_err(|error| Failed(error.to_string()))?;
        let (mut module, none, no_values) = (0, std::ptr::null_mut(), std::ptr::null_mut());
        ok!(
            self.driver,
            cuModuleLoadDataEx(&raw mut module, text.as_ptr().cast(), 0, none, no_values)
        )?;
        Ok(module)
    }

    pub(crate) fn function(&self, module: Handle, name: &str) -> Result<Handle, Failed> {
        let text = CString::new(name).map_err(|error| Failed(error.to_string()))?;
        let mut function = 0;
        ok!(
            self.driver,
            cuModuleGetFunction(&raw mut function, module, text.as_ptr())
        )?;
        Ok(function)
    }

    /// Loads the kernels of the probes. The emulated driver does not run device code, so a host function is registered for each kernel
    /// first.
    pub(crate) fn kernels(&self) -> Result<Kernels, Failed> {
        stand_in(&self.driver)?;
        let module = self.module(PTX)?;
        let function = |name: &str| self.function(module, &format!("millpond_card_{name}"));
        Ok(Kernels {
            fill: function("fill")?,
            compare: function("compare")?,
            spin: function("spin")?,
            poke: function("poke")?,
        })
    }

    pub(crate) fn launch(
        &self,
        function: Handle,
        blocks: u32,
        threads: u32,
        stream: Handle,
        arguments: &mut [*mut c_void],
    ) -> i32 {
        let no_extra = std::ptr::null_mut();
        call!(
            self.driver,
            cuLaunchKernel(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream,
                arguments.as_mut_ptr(),
                no_extra
            )
        )
    }

    /// Fills words with values that depend on their index and on a seed.
    pub(crate) fn fill(
        &self,
        kernels: &Kernels,
        at: u64,
        words: u64,
        seed: u32,
        on: Handle,
    ) -> Result<(), Failed> {
        let (mut at, mut words, mut seed) = (at, words, seed);
        let mut arguments = [
            (&raw mut at).cast(),
            (&raw mut words).cast(),
            (&raw mut seed).cast(),
        ];
        let code = self.launch(kernels.fill, 256, 256, on, &mut arguments);
        self.driver.check("cuLaunchKernel of the fill", code)
    }

    /// Counts the words that differ from a fill with this seed, and adds the number to a counter on the device.
    pub(crate) fn compare(
        &self,
        kernels: &Kernels,
        at: u64,
        words: u64,
        seed: u32,
        wrong: u64,
        on: Handle,
    ) -> Result<(), Failed> {
        let (mut at, mut words, mut seed, mut wrong) = (at, words, seed, wrong);
        let mut arguments = [
            (&raw mut at).cast(),
            (&raw mut words).cast(),
            (&raw mut seed).cast(),
            (&raw mut wrong).cast(),
        ];
        let code = self.launch(kernels.compare, 256, 256, on, &mut arguments);
        self.driver.check("cuLaunchKernel of the comparison", code)
    }

    /// Keeps a stream busy for about this time.
    pub(crate) fn spin(&self, kernels: &Kernels, time: Duration, on: Handle) -> Result<(), Failed> {
        let mut nanoseconds = time.as_nanos() as u64;
        let code = self.launch(kernels.spin, 1, 1, on, &mut [(&raw mut nanoseconds).cast()]);
        self.driver.check("cuLaunchKernel of the spin", code)
    }

    /// Writes one word at an address, which may be invalid, and returns the code of the launch.
    pub(crate) fn poke(&self, kernels: &Kernels, at: u64, on: Handle) -> i32 {
        let mut at = at;
        self.launch(kernels.poke, 1, 1, on, &mut [(&raw mut at).cast()])
    }

    /// Reads a number on the device after all work that is queued on a stream.
    pub(crate) fn word(&self, at: u64, on: Handle) -> Result<u32, Failed> {
        let mut word = 0u32;
        ok!(
            self.driver,
            cuMemcpyDtoHAsync_v2((&raw mut word).cast(), at, 4, on)
        )?;
        self.synchronize(on)?;
        Ok(word)
    }
}

type Read = unsafe extern "C" fn(*mut u8, u64, usize) -> c_int;
type Write = unsafe extern "C" fn(u64, *const u8, usize) -> c_int;
type Body = extern "C" fn(usize, *const *const u8, *const u32) -> c_int;
type Register = unsafe extern "C" fn(*const c_char, *const usize, usize, u64, Option<Body>, usize) -> c_int;

/// The functions by which the registered host functions access the emulated device's memory.
static MEMORY: OnceLock<(Read, Write)> = OnceLock::new();

/// Registers a host function for each kernel with the emulated driver. Does nothing if the driver lacks the emulator's symbols.
fn stand_in(driver: &Driver) -> Result<(), Failed> {
    let names = [
        &b"millpond_emu_register\0"[..],
        b"millpond_emu_read\0",
        b"millpond_emu_write\0",
    ];
    let [Some(register), Some(read), Some(write)] = names.map(|name| driver.symbol(name)) else {
        return Ok(());
    };
    // SAFETY: the emulated driver declares its function of this name with this type.
    let register = unsafe { std::mem::transmute::<*mut c_void, Register>(register) };
    // SAFETY: as above.
    let read = unsafe { std::mem::transmute::<*mut c_void, Read>(read) };
    // SAFETY: as above.
    let write = unsafe { std::mem::transmute::<*mut c_void, Write>(write) };
    let _ = MEMORY.set((read, write));
    let bodies: [(&str, &[usize], Body); 4] = [
        ("fill", &[8, 8, 4], fill),
        ("compare", &[8, 8, 4, 8], compare),
        ("spin", &[8], spin),
        ("poke", &[8], poke),
    ];
    for (name, sizes, body) in bodies {
        let name =
            CString::new(format!("millpond_card_{name}")).map_err(|error| Failed(error.to_string()))?;
        // SAFETY: the name is a C string, `sizes` has `sizes.len()` elements, and the function may be called on any thread.
        let code = unsafe { register(name.as_ptr(), sizes.as_ptr(), sizes.len(), 1000, Some(body), 0) };
        driver.check("millpond_emu_register", code)?;
    }
    Ok(())
}

/// Reads a parameter of a launch by its index.
///
/// # Safety
/// The emulated driver's array has this parameter, and it is a `T`.
unsafe fn parameter<T: Copy>(parameters: *const *const u8, index: usize) -> T {
    // SAFETY: the caller guarantees that the array has this parameter.
    let place = unsafe { parameters.add(index) };
    // SAFETY: the caller guarantees that the array has this parameter.
    let place = unsafe { place.read() };
    // SAFETY: the caller guarantees that the parameter is a `T`.
    unsafe { place.cast::<T>().read_unaligned() }
}

/// Returns the word at an index of a fill, as `card.cu` computes it.
fn word(number: u64, seed: u32) -> u32 {
    let mixed = (number as u32).wrapping_mul(2_654_435_761).wrapping_add(seed);
    mixed ^ (mixed >> 15)
}

fn write(at: u64, bytes: &[u8]) -> c_int {
    let Some((_, write)) = MEMORY.get() else {
        return 999;
    };
    // SAFETY: `bytes` has `bytes.len()` bytes; the emulated driver checks the address.
    unsafe { write(at, bytes.as_ptr(), bytes.len()) }
}

fn read(at: u64, bytes: &mut [u8]) -> c_int {
    let Some((read, _)) = MEMORY.get() else { return 999 };
    // SAFETY: `bytes` has room for `bytes.len()` bytes; the emulated driver checks the address.
    unsafe { read(bytes.as_mut_ptr(), at, bytes.len()) }
}

extern "C" fn fill(_: usize, parameters: *const *const u8, _: *const u32) -> c_int {
    // SAFETY: the function is registered with parameters of these sizes.
    let at = unsafe { parameter::<u64>(parameters, 0) };
    // SAFETY: as above.
    let words = unsafe { parameter::<u64>(parameters, 1) };
    // SAFETY: as above.
    let seed = unsafe { parameter::<u32>(parameters, 2) };
    let bytes: Vec<u8> = (0..words)
        .flat_map(|number| word(number, seed).to_ne_bytes())
        .collect();
    write(at, &bytes)
}

extern "C" fn compare(_: usize, parameters: *const *const u8, _: *const u32) -> c_int {
    // SAFETY: the function is registered with parameters of these sizes.
    let at = unsafe { parameter::<u64>(parameters, 0) };
    // SAFETY: as above.
    let words = unsafe { parameter::<u64>(parameters, 1) };
    // SAFETY: as above.
    let seed = unsafe { parameter::<u32>(parameters, 2) };
    // SAFETY: as above.
    let wrong = unsafe { parameter::<u64>(parameters, 3) };
    let mut bytes = vec![0; words as usize * 4];
    let code = read(at, &mut bytes);
    let (found, _) = bytes.as_chunks::<4>();
    let differ = |(number, found): &(usize, &[u8; 4])| **found != word(*number as u64, seed).to_ne_bytes();
    let count = found.iter().enumerate().filter(differ).count() as u32;
    if code != 0 || count == 0 {
        return code;
    }
    let mut sum = [0; 4];
    match read(wrong, &mut sum) {
        0 => write(wrong, &(u32::from_ne_bytes(sum) + count).to_ne_bytes()),
        code => code,
    }
}

extern "C" fn spin(_: usize, parameters: *const *const u8, _: *const u32) -> c_int {
    // SAFETY: the function is registered with a parameter of this size.
    let nanoseconds = unsafe { parameter::<u64>(parameters, 0) };
    std::thread::sleep(Duration::from_nanos(nanoseconds));
    0
}

extern "C" fn poke(_: usize, parameters: *const *const u8, _: *const u32) -> c_int {
    // SAFETY: the function is registered with a parameter of this size.
    let at = unsafe { parameter::<u64>(parameters, 0) };
    // A card answers 700 when a kernel writes to an invalid address.
    match write(at, &1u32.to_ne_bytes()) {
        0 => 0,
        _ => 700,
    }
}
