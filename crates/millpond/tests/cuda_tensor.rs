//! Kernels and tensors on a CUDA device, on the emulated driver, or on the machine's own with
//! `MILLPOND_TEST_CUDA=real`.

#![cfg(target_os = "linux")]

mod support;

#[path = "cuda_tensor/agree.rs"]
mod agree;
#[path = "cuda_tensor/blas.rs"]
mod blas;
#[path = "cuda_tensor/closures.rs"]
mod closures;
#[path = "cuda_tensor/launches.rs"]
mod launches;
#[path = "cuda_tensor/native.rs"]
mod native;
#[path = "cuda_tensor/places.rs"]
mod places;
#[cfg(feature = "derive")]
#[path = "cuda_tensor/soa.rs"]
mod soa;
#[path = "cuda_tensor/tensors.rs"]
mod tensors;

use millpond::cuda::{CudaDevice, CudaStream, DevicePool};
use support::emulator::{self, in_any_order, in_children};

/// Returns a device, a pool of it and a stream, or prints a message and returns `None` if there is no driver.
fn device() -> Option<(CudaDevice, DevicePool, CudaStream)> {
    emulator::load().then(|| {
        let device = CudaDevice::get(0).expect("a device");
        let pool = DevicePool::new(&device).expect("a pool");
        let stream = CudaStream::new(&device).expect("a stream");
        (device, pool, stream)
    })
}

/// Makes each call of the driver in a program fail, one at a time. The failure is reported or handled, no byte is lost,
/// and the next run succeeds.
fn each_call_fails(pool: &DevicePool, program: impl Fn() -> Result<(), Box<dyn std::error::Error>>) {
    let held = pool.stats().requested.current;
    let whole = || {
        let stats = pool.stats();
        assert_eq!(stats.requested.current, held, "a block is lost");
    };
    // The first run allocates what is made only once.
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
