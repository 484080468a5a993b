//! Kernels and tensors on a CUDA device, on the emulated driver; on the machine's own with `MILLPOND_TEST_CUDA=real`.

#![cfg(target_os = "linux")]

mod support;

#[path = "cuda_tensor/agree.rs"]
mod agree;
#[path = "cuda_tensor/blas.rs"]
mod blas;
#[path = "cuda_tensor/launches.rs"]
mod launches;
#[path = "cuda_tensor/native.rs"]
mod native;
#[cfg(feature = "derive")]
#[path = "cuda_tensor/soa.rs"]
mod soa;
#[path = "cuda_tensor/tensors.rs"]
mod tensors;

use millpond::cuda::{CudaDevice, CudaStream, DevicePool};
use support::emulator::{self, in_any_order, in_children};

/// A device, a pool of it and a stream; none, with a message, where there is no driver to be had.
fn device() -> Option<(CudaDevice, DevicePool, CudaStream)> {
    emulator::load().then(|| {
        let device = CudaDevice::get(0).expect("a device");
        let pool = DevicePool::new(&device).expect("a pool");
        let stream = CudaStream::new(&device).expect("a stream");
        (device, pool, stream)
    })
}

/// Fails each call of the driver that a program makes, one at a time. It is told or made good, no byte is lost, and the next run
/// goes well.
fn each_call_fails(pool: &DevicePool, program: impl Fn() -> Result<(), Box<dyn std::error::Error>>) {
    let held = pool.stats().requested.current;
    let whole = || {
        let stats = pool.stats();
        assert_eq!(stats.requested.current, held, "a block is lost");
    };
    // What is made once is made before.
    program().expect("nothing fails");
    let before = emulator::calls(None);
    program().expect("nothing fails");
    let calls = emulator::calls(None) - before;
    whole();
    let (mut told, mut mended) = (0, 0);
    for nth in 1..=calls {
        emulator::fail(Some(nth));
        match program() {
            Ok(()) => mended += 1,
            Err(_) => told += 1,
        }
        emulator::fail(None);
        whole();
        assert_eq!(pool.lost(), None, "call {nth} of {calls}");
        program().unwrap_or_else(|error| panic!("after call {nth} of {calls} failed: {error}"));
        whole();
    }
    println!("{calls} calls: {told} failures told, {mended} made good");
    assert!(told > 0 && mended > 0);
    let (count, text) = emulator::findings();
    assert_eq!(count, 0, "{text}");
}
