//! Contexts, and the current context of a thread.

use super::args::Out;
use super::entries;
use crate::calls::Address;
use crate::error::Code;
use crate::thread::{current, pop_current, push_current, set_current};

/// Returns the function that returns the current context.
pub(super) fn current_context() -> Address {
    cuCtxGetCurrent::entry().legacy
}

/// Returns the function that returns the number of a context.
pub(super) fn context_id() -> Address {
    cuCtxGetId::entry().legacy
}

entries! {
    cuDevicePrimaryCtxRetain none 7000 Driver (context: Out<u64>, device: i32) |call| {
        context.make(|| {
            let device = call.known_device(device)?;
            call.driver.state().retain_primary(device)
        })
    }
    cuDevicePrimaryCtxRelease_v2 none 11000 Driver (device: i32) |call| {
        call.driver.release_primary(call.known_device(device)?)
    }
    cuDevicePrimaryCtxReset_v2 none 11000 Driver (device: i32) |call| {
        let device = call.known_device(device)?;
        let handle = call.driver.state().primary[device as usize];
        handle.map_or(Ok(()), |handle| call.driver.destroy_context(handle))
    }
    cuDevicePrimaryCtxSetFlags_v2 none 11000 Driver (device: i32, flags: u32) |call| {
        let device = call.known_device(device)?;
        let mut state = call.driver.state();
        if let Some(handle) = state.primary[device as usize]
            && let Some(context) = state.contexts.get_mut(&handle)
        {
            context.flags = flags;
        }
        Ok(())
    }
    cuDevicePrimaryCtxGetState none 7000 Driver (device: i32, flags: Out<u32>, active: Out<i32>) |call| {
        let device = call.known_device(device)?;
        let state = call.driver.state();
        let context = state.primary[device as usize].and_then(|handle| state.contexts.get(&handle));
        flags.set(context.map_or(0, |context| context.flags))?;
        active.set(i32::from(context.is_some()))
    }
    cuDevicePrimaryCtxRelease none 7000 Driver (device: i32) |call| { cuDevicePrimaryCtxRelease_v2(call, device) }
    cuDevicePrimaryCtxReset none 7000 Driver (device: i32) |call| { cuDevicePrimaryCtxReset_v2(call, device) }
    /// Unlike the later version, fails if the context exists.
    cuDevicePrimaryCtxSetFlags none 7000 Driver (device: i32, flags: u32) |call| {
        let known = call.known_device(device)?;
        let active = call.driver.state().primary[known as usize].is_some();
        Code::PRIMARY_CONTEXT_ACTIVE.when(active)?;
        cuDevicePrimaryCtxSetFlags_v2(call, device, flags)
    }
    cuCtxCreate_v2 none 3020 Driver (context: Out<u64>, flags: u32, device: i32) |call| {
        context.check()?;
        let device = call.known_device(device)?;
        let handle = call.driver.state().create_context(device, flags);
        push_current(handle);
        context.set(handle)
    }
    cuCtxCreate_v3 none 11040 Driver (context: Out<u64>, affinity: usize, count: i32, flags: u32, device: i32) |call| {
        Code::NOT_SUPPORTED.when(affinity != 0 || count != 0)?;
        cuCtxCreate_v2(call, context, flags, device)
    }
    cuCtxCreate_v4 none 12050 Driver (context: Out<u64>, params: usize, flags: u32, device: i32) |call| {
        Code::NOT_SUPPORTED.when(params != 0)?;
        cuCtxCreate_v2(call, context, flags, device)
    }
    cuCtxDestroy_v2 none 4000 Driver (context: u64) |call| {
        let handle = call.known_context(context)?;
        Code::INVALID_CONTEXT.when(call.driver.state().context(handle)?.primary)?;
        if current() == Some(handle) {
            pop_current();
        }
        call.driver.destroy_context(handle)
    }
    cuCtxPushCurrent_v2 none 4000 Driver (context: u64) |call| {
        push_current(call.settable_context(context)?);
        Ok(())
    }
    cuCtxPopCurrent_v2 none 4000 Driver (context: Out<u64>) |_call| {
        context.offer(pop_current().ok_or(Code::INVALID_CONTEXT)?);
        Ok(())
    }
    cuCtxSetCurrent none 4000 Driver (context: u64) |call| {
        if context != 0 {
            call.settable_context(context)?;
        }
        set_current(context);
        Ok(())
    }
    cuCtxGetCurrent none 4000 Driver (context: Out<u64>) |_call| { context.set(current().unwrap_or(0)) }
    cuCtxGetDevice none 2000 Driver (device: Out<i32>) |call| { device.set(call.device()? as i32) }
    cuCtxGetDevice_v2 none 13000 Driver (device: Out<i32>, context: u64) |call| {
        let context = if context == 0 { call.context()? } else { call.known_context(context)? };
        let found = call.driver.state().context(context)?.device;
        device.set(found as i32)
    }
    cuCtxGetFlags none 7000 Driver (flags: Out<u32>) |call| {
        flags.set(call.of_context(|context| context.flags)?)
    }
    cuCtxSetFlags none 12010 Driver (flags: u32) |call| {
        call.change_context(|context| context.flags = flags)
    }
    cuCtxGetId none 12000 Driver (context: u64, id: Out<u64>) |call| {
        let handle = if context == 0 { call.context()? } else { context };
        call.driver.state().context(handle)?;
        id.set(handle)
    }
    cuCtxGetApiVersion none 3020 Driver (context: u64, version: Out<u32>) |call| {
        if context != 0 {
            call.driver.state().context(context)?;
        }
        version.set(3020)
    }
    cuCtxSynchronize none 2000 Driver () |call| { call.driver.synchronise_context(call.context()?) }
    cuCtxSynchronize_v2 none 13000 Driver (context: u64) |call| {
        let context = if context == 0 { call.context()? } else { call.known_context(context)? };
        call.driver.synchronise_context(context)
    }
    /// Does nothing, because no lines of the cache persist.
    cuCtxResetPersistingL2Cache none 11000 Driver () |call| { call.context().map(|_| ()) }
    cuCtxGetLimit none 3010 Driver (value: Out<usize>, limit: i32) |call| {
        let found = call.of_context(|context| context.limits.get(&limit).copied())?;
        value.set(found.ok_or(Code::UNSUPPORTED_LIMIT)? as usize)
    }
    cuCtxSetLimit none 3010 Driver (limit: i32, value: usize) |call| {
        let known = call.change_context(|context| context.limits.get_mut(&limit).map(|known| *known = value as u64))?;
        known.ok_or(Code::UNSUPPORTED_LIMIT)
    }
    cuCtxGetCacheConfig none 3020 Driver (config: Out<i32>) |call| {
        config.set(call.of_context(|context| context.cache)?)
    }
    cuCtxSetCacheConfig none 3020 Driver (config: i32) |call| {
        call.context()?;
        Code::INVALID_VALUE.when(!(0..=3).contains(&config))?;
        call.change_context(|context| context.cache = config)
    }
    cuCtxGetStreamPriorityRange none 5050 Driver (least: Out<i32>, greatest: Out<i32>) |call| {
        call.context()?;
        least.offer(0);
        greatest.offer(-5);
        Ok(())
    }
    cuCtxEnablePeerAccess none 4000 Driver (peer: u64, flags: u32) |call| {
        let context = call.context()?;
        let mut state = call.driver.state();
        let other = state.context(peer)?.device;
        Code::INVALID_VALUE.when(flags != 0)?;
        Code::INVALID_DEVICE.when(state.context(context)?.device == other)?;
        let added = state.contexts.get_mut(&context).is_some_and(|context| context.peers.insert(peer));
        Code::PEER_ACCESS_ALREADY_ENABLED.when(!added)
    }
    cuCtxDisablePeerAccess none 4000 Driver (peer: u64) |call| {
        call.context()?;
        call.driver.state().context(peer)?;
        let removed = call.change_context(|context| context.peers.remove(&peer))?;
        Code::PEER_ACCESS_NOT_ENABLED.when(!removed)
    }
    /// Does nothing, because there is no profiler.
    cuProfilerStart none 4000 Driver () |call| { call.context().map(|_| ()) }
    cuProfilerStop none 4000 Driver () |call| { call.context().map(|_| ()) }
}
