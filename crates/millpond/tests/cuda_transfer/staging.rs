//! A staging whose copy function uses the staging, and a staging on a captured stream.

use crate::Place;
use crate::support::emulator::{self, in_children};
use millpond::cuda::{CudaDevice, CudaError, CudaStream, DevicePool, Staging};
use std::sync::{Arc, Mutex, OnceLock};

fn strictly() -> impl Iterator<Item = String> {
    std::iter::once("strict:on".to_owned())
}

/// The call would deadlock.
#[test]
fn a_staging_refuses_calls_from_its_own_copy_function() {
    in_children(
        "staging::a_staging_refuses_calls_from_its_own_copy_function",
        strictly(),
        || {
            let device = CudaDevice::get(0).expect("a device");
            let stream = CudaStream::new(&device).expect("a stream");
            let pool = DevicePool::new(&device).expect("a pool");
            let inner = pool.alloc::<u8>(4, &stream).expect("memory");
            let inner = Mutex::new((inner, Vec::new()));
            let told = Arc::new(inner);
            let itself: Arc<OnceLock<Staging>> = Arc::default();
            let (theirs, again) = (Arc::clone(&told), Arc::clone(&itself));
            let staging = Staging::with_copy(&device, 2, 4, move |to, from| {
                to.copy_from_slice(from);
                let (buffer, told) = &mut *theirs.lock().expect("no panic");
                let staging = again.get().expect("it is made");
                told.push(staging.upload(&[1; 4], buffer));
                told.push(staging.download(buffer, &mut [0; 4]));
            });
            let staging = itself.get_or_init(|| staging.expect("slots"));
            let mut there = pool.alloc::<u8>(8, &stream).expect("memory");
            staging.upload(&[7; 8], &mut there).expect("a copy");
            let mut back = [0; 8];
            staging.download(&there, &mut back).expect("a copy");
            assert_eq!(back, [7; 8]);
            let told = std::mem::take(&mut told.lock().expect("no panic").1);
            assert_eq!(told, vec![Err(CudaError::Reentered); 8]);
            // Another thread is not part of the copy, and waits for its turn.
            std::thread::scope(|scope| {
                let other = scope.spawn(|| staging.download(&there, &mut [0; 8]));
                other.join().expect("it ends").expect("a copy");
            });
        },
    );
}

/// Slots are reused long before captured work runs. Both directions are refused, and the capture continues.
#[test]
fn a_staging_refuses_captured_streams() {
    in_children("staging::a_staging_refuses_captured_streams", strictly(), || {
        let device = CudaDevice::get(0).expect("a device");
        let stream = CudaStream::new(&device).expect("a stream");
        let pool = DevicePool::new(&device).expect("a pool");
        let staging = Staging::with_slots(&device, 2, 4).expect("slots");
        let mut there = pool.alloc_from(&[1u8; 8], &stream).expect("memory");
        for mode in 0..3 {
            emulator::begin_capture_in(mode, stream.as_raw());
            assert_eq!(staging.upload(&[7; 8], &mut there), Err(CudaError::Captured));
            assert_eq!(staging.download(&there, &mut [0; 8]), Err(CudaError::Captured));
            assert!(
                emulator::end_capture(stream.as_raw()),
                "mode {mode}: it is spoilt"
            );
        }
        staging.upload(&[7; 8], &mut there).expect("a copy");
        assert_eq!(there.to_vec().expect("a copy"), [7; 8]);
        drop(there);
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// Each copy needs more slots than the staging has. The threads must not wait for each other's slots.
#[test]
fn threads_of_the_program_share_the_slots() {
    let Some(Place { device, pool, .. }) = Place::new() else {
        return;
    };
    for slots in [2, 5] {
        let staging = Staging::with_slots(&device, slots, 1000).expect("slots");
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let (device, pool, staging) = (&device, &pool, &staging);
                scope.spawn(move || {
                    let stream = CudaStream::new(device).expect("a stream");
                    let mut there = pool.alloc::<u32>(5000, &stream).expect("memory");
                    for round in 0..20 {
                        let sent: Vec<u32> = (0..5000).map(|at| at * 4 + thread + round).collect();
                        staging.upload(&sent, &mut there).expect("a copy");
                        let mut back = vec![0; sent.len()];
                        staging.download(&there, &mut back).expect("a copy");
                        assert_eq!(back, sent);
                    }
                });
            }
        });
    }
}

/// The copies are large enough for several threads.
#[test]
fn threads_of_the_library_copy_all_elements() {
    let Some(Place {
        device, pool, first, ..
    }) = Place::new()
    else {
        return;
    };
    let staging = Staging::new(&device).expect("slots");
    let len = (20 << 20) + 7;
    for one_in in [1_u32, 3] {
        let word = |at: u32| if at.is_multiple_of(one_in) { at | 1 } else { 0 };
        let sent: Vec<u32> = (0..len).map(word).collect();
        let mut there = pool.alloc::<u32>(sent.len(), &first).expect("memory");
        let compressed = staging
            .upload_compressed(&sent, &mut there, &pool)
            .expect("a copy");
        assert!(compressed.bytes == 4 * u64::from(len) && compressed.sent <= compressed.bytes);
        let mut back = vec![0; sent.len()];
        staging.download(&there, &mut back).expect("a copy");
        assert!(back == sent, "one in {one_in} is not zero");
        back.fill(7);
        staging.upload(&back, &mut there).expect("a copy");
        assert!(there.to_vec().expect("a copy") == back);
    }
}
