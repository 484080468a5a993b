//! Copies and fills.

use super::args::{In, Out};
use super::boxes;
use super::entries;
use super::structures::{Memcpy2d, Memcpy3d};
use crate::calls::Call;
use crate::error::{Answer, Code};
use crate::work::action::{Action, Rows, Side};
use std::sync::Arc;

/// The time at which the call returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Return {
    /// The call returns when the work is complete.
    Done,
    /// The call returns at once, if the kind of host memory allows it.
    Queued,
}

/// Checks an address that CUDA must know. An unknown one is refused at the call, as in the driver.
pub(super) fn known(call: &Call, at: u64, len: u64) -> Answer<Side> {
    let mut state = call.driver.state();
    let inside = state.memory.block_around(at, len).is_some();
    if inside {
        return Ok(Side::Known(at));
    }
    state.strict.wild(at, len, call.origin());
    Err(Code::INVALID_VALUE)
}

/// Returns host memory, pinned or not.
pub(super) fn host(call: &Call, at: usize, len: u64) -> Answer<Side> {
    Code::INVALID_VALUE.when(at == 0)?;
    let pinned = call.driver.state().memory.is_pinned(at as u64, len);
    Ok(if pinned {
        Side::Known(at as u64)
    } else {
        Side::Host(at)
    })
}

/// Returns the memory at an address of any kind.
pub(super) fn unified(call: &Call, at: u64, len: u64) -> Answer<Side> {
    if call.driver.state().memory.block(at).is_some() {
        known(call, at, len)
    } else {
        host(call, at as usize, len)
    }
}

/// Queues a copy. Memory that is not pinned is read or written before the call returns.
pub(super) fn transfer(call: &Call, stream: u64, to: Side, from: Side, rows: Rows, when: Return) -> Answer {
    let capturing = {
        let mut state = call.driver.state();
        if when == Return::Done {
            state.refuse_unsafe(call.thread)?;
        }
        state.stream(stream)?.capture.is_some()
    };
    if capturing {
        return call
            .driver
            .submit(stream, Action::Copy { to, from, rows }, call.origin());
    }
    let (from, when) = match (&to, from) {
        (Side::Host(_), from) => (from, Return::Done),
        (_, Side::Host(at)) if when == Return::Queued && rows.is_one() => (snapshot(at, rows.width), when),
        (_, Side::Host(at)) => (Side::Host(at), Return::Done),
        (_, from) => (from, when),
    };
    let action = Action::Copy { to, from, rows };
    match when {
        Return::Done => call.driver.finish(stream, action, call.origin()),
        Return::Queued => call.driver.submit(stream, action, call.origin()),
    }
}

/// Copies pageable memory, because the client may change it as soon as the call returns.
fn snapshot(at: usize, len: u64) -> Side {
    // SAFETY: the client is responsible for the memory until the call returns.
    let span = unsafe { crate::memory::os::Span::host(at, len as usize) };
    Side::Snapshot(Arc::new(span.read()))
}

fn to_device(call: &Call, to: u64, from: usize, bytes: usize, stream: u64, when: Return) -> Answer {
    let stream = call.stream(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let to = known(call, to, bytes as u64)?;
    let from = host(call, from, bytes as u64)?;
    transfer(call, stream, to, from, Rows::one(bytes as u64), when)
}

fn to_host(call: &Call, to: usize, from: u64, bytes: usize, stream: u64, when: Return) -> Answer {
    let stream = call.stream(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let from = known(call, from, bytes as u64)?;
    let to = host(call, to, bytes as u64)?;
    transfer(call, stream, to, from, Rows::one(bytes as u64), when)
}

/// Queues a copy inside the device. Such copies do not wait, even without `Async` in the name of the call.
fn inside(call: &Call, to: u64, from: u64, bytes: usize, stream: u64) -> Answer {
    let stream = call.stream(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let (to, from) = (known(call, to, bytes as u64)?, known(call, from, bytes as u64)?);
    transfer(call, stream, to, from, Rows::one(bytes as u64), Return::Queued)
}

fn any(call: &Call, to: u64, from: u64, bytes: usize, stream: u64, when: Return) -> Answer {
    let stream = call.stream(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    {
        let state = call.driver.state();
        let device = state.stream(stream)?.device;
        // The driver makes copies itself, and refuses memory of a pool that the device has no access to.
        let closed = |at: u64| !state.memory.is_pool_open_to(at, device);
        Code::INVALID_VALUE.when(closed(to) || closed(from))?;
    }
    let (to, from) = (
        unified(call, to, bytes as u64)?,
        unified(call, from, bytes as u64)?,
    );
    transfer(call, stream, to, from, Rows::one(bytes as u64), when)
}

fn peer(
    call: &Call,
    to: u64,
    to_context: u64,
    from: u64,
    from_context: u64,
    bytes: usize,
    stream: u64,
) -> Answer {
    for context in [to_context, from_context] {
        call.driver.state().context(context)?;
    }
    inside(call, to, from, bytes, stream)
}

/// Queues several copies. The attributes are hints about order and place, which need not be followed. At least one is required.
fn batch(
    call: &Call,
    [to, from]: [In<u64>; 2],
    sizes: In<usize>,
    count: usize,
    attributes: usize,
    stream: u64,
    failed: impl Fn(usize),
) -> Answer {
    Code::INVALID_VALUE.when(count == 0 || attributes == 0 || attributes > count)?;
    // The default streams are not allowed.
    Code::INVALID_VALUE.when(stream <= 2)?;
    // Unlike single copies, a batch cannot be captured.
    call.driver.state().refuse_stream_in_capture(stream)?;
    let (to, from, sizes) = (to.all(count)?, from.all(count)?, sizes.all(count)?);
    for index in 0..count {
        let copied = any(call, to[index], from[index], sizes[index], stream, Return::Queued);
        copied.inspect_err(|_| failed(index))?;
    }
    Ok(())
}

/// Queues a fill of rows. The array has the width of a row and the number of rows. Fills of device memory return at once, whatever their
/// name. Plain fills of pinned and of managed memory wait.
fn fill(
    call: &Call,
    to: u64,
    pitch: usize,
    value: &[u8],
    [width, height]: [usize; 2],
    stream: u64,
    when: Return,
) -> Answer {
    let stream = call.stream(stream)?;
    let size = value.len() as u64;
    let bytes = (width as u64).checked_mul(size).ok_or(Code::INVALID_VALUE)?;
    if bytes == 0 || height == 0 {
        return Ok(());
    }
    let to_pitch = if height == 1 { bytes } else { pitch as u64 };
    Code::INVALID_VALUE.when(to_pitch < bytes || !to.is_multiple_of(size))?;
    let rows = Rows {
        width: bytes,
        count: height as u64,
        to_pitch,
        ..Rows::one(bytes)
    };
    known(call, to, rows.extent_written()?)?;
    let mut pattern = [0; 4];
    pattern[..value.len()].copy_from_slice(value);
    let size = size as u8;
    let action = Action::Fill {
        to,
        pattern,
        size,
        rows,
    };
    let waits = when == Return::Done && {
        let state = call.driver.state();
        // A capture records the fill, and nothing runs that the call could wait for.
        state.memory.is_pinned(to, 1) && state.stream(stream)?.capture.is_none()
    };
    if waits {
        return call.driver.finish(stream, action, call.origin());
    }
    call.driver.submit(stream, action, call.origin())
}

entries! {
    cuMemcpyHtoD_v2 ptds 3020 Driver (to: u64, from: In<u8>, bytes: usize) |call| {
        to_device(call, to, from.address(), bytes, 0, Return::Done)
    }
    cuMemcpyHtoDAsync_v2 ptsz 3020 Driver (to: u64, from: In<u8>, bytes: usize, stream: u64) |call| {
        to_device(call, to, from.address(), bytes, stream, Return::Queued)
    }
    cuMemcpyDtoH_v2 ptds 3020 Driver (to: In<u8>, from: u64, bytes: usize) |call| {
        to_host(call, to.address(), from, bytes, 0, Return::Done)
    }
    cuMemcpyDtoHAsync_v2 ptsz 3020 Driver (to: In<u8>, from: u64, bytes: usize, stream: u64) |call| {
        to_host(call, to.address(), from, bytes, stream, Return::Queued)
    }
    cuMemcpyDtoD_v2 ptds 3020 Driver (to: u64, from: u64, bytes: usize) |call| { inside(call, to, from, bytes, 0) }
    cuMemcpyDtoDAsync_v2 ptsz 3020 Driver (to: u64, from: u64, bytes: usize, stream: u64) |call| {
        inside(call, to, from, bytes, stream)
    }
    cuMemcpy ptds 4000 Driver (to: u64, from: u64, bytes: usize) |call| { any(call, to, from, bytes, 0, Return::Done) }
    cuMemcpyAsync ptsz 4000 Driver (to: u64, from: u64, bytes: usize, stream: u64) |call| {
        any(call, to, from, bytes, stream, Return::Queued)
    }
    cuMemcpyPeer ptds 4000 Driver (to: u64, to_context: u64, from: u64, from_context: u64, bytes: usize) |call| {
        peer(call, to, to_context, from, from_context, bytes, 0)
    }
    cuMemcpyPeerAsync ptsz 4000 Driver (
        to: u64,
        to_context: u64,
        from: u64,
        from_context: u64,
        bytes: usize,
        stream: u64,
    ) |call| { peer(call, to, to_context, from, from_context, bytes, stream) }
    cuMemcpy2D_v2 ptds 3020 Driver (copy: In<Memcpy2d>) |call| { boxes::copy(call, &copy.get()?.into(), 0, Return::Done) }
    cuMemcpy2DUnaligned_v2 ptds 3020 Driver (copy: In<Memcpy2d>) |call| { boxes::copy(call, &copy.get()?.into(), 0, Return::Done) }
    cuMemcpy2DAsync_v2 ptsz 3020 Driver (copy: In<Memcpy2d>, stream: u64) |call| {
        boxes::copy(call, &copy.get()?.into(), stream, Return::Queued)
    }
    cuMemcpy3D_v2 ptds 3020 Driver (copy: In<Memcpy3d>) |call| { boxes::copy(call, &copy.get()?, 0, Return::Done) }
    cuMemcpy3DAsync_v2 ptsz 3020 Driver (copy: In<Memcpy3d>, stream: u64) |call| {
        boxes::copy(call, &copy.get()?, stream, Return::Queued)
    }
    cuMemcpy3DPeer ptds 4000 Driver (copy: In<Memcpy3d>) |call| { boxes::peer(call, &copy.get()?, 0, Return::Done) }
    cuMemcpy3DPeerAsync ptsz 4000 Driver (copy: In<Memcpy3d>, stream: u64) |call| {
        boxes::peer(call, &copy.get()?, stream, Return::Queued)
    }
    /// The attributes are hints, as for several copies.
    cuMemcpyWithAttributesAsync ptsz 13020 Driver (to: u64, from: u64, bytes: usize, _attributes: usize, stream: u64) |call| {
        any(call, to, from, bytes, stream, Return::Queued)
    }
    cuMemcpyBatchAsync ptsz 12080 Driver (
        to: In<u64>,
        from: In<u64>,
        sizes: In<usize>,
        count: usize,
        _attributes: usize,
        _indices: usize,
        attributes: usize,
        failed: Out<usize>,
        stream: u64,
    ) |call| {
        // A failure that belongs to no single copy has the greatest index.
        failed.offer(usize::MAX);
        batch(call, [to, from], sizes, count, attributes, stream, |index| failed.offer(index))
    }
    cuMemcpyBatchAsync_v2 ptsz 13000 Driver (
        to: In<u64>,
        from: In<u64>,
        sizes: In<usize>,
        count: usize,
        _attributes: usize,
        _indices: usize,
        attributes: usize,
        stream: u64,
    ) |call| { batch(call, [to, from], sizes, count, attributes, stream, |_| ()) }
    cuMemsetD8_v2 ptds 3020 Driver (to: u64, value: u8, count: usize) |call| {
        fill(call, to, 0, &value.to_ne_bytes(), [count, 1], 0, Return::Done)
    }
    cuMemsetD8Async ptsz 3020 Driver (to: u64, value: u8, count: usize, stream: u64) |call| {
        fill(call, to, 0, &value.to_ne_bytes(), [count, 1], stream, Return::Queued)
    }
    cuMemsetD16_v2 ptds 3020 Driver (to: u64, value: u16, count: usize) |call| {
        fill(call, to, 0, &value.to_ne_bytes(), [count, 1], 0, Return::Done)
    }
    cuMemsetD16Async ptsz 3020 Driver (to: u64, value: u16, count: usize, stream: u64) |call| {
        fill(call, to, 0, &value.to_ne_bytes(), [count, 1], stream, Return::Queued)
    }
    cuMemsetD32_v2 ptds 3020 Driver (to: u64, value: u32, count: usize) |call| {
        fill(call, to, 0, &value.to_ne_bytes(), [count, 1], 0, Return::Done)
    }
    cuMemsetD32Async ptsz 3020 Driver (to: u64, value: u32, count: usize, stream: u64) |call| {
        fill(call, to, 0, &value.to_ne_bytes(), [count, 1], stream, Return::Queued)
    }
    cuMemsetD2D8_v2 ptds 3020 Driver (to: u64, pitch: usize, value: u8, width: usize, height: usize) |call| {
        fill(call, to, pitch, &value.to_ne_bytes(), [width, height], 0, Return::Done)
    }
    cuMemsetD2D8Async ptsz 3020 Driver (to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: u64) |call| {
        fill(call, to, pitch, &value.to_ne_bytes(), [width, height], stream, Return::Queued)
    }
    cuMemsetD2D16_v2 ptds 3020 Driver (to: u64, pitch: usize, value: u16, width: usize, height: usize) |call| {
        fill(call, to, pitch, &value.to_ne_bytes(), [width, height], 0, Return::Done)
    }
    cuMemsetD2D16Async ptsz 3020 Driver (to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: u64) |call| {
        fill(call, to, pitch, &value.to_ne_bytes(), [width, height], stream, Return::Queued)
    }
    cuMemsetD2D32_v2 ptds 3020 Driver (to: u64, pitch: usize, value: u32, width: usize, height: usize) |call| {
        fill(call, to, pitch, &value.to_ne_bytes(), [width, height], 0, Return::Done)
    }
    cuMemsetD2D32Async ptsz 3020 Driver (to: u64, pitch: usize, value: u32, width: usize, height: usize, stream: u64) |call| {
        fill(call, to, pitch, &value.to_ne_bytes(), [width, height], stream, Return::Queued)
    }
}
