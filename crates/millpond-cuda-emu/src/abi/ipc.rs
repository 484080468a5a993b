//! Blocks and events between processes.

use super::args::Out;
use super::entries;
use super::structures::IpcHandle;
use crate::calls::Call;
use crate::error::{Answer, Code};

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`. It is the only flag, and it is required.
const LAZY_PEERS: u32 = 1;

fn open(call: &Call, at: Out<u64>, handle: IpcHandle, flags: u32) -> Answer {
    at.make(|| {
        Code::INVALID_VALUE.when(flags != LAZY_PEERS)?;
        call.context()?;
        let mut state = call.driver.state();
        state.refuse_unsafe(call.thread)?;
        state.memory.open_block(&handle.reserved, call.origin())
    })
}

entries! {
    cuIpcGetMemHandle none 4010 Driver (handle: Out<IpcHandle>, at: u64) |call| {
        handle.check()?;
        call.context()?;
        let reserved = call.driver.state().memory.export(at)?;
        handle.set(IpcHandle { reserved })
    }
    cuIpcOpenMemHandle none 4010 Driver (at: Out<u64>, handle: IpcHandle, flags: u32) |call| {
        open(call, at, handle, flags)
    }
    cuIpcOpenMemHandle_v2 none 11000 Driver (at: Out<u64>, handle: IpcHandle, flags: u32) |call| {
        open(call, at, handle, flags)
    }
    cuIpcCloseMemHandle none 4010 Driver (at: u64) |call| {
        call.context()?;
        let mut state = call.driver.state();
        state.refuse_unsafe(call.thread)?;
        if state.memory.opened(at)? == 1 {
            // Addresses are unmapped, so the call waits for the device, as `cuMemFree` does.
            let context = state.memory.block(at).map_or(0, |(_, block)| block.context);
            state = call.driver.wait_context(state, context);
        }
        if let Some(block) = state.memory.close_block(at)? {
            state.strict.freed(at, block.len, block.origin, call.origin());
        }
        Ok(())
    }
    cuIpcGetEventHandle none 4010 Driver (handle: Out<IpcHandle>, event: u64) |call| {
        handle.make(|| call.driver.state().export_event(event).map(|reserved| IpcHandle { reserved }))
    }
    cuIpcOpenEventHandle none 4010 Driver (event: Out<u64>, handle: IpcHandle) |call| {
        event.make(|| {
            let context = call.context()?;
            call.driver.state().open_event(context, &handle.reserved)
        })
    }
}
