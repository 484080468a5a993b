//! Pinned and managed memory, transfers, staging and passes to a device, on the emulated driver, or on the machine's
//! own with `MILLPOND_TEST_CUDA=real` if a test needs no modelled time.

#![cfg(target_os = "linux")]

#[path = "cuda_transfer/awaited.rs"]
mod awaited;
#[path = "cuda_transfer/compressed.rs"]
mod compressed;
#[path = "cuda_transfer/copies.rs"]
mod copies;
#[path = "support/example.rs"]
mod example;
#[path = "support/files.rs"]
mod files;
#[path = "cuda_transfer/passes.rs"]
mod passes;
#[path = "cuda_transfer/program.rs"]
mod program;
#[path = "cuda_transfer/speed.rs"]
mod speed;
#[path = "cuda_transfer/staging.rs"]
mod staging;
mod support;
#[path = "cuda_transfer/tasks.rs"]
mod tasks;
#[path = "cuda_transfer/wakers.rs"]
mod wakers;

use millpond::cuda::{CudaDevice, CudaManaged, CudaPinned, CudaStream, DevicePool};
use millpond::engine::{Limit, Limited, Source};
use millpond::{Buffer, Element, Pool};
use std::error::Error;
use support::emulator;
use support::suite::{account, contents, faults, misuse, programs};

type Outcome = Result<(), Box<dyn Error>>;

/// Returns a device, or prints a message and returns `None` if there is no driver.
fn device() -> Option<CudaDevice> {
    emulator::load().then(|| CudaDevice::get(0).expect("a device"))
}

fn limited<S: Source>(capacity: Option<u64>, source: S) -> Limited<S> {
    Limited::new(source, Limit::new(capacity.unwrap_or(u64::MAX)))
}

fn pinned(capacity: Option<u64>) -> Option<Limited<CudaPinned>> {
    Some(limited(capacity, CudaPinned::new(&device()?)))
}

fn managed(capacity: Option<u64>) -> Option<Limited<CudaManaged>> {
    let source = CudaManaged::new(&device()?).expect("managed memory");
    Some(limited(capacity, source))
}

// The suite of every source of memory is in tests/sources.rs.
macro_rules! source_behaviour {
    ($($module:ident $make:expr;)*) => {
        $(mod $module {
            use super::*;
            source_behaviour!(@tests $make;
                account::{
                    capacity_is_a_wall,
                    segments_are_apart,
                    ranges_are_apart,
                    too_much_is_an_error,
                    events_pass,
                }
                contents::{fresh_memory_is_zero, contents_change_places}
                misuse::{foreign_tokens_are_refused, crooked_parts_are_refused}
                programs::{random_programs_agree_with_the_model, random_programs_keep_contents}
                faults::{each_call_fails_in_turn, failures_keep_contents}
            );
        })*
    };
    (@tests $make:expr; $($topic:ident::{$($test:ident),* $(,)?})*) => {
        $($(
            #[test]
            fn $test() {
                $topic::$test($make);
            }
        )*)*
    };
}

source_behaviour! {
    of_pinned_memory pinned;
    of_managed_memory managed;
}

fn pinned_pool(device: &CudaDevice) -> Pool {
    let source = Box::new(CudaPinned::new(device));
    Pool::builder().over(source).expect("a pool")
}

/// A device, a pool of it, a pool of pinned memory, and two streams.
struct Place {
    device: CudaDevice,
    pool: DevicePool,
    pinned: Pool,
    first: CudaStream,
    second: CudaStream,
}

impl Place {
    fn new() -> Option<Self> {
        Some(Self::on(device()?))
    }

    fn on(device: CudaDevice) -> Self {
        Self {
            pool: DevicePool::new(&device).expect("a pool"),
            pinned: pinned_pool(&device),
            first: CudaStream::new(&device).expect("a stream"),
            second: CudaStream::new(&device).expect("a stream"),
            device,
        }
    }
}

/// Returns ordinary memory.
fn ordinary<T: Element>(elements: &[T]) -> Buffer<T> {
    let pool = Pool::host().expect("a pool");
    pool.alloc_from(elements).expect("memory")
}

const LEN: usize = 300_000;

fn numbers(len: usize) -> Vec<u32> {
    (0..len as u32).map(|n| n.wrapping_mul(0x9e37_79b9)).collect()
}
