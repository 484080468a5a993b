//! Copies that omit zeros.

use crate::Place;
use crate::speed::{modelled, staging_at};
use crate::support::emulator::{self, in_any_order, in_children};
use millpond::cuda::{CudaDevice, Staging};

/// Returns words of which one in `one_in` is not zero, at pseudo-random places.
fn sparse(len: usize, one_in: u32) -> Vec<u32> {
    let mut state = 0x9E37_79B9u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    (0..len)
        .map(|_| if next() % one_in == 0 { next() | 1 } else { 0 })
        .collect()
}

/// Data that is sent without its zeros arrives complete, for any contents and length.
#[test]
fn zeros_are_left_out_and_put_back() {
    in_any_order("zeros::zeros_are_left_out_and_put_back", 20, || {
        let Place {
            device, pool, first, ..
        } = Place::on(CudaDevice::get(0).expect("a device"));
        let staging = Staging::with_slots(&device, 3, 100_000).expect("slots");
        for (len, one_in) in [
            (0, 2),
            (7, 2),
            (1024, 2),
            (1023, 3),
            (150_001, 2),
            (90_000, 1),
            (200_000, 50),
        ] {
            let numbers = sparse(len, one_in);
            let mut there = pool.alloc::<u32>(len, &first).expect("memory");
            let sent = staging
                .upload_compressed(&numbers, &mut there, &pool)
                .expect("a copy");
            assert_eq!(there.to_vec().expect("a copy"), numbers);
            assert_eq!(sent.bytes, 4 * len as u64);
            assert_eq!(sent.is_compressed(), len >= 1024 && one_in > 1, "{len} {one_in}");
            // The previous contents are overwritten where zeros were omitted.
            let mut again = pool.alloc_from(&vec![u32::MAX; len], &first).expect("memory");
            staging
                .upload_compressed(&numbers, &mut again, &pool)
                .expect("a copy");
            assert_eq!(again.to_vec().expect("a copy"), numbers);
        }
        // The sampled places are mostly zero, and the other places are not. Each slot is sent uncompressed if
        // necessary.
        let mut numbers = vec![5u32; 300_000];
        numbers[..250_000].fill(0);
        let mut there = pool.alloc::<u32>(numbers.len(), &first).expect("memory");
        let sent = staging
            .upload_compressed(&numbers, &mut there, &pool)
            .expect("a copy");
        assert_eq!(there.to_vec().expect("a copy"), numbers);
        assert!(sent.is_compressed() && sent.sent > 4 * 40_000, "{sent:?}");
        drop(there);
        let bytes: Vec<u8> = sparse(20_000, 3)
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .chain([1, 2, 3])
            .collect();
        let mut there = pool.alloc::<u8>(bytes.len(), &first).expect("memory");
        staging
            .upload_compressed(&bytes, &mut there, &pool)
            .expect("a copy");
        assert_eq!(there.to_vec().expect("a copy"), bytes);
        let other = pool.alloc::<u32>(3, &first);
        assert!(
            staging
                .upload_compressed(&[1, 2], &mut other.expect("memory"), &pool)
                .is_err()
        );
        drop((there, staging));
        assert_eq!(pool.stats().requested.current, 0);
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// Each call of the driver fails once. The failure is reported, and nothing is lost.
#[test]
fn a_compressed_copy_that_fails_loses_nothing() {
    let options = std::iter::once("strict:on".to_owned());
    in_children(
        "zeros::a_compressed_copy_that_fails_loses_nothing",
        options,
        || {
            let Place {
                device, pool, first, ..
            } = Place::on(CudaDevice::get(0).expect("a device"));
            let staging = Staging::with_slots(&device, 2, 65_536).expect("slots");
            let numbers = sparse(60_000, 3);
            let program = || -> Result<(), Box<dyn std::error::Error>> {
                let mut there = pool.alloc::<u32>(numbers.len(), &first)?;
                let sent = staging.upload_compressed(&numbers, &mut there, &pool)?;
                assert!(sent.is_compressed());
                assert_eq!(there.to_vec()?, numbers);
                Ok(())
            };
            program().expect("nothing fails");
            let before = emulator::calls(None);
            program().expect("nothing fails");
            let calls = emulator::calls(None) - before;
            let mut told = 0;
            for nth in 1..=calls {
                emulator::fail(Some(nth));
                told += u64::from(program().is_err());
                emulator::fail(None);
                assert_eq!(pool.stats().requested.current, 0, "call {nth} of {calls}");
                program().unwrap_or_else(|error| panic!("after call {nth} of {calls} failed: {error}"));
            }
            assert!(calls > 20 && told > 5, "{calls} calls, {told} told");
            assert_eq!(emulator::findings(), (0, String::new()));
        },
    );
}

/// Data that the host packs at 8 GB/s is compressed for a slow link, and sent unchanged over a fast one.
#[test]
fn zeros_stay_where_the_link_is_faster_than_the_host() {
    let options = ["link:5", "link:100"].map(str::to_owned).into_iter();
    in_children(
        "zeros::zeros_stay_where_the_link_is_faster_than_the_host",
        options,
        || {
            Staging::assume_host(10e9, 8e9);
            let is_slow = std::env::var("MILLPOND_CUDA_EMU").is_ok_and(|said| said == "link:5");
            let Place {
                device, pool, first, ..
            } = Place::on(CudaDevice::get(0).expect("a device"));
            let staging = Staging::with_slots(&device, 2, 1 << 20).expect("slots");
            let send = |numbers: &[u32]| {
                let mut there = pool.alloc_zeroed::<u32>(numbers.len(), &first).expect("memory");
                let sent = staging
                    .upload_compressed(numbers, &mut there, &pool)
                    .expect("a copy");
                assert_eq!(there.to_vec().expect("a copy"), numbers);
                sent.is_compressed()
            };
            for _ in 0..2 {
                assert_eq!(send(&sparse(1 << 20, 2)), is_slow);
            }
            assert!(send(&sparse(1 << 16, 2)), "nothing is measured for so little");
            assert_eq!(pool.stats().requested.current, 0);
        },
    );
}

/// Data with half zeros arrives faster than the link carries bytes if the host packs at the speed of a copy. Random
/// data takes at most 2 % longer than a plain copy, because it is refused after a sample.
#[test]
fn zeros_are_faster_than_the_link() {
    let options = std::iter::once("link:25".to_owned());
    in_children("zeros::zeros_are_faster_than_the_link", options, || {
        const LEN: usize = 32 << 20;
        const SPEED: u64 = 30;
        let Place {
            device, pool, first, ..
        } = Place::on(CudaDevice::get(0).expect("a device"));
        let staging = staging_at(&device, SPEED);
        staging.tell_of_packing(|bytes| {
            emulator::host_work(bytes as u64 / SPEED);
        });
        let mut there = pool.alloc_zeroed::<u32>(LEN, &first).expect("memory");
        first.synchronize().expect("done");
        let mut timed = |numbers: &[u32], compressed: bool| {
            let mut ratio = 1.0;
            let time = modelled(|| {
                if compressed {
                    let sent = staging
                        .upload_compressed(numbers, &mut there, &pool)
                        .expect("a copy");
                    ratio = sent.ratio();
                } else {
                    staging.upload(numbers, &mut there).expect("a copy");
                }
                first.synchronize().expect("done");
            });
            (time, ratio)
        };
        let (half, full) = (sparse(LEN, 2), sparse(LEN, 1));
        let bytes = 4 * LEN as u64;
        let (zeros, ratio) = timed(&half, true);
        let (plain, _) = timed(&full, false);
        let (random, refused) = timed(&full, true);
        println!(
            "128 MiB at 25 GB/s and a host at {SPEED} GB/s: half zeros {:.1} GB/s ({:.1} % sent), random {:.1} GB/s, plain {:.1} GB/s",
            bytes as f64 / zeros as f64,
            100.0 * ratio,
            bytes as f64 / random as f64,
            bytes as f64 / plain as f64,
        );
        assert!(bytes / 25 > zeros, "above the link");
        assert!(ratio < 0.55 && refused == 1.0);
        assert!(random * 100 <= plain * 102, "{random} {plain}");
    });
}
