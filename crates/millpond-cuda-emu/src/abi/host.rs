//! Pinned and registered memory of the host.

use super::args::Out;
use super::entries;
use crate::error::Code;
use crate::memory::Kind;

entries! {
    cuMemHostAlloc none 2020 Driver (at: Out<usize>, bytes: usize, flags: u32) |call| {
        at.check()?;
        let device = call.device()?;
        Code::INVALID_VALUE.when(flags & !7 != 0)?;
        let mut state = call.driver.state();
        state.refuse_unsafe(call.thread)?;
        // A size of 0 is not an error here, unlike for device memory. It allocates nothing.
        if bytes == 0 {
            return at.set(0);
        }
        at.set(state.memory.host_allocate(device, bytes as u64, flags, call.origin())? as usize)
    }
    cuMemAllocHost_v2 none 3020 Driver (at: Out<usize>, bytes: usize) |call| { cuMemHostAlloc(call, at, bytes, 0) }
    cuMemFreeHost none 2000 Driver (at: usize) |call| {
        let context = call.context()?;
        let mut state = call.driver.state();
        state.refuse_unsafe(call.thread)?;
        if at == 0 {
            return Ok(());
        }
        state.unwaited_block(at as u64, call.origin());
        let mut state = call.driver.wait_context(state, context);
        let block = state.memory.host_free(at as u64)?;
        state.strict.freed(at as u64, block.len, block.origin, call.origin());
        Ok(())
    }
    cuMemHostRegister_v2 none 6050 Driver (at: usize, bytes: usize, flags: u32) |call| {
        let device = call.device()?;
        Code::INVALID_VALUE.when(flags & !15 != 0)?;
        Code::NOT_SUPPORTED.when(flags & 4 != 0)?;
        let mut state = call.driver.state();
        state.refuse_unsafe(call.thread)?;
        state.memory.register(device, at as u64, bytes as u64, flags, call.origin())
    }
    cuMemHostUnregister none 4000 Driver (at: usize) |call| {
        let context = call.context()?;
        let mut state = call.driver.state();
        state.refuse_unsafe(call.thread)?;
        state.unwaited_block(at as u64, call.origin());
        let mut state = call.driver.wait_context(state, context);
        let block = state.memory.unregister(at as u64)?;
        state.strict.forget_range(at as u64, block.len);
        Ok(())
    }
    cuMemHostGetDevicePointer_v2 none 3020 Driver (device: Out<u64>, at: usize, flags: u32) |call| {
        Code::INVALID_VALUE.when(flags != 0)?;
        call.context()?;
        let pinned = call.driver.state().memory.is_pinned(at as u64, 1);
        if pinned { device.set(at as u64) } else { Err(Code::INVALID_VALUE) }
    }
    cuMemHostGetFlags none 2030 Driver (flags: Out<u32>, at: usize) |call| {
        call.context()?;
        let state = call.driver.state();
        match state.memory.block(at as u64).map(|(_, block)| &block.kind) {
            // Every pinned block is mapped, whether or not the client asked for it, because addresses are unified.
            Some(Kind::Host(found) | Kind::Registered(found)) => flags.set(found | 2),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
