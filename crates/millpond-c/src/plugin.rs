//! Functions with the signatures that PyTorch requires of an allocator of device memory.
//!
//! PyTorch passes a device and a stream, but no pool, so each device has one plugged pool. It is the one that
//! [`millpond_plugin_set_pool`] set, or a pool that is created at the first request, with the settings in `MILLPOND_CONF`.
//!
//! A private pool of PyTorch has the memory of a graph, whose launches use the same addresses again. It gets a pool of its own, which keeps
//! its memory until PyTorch releases it. PyTorch does not report which streams launch a graph or use segments of a `MemPool`, because
//! `cudaFree` waits for the whole device. This memory is therefore also returned only after a wait for the device.

mod exception;
mod filter;

use crate::any_pool::{AnyPool, any_pool};
use crate::device::stream_of;
use crate::handles::millpond_pool;
use crate::open_device::lock;
use crate::status::{Failure, guard, last_error, millpond_status};
use filter::StreamFilter;
use millpond::PoolStats;
use millpond::cuda::{CudaDevice, CudaError, CudaStream, DeviceBuffer, DevicePool, is_forked};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The number of a private pool, which PyTorch passes as a pair.
type PoolId = (u64, u64);

/// The pools of a device.
struct Plugged {
    pool: DevicePool,
    /// The limit of the pool before PyTorch set a fraction.
    limit: u64,
    private: BTreeMap<PoolId, Private>,
    /// The private pools that currently serve some streams or threads, in the order in which they began to do so.
    serving: Vec<(PoolId, StreamFilter)>,
}

/// A private pool.
struct Private {
    pool: DevicePool,
    /// The number of uses that PyTorch has begun and not yet released.
    users: usize,
}

static PLUGGED: RwLock<BTreeMap<u32, Plugged>> = RwLock::new(BTreeMap::new());

/// A block that the program holds.
struct Block {
    buffer: DeviceBuffer<u8>,
    device: CudaDevice,
    /// The private pool that it is from.
    private: Option<PoolId>,
}

/// The blocks that the program holds, of all devices, by their addresses.
static BLOCKS: Mutex<BTreeMap<usize, Block>> = Mutex::new(BTreeMap::new());

/// Memory that is returned after the next wait for its device.
static WAITING: Mutex<Vec<(CudaDevice, Waiting)>> = Mutex::new(Vec::new());

/// A block or a private pool that may be in use by any stream.
enum Waiting {
    #[expect(dead_code, reason = "it is held")]
    Block(DeviceBuffer<u8>),
    #[expect(dead_code, reason = "it is held")]
    Pool(DevicePool),
}

/// The number of requests that were refused.
static REFUSALS: AtomicU64 = AtomicU64::new(0);

fn read() -> RwLockReadGuard<'static, BTreeMap<u32, Plugged>> {
    PLUGGED.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, BTreeMap<u32, Plugged>> {
    PLUGGED.write().unwrap_or_else(PoisonError::into_inner)
}

fn expect_no_fork() -> Result<(), Failure> {
    match is_forked() {
        true => Err(CudaError::Forked.into()),
        false => Ok(()),
    }
}

fn number_of(device: c_int) -> Result<u32, Failure> {
    u32::try_from(device).map_err(|_| Failure::argument(format!("{device} is not a device number")))
}

/// Calls a function with the pools of a device, which are created if there are none.
fn with_plugged<R>(device: c_int, work: impl FnOnce(&mut Plugged) -> R) -> Result<R, Failure> {
    expect_no_fork()?;
    let number = number_of(device)?;
    let mut all = write();
    let plugged = match all.entry(number) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => {
            let builder = DevicePool::builder()
                .name(format!("plugged {number}"))
                .of_a_library();
            entry.insert(Plugged::new(builder.build(&CudaDevice::get(number)?)?))
        }
    };
    Ok(work(plugged))
}

impl Plugged {
    fn new(pool: DevicePool) -> Self {
        Self {
            limit: pool.limit(),
            pool,
            private: BTreeMap::new(),
            serving: Vec::new(),
        }
    }

    /// Returns the pool that serves a stream on this thread now, and its number if it is private. The pool that began last comes first, as in
    /// PyTorch.
    fn serving(&self, stream: *mut c_void) -> (DevicePool, Option<PoolId>) {
        let mut serving = self.serving.iter().rev();
        let private = serving
            .find(|(_, filter)| filter.takes(stream))
            .and_then(|(id, _)| Some((self.private.get(id)?.pool.clone(), Some(*id))));
        private.unwrap_or_else(|| (self.pool.clone(), None))
    }

    fn end(&mut self, id: PoolId) {
        if let Some(at) = self.serving.iter().rposition(|(of, _)| *of == id) {
            self.serving.remove(at);
        }
    }
}

/// Sets the pool that serves the requests for its device from now on. Blocks that exist stay where they are.
///
/// # Errors
/// Returns the text of the error in the child of a fork.
pub fn set_pool(pool: &DevicePool) -> Result<(), String> {
    plug(pool).map_err(Failure::into_text)
}

fn plug(pool: &DevicePool) -> Result<(), Failure> {
    expect_no_fork()?;
    let mut all = write();
    let device = pool.device().number();
    let plugged = all.entry(device).or_insert_with(|| Plugged::new(pool.clone()));
    let before = std::mem::replace(&mut plugged.pool, pool.clone());
    plugged.limit = pool.limit();
    drop(all);
    // Dropping the last handle of a pool waits for streams, so no lock is held.
    drop(before);
    Ok(())
}

/// Returns the pool that serves the requests for a device. It is created if there is none.
///
/// # Errors
/// Returns the text of the error if there is no such device, or if the settings in `MILLPOND_CONF` are wrong.
pub fn plugged_pool(device: u32) -> Result<DevicePool, String> {
    let device = c_int::try_from(device).map_err(|error| error.to_string())?;
    with_plugged(device, |plugged| plugged.pool.clone()).map_err(Failure::into_text)
}

/// Returns the devices that have a plugged pool.
#[must_use]
pub fn plugged_devices() -> Vec<u32> {
    match is_forked() {
        true => Vec::new(),
        false => read().keys().copied().collect(),
    }
}

fn private_pools(device: u32) -> Vec<DevicePool> {
    if is_forked() {
        return Vec::new();
    }
    let all = read();
    let private = all
        .get(&device)
        .into_iter()
        .flat_map(|plugged| plugged.private.values());
    private.map(|private| private.pool.clone()).collect()
}

/// Returns the figures of the private pools of a device.
#[must_use]
pub fn private_stats(device: u32) -> Vec<PoolStats> {
    private_pools(device).iter().map(DevicePool::stats).collect()
}

/// Resets the peaks of the private pools of a device.
pub fn reset_private_peaks(device: u32) {
    private_pools(device).iter().for_each(DevicePool::reset_peak);
}

/// Returns memory after all work of its device is complete. A wait for the device would end a capture, so during a capture the memory is
/// kept until the next call.
fn give_back(device: &CudaDevice, memory: Option<Waiting>) {
    let mut gone: Vec<_> = {
        let mut waiting = lock(&WAITING);
        waiting.extend(memory.map(|memory| (device.clone(), memory)));
        waiting
            .extract_if(.., |(of, _)| of.number() == device.number())
            .collect()
    };
    let captures = read()
        .get(&device.number())
        .is_some_and(|plugged| !plugged.serving.is_empty());
    if !gone.is_empty() && (captures || device.synchronize().is_err()) {
        lock(&WAITING).append(&mut gone);
    }
}

/// Returns the number of requests of plugged pools that were refused in this process.
#[must_use]
pub fn refusals() -> u64 {
    REFUSALS.load(Ordering::Relaxed)
}

/// Returns the pool that serves a stream. The filters of PyTorch may throw an exception, so a guard must not call this.
fn serving(device: c_int, stream: *mut c_void) -> Result<(DevicePool, Option<PoolId>), Failure> {
    expect_no_fork()?;
    let number = number_of(device)?;
    {
        let all = read();
        if let Some(plugged) = all.get(&number) {
            return Ok(plugged.serving(stream));
        }
    }
    with_plugged(device, |plugged| (plugged.pool.clone(), None))
}

/// Allocates a block. On failure, the last error of the thread contains the reason.
///
/// # Safety
/// The rules on arguments apply.
unsafe fn allocate(bytes: usize, device: c_int, stream: *mut c_void) -> Result<*mut c_void, millpond_status> {
    // A request of 0 bytes gets no block.
    if bytes == 0 {
        return Ok(ptr::null_mut());
    }
    let pool = serving(device, stream);
    let mut block = ptr::null_mut();
    let status = guard(|| {
        let (pool, private) = pool?;
        let device = pool.device().clone();
        // SAFETY: the caller guarantees it.
        let stream = unsafe { stream_of(&device, stream) }?;
        let buffer = pool.alloc::<u8>(bytes, &stream)?;
        let address = buffer.address() as usize;
        let held = Block {
            buffer,
            device,
            private,
        };
        lock(&BLOCKS).insert(address, held);
        block = ptr::without_provenance_mut(address);
        Ok(())
    });
    if status == millpond_status::MILLPOND_OK {
        return Ok(block);
    }
    REFUSALS.fetch_add(1, Ordering::Relaxed);
    Err(status)
}

/// Throws the error of a call as a C++ exception. Returns if the process has no C++ library.
fn throw(status: millpond_status, bytes: Option<usize>) {
    use millpond_status::{MILLPOND_OUT_OF_MEMORY, MILLPOND_TOO_LARGE};
    let text = last_error();
    match (status, bytes) {
        (MILLPOND_OUT_OF_MEMORY | MILLPOND_TOO_LARGE, Some(bytes)) => {
            // Programs recognise the error by its first words.
            let size = millpond::engine::display_size(bytes as u64);
            let text = format!("CUDA out of memory. Tried to allocate {size}. {text}");
            exception::throw_out_of_memory(&text);
        }
        _ => exception::throw_runtime_error(&text),
    }
}

/// Runs a function that returns nothing and reports errors as C++ exceptions.
fn run(work: impl FnOnce() -> Result<(), Failure>) {
    let status = guard(work);
    if status != millpond_status::MILLPOND_OK {
        throw(status, None);
    }
}

/// Sets the pool that serves the requests of `millpond_plugin_alloc` and `millpond_torch_alloc` for its device from now on. The pool stays
/// alive if its handle is destroyed. Blocks that exist stay where they are.
///
/// Errors: `MILLPOND_INVALID_HANDLE`, for example if the pool has memory of the host.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_plugin_set_pool(pool: *mut millpond_pool) -> millpond_status {
    guard(|| match any_pool(pool)? {
        AnyPool::Device(entry) if !entry.is_destroyed() => plug(&entry.pool),
        _ => Err(Failure::new(
            millpond_status::MILLPOND_INVALID_HANDLE,
            "an allocator of device memory needs a live pool of a device: create one with millpond_device_pool_create",
        )),
    })
}

/// Allocates device memory for use on a stream, from the plugged pool of the device. Returns null on failure, and `millpond_last_error`
/// returns the reason. A request of 0 bytes returns null too. Without `millpond_plugin_set_pool`, the first request for a device creates a
/// pool with the settings in the environment variable `MILLPOND_CONF`. The signature is that of PyTorch's `CUDAPluggableAllocator`. Use this
/// function with `millpond_torch_free_segment` for the memory of a `MemPool`.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn millpond_plugin_alloc(
    bytes: usize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller guarantees it.
    unsafe { allocate(bytes, device, stream) }.unwrap_or(ptr::null_mut())
}

/// Allocates like `millpond_plugin_alloc`, and throws a C++ exception on failure: `c10::OutOfMemoryError` if memory ran out, and otherwise
/// `std::runtime_error`. In a process without C++, it returns null. Use this function for `torch.cuda.memory.change_current_allocator`,
/// because PyTorch does not check for null there.
///
/// # Safety
/// The rules on arguments apply. The caller is code that exceptions of C++ may pass.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn millpond_torch_alloc(
    bytes: usize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller guarantees it.
    match unsafe { allocate(bytes, device, stream) } {
        Ok(block) => block,
        Err(status) => {
            throw(status, Some(bytes));
            ptr::null_mut()
        }
    }
}

/// Frees a block of `millpond_plugin_alloc` or `millpond_torch_alloc` in the order of a stream. Does nothing if `block` is null. `bytes` and
/// `device` are not used. An address at which no live block begins is reported on standard error.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_plugin_free(
    block: *mut c_void,
    _bytes: usize,
    _device: c_int,
    stream: *mut c_void,
) {
    // SAFETY: the caller guarantees it.
    free(block, |held| unsafe { stream_of(&held.device, stream) }.map(Some));
}

/// Frees a block of `millpond_plugin_alloc` after all work of its device, as CUDA's runtime does. Use this function with
/// `millpond_plugin_alloc` for the memory of a `MemPool`, because PyTorch does not say which streams use it. The arguments are those of
/// `millpond_plugin_free`.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_free_segment(
    block: *mut c_void,
    _bytes: usize,
    _device: c_int,
    _stream: *mut c_void,
) {
    free(block, |_| Ok(None));
}

/// Frees a block in the order of its own stream and the one that `stream` returns, or after all work of the device if it returns none.
fn free(block: *mut c_void, stream: impl FnOnce(&Block) -> Result<Option<CudaStream>, Failure>) {
    // The child of a fork has no memory of a device.
    if block.is_null() || is_forked() {
        return;
    }
    let status = guard(|| {
        let Some(mut held) = lock(&BLOCKS).remove(&block.addr()) else {
            return Err(Failure::argument(format!(
                "no live block of a plugged pool begins at {block:p}"
            )));
        };
        let stream = stream(&held)?;
        let number = held.device.number();
        let is_released = held.private.is_some_and(|id| {
            let all = read();
            !all.get(&number)
                .is_some_and(|plugged| plugged.private.contains_key(&id))
        });
        match stream {
            Some(stream) if !is_released => held.buffer.record_use(&stream)?,
            _ => give_back(&held.device, Some(Waiting::Block(held.buffer))),
        }
        Ok(())
    });
    if status != millpond_status::MILLPOND_OK {
        eprintln!("millpond: {}", last_error());
    }
}

/// Declares that work on another stream uses a block. After the block is freed, its memory is reused only when the work that is queued on
/// that stream by then is complete. The address may be within the block. The call ignores addresses of other memory.
/// Pass this function to `set_record_stream_fn`.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn millpond_torch_record_stream(block: *mut c_void, stream: *mut c_void) {
    if block.is_null() || is_forked() {
        return;
    }
    run(|| {
        let at = |blocks: &mut BTreeMap<usize, Block>,
                  work: &mut dyn FnMut(&mut Block) -> Result<(), Failure>| {
            let below = blocks.range_mut(..=block.addr()).next_back();
            match below.filter(|(start, held)| block.addr() - **start < held.buffer.len()) {
                Some((_, held)) => work(held),
                None => Ok(()),
            }
        };
        let mut device = None;
        at(&mut lock(&BLOCKS), &mut |held| {
            device = Some(held.device.clone());
            Ok(())
        })?;
        let Some(device) = device else { return Ok(()) };
        // A stream may call the driver when it is made and when it is dropped, so the blocks are not locked then.
        // SAFETY: the caller guarantees it.
        let stream = unsafe { stream_of(&device, stream) }?;
        at(&mut lock(&BLOCKS), &mut |held| {
            Ok(held.buffer.record_use(&stream)?)
        })
    });
}

/// Returns all unused memory of plugged pools to the devices. Pass this function to `set_reset_fn`; `torch.cuda.empty_cache` then calls it.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_empty_cache() {
    if is_forked() {
        return;
    }
    let pools: Vec<_> = read().values().map(|plugged| plugged.pool.clone()).collect();
    let _ = guard(|| {
        for pool in &pools {
            give_back(pool.device(), None);
            pool.trim();
        }
        Ok(())
    });
}

/// Sets the limit of a device's plugged pool to a share of the device's memory, but not above the limit that the pool had when it was plugged
/// in. Pass this function to `set_memory_fraction_fn`.
///
/// # Safety
/// The caller is code that exceptions of C++ may pass.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn millpond_torch_set_memory_fraction(fraction: f64, device: c_int) {
    run(|| {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Failure::argument(format!(
                "the fraction of a device's memory is from 0 to 1, and not {fraction}"
            )));
        }
        let (pool, limit) = with_plugged(device, |plugged| (plugged.pool.clone(), plugged.limit))?;
        let total = pool.device().memory()?.total;
        pool.set_limit(limit.min((total as f64 * fraction) as u64));
        Ok(())
    });
}

/// Serves some requests for a device from a private pool from now on. `first` and `second` are the number of the pool. `filter` is a
/// `std::function<bool(cudaStream_t)>` of libstdc++, which returns whether the private pool serves a stream. Pass this
/// function to `set_begin_allocate_to_pool`.
///
/// # Safety
/// `filter` is null or such a function. The caller is code that exceptions of C++ may pass.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn millpond_torch_begin_allocate_to_pool(
    device: c_int,
    first: u64,
    second: u64,
    filter: *const c_void,
) {
    // SAFETY: the caller guarantees it. The copy may throw an exception, so it is outside of the guard.
    let filter = unsafe { StreamFilter::copy_of(filter) };
    run(|| {
        let id = (first, second);
        with_plugged(device, |plugged| {
            if plugged.serving.iter().any(|(of, _)| *of == id) {
                return Err(Failure::argument(format!(
                    "the private pool {first}, {second} is in use already: end that use first"
                )));
            }
            let private = match plugged.private.entry(id) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(Private {
                    pool: plugged.pool.for_foreign_graph()?,
                    users: 0,
                }),
            };
            private.users += 1;
            plugged.serving.push((id, filter));
            Ok(())
        })?
    });
}

/// Ends the effect of the last call of `millpond_torch_begin_allocate_to_pool` for a private pool. The private pool
/// keeps its memory. Pass this function to `set_end_allocate_to_pool_fn`.
///
/// # Safety
/// The caller is code that exceptions of C++ may pass.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn millpond_torch_end_allocate_to_pool(device: c_int, first: u64, second: u64) {
    run(|| with_plugged(device, |plugged| plugged.end((first, second))));
}

/// Ends one use of a private pool. After the last use, its memory goes back with its last block. Pass this function to
/// `set_release_pool`.
///
/// # Safety
/// The caller is code that exceptions of C++ may pass.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn millpond_torch_release_pool(device: c_int, first: u64, second: u64) {
    if is_forked() {
        return;
    }
    run(|| {
        let id = (first, second);
        let released = with_plugged(device, |plugged| {
            let private = plugged.private.get_mut(&id)?;
            private.users = private.users.saturating_sub(1);
            match private.users {
                0 => plugged.private.remove(&id),
                _ => None,
            }
        })?;
        if let Some(Private { pool, .. }) = released {
            let device = pool.device().clone();
            give_back(&device, Some(Waiting::Pool(pool)));
        }
        Ok(())
    });
}
