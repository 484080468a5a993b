//! Checks the CUDA driver and its devices.

use super::{Finding, State};
use crate::text::size;
use millpond::cuda::{CudaDevice, CudaError, missing_functions};

pub(super) fn findings() -> Vec<Finding> {
    let mut found = Vec::new();
    let version = match CudaDevice::driver_version() {
        Ok(version) => version,
        Err(CudaError::NoDriver) => {
            let advice = "GPU memory needs NVIDIA's driver (libcuda.so.1) where the loader finds it; replays need none of it";
            return vec![Finding::new("driver", State::Missing, "there is no CUDA driver").advise(advice)];
        }
        Err(error) => {
            let advice = "the driver is installed and does not start: see that its kernel module is loaded \
                          (nvidia-smi), and that this user or container may open /dev/nvidia*";
            return vec![Finding::new("driver", State::Missing, error.to_string()).advise(advice)];
        }
    };
    let text = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
    found.push(Finding::new("driver", State::Good, text));
    found.push(functions());
    match CudaDevice::count() {
        Ok(0) => found.push(
            Finding::new("devices", State::Missing, "the driver shows none").advise(
                "see that CUDA_VISIBLE_DEVICES does not hide them, and that the container was given some",
            ),
        ),
        Ok(count) => found.extend((0..count).flat_map(device)),
        Err(error) => found.push(Finding::new("devices", State::Unknown, error.to_string())),
    }
    found
}

fn functions() -> Finding {
    match missing_functions() {
        Ok(missing) if missing.is_empty() => {
            Finding::new("functions", State::Good, "the driver has all that are used here")
        }
        Ok(missing) => Finding::new(
            "functions",
            State::Limited,
            format!("it lacks {}", missing.join(", ")),
        )
        .advise("a newer driver has them; without them, pools use a fallback"),
        Err(error) => Finding::new("functions", State::Unknown, error.to_string()),
    }
}

fn device(number: u32) -> Vec<Finding> {
    let device = match CudaDevice::get(number) {
        Ok(device) => device,
        Err(error) => return vec![Finding::new("device", State::Missing, error.to_string())],
    };
    let (major, minor) = device.compute_capability();
    let memory = match device.memory() {
        Ok(memory) => format!("{} free of {}", size(memory.free), size(memory.total)),
        Err(error) => format!("its memory cannot be asked for: {error}"),
    };
    let about = format!("{device}, compute capability {major}.{minor}, {memory}");
    let mut found = vec![Finding::new("device", State::Good, about)];
    let pages = "virtual memory management: single pages can be added, returned and moved";
    found.push(match (device.has_virtual_memory(), device.has_pools()) {
        (true, _) => Finding::new("its pages", State::Good, pages),
        (false, true) => Finding::new("its pages", State::Limited, "no virtual memory management")
            .advise("pools take segments from the driver's own pool: nothing moves, and fragmentation stays"),
        (false, false) => Finding::new(
            "its pages",
            State::Limited,
            "neither virtual memory management nor pools",
        )
        .advise("pools take whole segments by cuMemAlloc: nothing moves, and fragmentation stays"),
    });
    found
}
