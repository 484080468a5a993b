//! Stream-ordered allocation and pools.

use super::args::{In, Out};
use super::entries;
use super::structures::{AccessDesc, Location, PoolProps};
use crate::calls::Call;
use crate::driver::stream::After;
use crate::error::{Answer, Code};
use crate::memory::pool::{Asker, Place};
use crate::work::action::Action;

/// Values of `CUmemAllocationType` and of `CUmemLocationType`.
const PINNED: i32 = 1;
const MANAGED: i32 = 2;
const NOWHERE: i32 = 0;
const DEVICE: i32 = 1;
const HOST: i32 = 2;
const HOST_NUMA: i32 = 3;

/// Implements `cuMemAllocAsync` and similar calls. The stream may use the block at once. Work that must be complete before is
/// put before it in the stream's order.
fn allocate(call: &Call, at: Out<u64>, pool: Option<u64>, bytes: usize, stream: u64) -> Answer {
    at.check()?;
    let stream = call.stream(stream)?;
    // A size of 0 is not an error here, unlike for plain memory. It allocates nothing.
    if bytes == 0 {
        return at.set(0);
    }
    let mut guard = call.driver.state();
    let state = &mut *guard;
    if let Some(capture) = state.stream(stream)?.capture {
        return at.set(state.capture_allocate(capture, stream, bytes as u64, call.origin())?);
    }
    state.refuse_unsafe(call.thread)?;
    let found = state.stream(stream)?;
    let pool = match pool {
        Some(pool) => pool,
        None => state.memory.current_pool(found.device)?,
    };
    let mut clock = found.clock.clone();
    clock.join(&state.host);
    let queue = &state.queue;
    let done = |task| queue.is_done(task);
    let asker = Asker {
        stream,
        clock: &clock,
        done: &done,
    };
    let (address, waits) = state
        .memory
        .pool_allocate(pool, bytes as u64, &asker, call.origin())?;
    let mut after = After::default();
    if let Some(pending) = waits {
        after.tasks.push(pending.task);
        after.clock.see(pending.stamp);
    }
    let task = state.enqueue_after(stream, Action::Nothing, call.origin(), &after)?;
    if let Some(task) = task {
        call.driver.queued(guard, task, stream);
    }
    at.set(address)
}

/// Returns the place of a pool from its properties: the kind of its memory, which is pinned or managed, and its location.
fn place(call: &Call, kind: i32, location: Location) -> Answer<Place> {
    let version = call.options().version;
    let is_host = match location.kind {
        HOST => true,
        HOST_NUMA => location.id == 0,
        _ => false,
    };
    match (kind, location.kind) {
        (PINNED, DEVICE) => Ok(Place::Device(call.known_device(location.id)?)),
        (PINNED, _) if is_host && version >= 12_060 => Ok(Place::Host),
        (MANAGED, DEVICE) if version >= 13_000 => call.known_device(location.id).map(|_| Place::Managed),
        (MANAGED, _) if (is_host || location.kind == NOWHERE) && version >= 13_000 => Ok(Place::Managed),
        _ => Err(Code::INVALID_VALUE),
    }
}

entries! {
    cuMemAllocAsync ptsz 11020 Pools (at: Out<u64>, bytes: usize, stream: u64) |call| {
        allocate(call, at, None, bytes, stream)
    }
    cuMemAllocFromPoolAsync ptsz 11020 Pools (at: Out<u64>, bytes: usize, pool: u64, stream: u64) |call| {
        allocate(call, at, Some(pool), bytes, stream)
    }
    cuMemFreeAsync ptsz 11020 Pools (at: u64, stream: u64) |call| {
        let stream = call.stream(stream)?;
        Code::INVALID_VALUE.when(at == 0)?;
        let mut state = call.driver.state();
        if let Some(capture) = state.stream(stream)?.capture {
            return state.capture_free(capture, stream, call.origin());
        }
        state.refuse_unsafe(call.thread)?;
        if state.memory.is_graphs(at) {
            return Ok(());
        }
        if !state.memory.is_pooled(at) {
            drop(state);
            return free_plain(call, at, stream);
        }
        let (base, block) = state.memory.block(at).ok_or(Code::INVALID_VALUE)?;
        let whole = crate::access::Access { at: base, len: block.len, write: true };
        let Some(task) = state.enqueue(stream, Action::Nothing, call.origin())? else { return Ok(()) };
        let stamp = state.stamp(stream);
        state.strict_free(stream, whole, call.origin());
        let block = state.memory.pool_free(at, task, stamp)?;
        let origin = crate::access::Origin { stream, ..call.origin() };
        state.strict.freed(at, block.len, block.origin, origin);
        call.driver.queued(state, task, stream);
        Ok(())
    }
    cuMemPoolCreate none 11020 Pools (pool: Out<u64>, props: In<PoolProps>) |call| {
        pool.check()?;
        call.driver.state().refuse_unsafe(call.thread)?;
        let props = props.get()?;
        let place = place(call, props.kind, props.location)?;
        Code::NOT_SUPPORTED.when(props.handle_types != 0)?;
        // Drivers before CUDA 12.2 do not support a limit.
        let max = if call.options().version < 12_020 { 0 } else { props.max_size as u64 };
        let handle = call.driver.state().memory.create_pool(place, max)?;
        pool.set(handle)
    }
    cuMemPoolDestroy none 11020 Pools (pool: u64) |call| {
        let mut state = call.driver.state();
        state.refuse_unsafe(call.thread)?;
        state.memory.destroy_pool(pool)?;
        state.trim_pools();
        Ok(())
    }
    cuDeviceGetDefaultMemPool none 11020 Pools (pool: Out<u64>, device: i32) |call| {
        let device = call.known_device(device)?;
        pool.set(call.driver.state().memory.default_pool(device)?)
    }
    cuDeviceGetMemPool none 11020 Pools (pool: Out<u64>, device: i32) |call| {
        let device = call.known_device(device)?;
        pool.set(call.driver.state().memory.current_pool(device)?)
    }
    cuDeviceSetMemPool none 11020 Pools (device: i32, pool: u64) |call| {
        let device = call.known_device(device)?;
        let mut state = call.driver.state();
        state.refuse_unsafe(call.thread)?;
        state.memory.set_current_pool(device, pool)
    }
    cuMemGetDefaultMemPool none 13000 Pools (pool: Out<u64>, location: In<Location>, kind: i32) |call| {
        let place = place(call, kind, location.get()?)?;
        pool.set(call.driver.state().memory.pools_of(place)?.0)
    }
    cuMemGetMemPool none 13000 Pools (pool: Out<u64>, location: In<Location>, kind: i32) |call| {
        let place = place(call, kind, location.get()?)?;
        pool.set(call.driver.state().memory.pools_of(place)?.1)
    }
    cuMemSetMemPool none 13000 Pools (location: In<Location>, kind: i32, pool: u64) |call| {
        let place = place(call, kind, location.get()?)?;
        let mut state = call.driver.state();
        state.refuse_unsafe(call.thread)?;
        state.memory.set_current(place, pool)
    }
    cuMemPoolTrimTo none 11020 Pools (pool: u64, keep: usize) |call| {
        let mut guard = call.driver.state();
        let state = &mut *guard;
        state.refuse_unsafe(call.thread)?;
        state.memory.pool(pool)?;
        let queue = &state.queue;
        state.memory.trim(pool, keep as u64, &|task| queue.is_done(task))
    }
    cuMemPoolGetAttribute none 11020 Pools (pool: u64, number: i32, value: Out<u8>) |call| {
        let mut state = call.driver.state();
        state.refuse_unsafe(call.thread)?;
        let pool = state.memory.pool(pool)?;
        match number {
            1 => value.cast().set(i32::from(pool.follow_events)),
            2 => value.cast().set(i32::from(pool.opportunistic)),
            3 => value.cast().set(i32::from(pool.internal)),
            4 => value.cast().set(pool.threshold),
            5 => value.cast().set(pool.heap.reserved()),
            6 => value.cast().set(pool.reserved_high),
            7 => value.cast().set(pool.heap.used()),
            8 => value.cast().set(pool.used_high),
            _ => Err(Code::INVALID_VALUE),
        }
    }
    /// Sets an attribute. Peaks can only be set to 0, which resets them to the current value.
    cuMemPoolSetAttribute none 11020 Pools (pool: u64, number: i32, value: Out<u8>) |call| {
        let mut state = call.driver.state();
        state.refuse_unsafe(call.thread)?;
        let pool = state.memory.pool_mut(pool)?;
        let peak = |now| if value.cast::<u64>().get()? == 0 { Ok(now) } else { Err(Code::INVALID_VALUE) };
        match number {
            1 => pool.follow_events = value.cast::<i32>().get()? != 0,
            2 => pool.opportunistic = value.cast::<i32>().get()? != 0,
            3 => pool.internal = value.cast::<i32>().get()? != 0,
            4 => pool.threshold = value.cast().get()?,
            6 => pool.reserved_high = peak(pool.heap.reserved())?,
            8 => pool.used_high = peak(pool.heap.used())?,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }
    cuMemPoolSetAccess none 11020 Pools (pool: u64, map: In<AccessDesc>, count: usize) |call| {
        call.driver.state().refuse_unsafe(call.thread)?;
        for desc in map.all(count)? {
            // The host has access to its own memory, which cannot be taken from it.
            let mut state = call.driver.state();
            let pool = state.memory.pool_mut(pool)?;
            if place(call, PINNED, desc.location)? == Place::Host {
                Code::INVALID_VALUE.when(pool.place != Place::Host || desc.flags != 3)?;
                continue;
            }
            let device = call.known_device(desc.location.id)?;
            let bit = 1u64 << device;
            match desc.flags {
                3 => pool.peers |= bit,
                0 if pool.place != Place::Device(device) => pool.peers &= !bit,
                _ => return Err(Code::INVALID_VALUE),
            }
        }
        Ok(())
    }
    cuMemPoolGetAccess none 11020 Pools (flags: Out<i32>, pool: u64, location: In<Location>) |call| {
        let asked = place(call, PINNED, location.get()?)?;
        let mut state = call.driver.state();
        state.refuse_unsafe(call.thread)?;
        let pool = state.memory.pool(pool)?;
        let access = match asked {
            Place::Device(device) => pool.is_open_to(device),
            Place::Host | Place::Managed => matches!(pool.place, Place::Host | Place::Managed),
        };
        flags.set(if access { 3 } else { 0 })
    }
}

/// Frees plain memory in the order of a stream, which the driver also allows. The call waits for work that uses the memory.
fn free_plain(call: &Call, at: u64, stream: u64) -> Answer {
    call.driver.state().memory.block_at(at)?;
    call.driver.finish(stream, Action::Nothing, call.origin())?;
    let mut state = call.driver.state();
    let block = state.memory.free(at)?;
    state.strict.freed(at, block.len, block.origin, call.origin());
    Ok(())
}
