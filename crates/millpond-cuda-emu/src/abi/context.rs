//! Contexts, and the current context of a thread.

use super::args::Out;
use super::entries;
use crate::error::Code;
use crate::thread::{current, pop_current, push_current, set_current};

entries! {
    cuDevicePrimaryCtxRetain none 7000 Driver (context: Out<usize>, device: i32) |call| {
        context.check()?;
        let device = call.known_device(device)?;
        let handle = call.driver.state().retain_primary(device)?;
        context.set(handle as usize)
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
    cuCtxCreate_v2 none 3020 Driver (context: Out<usize>, flags: u32, device: i32) |call| {
        context.check()?;
        let device = call.known_device(device)?;
        let handle = call.driver.state().create_context(device, flags, false);
        push_current(handle);
        context.set(handle as usize)
    }
    cuCtxCreate_v3 none 11040 Driver (context: Out<usize>, affinity: usize, count: i32, flags: u32, device: i32) |call| {
        Code::NOT_SUPPORTED.when(affinity != 0 || count != 0)?;
        cuCtxCreate_v2(call, context, flags, device)
    }
    cuCtxCreate_v4 none 12050 Driver (context: Out<usize>, params: usize, flags: u32, device: i32) |call| {
        Code::NOT_SUPPORTED.when(params != 0)?;
        cuCtxCreate_v2(call, context, flags, device)
    }
    cuCtxDestroy_v2 none 4000 Driver (context: usize) |call| {
        let handle = call.known_context(context)?;
        Code::INVALID_CONTEXT.when(call.driver.state().context(handle)?.primary)?;
        if current() == Some(handle) {
            pop_current();
        }
        call.driver.destroy_context(handle)
    }
    cuCtxPushCurrent_v2 none 4000 Driver (context: usize) |call| {
        push_current(call.known_context(context)?);
        Ok(())
    }
    cuCtxPopCurrent_v2 none 4000 Driver (context: Out<usize>) |_call| {
        context.offer(pop_current().ok_or(Code::INVALID_CONTEXT)? as usize);
        Ok(())
    }
    cuCtxSetCurrent none 4000 Driver (context: usize) |call| {
        if context != 0 {
            call.known_context(context)?;
        }
        set_current(context as u64);
        Ok(())
    }
    cuCtxGetCurrent none 4000 Driver (context: Out<usize>) |_call| { context.set(current().unwrap_or(0) as usize) }
    cuCtxGetDevice none 2000 Driver (device: Out<i32>) |call| { device.set(call.device()? as i32) }
    cuCtxGetFlags none 7000 Driver (flags: Out<u32>) |call| {
        let context = call.context()?;
        flags.set(call.driver.state().context(context)?.flags)
    }
    cuCtxSetFlags none 12010 Driver (flags: u32) |call| {
        let context = call.context()?;
        if let Some(context) = call.driver.state().contexts.get_mut(&context) {
            context.flags = flags;
        }
        Ok(())
    }
    cuCtxGetId none 12000 Driver (context: usize, id: Out<u64>) |call| {
        let handle = if context == 0 { call.context()? } else { context as u64 };
        call.driver.state().context(handle)?;
        id.set(handle)
    }
    cuCtxGetApiVersion none 3020 Driver (context: usize, version: Out<u32>) |call| {
        if context != 0 {
            call.driver.state().context(context as u64)?;
        }
        version.set(3020)
    }
    cuCtxSynchronize none 2000 Driver () |call| { call.driver.synchronise_context(call.context()?) }
    cuCtxGetLimit none 3010 Driver (value: Out<usize>, limit: i32) |call| {
        let context = call.context()?;
        let state = call.driver.state();
        let found = state.context(context)?.limits.get(&limit).copied();
        value.set(found.ok_or(Code::UNSUPPORTED_LIMIT)? as usize)
    }
    cuCtxSetLimit none 3010 Driver (limit: i32, value: usize) |call| {
        let context = call.context()?;
        let mut state = call.driver.state();
        let limits = state.contexts.get_mut(&context).map(|context| &mut context.limits);
        *limits.and_then(|limits| limits.get_mut(&limit)).ok_or(Code::UNSUPPORTED_LIMIT)? = value as u64;
        Ok(())
    }
    cuCtxGetCacheConfig none 3020 Driver (config: Out<i32>) |call| {
        let context = call.context()?;
        config.set(call.driver.state().context(context)?.cache)
    }
    cuCtxSetCacheConfig none 3020 Driver (config: i32) |call| {
        let context = call.context()?;
        Code::INVALID_VALUE.when(!(0..=3).contains(&config))?;
        if let Some(context) = call.driver.state().contexts.get_mut(&context) {
            context.cache = config;
        }
        Ok(())
    }
    cuCtxGetStreamPriorityRange none 5050 Driver (least: Out<i32>, greatest: Out<i32>) |call| {
        call.context()?;
        least.offer(0);
        greatest.offer(-5);
        Ok(())
    }
    cuCtxEnablePeerAccess none 4000 Driver (peer: usize, flags: u32) |call| {
        let context = call.context()?;
        let mut state = call.driver.state();
        let other = state.context(peer as u64)?.device;
        Code::INVALID_VALUE.when(flags != 0)?;
        Code::INVALID_DEVICE.when(state.context(context)?.device == other)?;
        let added = state.contexts.get_mut(&context).is_some_and(|context| context.peers.insert(peer as u64));
        if added { Ok(()) } else { Err(Code::PEER_ACCESS_ALREADY_ENABLED) }
    }
    cuCtxDisablePeerAccess none 4000 Driver (peer: usize) |call| {
        let context = call.context()?;
        let mut state = call.driver.state();
        state.context(peer as u64)?;
        let removed = state.contexts.get_mut(&context).is_some_and(|context| context.peers.remove(&(peer as u64)));
        if removed { Ok(()) } else { Err(Code::PEER_ACCESS_NOT_ENABLED) }
    }
    /// Does nothing, because there is no profiler.
    cuProfilerStart none 4000 Driver () |call| { call.context().map(|_| ()) }
    cuProfilerStop none 4000 Driver () |call| { call.context().map(|_| ()) }
}
