//! Blocks of device pools, and streams.
//!
//! A pool keeps handles of the streams that it knows, and queries the driver about them. A program must therefore call
//! [`millpond_stream_retire`] before it destroys a stream.

use crate::arguments::Out;
use crate::handles::{self, Kind, Object, closed, millpond_pool};
use crate::open_device::{OpenDevicePool, lock};
use crate::status::{Failure, guard, millpond_status};
use millpond::cuda::{CudaDevice, CudaError, CudaStream};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// The driver's handles of the legacy default stream, and of the per-thread default stream.
const LEGACY: [usize; 2] = [0, 1];
const PER_THREAD: usize = 2;

/// Returns the device pool of a handle.
fn device_pool(pool: *mut millpond_pool) -> Result<Arc<OpenDevicePool>, Failure> {
    let Object::Device(entry) = handles::find(pool.addr(), Kind::Pool)? else {
        return Err(Failure::new(
            millpond_status::MILLPOND_INVALID_HANDLE,
            "the pool has memory of the host, and this function needs a pool of a device: use the function for the host",
        ));
    };
    match entry.is_of_this_process() {
        true => Ok(entry),
        false => Err(CudaError::Forked.into()),
    }
}

/// Returns a stream of the caller.
///
/// # Safety
/// The rules on arguments of the crate apply: the stream is one of the device's primary context, and lives until it is retired or the pools
/// that know it have ended.
pub(crate) unsafe fn stream_of(device: &CudaDevice, stream: *mut c_void) -> Result<CudaStream, Failure> {
    match stream.addr() {
        handle if LEGACY.contains(&handle) => Ok(CudaStream::legacy(device)),
        PER_THREAD => Err(Failure::argument(
            "the per-thread default stream is a different stream on each thread: pass a stream that was created, or NULL for the default stream",
        )),
        // SAFETY: the caller guarantees it.
        _ => Ok(unsafe { CudaStream::from_raw(device, stream) }),
    }
}

/// Writes the number of CUDA devices to `count`.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT`, and `MILLPOND_CUDA_ERROR` if there is no driver.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_count(count: *mut u32) -> millpond_status {
    guard(|| {
        // SAFETY: the caller guarantees it.
        let out = unsafe { Out::new(count, "count") }?;
        out.set(CudaDevice::count()?);
        Ok(())
    })
}

/// Allocates a block of a device's memory for use on a stream. Its address is a multiple of 256. `stream` is a `CUstream` or `cudaStream_t`;
/// NULL is the legacy default stream. On failure `block` is not changed.
///
/// The stream must live until `millpond_stream_retire` has returned `MILLPOND_OK` for it, or until all pools that were given it have ended.
///
/// Errors: those of `millpond_alloc`, and `MILLPOND_CUDA_ERROR`.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_alloc(
    pool: *mut millpond_pool,
    bytes: usize,
    stream: *mut c_void,
    block: *mut *mut c_void,
) -> millpond_status {
    guard(|| {
        // SAFETY: the caller guarantees it.
        let out = unsafe { Out::new(block, "block") }?;
        let entry = device_pool(pool)?;
        if entry.is_destroyed() {
            return Err(closed());
        }
        // SAFETY: the caller guarantees it.
        let stream = unsafe { stream_of(entry.pool.device(), stream) }?;
        // A block of 0 bytes has an address of its own.
        let buffer = entry.pool.alloc::<u8>(bytes.max(1), &stream);
        let buffer = buffer.map_err(|error| match entry.is_destroyed() {
            true => closed(),
            false => error.into(),
        })?;
        let address = ptr::without_provenance_mut(entry.add(buffer));
        if entry.is_destroyed() {
            // Another thread has destroyed the pool since, and its handle may be invalid already.
            drop(entry.remove(address)?);
            end_if_empty(pool, &entry);
            return Err(closed());
        }
        out.set(address);
        Ok(())
    })
}

/// Makes the handle of a destroyed pool invalid if no block is live.
fn end_if_empty(pool: *mut millpond_pool, entry: &OpenDevicePool) {
    if entry.is_empty() {
        // Another thread may have freed the last block at the same time.
        let _ = handles::remove(pool.addr(), Kind::Pool);
    }
}

/// Frees a block of `millpond_device_alloc` in the order of a stream. All work that uses the block must already be queued on this stream or
/// on the stream of its allocation. If both are the same stream, later work on it may reuse the memory at once. Otherwise, the memory is
/// reused after the work that is queued now. The call does not wait. Does nothing if `block` is null.
///
/// Errors: `MILLPOND_INVALID_POINTER` if the address is not that of a live block of this pool; `MILLPOND_INVALID_HANDLE`,
/// `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_CUDA_ERROR`. In these cases nothing is changed.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_free(
    pool: *mut millpond_pool,
    block: *mut c_void,
    stream: *mut c_void,
) -> millpond_status {
    guard(|| {
        let entry = device_pool(pool)?;
        // SAFETY: the caller guarantees it.
        let stream = unsafe { stream_of(entry.pool.device(), stream) }?;
        if block.is_null() {
            return Ok(());
        }
        // The block stays in the list if the driver refuses, so the program can free it on another stream.
        lock(&*entry.block(block)?).record_use(&stream)?;
        drop(entry.remove(block)?);
        if entry.is_destroyed() {
            end_if_empty(pool, &entry);
        }
        Ok(())
    })
}

/// Declares that work on another stream uses a block. After the block is freed, its memory is reused only when the work that is queued on
/// that stream by then is complete.
///
/// Errors: those of `millpond_device_free`.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_record_use(
    pool: *mut millpond_pool,
    block: *mut c_void,
    stream: *mut c_void,
) -> millpond_status {
    guard(|| {
        let entry = device_pool(pool)?;
        // SAFETY: the caller guarantees it.
        let stream = unsafe { stream_of(entry.pool.device(), stream) }?;
        lock(&*entry.block(block)?).record_use(&stream)?;
        Ok(())
    })
}

/// Copies bytes from the host to a block, from the byte `offset` of the block on, after the work on the block's own stream. Waits until the
/// copy is complete.
///
/// Errors: `MILLPOND_INVALID_POINTER` if the address is not that of a live block of this pool, or if the block ends before the copy does;
/// `MILLPOND_INVALID_HANDLE`, `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_CUDA_ERROR`.
///
/// # Safety
/// `from` is valid for reads of `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_write(
    pool: *mut millpond_pool,
    block: *mut c_void,
    offset: usize,
    from: *const c_void,
    bytes: usize,
) -> millpond_status {
    guard(|| {
        expect_host(from, bytes, "from")?;
        let block = device_pool(pool)?.block(block)?;
        let block = lock(&block);
        let part = block
            .span()
            .part(offset, bytes)
            .ok_or_else(|| outside(block.len()))?;
        if bytes > 0 {
            // SAFETY: the caller guarantees it.
            part.write(unsafe { std::slice::from_raw_parts(from.cast(), bytes) })?;
        }
        Ok(())
    })
}

/// Copies bytes of a block to the host, from the byte `offset` of the block on, after the work on the block's own stream. Waits until the
/// copy is complete.
///
/// Errors: those of `millpond_device_write`.
///
/// # Safety
/// `to` is valid for writes of `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_read(
    pool: *mut millpond_pool,
    block: *const c_void,
    offset: usize,
    to: *mut c_void,
    bytes: usize,
) -> millpond_status {
    guard(|| {
        expect_host(to, bytes, "to")?;
        let block = device_pool(pool)?.block(block)?;
        let block = lock(&block);
        let part = block
            .span()
            .part(offset, bytes)
            .ok_or_else(|| outside(block.len()))?;
        if bytes > 0 {
            // SAFETY: the caller guarantees it. The bytes are written only by the driver, which needs no initialised memory.
            part.read(unsafe { std::slice::from_raw_parts_mut(to.cast(), bytes) })?;
        }
        Ok(())
    })
}

fn expect_host(pointer: *const c_void, bytes: usize, name: &str) -> Result<(), Failure> {
    match pointer.is_null() && bytes > 0 || isize::try_from(bytes).is_err() {
        true => Err(Failure::argument(format!(
            "`{name}` is null or {bytes} bytes are larger than an address space: pass the address of the bytes on the host"
        ))),
        false => Ok(()),
    }
}

fn outside(bytes: usize) -> Failure {
    let text = format!(
        "the block has {bytes} bytes, and the copy would end beyond them: pass a smaller offset or fewer bytes"
    );
    Failure::new(millpond_status::MILLPOND_INVALID_POINTER, text)
}

/// Ends the library's use of a stream that the program is about to destroy. Waits until the work of the stream is done. No thread may queue
/// work on the stream during this call or later. Without this call, a stream must live as long as all pools that were given it.
///
/// Errors: `MILLPOND_CUDA_ERROR` while the stream is captured, and the errors of the driver. The stream must then stay alive.
///
/// # Safety
/// The rules on arguments apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_retire(device: u32, stream: *mut c_void) -> millpond_status {
    guard(|| {
        let device = CudaDevice::get(device)?;
        // SAFETY: the caller guarantees it.
        unsafe { stream_of(&device, stream) }?.retire()?;
        Ok(())
    })
}
