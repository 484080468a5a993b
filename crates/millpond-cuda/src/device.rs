//! A CUDA device: its primary context and its properties.

mod open;

use super::abi::{
    CAPTURE_NONE, CAPTURE_RELAXED, ContextHandle, DeviceNumber, EVENT_WITHOUT_TIME, EventHandle,
    StreamHandle, attribute,
};
use super::callback;
use super::captured;
use super::code::Loaded;
use super::cublas;
use super::driver::Driver;
use super::error::{CudaError, insist};
use super::fork;
use super::later;
use super::wake::WakeStreams;
use millpond_os::device::Device;
use millpond_os::pressure::{DevicePressure, Thresholds};
use millpond_os::reentrancy::inside;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// A CUDA device.
///
/// A handle holds the device's primary context, which all users in a process share. Memory and streams that other libraries make on the
/// same device belong to the same context. Cloning makes another handle.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError};
///
/// match CudaDevice::get(0) {
///     Ok(device) => println!("{device}: {} in all", device.memory()?.total),
///     Err(CudaError::NoDriver) => println!("no CUDA here"),
///     Err(error) => println!("{error}"),
/// }
/// # Ok::<(), CudaError>(())
/// ```
#[derive(Clone)]
pub struct CudaDevice(Arc<Context>);

/// The device's memory in bytes, as counted by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceMemory {
    /// The memory that no process uses.
    pub free: u64,
    /// The total memory.
    pub total: u64,
}

/// The devices that this process has opened.
pub(super) static OPEN: Mutex<Vec<Weak<Context>>> = Mutex::new(Vec::new());

fn open() -> MutexGuard<'static, Vec<Weak<Context>>> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|context| context.strong_count() > 0);
    open
}

/// Returns a handle of each device that this process has opened and not closed, ordered by number. The child of a process that uses CUDA
/// has none.
pub(super) fn open_devices() -> Vec<CudaDevice> {
    if !fork::is_in_use() {
        return Vec::new();
    }
    // An observer of the program's pool may ask for the devices, so nothing is allocated from it under the lock.
    let _inside = inside();
    let mut devices: Vec<_> = open().iter().filter_map(Weak::upgrade).map(CudaDevice).collect();
    devices.sort_by_key(CudaDevice::number);
    devices.dedup_by_key(|device| device.number());
    devices
}

pub(super) struct Context {
    driver: &'static Driver,
    handle: ContextHandle,
    device: DeviceNumber,
    number: u32,
    name: String,
    compute: (u32, u32),
    virtual_memory: bool,
    pools: bool,
    /// The kernels of tensors, after the first launch.
    kernels: Mutex<Option<Loaded>>,
    /// The cuBLAS handle, after the first product of matrices.
    cublas: Mutex<cublas::OfDevice>,
    /// The measured bytes per second of copies from pinned memory.
    link_speed: OnceLock<f64>,
    waits: Waits,
    /// The last points of streams that no longer have a handle.
    left: Mutex<Left>,
    /// Unused events without timing, for reuse. Invariant: they were created in this context, and no other code has them.
    spare_events: Mutex<Vec<EventHandle>>,
    /// The streams that wake tasks.
    wake_streams: WakeStreams,
}

/// Counts waits for the whole device. The counts tell whether a wait began before or after a given moment.
#[derive(Debug, Default)]
pub(super) struct Waits {
    begun: AtomicU64,
    /// The number of the latest wait that has succeeded.
    ended: AtomicU64,
}

impl Waits {
    fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn end(&self, begun: u64) {
        self.ended.fetch_max(begun, Ordering::AcqRel);
    }

    /// Returns the present moment, for [`ended_since`](Self::ended_since).
    pub(super) fn now(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    /// Returns whether a wait that began after `moment` has succeeded.
    pub(super) fn ended_since(&self, moment: u64) -> bool {
        self.ended.load(Ordering::Acquire) > moment
    }
}

/// Events in streams that no longer have a handle.
#[derive(Debug, Default)]
struct Left {
    /// Invariant: each event was recorded, belongs to this context, and is not used by other code.
    events: Vec<EventHandle>,
    /// Whether an event could not be recorded in a stream, or could not be waited for.
    unmarked: bool,
}

impl Left {
    /// Records an event in a stream that is alive. The context must be current on this thread.
    fn add(&mut self, driver: &Driver, stream: StreamHandle, is_captured: bool) {
        self.events.retain(|event| {
            // SAFETY: the event is ours by the invariant.
            let open = unsafe { driver.event_query(*event) }.is_err();
            if !open {
                // SAFETY: as above, and the event is removed from the list here.
                let _ = insist(|| unsafe { driver.event_destroy(*event) });
            }
            open
        });
        let mut event = EventHandle::NULL;
        // SAFETY: the pointer is to a local.
        let made = insist(|| unsafe { driver.event_create(&raw mut event, EVENT_WITHOUT_TIME) });
        let recorded = made.and_then(|()| {
            if is_captured {
                return Err(CudaError::Captured);
            }
            // SAFETY: the event was made just now, and the stream lives.
            insist(|| unsafe { driver.event_record(event, stream) })
        });
        match recorded {
            Ok(()) => self.events.push(event),
            Err(_) => {
                self.unmarked = true;
                if event != EventHandle::NULL {
                    // SAFETY: the event was made above, and it is not stored anywhere.
                    let _ = insist(|| unsafe { driver.event_destroy(event) });
                }
            }
        }
    }

    /// Waits for all of these events and for the legacy stream. Returns whether all work is known to be done. The context must
    /// be current on this thread.
    fn wait(&mut self, driver: &Driver) -> bool {
        let mut status = CAPTURE_NONE;
        // The driver returns an error for the legacy stream if that stream cannot be waited for now.
        // SAFETY: the pointer is to a local.
        let asked = unsafe { driver.stream_is_capturing(StreamHandle::NULL, &raw mut status) };
        self.add(driver, StreamHandle::NULL, asked.is_err());
        for event in std::mem::take(&mut self.events) {
            // SAFETY: the event is ours by the invariant.
            self.unmarked |= insist(|| unsafe { driver.event_synchronize(event) }).is_err();
            // SAFETY: as above, and the event has been taken out of the list.
            let _ = insist(|| unsafe { driver.event_destroy(event) });
        }
        !self.unmarked
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // In a callback, the driver must not be called, so the context stays retained.
        if fork::is_forked() || callback::is_inside() {
            return;
        }
        let kernels = self.kernels.get_mut().unwrap_or_else(PoisonError::into_inner);
        let cublas = self.cublas.get_mut().unwrap_or_else(PoisonError::into_inner);
        let kernels = kernels.take();
        let events = self
            .spare_events
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let events = std::mem::take(events);
        let wakes = !self.wake_streams.is_empty();
        if kernels.is_some() || cublas.is_made() || !events.is_empty() || wakes {
            // SAFETY: the context is retained until below.
            let entered = insist(|| unsafe { self.driver.context_push(self.handle) });
            if entered.is_ok() {
                let _current = Current(self.driver);
                let _mode = Relaxed::new(self.driver);
                cublas.end();
                self.wake_streams.end(self.driver);
                for event in events {
                    // SAFETY: by the invariant, the event was made in this context and no other code has it. It has been taken
                    // out of the list.
                    let _ = insist(|| unsafe { self.driver.event_destroy(event) });
                }
                if let Some(kernels) = kernels {
                    let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner);
                    // If a stream cannot be waited for, the code stays loaded until the context ends.
                    if left.wait(self.driver) {
                        kernels.code.unload_last(self.driver);
                    }
                }
            }
        }
        // At the end of the process the driver may be unloaded already, and returns an error.
        // SAFETY: the context was retained once when this value was made.
        let _ = insist(|| unsafe { self.driver.primary_context_release(self.device) });
    }
}

/// Keeps the context current on this thread until this is dropped. Then the previous context is current again.
pub(super) struct Current<'a>(&'a Driver);

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = ContextHandle::NULL;
        // If the driver refuses, it has no current context left.
        // SAFETY: the pointer is to a local.
        let _ = insist(|| unsafe { self.0.context_pop(&raw mut popped) });
    }
}

/// Keeps the context current on this thread, and the thread's calls out of any capture, until this is dropped.
pub(super) struct Beside {
    _mode: Relaxed,
    _current: Current<'static>,
}

/// Sets this thread's capture mode to relaxed until it is dropped. Then the previous mode is restored.
struct Relaxed {
    driver: &'static Driver,
    before: Option<c_uint>,
}

impl Relaxed {
    fn new(driver: &'static Driver) -> Self {
        let mut mode = CAPTURE_RELAXED;
        // If the driver has no such modes or refuses, a capture may forbid the calls that follow.
        // SAFETY: the pointer is to a local.
        let before = unsafe { driver.exchange_capture_mode(&raw mut mode) };
        let before = before.is_ok().then_some(mode);
        Self { driver, before }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: the pointer is to a local.
            let _ = insist(|| unsafe { self.driver.exchange_capture_mode(&raw mut mode) });
        }
    }
}

impl CudaDevice {
    /// Returns the device with this number. Numbers start at 0. The environment variable `CUDA_VISIBLE_DEVICES` selects and orders the
    /// devices.
    ///
    /// # Errors
    /// Returns an error if there is no driver or no such device, or if the driver cannot make its context.
    pub fn get(number: u32) -> Result<Self, CudaError> {
        let driver = Driver::get()?;
        fork::check()?;
        let count = Self::count()?;
        let ordinal = c_int::try_from(number).ok().filter(|_| number < count);
        let ordinal = ordinal.ok_or(CudaError::NoDevice { number, count })?;
        let (mut device, mut handle) = (0, ContextHandle::NULL);
        // SAFETY: the pointer is to a local.
        unsafe { driver.device_get(&raw mut device, ordinal) }?;
        let ask = |what| attribute_of(driver, device, what);
        let compute = (
            ask(attribute::COMPUTE_MAJOR)?.unsigned_abs(),
            ask(attribute::COMPUTE_MINOR)?.unsigned_abs(),
        );
        // A driver that does not know the attribute does not support the feature.
        let has = |what| ask(what).is_ok_and(|answer| answer != 0);
        let (virtual_memory, pools) = (has(attribute::VIRTUAL_MEMORY), has(attribute::MEMORY_POOLS));
        let name = name_of(driver, device)?;
        // This comes last, because the context must be released from here on.
        // SAFETY: the pointer is to a local.
        unsafe { driver.primary_context_retain(&raw mut handle, device) }?;
        let context = Arc::new(Context {
            driver,
            handle,
            device,
            number,
            name,
            compute,
            virtual_memory: virtual_memory && driver.has_virtual_memory(),
            pools: pools && driver.has_pools(),
            kernels: Mutex::default(),
            cublas: Mutex::default(),
            link_speed: OnceLock::new(),
            waits: Waits::default(),
            left: Mutex::default(),
            spare_events: Mutex::default(),
            wake_streams: WakeStreams::default(),
        });
        open::provide();
        {
            let _inside = inside();
            open().push(Arc::downgrade(&context));
        }
        Ok(Self(context))
    }

    /// Returns the number of devices.
    ///
    /// # Errors
    /// Returns an error if there is no driver, or if it cannot return the number. Returns [`CudaError::Forked`] in the child of a process
    /// that has used the driver.
    pub fn count() -> Result<u32, CudaError> {
        let driver = Driver::get()?;
        fork::check()?;
        let mut count = 0;
        // SAFETY: the pointer is to a local.
        unsafe { driver.device_get_count(&raw mut count) }?;
        Ok(count.unsigned_abs())
    }

    /// Returns the newest version of CUDA that the driver supports. 12080 is 12.8.
    ///
    /// # Errors
    /// Returns an error if there is no driver, or if it cannot return the version.
    pub fn driver_version() -> Result<u32, CudaError> {
        Driver::get()?.version()
    }

    /// Returns the number of the device, from 0.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Returns the product name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the device's address on the PCI bus, such as `0000:01:00.0`. This is its name in `/sys/bus/pci/devices`.
    ///
    /// # Errors
    /// Returns the errors of the driver.
    pub fn pci_bus(&self) -> Result<String, CudaError> {
        let (driver, device) = (self.driver(), self.handle());
        // SAFETY: the pointer is to that many bytes.
        let bus = text_of(|to, bytes| unsafe { driver.device_get_bus(to, bytes, device) })?;
        Ok(bus.to_lowercase())
    }

    /// Returns the compute capability: 9 and 0 for 9.0.
    #[must_use]
    pub fn compute_capability(&self) -> (u32, u32) {
        self.0.compute
    }

    /// Returns whether the device supports virtual memory management, so that physical pages can move between addresses.
    #[must_use]
    pub fn has_virtual_memory(&self) -> bool {
        self.0.virtual_memory
    }

    /// Returns whether the driver supports its own memory pools on the device.
    #[must_use]
    pub fn has_pools(&self) -> bool {
        self.0.pools
    }

    /// Returns the number of a device that does not allow the host to access managed memory while the device works, if there is one. Such a
    /// device restricts all managed memory of the process.
    pub(super) fn without_managed_memory() -> Result<Option<u32>, CudaError> {
        let driver = Driver::get()?;
        for number in 0..Self::count()? {
            let mut device = 0;
            // SAFETY: the pointer is to a local.
            unsafe { driver.device_get(&raw mut device, c_int::try_from(number).unwrap_or(c_int::MAX)) }?;
            let has = |what| attribute_of(driver, device, what).map(|answer| answer != 0);
            if !(has(attribute::MANAGED)? && has(attribute::CONCURRENT_MANAGED)?) {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Returns the device's memory: the bytes that are free for all processes, and the total.
    ///
    /// # Errors
    /// Returns the errors of the driver.
    pub fn memory(&self) -> Result<DeviceMemory, CudaError> {
        let _current = self.enter_beside()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to locals.
        unsafe { self.0.driver.memory_info(&raw mut free, &raw mut total) }?;
        Ok(DeviceMemory {
            free: free as u64,
            total: total as u64,
        })
    }

    /// Returns the memory pressure of the device, by the default thresholds. See
    /// [`Pressure::devices`](millpond_os::pressure::Pressure::devices).
    ///
    /// # Errors
    /// Returns the errors of the driver.
    pub fn pressure(&self) -> Result<DevicePressure, CudaError> {
        let DeviceMemory { free, total } = self.memory()?;
        Ok(DevicePressure::of(
            Device::Cuda(self.number()),
            free,
            total,
            &Thresholds::default(),
        ))
    }

    /// Waits until the device has done all work of this process's context.
    ///
    /// This invalidates every capture of a stream of the context that another library has begun, in any mode: the driver cannot
    /// wait for a context without invalidating captures. Nothing in this library calls this function. If captures may be in
    /// progress, [synchronize](super::CudaStream::synchronize) single streams instead.
    ///
    /// # Errors
    /// Returns [`CudaError::Captured`] while this library captures a stream of the device; the capture continues. Otherwise returns the
    /// error of the driver, which may belong to work that failed earlier.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        if captured::any_on(self.number()) {
            return Err(CudaError::Captured);
        }
        {
            let _current = self.enter_beside()?;
            let begun = self.0.waits.begin();
            // SAFETY: it takes no pointer.
            unsafe { self.0.driver.context_synchronize() }?;
            self.0.waits.end(begun);
        }
        later::retry();
        Ok(())
    }

    /// Returns the counts of waits for the whole device through this library.
    pub(super) fn waits(&self) -> &Waits {
        &self.0.waits
    }

    /// Notes that a stream no longer has a handle. The stream itself must still be alive. The device's own kernels may still
    /// run on it, so they are unloaded only after the stream has reached its present end.
    pub(super) fn leave(&self, stream: StreamHandle, is_captured: impl FnOnce() -> bool) {
        let loaded = self.kernels().lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.is_none() {
            return;
        }
        drop(loaded);
        let mut left = self.0.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.add(self.0.driver, stream, is_captured());
    }

    /// Notes that a stream no longer has a handle, and that its end cannot be marked.
    pub(super) fn leave_unmarked(&self) {
        self.0
            .left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .unmarked = true;
    }

    /// Returns the driver's `CUcontext` of the device's primary context. It exists for as long as a handle of the device.
    ///
    /// ```
    /// use millpond::cuda::{CudaDevice, CudaError};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = match CudaDevice::get(0) {
    ///     Err(CudaError::NoDriver) => return Ok(()),
    ///     device => device?,
    /// };
    /// // A device has one primary context, which all libraries share.
    /// assert_eq!(device.raw_context(), CudaDevice::get(0)?.raw_context());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn raw_context(&self) -> *mut std::ffi::c_void {
        self.0.handle.0
    }

    /// Returns whether the device is one of the emulated driver's. Times measured on it are not those of a real device.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        self.driver().is_emulated()
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.0.driver
    }

    pub(super) fn kernels(&self) -> &Mutex<Option<Loaded>> {
        &self.0.kernels
    }

    pub(super) fn link_speed(&self) -> &OnceLock<f64> {
        &self.0.link_speed
    }

    pub(super) fn spare_events(&self) -> MutexGuard<'_, Vec<EventHandle>> {
        let spare = &self.0.spare_events;
        spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake_streams(&self) -> &WakeStreams {
        &self.0.wake_streams
    }

    pub(super) fn cublas(&self) -> MutexGuard<'_, cublas::OfDevice> {
        self.0.cublas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the driver's number of the device.
    pub(super) fn handle(&self) -> DeviceNumber {
        self.0.device
    }

    /// Returns the primary context, which is retained for as long as this handle exists.
    pub(super) fn context(&self) -> ContextHandle {
        self.0.handle
    }

    /// Makes the context current on this thread, which most calls require.
    pub(super) fn enter(&self) -> Result<Current<'static>, CudaError> {
        fork::check()?;
        callback::check()?;
        // SAFETY: the context is retained for as long as this handle exists.
        insist(|| unsafe { self.0.driver.context_push(self.0.handle) })?;
        Ok(Current(self.0.driver))
    }

    /// Makes the context current for calls outside of captures, such as allocating and freeing memory, querying events and loading code. A
    /// capture by another library does not forbid these calls, and they do not invalidate it. Waiting for a captured stream is still not
    /// possible.
    pub(super) fn enter_beside(&self) -> Result<Beside, CudaError> {
        let current = self.enter()?;
        Ok(Beside {
            _mode: Relaxed::new(self.0.driver),
            _current: current,
        })
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDevice")
            .field("number", &self.number())
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{} ({})", self.number(), self.name())
    }
}

pub(super) fn attribute_of(driver: &Driver, device: DeviceNumber, what: c_int) -> Result<c_int, CudaError> {
    let mut value = 0;
    // SAFETY: the pointer is to a local.
    unsafe { driver.device_get_attribute(&raw mut value, what, device) }?;
    Ok(value)
}

fn name_of(driver: &Driver, device: DeviceNumber) -> Result<String, CudaError> {
    // SAFETY: the pointer is to that many bytes.
    text_of(|to, bytes| unsafe { driver.device_get_name(to, bytes, device) })
}

/// Returns a text that the driver writes.
fn text_of(write: impl FnOnce(*mut c_char, c_int) -> Result<(), CudaError>) -> Result<String, CudaError> {
    let mut text = [0 as c_char; 256];
    // The last byte stays zero.
    write(text.as_mut_ptr(), text.len() as c_int - 1)?;
    // SAFETY: the last byte is zero.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    Ok(text.to_string_lossy().into_owned())
}
