//! Tests of the lengths, the contents and the return of rented buffers.
#![allow(unsafe_code, reason = "whoever makes a plain type says so by an unsafe word")]

use super::*;
use crate::unpooled::fake;

fn rental(most: usize) -> (Rental, crate::Unpooled) {
    let source = fake::unpooled();
    (Rental::over(Arc::new(source.clone()), most), source)
}

#[test]
fn lengths_are_powers_of_two_of_bytes() {
    let (rental, source) = rental(16);
    for (bytes, class) in [
        (0, 1 << 10),
        (1, 1 << 10),
        (1 << 10, 1 << 10),
        ((1 << 10) + 1, 2 << 10),
        (40_000, 64 << 10),
        ((512 << 10) + 1, 1 << 20),
    ] {
        assert_eq!(rental.rent::<u8>(bytes).expect("room").len(), class);
        let floats = rental.rent::<f64>(bytes.div_ceil(8)).expect("room");
        assert!(floats.len() == class / 8 && floats.len() * 8 >= bytes);
    }
    assert_eq!(class_of((1 << 20) + 1).ok(), Some((None, 2 << 20)));
    assert!(matches!(
        rental.rent::<u64>(usize::MAX),
        Err(AllocError::TooLarge { .. })
    ));
    assert!(matches!(
        rental.rent::<u8>(isize::MAX as usize),
        Err(AllocError::TooLarge { .. } | AllocError::Source(_))
    ));
    rental.clear();
    assert_eq!((source.held_bytes(), rental.stats().kept_bytes), (0, 0));
}

#[test]
fn a_new_buffer_is_zeroed_and_a_reused_buffer_keeps_its_contents() {
    let (rental, source) = rental(16);
    let mut first = rental.rent::<u32>(200).expect("room");
    assert!(first.iter().all(|word| *word == 0));
    first.fill(0x0102_0304);
    let place = first.as_ptr().addr();
    first.give_back();
    let second = rental.rent::<u8>(900).expect("room");
    assert_eq!((second.as_ptr().addr(), second.len()), (place, 1024));
    assert!(second.chunks(4).all(|word| word == 0x0102_0304u32.to_ne_bytes()));
    drop(second);
    assert_eq!(
        rental.stats(),
        RentalStats {
            rents: 2,
            reuses: 1,
            kept_bytes: 1024
        }
    );
    assert_eq!(source.held_bytes(), 4096, "of one page");
}

#[test]
fn element_sizes_that_do_not_divide_the_class_leave_no_uninitialised_byte() {
    let (rental, _) = rental(16);
    let mut crooked = rental.rent::<[u8; 3]>(340).expect("room");
    assert_eq!(crooked.len(), 341);
    crooked.fill([9; 3]);
    drop(crooked);
    let bytes = rental.rent::<u8>(1).expect("room");
    assert!(bytes[..1023].iter().all(|byte| *byte == 9) && bytes[1023] == 0);
}

#[test]
fn two_sets_never_see_each_others_data() {
    let source = fake::unpooled();
    let sets = [(); 2].map(|()| Rental::over(Arc::new(source.clone()), 1));
    for value in 1..5u8 {
        for set in &sets {
            let mut rented = set.rent::<u8>(1000).expect("room");
            assert!(rented.iter().all(|byte| *byte == value - 1));
            rented.fill(value);
        }
    }
}

#[test]
fn a_set_keeps_at_most_its_limit_of_buffers() {
    let (rental, source) = rental(3);
    let rented: Vec<_> = (0..10).map(|_| rental.rent::<u8>(2048).expect("room")).collect();
    drop(rented);
    assert_eq!(
        (rental.stats().kept_bytes, source.held_bytes()),
        (3 * 2048, 3 * 4096)
    );
    let large = rental.rent::<u8>(1 << 20).expect("room");
    drop(large);
    assert_eq!(rental.stats().kept_bytes, 3 * 2048 + (1 << 20));
}

#[test]
fn a_rental_keeps_no_buffer_with_a_larger_alignment() {
    #[derive(Clone, Copy)]
    #[repr(C, align(256))]
    struct Wide([u8; 256]);
    // SAFETY: the type consists of as many bytes as its alignment.
    unsafe impl bytemuck::Zeroable for Wide {}
    // SAFETY: as above.
    unsafe impl Pod for Wide {}
    let (rental, source) = rental(3);
    let wide = rental.rent::<Wide>(5).expect("room");
    assert!(wide.len() == 8 && wide.as_ptr().addr().is_multiple_of(256) && wide[0].0[255] == 0);
    drop(wide);
    assert_eq!((rental.stats().kept_bytes, source.held_bytes()), (0, 0));
}

#[test]
fn a_rented_buffer_may_outlive_its_set() {
    let (rental, source) = rental(3);
    let rented = rental.rent::<u8>(100).expect("room");
    let other = rental.clone();
    drop(rental);
    drop(other);
    std::thread::spawn(move || drop(rented)).join().expect("no panic");
    assert_eq!(source.held_bytes(), 0);
}

#[test]
#[cfg_attr(miri, ignore)]
fn a_pool_rents_zeroed_buffers_and_gets_them_back() {
    let pool = Pool::host().expect("a pool");
    for round in 0..3 {
        for bytes in [10, 3000, 1 << 20, (1 << 20) + 1] {
            let mut rented = pool.rent::<u8>(bytes).expect("room");
            assert!(rented.iter().all(|byte| *byte == 0), "round {round}");
            rented.fill(7);
        }
    }
    let stats = pool.stats();
    assert_eq!((stats.requested.current, stats.frees), (0, 12));
}

#[test]
#[cfg_attr(miri, ignore)]
fn threads_share_a_set() {
    let pool = Pool::host().expect("a pool");
    let rental = pool.rental();
    std::thread::scope(|scope| {
        for seed in 1..5u8 {
            let rental = &rental;
            scope.spawn(move || {
                for i in 0..2000usize {
                    let mut rented = rental.rent::<u8>(i * 37 % 100_000).expect("room");
                    rented.fill(seed);
                    std::hint::black_box(&mut rented);
                    assert!(rented.iter().step_by(97).all(|byte| *byte == seed));
                }
            });
        }
    });
    let stats = rental.stats();
    assert!(stats.rents == 8000 && stats.reuses > 7900, "{stats:?}");
    let requested = pool.stats().requested.current;
    assert_eq!(requested, stats.kept_bytes);
    drop(rental);
    assert_eq!(pool.stats().requested.current, 0);
}
