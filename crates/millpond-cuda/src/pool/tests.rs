//! Tests that need access to private parts of a pool.

use super::DevicePool;
use super::shared::{POOLS, all_pools};
use crate::device::{OPEN, open_devices};
use crate::{CudaDevice, CudaError, CudaStream};
use millpond_account::error::AllocError;
use millpond_os::end_of_child;
use millpond_pool::Prewarm;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Barrier, PoisonError};
use std::thread;

/// Loads the emulated driver, which is built next to the tests. Returns whether the driver exists.
fn load() -> bool {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    let here = std::env::current_exe().expect("this program");
    let name = "libmillpond_cuda_emu.so";
    let mut folders = here.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    let Some(path) = folders.find(|path| path.exists()) else {
        eprintln!("skipped: there is no {name} beside {}", here.display());
        return false;
    };
    // SAFETY: the library belongs to this workspace and does nothing when it is loaded.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
    // The library stays loaded until the process ends.
    std::mem::forget(library.expect("it loads"));
    true
}

fn is_broken<T>(outcome: &Result<T, AllocError>) -> bool {
    matches!(outcome, Err(AllocError::Cuda(error)) if error.downcast_ref() == Some(&CudaError::BrokenPool))
}

#[test]
fn a_panic_in_the_engine_breaks_a_device_pool() {
    if !load() {
        return;
    }
    let device = match CudaDevice::get(0) {
        Ok(device) => device,
        Err(error) => {
            // Another test of this process looked for a driver before the emulated driver was loaded.
            eprintln!("skipped: {error}");
            return;
        }
    };
    let (pool, stream) = (
        DevicePool::new(&device).expect("a pool"),
        CudaStream::new(&device).expect("a stream"),
    );
    let held = pool.alloc_from(&[1.0f32, 2.0, 3.0], &stream).expect("room");
    let given = pool.alloc_from(&[4.0f32], &stream).expect("room");
    let panic = catch_unwind(AssertUnwindSafe(|| pool.0.with_core(|_| panic!("injected"))));
    assert!(panic.is_err());
    drop(given);
    for bytes in [100, 5000, 3 << 20] {
        assert!(is_broken(&pool.alloc::<u8>(bytes, &stream)));
    }
    assert!(is_broken(&pool.reserve(1 << 40)));
    assert!(is_broken(&pool.prewarm(&Prewarm::of([(1 << 20, 2)]))));
    pool.trim();
    pool.compact();
    pool.collect_garbage();
    pool.clear();
    assert!(pool.stats().reserved.current >= 12, "its figures are still there");
    assert_eq!(held.to_vec().expect("a copy"), [1.0, 2.0, 3.0]);
    drop(pool);
    assert_eq!(held.to_vec().expect("a copy"), [1.0, 2.0, 3.0]);
    drop(held);
    let other = DevicePool::new(&device).expect("a pool");
    assert!(other.alloc_zeroed::<u8>(3 << 20, &stream).is_ok());
}

#[test]
fn a_forked_child_does_not_wait_for_the_locks_of_pools_and_devices() {
    let (locked, forked) = (Barrier::new(2), Barrier::new(2));
    let end = thread::scope(|scope| {
        scope.spawn(|| {
            let _pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
            let _devices = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
            locked.wait();
            forked.wait();
        });
        locked.wait();
        let end = end_of_child(|| all_pools().is_empty() && open_devices().is_empty());
        forked.wait();
        end
    });
    assert_eq!(end, 0);
}
