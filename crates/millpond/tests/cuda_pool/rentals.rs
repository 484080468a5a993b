//! Rented buffers of a device: their lengths, their contents, and the buffers that are kept.

use crate::support::emulator;
use crate::{builder, device, is_alone};
use millpond::cuda::CudaStream;

const KIB: usize = 1 << 10;

#[test]
fn a_rented_buffer_is_zeroed_and_has_the_length_of_its_class() {
    let Some((device, stream)) = device() else { return };
    let pool = builder().build(&device).expect("a pool");
    let lengths = [0, 1, 256, 257, 300, 262_144, 262_145].map(|len| {
        let rented = pool.rent::<f32>(len, &stream).expect("fits");
        assert!(rented.to_vec().expect("a copy").iter().all(|x| *x == 0.0));
        rented.len()
    });
    assert_eq!(lengths, [256, 256, 256, 512, 512, 262_144, 524_288]);
    // The contents do not depend on the previous owner.
    let mut secret = pool.rent::<u8>(5000, &stream).expect("fits");
    let address = secret.address();
    secret.copy_from_host(&[7; 8192]).expect("as many");
    secret.give_back();
    let next = pool.rent::<u8>(5000, &stream).expect("fits");
    assert_eq!(
        (next.address(), next.to_vec().expect("a copy")),
        (address, vec![0; 8192])
    );
    assert!(pool.rent::<u64>(usize::MAX / 4, &stream).is_err());
    drop(next);
    assert_eq!(pool.stats().requested.current, 0);
}

#[test]
fn a_returned_buffer_is_rented_again_on_its_stream() {
    let Some((device, stream)) = device() else { return };
    let pool = builder().build(&device).expect("a pool");
    let other = CudaStream::new(&device).expect("a stream");
    let rental = pool.rental_of(2);
    let mut first = rental.rent::<u16>(1000, &stream).expect("fits");
    let address = first.address();
    first.copy_from_host(&[3; 1024]).expect("as many");
    drop(first);
    let elsewhere = rental.rent::<u16>(1000, &other).expect("fits");
    assert_ne!(elsewhere.address(), address);
    // The buffer has the length of its class, whatever its elements.
    let again = rental.rent::<u64>(200, &stream).expect("fits");
    assert_eq!((again.address(), again.len()), (address, 256));
    assert_eq!(again.to_vec().expect("a copy")[0], 0x0003_0003_0003_0003);
    drop((again, elsewhere));
    let stats = rental.stats();
    assert_eq!(
        (stats.rents, stats.reuses, stats.kept_bytes),
        (3, 1, 4 * KIB as u64)
    );
    // At most two buffers of a class are kept, and no large ones.
    let three = [0; 3].map(|_| rental.rent::<u8>(2000, &stream).expect("fits"));
    drop(three);
    drop(rental.rent::<u8>(2 << 20, &stream).expect("fits"));
    assert_eq!(rental.stats().kept_bytes, 4 * KIB as u64);
    assert_eq!(pool.stats().requested.current, 4 * KIB as u64);
    rental.clear();
    assert_eq!(
        (rental.stats().kept_bytes, pool.stats().requested.current),
        (0, 0)
    );
}

#[test]
fn a_buffer_swapped_in_by_its_renter_is_not_kept() {
    let Some((device, stream)) = device() else { return };
    let pool = builder().build(&device).expect("a pool");
    let another = builder().build(&device).expect("a pool");
    let rental = pool.rental();
    for mut mine in [
        pool.alloc::<u8>(100, &stream).expect("fits"),
        another.alloc::<u8>(KIB, &stream).expect("fits"),
    ] {
        let mut rented = rental.rent::<u8>(KIB, &stream).expect("fits");
        std::mem::swap(&mut mine, &mut rented);
        drop(rented);
        assert_eq!(rental.stats().kept_bytes, 0);
        assert_eq!(mine.len(), KIB);
    }
    assert_eq!(
        pool.stats().requested.current + another.stats().requested.current,
        0
    );
}

/// Recorded work on another stream comes before the next renter's.
#[test]
fn the_next_renter_comes_after_other_streams() {
    let options = (0..6).map(|seed| format!("streams:seeded,seed:{seed},strict:on"));
    emulator::in_children(
        "rentals::the_next_renter_comes_after_other_streams",
        options,
        || {
            let Some((device, stream)) = device() else { return };
            let pool = builder().build(&device).expect("a pool");
            let other = CudaStream::new(&device).expect("a stream");
            let rental = pool.rental();
            let busy = pool.alloc::<u8>(KIB, &other).expect("fits");
            for _ in 0..8 {
                let mut rented = rental.rent::<u8>(KIB, &stream).expect("fits");
                rented.copy_from_host(&[1; KIB]).expect("as many");
                rented.record_use(&other).expect("of the device");
                for _ in 0..4 {
                    emulator::set_bytes(busy.address(), 0, KIB, other.as_raw());
                }
                emulator::set_bytes(rented.address(), 2, KIB, other.as_raw());
                drop(rented);
                let mut next = rental.rent::<u8>(KIB, &stream).expect("fits");
                next.fill_zero().expect("it is put there");
                assert_eq!(next.to_vec().expect("a copy"), [0; KIB]);
            }
            assert_eq!(rental.stats().reuses, 15);
            let (count, text) = emulator::findings();
            assert_eq!(count, 0, "{text}");
        },
    );
}

/// Buffers that a graph has rented stay with the graph, and buffers that were kept before are not used by it.
#[test]
fn a_graph_keeps_what_it_has_rented() {
    if !is_alone("rentals::a_graph_keeps_what_it_has_rented") {
        return;
    }
    let Some((device, stream)) = device() else { return };
    let pool = builder().build(&device).expect("a pool");
    let rental = pool.rental();
    drop(rental.rent::<u8>(KIB, &stream).expect("fits"));
    let capture = pool.capture(&stream).expect("it begins");
    let mut rented = rental.rent::<u8>(KIB, &stream).expect("fits");
    assert!(rented.pool() == Some(capture.pool()));
    rented.fill_zero().expect("it is written down");
    drop(rented);
    let graph = capture.end().expect("a graph");
    let stats = rental.stats();
    assert_eq!((stats.rents, stats.reuses, stats.kept_bytes), (2, 0, KIB as u64));
    let again = rental.rent::<u8>(KIB, &stream).expect("fits");
    assert!(again.pool() == Some(&pool));
    drop(graph);
}

/// A rental does not wait for previous users if that would affect a capture: the renter's stream would join a capture of
/// this library, or break a capture of another one.
#[test]
fn a_rental_joins_no_capture() {
    if !is_alone("rentals::a_rental_joins_no_capture") {
        return;
    }
    let Some((device, stream)) = device() else { return };
    let pool = builder().build(&device).expect("a pool");
    let other = CudaStream::new(&device).expect("a stream");
    let rental = pool.rental();
    let keep_one = || {
        let mut rented = rental.rent::<u8>(KIB, &stream).expect("fits");
        rented.record_use(&other).expect("of the device");
    };
    keep_one();
    let capture = pool.capture(&other).expect("it begins");
    let mut rented = rental.rent::<u8>(KIB, &stream).expect("fits");
    rented
        .copy_from_host(&[1; KIB])
        .expect("it is done, and not written down");
    drop(rented);
    drop(capture.end().expect("nobody has joined"));

    if emulator::is_real() {
        return;
    }
    keep_one();
    emulator::begin_capture(stream.as_raw());
    drop(rental.rent::<u8>(KIB, &stream).expect("fits"));
    assert!(emulator::end_capture(stream.as_raw()), "it is spoilt");
}
