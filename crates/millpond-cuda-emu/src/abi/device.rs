//! Initialisation, devices and their capabilities.

use super::args::{Out, Text};
use super::entries;
use crate::calls::Call;
use crate::error::{Answer, Code};
use crate::handshake::Identity;
use crate::options::Options;
use crate::visible::uuid_of;

/// Returns an attribute of a device, by `CUdevice_attribute`. Numbers that clients use for sizing are those of a large card of
/// compute capability 8.0. A 0 means that the feature is missing.
fn attribute(number: i32, device: u32, options: &Options) -> Option<i32> {
    Some(match number {
        1..=3 => 1024, // threads of a block, in all and each way
        4 => 64,
        5 => i32::MAX, // blocks of a grid
        6 | 7 => 65_535,
        8 => 49_152,             // shared memory of a block
        9 => 65_536,             // constant memory
        10 => 32,                // threads of a warp
        11 => i32::MAX,          // pitch
        12 => 65_536,            // registers
        13 => 1_410_000,         // kHz
        14 => 512,               // alignment of textures
        15 => 1,                 // copies overlap with kernels
        16 => 108,               // multiprocessors
        19 => 1,                 // host memory can be mapped
        31 => 1,                 // concurrent kernels
        33 => device as i32 + 1, // PCI bus
        36 => 1_593_000,         // memory kHz
        37 => 5_120,             // memory bus
        38 => 40 << 20,          // second-level cache
        39 => 2_048,             // threads of a multiprocessor
        40 => 2,                 // copy engines, one each way
        41 => 1,                 // unified addresses
        51 => 32,                // pitch alignment of textures
        75 => 8,
        76 => 0, // compute capability 8.0
        78 => 1, // priorities of streams
        79 | 80 => 1,
        81 => 167_936, // shared memory of a multiprocessor
        82 => 65_536,
        83 => 1, // managed memory
        87 => 2,
        89 => 1, // managed memory used by host and device at once
        90 => 1,
        91 => 1, // host pointers of registered memory are device pointers
        95 => 1,
        97 => 166_912,                             // shared memory of a block that opts in
        99 => 1,                                   // registration
        102 | 103 | 110 => i32::from(options.vmm), // virtual memory management, its export as a file, and GPUDirect RDMA of it
        106 => 32,                                 // blocks of a multiprocessor
        108 | 109 => 0,
        111 => 1_024, // shared memory that the driver keeps
        113 => 1,     // read-only registration
        115 => i32::from(options.pools),
        125 => 1,                                                     // events between processes
        142 => i32::from(options.pools && options.version >= 12_060), // pools of a node's memory
        144 => i32::from(options.pools && options.version >= 12_090), // pools of the host's memory
        _ if (1..=162).contains(&number) => 0,
        _ => return None,
    })
}

pub(super) fn text(out: Out<u8>, room: i32, text: &str) -> Answer {
    let room = usize::try_from(room)
        .ok()
        .filter(|room| *room > 0)
        .ok_or(Code::INVALID_VALUE)?;
    let mut bytes: Vec<u8> = text.bytes().take(room - 1).collect();
    bytes.push(0);
    out.fill(&bytes)
}

fn bus(device: u32) -> String {
    format!("0000:{:02X}:00.0", device + 1)
}

/// Returns the device with this PCI bus id. NVML writes the domain with eight digits.
pub(super) fn by_bus(call: &Call, id: &str) -> Option<u32> {
    let id = match id.split_once(':') {
        Some(("00000000", rest)) => format!("0000:{rest}"),
        _ => id.to_owned(),
    };
    (0..call.devices().len() as u32).find(|device| bus(call.on_machine(*device)).eq_ignore_ascii_case(&id))
}

entries! {
    cuInit none 2000 Nothing (flags: u32) |_call| {
        Code::INVALID_VALUE.when(flags != 0)?;
        crate::calls::initialise()
    }
    cuDriverGetVersion none 2020 Nothing (version: Out<i32>) |call| { version.set(call.options().version) }
    cuDeviceGet none 2000 Driver (device: Out<i32>, ordinal: i32) |call| {
        device.set(call.known_device(ordinal)? as i32)
    }
    cuDeviceGetCount none 2000 Driver (count: Out<i32>) |call| { count.set(call.devices().len() as i32) }
    cuDeviceGetName none 2000 Driver (name: Out<u8>, room: i32, device: i32) |call| {
        let device = call.known_device(device)?;
        text(name, room, &name_of(call.on_machine(device)))
    }
    cuDeviceGetUuid none 9020 Driver (uuid: Out<[u8; 16]>, device: i32) |call| { uuid.set(uuid_of(call.on_machine(call.known_device(device)?))) }
    cuDeviceGetUuid_v2 none 11040 Driver (uuid: Out<[u8; 16]>, device: i32) |call| { uuid.set(uuid_of(call.on_machine(call.known_device(device)?))) }
    cuDeviceTotalMem_v2 none 3020 Driver (bytes: Out<usize>, device: i32) |call| {
        let device = call.known_device(device)?;
        bytes.set(call.driver.state().memory.info(device)?.1 as usize)
    }
    cuDeviceGetAttribute none 2000 Driver (value: Out<i32>, number: i32, device: i32) |call| {
        let device = call.known_device(device)?;
        value.set(attribute(number, call.on_machine(device), call.options()).ok_or(Code::INVALID_VALUE)?)
    }
    cuDeviceComputeCapability none 2000 Driver (major: Out<i32>, minor: Out<i32>, device: i32) |call| {
        call.known_device(device)?;
        major.set(8)?;
        minor.set(0)
    }
    cuDeviceGetPCIBusId none 4010 Driver (id: Out<u8>, room: i32, device: i32) |call| {
        text(id, room, &bus(call.on_machine(call.known_device(device)?)))
    }
    cuDeviceGetByPCIBusId none 4010 Driver (device: Out<i32>, id: Text) |call| {
        device.set(by_bus(call, &id.get()?).ok_or(Code::INVALID_DEVICE)? as i32)
    }
    cuDeviceCanAccessPeer none 4000 Driver (can: Out<i32>, device: i32, peer: i32) |call| {
        can.set(i32::from(call.known_device(device)? != call.known_device(peer)?))
    }
    cuDeviceGetP2PAttribute none 8000 Driver (value: Out<i32>, number: i32, device: i32, peer: i32) |call| {
        Code::INVALID_DEVICE.when(call.known_device(device)? == call.known_device(peer)?)?;
        value.set(match number {
            1 => 0,          // rank: all are alike
            2 => 1,          // access
            3..=5 => 0,
            _ => return Err(Code::INVALID_VALUE),
        })
    }
}

pub(super) fn name_of(device: u32) -> String {
    format!("Millpond CUDA emulator {device}")
}

/// Returns the identity of a device in the question of the runtime.
pub(super) fn identity(device: u32) -> Identity {
    Identity {
        uuid: uuid_of(device),
        domain: 0,
        bus: device as i32 + 1,
        slot: 0,
    }
}
