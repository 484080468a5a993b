//! Compressed copies.

use crate::Place;
use crate::speed::{modelled, staging_at};
use crate::support::emulator::{self, in_any_order, in_children};
use crate::support::packed::{KINDS, the_device_unpacks_like_the_host, words};
use millpond::cuda::{CudaDevice, Staging};

/// Compressed data arrives complete, for any contents and length.
#[test]
fn any_data_arrives_unchanged() {
    in_any_order("compressed::any_data_arrives_unchanged", 10, || {
        let Place {
            device, pool, first, ..
        } = Place::on(CudaDevice::get(0).expect("a device"));
        let staging = Staging::with_slots(&device, 3, 100_000).expect("slots");
        for (at, kind) in KINDS.iter().enumerate() {
            for len in [0, 7, 2047, 2048, 2049 + 100 * at, 60_001] {
                let numbers = words(kind, len);
                // The previous contents are overwritten.
                let mut there = pool.alloc_from(&vec![u32::MAX; len], &first).expect("memory");
                let sent = staging
                    .upload_compressed(&numbers, &mut there, &pool)
                    .expect("a copy");
                assert_eq!(there.to_vec().expect("a copy"), numbers);
                assert_eq!(sent.bytes, 4 * len as u64);
                assert_eq!(
                    sent.is_compressed(),
                    len >= 2048 && *kind != "random",
                    "{kind} {len}"
                );
            }
        }
        // The sampled places shrink, and the other places do not. Each slot is sent uncompressed if necessary.
        let mut numbers = words("random", 300_000);
        numbers[..250_000].fill(0);
        let mut there = pool.alloc::<u32>(numbers.len(), &first).expect("memory");
        let sent = staging
            .upload_compressed(&numbers, &mut there, &pool)
            .expect("a copy");
        assert_eq!(there.to_vec().expect("a copy"), numbers);
        assert!(sent.is_compressed() && sent.sent > 4 * 40_000, "{sent:?}");
        drop(there);
        // Bytes of larger values, and bytes that are no whole value.
        let tokens = words("tokens", 20_000);
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .chain([1, 2, 3])
            .collect();
        let mut there = pool.alloc::<u8>(bytes.len(), &first).expect("memory");
        let sent = staging
            .upload_compressed(&bytes, &mut there, &pool)
            .expect("a copy");
        assert_eq!(there.to_vec().expect("a copy"), bytes);
        assert!(sent.ratio() < 0.55, "{sent:?}");
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

/// The emulated kernel reads the host's format, and both refuse the same damaged data.
#[test]
fn the_emulated_kernel_agrees_with_the_host() {
    let options = std::iter::once("strict:on".to_owned());
    in_children(
        "compressed::the_emulated_kernel_agrees_with_the_host",
        options,
        || {
            let Place { pool, first, .. } = Place::on(CudaDevice::get(0).expect("a device"));
            the_device_unpacks_like_the_host(&pool, &first, 300, 40_000);
            assert_eq!(pool.stats().requested.current, 0);
            assert_eq!(emulator::findings(), (0, String::new()));
        },
    );
}

/// Each call of the driver fails once. The failure is reported, and nothing is lost.
#[test]
fn a_compressed_copy_that_fails_loses_nothing() {
    let options = std::iter::once("strict:on".to_owned());
    in_children(
        "compressed::a_compressed_copy_that_fails_loses_nothing",
        options,
        || {
            let Place {
                device, pool, first, ..
            } = Place::on(CudaDevice::get(0).expect("a device"));
            let staging = Staging::with_slots(&device, 2, 65_536).expect("slots");
            let numbers = words("weights", 60_000);
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

/// Returns modelled nanoseconds of a compressed and of a plain copy, and the ratio.
fn timed(staging: &Staging, place: &Place, numbers: &[u32]) -> (u64, u64, f64) {
    let Place { pool, first, .. } = place;
    let mut there = pool.alloc_zeroed::<u32>(numbers.len(), first).expect("memory");
    first.synchronize().expect("done");
    let mut ratio = 1.0;
    let mut send = |is_compressed: bool| {
        modelled(|| {
            if is_compressed {
                let sent = staging
                    .upload_compressed(numbers, &mut there, pool)
                    .expect("a copy");
                ratio = sent.ratio();
            } else {
                staging.upload(numbers, &mut there).expect("a copy");
            }
            first.synchronize().expect("done");
        })
    };
    let (compressed, plain) = (send(true), send(false));
    assert!(there.to_vec().expect("a copy") == numbers);
    (compressed, plain, ratio)
}

/// A host that copies at 30 GB/s and packs at 20 GB/s compresses what shrinks for a link of 12 GB/s, and nothing for faster links. No copy
/// takes more than 2 % longer than a plain one.
#[test]
fn compressed_copies_are_not_slower_than_plain_ones() {
    let options = ["link:12", "link:25", "link:55"].map(str::to_owned).into_iter();
    in_children(
        "compressed::compressed_copies_are_not_slower_than_plain_ones",
        options,
        || {
            const COPY: u64 = 30;
            const PACK: u64 = 20;
            const LEN: usize = 8 << 20;
            Staging::assume_host(COPY as f64 * 1e9, PACK as f64 * 1e9);
            let is_slow = std::env::var("MILLPOND_CUDA_EMU").is_ok_and(|said| said == "link:12");
            let place = Place::on(CudaDevice::get(0).expect("a device"));
            let staging = staging_at(&place.device, COPY);
            staging.tell_of_packing(|bytes| {
                emulator::host_work(bytes as u64 / PACK);
            });
            // The first copy measures the link.
            timed(&staging, &place, &words("constant", 1 << 20));
            for kind in KINDS {
                let numbers = words(kind, LEN);
                let (compressed, plain, ratio) = timed(&staging, &place, &numbers);
                let speed = |time| 4.0 * LEN as f64 / time as f64;
                println!(
                    "{kind:12} {:5.1} % sent, {:.1} GB/s, plain {:.1} GB/s",
                    100.0 * ratio,
                    speed(compressed),
                    speed(plain)
                );
                assert_eq!(ratio < 1.0, is_slow && kind != "random", "{kind}");
                assert!(compressed * 100 <= plain * 102, "{kind}: {compressed} {plain}");
                assert!(ratio == 1.0 || compressed < plain, "{kind}: {compressed} {plain}");
            }
            let small = words("tokens", 1 << 16);
            assert_eq!(timed(&staging, &place, &small).2 < 1.0, is_slow);
            assert_eq!(place.pool.stats().requested.current, 0);
        },
    );
}
