//! Sets of pools, of the host and of devices.

use crate::support::emulator;
use crate::{MIB, builder, device};
use millpond::cuda::CudaDevice;
use millpond::{Device, Event, EventKind, Pools, Tracking};
use std::sync::{Arc, Mutex};

/// A set has a pool for each device, made on demand; what acts on the set acts on it.
#[test]
fn a_set_has_pools_of_devices_too() {
    const TEST: &str = "sets::a_set_has_pools_of_devices_too";
    if !emulator::is_child(TEST) {
        let (passed, text) = emulator::child(TEST, "devices:2");
        assert!(passed, "{text}");
        return;
    }
    let Some((device, stream)) = device() else { return };
    let set = Pools::builder()
        .name("training")
        .cuda_template(builder().track(Some(Tracking::All)))
        .build();
    assert!(
        set.stats().pools.is_empty(),
        "nothing is made before it is asked for"
    );
    set.configure("limit:48MiB,trim-every:1s").expect("all have them");
    let seen = Arc::new(Mutex::new(0u64));
    let told = Arc::clone(&seen);
    set.subscribe(move |event: &Event<'_>| {
        if event.kind == EventKind::Allocated {
            *told.lock().expect("whole") += event.requested as u64;
        }
    });
    let pool = set.cuda(0).expect("a pool");
    assert!(set.cuda(0).expect("the same") == pool);
    assert_eq!((pool.name(), pool.limit()), ("training cuda:0", 48 * MIB));
    let held = pool.alloc::<f32>(1 << 20, &stream).expect("fits");
    let there = set
        .host()
        .expect("a pool")
        .alloc_zeroed::<u8>(1 << 20)
        .expect("fits");
    assert_eq!(*seen.lock().expect("whole"), 5 * MIB);
    let stats = set.stats();
    assert_eq!(stats.on(Device::Cuda(0)).requested.current, 4 * MIB);
    assert_eq!(stats.total.requested.current, 5 * MIB);
    assert!(stats.to_string().contains("training cuda:0"), "{stats}");
    let largest = set.largest(1);
    assert_eq!(
        (largest.blocks[0].pool.as_str(), largest.blocks[0].block.requested),
        ("training cuda:0", 4 << 20)
    );
    assert!(set.cuda(2).is_err(), "there is no such device");
    if let Ok(other) = CudaDevice::get(1) {
        assert_eq!(set.cuda(1).expect("a pool").device().number(), other.number());
        assert_eq!(set.stats().pools.len(), 3);
    }
    set.configure("limit:1GiB").expect("all have it");
    assert_eq!(pool.limit(), 1 << 30);
    drop((held, there));
    set.clear();
    let total = set.stats().total;
    assert_eq!((total.reserved.current, total.allocations), (0, 0));
    let mine = builder().name("mine").build(&device).expect("a pool");
    assert!(set.insert_cuda(mine.clone()).is_some_and(|before| before == pool));
    assert!(set.cuda(0).expect("mine") == mine);
    assert!(set.remove_cuda(0) == Some(mine) && set.cuda(0).expect("another") != pool);

    assert!(pool.configure("no-such:1").is_err());
    pool.configure("memory-fraction:0.5,zero-on-reuse:on,cache-size:4MiB")
        .expect("it has them");
    assert!(pool.limit() > 1 << 30);
}
