//! A few functions of NVIDIA's management library, which name devices, report their memory and the processes that use them, and report that
//! they have no NVLink. The devices are those that the process sees, in its order.
//!
//! They return NVML codes. Failures before a function is entered return the driver's codes.

use super::args::{Out, Text};
use super::device::{by_bus, name_of, text};
use super::entries;
use crate::calls::Call;
use crate::error::{Answer, Code};
use crate::visible::uuid_text;

/// Values of `nvmlReturn_t`, returned in place of the driver's codes.
const INVALID_ARGUMENT: Code = Code(2);
const NOT_SUPPORTED: Code = Code(3);
const NOT_FOUND: Code = Code(6);
const INSUFFICIENT_SIZE: Code = Code(7);

/// `nvmlProcessInfo_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProcessInfo {
    process: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct OldProcessInfo {
    process: u32,
    used: u64,
}

/// Returns the number of a device. A handle is this number plus 1, because 0 is null.
fn number(device: usize) -> Answer<i32> {
    let number = device
        .checked_sub(1)
        .and_then(|number| i32::try_from(number).ok());
    number.ok_or(INVALID_ARGUMENT)
}

/// Returns the device of a handle.
fn known(call: &Call, device: usize) -> Answer<u32> {
    call.known_device(number(device)?).map_err(|_| INVALID_ARGUMENT)
}

/// Writes a text, which must fit.
fn line(place: Out<u8>, room: u32, what: &str) -> Answer {
    INSUFFICIENT_SIZE.when(room as usize <= what.len())?;
    text(place, i32::try_from(room).unwrap_or(i32::MAX), what)
}

/// Lists this process, which is the only process on an emulated device. `info` makes the entry from the bytes that it uses.
fn processes<T: Copy>(
    call: &Call,
    device: usize,
    count: Out<u32>,
    infos: Out<T>,
    info: impl FnOnce(u64) -> T,
) -> Answer {
    let device = known(call, device)?;
    let (free, total) = call
        .driver
        .state()
        .memory
        .info(device)
        .map_err(|_| INVALID_ARGUMENT)?;
    let used = total - free;
    let room = count.get().map_err(|_| INVALID_ARGUMENT)?;
    count.set(u32::from(used > 0))?;
    if used == 0 {
        return Ok(());
    }
    INSUFFICIENT_SIZE.when(room == 0)?;
    infos.set(info(used))
}

entries! {
    nvmlInit_v2 none 5000 Nothing () |_call| { Ok(()) }
    nvmlShutdown none 5000 Nothing () |_call| { Ok(()) }
    nvmlDeviceGetCount_v2 none 5000 Driver (count: Out<u32>) |call| { count.set(call.devices().len() as u32) }
    nvmlDeviceGetHandleByIndex_v2 none 5000 Driver (index: u32, device: Out<usize>) |call| {
        INVALID_ARGUMENT.when(index as usize >= call.devices().len())?;
        device.set(index as usize + 1)
    }
    nvmlDeviceGetHandleByUUID none 5000 Driver (uuid: Text, device: Out<usize>) |call| {
        let uuid = uuid.get()?;
        let found = call.devices().iter().position(|device| uuid_text(*device) == uuid);
        device.set(found.ok_or(NOT_FOUND)? + 1)
    }
    nvmlDeviceGetIndex none 5000 Driver (device: usize, index: Out<u32>) |call| {
        index.set(known(call, device)?)
    }
    nvmlDeviceGetUUID none 5000 Driver (device: usize, uuid: Out<u8>, room: u32) |call| {
        line(uuid, room, &uuid_text(call.on_machine(known(call, device)?)))
    }
    nvmlDeviceGetName none 5000 Driver (device: usize, name: Out<u8>, room: u32) |call| {
        line(name, room, &name_of(call.on_machine(known(call, device)?)))
    }
    nvmlDeviceGetMemoryInfo none 5000 Driver (device: usize, info: Out<MemoryInfo>) |call| {
        let (free, total) = call.driver.state().memory.info(known(call, device)?)?;
        info.set(MemoryInfo { total, free, used: total - free })
    }
    nvmlDeviceGetHandleByPciBusId_v2 none 5000 Driver (bus: Text, device: Out<usize>) |call| {
        let found = by_bus(call, &bus.get()?).ok_or(NOT_FOUND)?;
        device.set(found as usize + 1)
    }
    nvmlDeviceGetComputeRunningProcesses_v3 none 11000 Driver (
        device: usize, count: Out<u32>, infos: Out<ProcessInfo>
    ) |call| {
        processes(call, device, count, infos, |used| ProcessInfo {
            process: std::process::id(),
            used,
            gpu_instance: u32::MAX,
            compute_instance: u32::MAX,
        })
    }
    nvmlDeviceGetComputeRunningProcesses none 5000 Driver (
        device: usize, count: Out<u32>, infos: Out<OldProcessInfo>
    ) |call| {
        processes(call, device, count, infos, |used| OldProcessInfo { process: std::process::id(), used })
    }
    nvmlSystemGetCudaDriverVersion_v2 none 9000 Nothing (version: Out<i32>) |call| {
        version.set(call.options().version).map_err(|_| INVALID_ARGUMENT)
    }
    nvmlDeviceGetNvLinkRemoteDeviceType none 11000 Nothing (_device: usize, _link: u32, _kind: Out<i32>) |_call| {
        Err(NOT_SUPPORTED)
    }
    nvmlDeviceGetNvLinkRemotePciInfo_v2 none 11000 Nothing (_device: usize, _link: u32, _info: usize) |_call| {
        Err(NOT_SUPPORTED)
    }
    nvmlDeviceGetGpuFabricInfoV none 12000 Nothing (_device: usize, _info: usize) |_call| { Err(NOT_SUPPORTED) }
}
