//! Compaction of device memory: the account and the driver's figure fall, and live blocks keep their addresses and contents.

use super::{MIB, builder, device, is_alone};
use millpond::cuda::{CudaDevice, CudaMemory, DeviceBuffer};

/// Returns the bytes that are in use according to the driver.
fn used(device: &CudaDevice) -> u64 {
    let memory = device.memory().expect("a device");
    memory.total - memory.free
}

#[test]
fn a_loop_until_the_ratio_is_low_ends() {
    if !is_alone("compaction::a_loop_until_the_ratio_is_low_ends") {
        return;
    }
    let Some((device, stream)) = device() else {
        return;
    };
    let pool = builder().trim_every(None).build(&device).expect("a pool");
    if pool.memory() != CudaMemory::Virtual {
        // Only whole segments go back.
        return;
    }
    let idle = used(&device);
    let mut held: Vec<(usize, DeviceBuffer<u32>)> = (0..60)
        .map(|number| {
            let len = (MIB as usize / 4) << (number * 7 % 5);
            let elements = vec![number as u32; len];
            (number, pool.alloc_from(&elements, &stream).expect("room"))
        })
        .collect();
    held.retain(|(number, _)| number % 3 == 0);
    let places: Vec<_> = held.iter().map(|(_, buffer)| buffer.address()).collect();
    let before = pool.stats();
    assert!(before.fragmentation_ratio() > 0.5, "{before:?}");
    while pool.stats().fragmentation_ratio() > 0.3 {
        let compaction = pool.compact();
        assert!(compaction.returned() > 0, "{compaction}");
    }
    let after = pool.stats();
    assert_eq!(after.allocated.current, before.allocated.current);
    assert_eq!(used(&device) - idle, after.reserved.current);
    assert_eq!(pool.compact().returned(), 0, "a second call finds more");
    assert!(held.iter().map(|(_, buffer)| buffer.address()).eq(places));
    for (number, buffer) in &held {
        let there = buffer.to_vec().expect("a copy");
        assert!(there.iter().all(|v| *v == *number as u32), "block {number}");
    }
}
