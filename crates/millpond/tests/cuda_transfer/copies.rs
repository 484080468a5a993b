//! Pools of pinned and managed memory, transfers, and copies between devices and through slots.

use crate::support::emulator::{self, in_children};
use crate::{LEN, Place, device, numbers, ordinary, pinned_pool};
use millpond::cuda::{
    Advice, CudaDevice, CudaError, CudaManaged, CudaPinned, CudaStream, Registered, Staging, StagingError,
    Transfer,
};
use millpond::{
    Buffer, Device, MemoryKind, Pool, Unpooled,
    source::{MemorySource, is_pinned},
};
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn pools_of_pinned_memory_work_like_other_pools() {
    let Some(device) = device() else { return };
    let pool = Pool::builder()
        .limit(64 << 20)
        .capacity(4 << 20)
        .over(Box::new(CudaPinned::new(&device)))
        .expect("a pool");
    assert_eq!((pool.kind(), pool.device()), (MemoryKind::Pinned, Device::Host));
    assert!(pool.stats().reserved.current >= 4 << 20);
    let mut buffer = pool.alloc_zeroed::<u32>(300_000).expect("memory");
    assert!(buffer.iter().all(|n| *n == 0));
    buffer.copy_from_slice(&numbers(300_000));
    let last = &buffer[299_999];
    assert!(is_pinned(buffer.as_ptr()) && is_pinned(last));
    assert_ne!(device.address_of(&buffer).expect("pinned"), 0);
    let more = pool.alloc_zeroed::<u8>(100 << 20).expect_err("too much");
    assert!(
        more.is_out_of_memory() || more.to_string().contains("limit"),
        "{more}"
    );
    let small: Vec<_> = (1..200)
        .map(|n| pool.alloc_from(&vec![n as u8; n * 100]).expect("memory"))
        .collect();
    assert!((1..200).all(|n| small[n - 1].iter().all(|byte| usize::from(*byte) == n)));
    drop((buffer, small));
    assert_eq!(pool.stats().requested.current, 0);
    pool.compact();
    assert_eq!(pool.stats().reserved.current, 0);
    // Guarded blocks need pages that can be made inaccessible.
    let guarded = Pool::builder()
        .guard(true)
        .over(Box::new(CudaPinned::new(&device)));
    assert!(guarded.is_err());
    assert_eq!(device.address_of(&ordinary(&[1u8])), Err(CudaError::Pageable));
}

#[test]
fn ordinary_buffers_can_be_registered_temporarily() {
    let Some(device) = device() else { return };
    let pool = Pool::host().expect("a pool");
    let buffer = pool.alloc_from(&numbers(100_000)).expect("memory");
    let (first, last) = (buffer.as_ptr(), &raw const buffer[99_999]);
    let mut registered = Registered::new(&device, buffer).expect("registered");
    assert!(is_pinned(first) && is_pinned(last));
    registered[0] = 7;
    let buffer = registered.into_buffer();
    assert!(!is_pinned(first) && !is_pinned(last));
    assert_eq!((buffer[0], buffer.len()), (7, 100_000));
    // The driver has unregistered it too, so it can be registered again, and again after a drop.
    drop(Registered::new(&device, buffer).expect("registered"));
    assert_eq!((pool.stats().requested.current, is_pinned(first)), (0, false));
    let again = Registered::new(&device, pool.alloc_from(&numbers(100_000)).expect("memory"));
    assert_eq!(again.expect("registered")[1], numbers(2)[1]);
    let none = Registered::new(&device, pool.alloc_zeroed::<u8>(0).expect("nothing"));
    assert!(none.expect("nothing").into_buffer().is_empty());
    // Memory that the driver has pinned cannot be registered, and the buffer is returned.
    let pinned = pinned_pool(&device).alloc_from(&[1u8, 2, 3]).expect("memory");
    let refused = Registered::new(&device, pinned).expect_err("pinned already");
    assert!(refused.to_string().contains("cuMemHostRegister"), "{refused}");
    let pinned = refused.into_ends().expect("it comes back");
    assert!(pinned[..] == [1, 2, 3] && is_pinned(pinned.as_ptr()));
}

#[test]
fn managed_memory_moves_as_advised() {
    const BYTES: usize = 1 << 20;
    let Some(Place { device, first, .. }) = Place::new() else {
        return;
    };
    let source = Unpooled::over(Box::new(CudaManaged::new(&device).expect("managed memory")));
    let mut table = source.alloc_zeroed::<u8>(BYTES).expect("memory");
    table[5] = 5;
    assert_eq!(
        (table.kind(), table.device()),
        (MemoryKind::Managed, Device::Host)
    );
    let address = table.as_ptr().addr() as u64;
    let resident = |place: i32| {
        if emulator::is_real() {
            return None;
        }
        Some(emulator::resident(address, BYTES, place) as usize)
    };
    let is =
        |place: i32, bytes: usize| assert!(resident(place).is_none_or(|there| there == bytes), "{place}");
    let bring = |table: Buffer<u8>, place| {
        let bringing = first.prefetch(table, place).expect("it begins");
        bringing.wait().expect("it is there")
    };
    is(-1, BYTES);
    let mut table = bring(table, Device::Cuda(0));
    is(0, BYTES);
    is(-1, 0);
    table[6] = 6;
    let table = bring(table, Device::Host);
    is(-1, BYTES);
    assert_eq!(table[..8], [0, 0, 0, 0, 0, 5, 6, 0]);
    let advise = |table: &Buffer<u8>, advice| device.advise(table, advice).expect("advice");
    // Work of the device does not move pages that prefer the host. It moves all others.
    let touch = |table: &mut Buffer<u8>| {
        if !emulator::is_real() {
            emulator::set_bytes(table.as_ptr().addr() as u64, 9, BYTES, first.as_raw());
        }
        first.synchronize().expect("done");
    };
    let mut table = table;
    advise(&table, Advice::Prefer(Device::Host));
    touch(&mut table);
    is(-1, BYTES);
    advise(&table, Advice::PreferNowhere);
    touch(&mut table);
    is(0, BYTES);
    let mut table = bring(table, Device::Host);
    advise(&table, Advice::AccessedBy(Device::Cuda(0)));
    touch(&mut table);
    is(-1, BYTES);
    advise(&table, Advice::NotAccessedBy(Device::Cuda(0)));
    touch(&mut table);
    is(0, BYTES);
    let table = bring(table, Device::Host);
    advise(&table, Advice::ReadMostly);
    let table = bring(table, Device::Cuda(0));
    is(0, BYTES);
    is(-1, BYTES);
    advise(&table, Advice::NotReadMostly);
    is(0, 0);
    assert!(emulator::is_real() || table.iter().all(|byte| *byte == 9));

    let far = device.advise(&table, Advice::Prefer(Device::Cuda(1000)));
    assert!(matches!(far, Err(CudaError::NoDevice { number: 1000, .. })));
    let far = first
        .prefetch(table, Device::Cuda(1000))
        .expect_err("no such device");
    assert!(matches!(far.error(), CudaError::NoDevice { .. }));
    assert_eq!(far.into_ends().expect("it comes back").len(), BYTES);
    let ordinary = Unpooled::host().expect("a source").alloc_zeroed::<u8>(100);
    let ordinary = ordinary.expect("memory");
    assert_eq!(
        device.advise(&ordinary, Advice::ReadMostly),
        Err(CudaError::NotManaged)
    );
    let refused = first.prefetch(ordinary, Device::Host).expect_err("not managed");
    assert_eq!(refused.error(), CudaError::NotManaged);
    assert_eq!(source.held_bytes(), 0, "all of it went back");
    assert_eq!(
        CudaManaged::new(&device).expect("a source").kind(),
        MemoryKind::Managed
    );
}

#[test]
fn transfers_own_both_buffers_until_they_are_complete() {
    let Some(place) = Place::new() else { return };
    let Place {
        pool,
        pinned,
        first,
        second,
        ..
    } = &place;
    let sent = numbers(LEN);
    let host = pinned.alloc_from(&sent).expect("memory");
    let there = pool.alloc::<u32>(LEN, first).expect("memory");
    let going = second.upload(host, there).expect("it begins");
    assert!(going.stream() == second && !format!("{going:?}").is_empty());
    let (host, there) = going.wait().expect("it is there");
    let (other, going) = (
        pool.alloc_zeroed::<u32>(LEN, first).expect("memory"),
        second.clone(),
    );
    let (there, other) = going.copy(there, other).and_then(Transfer::wait).expect("a copy");
    assert_eq!(there.to_vec().expect("a copy"), sent);
    let mut host = host;
    host.fill(0);
    let coming = first.download(other, host).expect("it begins");
    let (back, other) = coming.wait().expect("it is here");
    assert_eq!(back[..], sent);
    // Registered memory works as well.
    let registered = Registered::new(&place.device, ordinary(&vec![0u32; LEN])).expect("registered");
    let (registered, other) = first
        .download(other, registered)
        .and_then(Transfer::wait)
        .expect("a copy");
    assert_eq!(registered[..], sent);
    // After a split, the buffer can be used on its own stream at once.
    let (coming, mut other) = second
        .download(other, back)
        .and_then(Transfer::split)
        .expect("it begins");
    other.fill_zero().expect("zeros");
    assert_eq!(coming.wait().expect("it is here")[..], sent);
    assert!(other.to_vec().expect("a copy").iter().all(|n| *n == 0));
    let mut polled = second.upload(registered, other).expect("it begins");
    while !polled.is_complete() {}
    polled = {
        let (registered, other) = polled.wait().expect("it is there");
        second.upload(registered, other).expect("it begins")
    };
    // A dropped transfer waits, and a forgotten one keeps its buffers.
    drop((there, polled));
    assert_eq!(
        (pool.stats().requested.current, pinned.stats().requested.current),
        (0, 0)
    );
}

#[test]
fn a_forgotten_transfer_keeps_its_buffers() {
    let Some(Place {
        pool, pinned, first, ..
    }) = Place::new()
    else {
        return;
    };
    let (host, there) = (pinned.alloc_from(&numbers(1000)), pool.alloc::<u32>(1000, &first));
    std::mem::forget(
        first
            .upload(host.expect("memory"), there.expect("memory"))
            .expect("it begins"),
    );
    assert_eq!(
        (pool.stats().requested.current, pinned.stats().requested.current),
        (4000, 4000)
    );
}

#[test]
fn a_refused_copy_returns_its_buffers() {
    let Some(Place {
        device,
        pool,
        pinned,
        first,
        ..
    }) = Place::new()
    else {
        return;
    };
    let host = |len| pinned.alloc_from(&numbers(len)).expect("memory");
    let there = |len| pool.alloc::<u32>(len, &first).expect("memory");
    let lengths = first.upload(host(3), there(4)).expect_err("not as many");
    assert_eq!(
        lengths.error(),
        CudaError::Length {
            expected: 4,
            found: 3
        }
    );
    let (three, four) = lengths.into_ends().expect("both");
    assert_eq!((three.len(), four.len()), (3, 4));
    assert!(first.download(four, three).is_err());
    assert!(first.copy(there(3), there(4)).is_err());
    let pageable = first
        .upload(ordinary(&[1u32, 2]), there(2))
        .expect_err("not pinned");
    assert!(pageable.to_string().contains("Staging"), "{pageable}");
    assert_eq!(pageable.into_ends().expect("both").0[..], [1, 2]);
    // Memory that the system has locked is not pinned by the driver.
    if let Ok(Ok(locked)) = Pool::builder().pinned().map(|pool| pool.alloc_from(&[1u32, 2])) {
        assert!(is_pinned(locked.as_ptr()));
        let refused = first.upload(locked, there(2)).expect_err("unknown to the driver");
        assert_eq!(refused.error(), CudaError::Pageable);
    }
    let nothing = first
        .upload(host(0), there(0))
        .and_then(Transfer::wait)
        .expect("nothing");
    assert!(nothing.0.is_empty() && nothing.1.is_empty());
    drop(nothing);
    let boxed: Box<dyn Error> = Box::new(first.upload(host(1), there(2)).expect_err("not as many"));
    assert!(boxed.to_string().contains("must have the same length"), "{boxed}");
    drop(boxed);
    assert_eq!(
        (pool.stats().requested.current, pinned.stats().requested.current),
        (0, 0)
    );
    let _ = device;
}

#[test]
fn devices_copy_to_each_other() {
    let options = ["devices:2,strict:on", "devices:2,streams:threads"].map(str::to_owned);
    in_children("copies::devices_copy_to_each_other", options.into_iter(), || {
        let [one, two] = [0, 1].map(|number| Place::on(CudaDevice::get(number).expect("a device")));
        let sent = numbers(LEN);
        for stream in [&one.first, &two.second, &CudaStream::legacy(&two.device)] {
            let there = one.pool.alloc_from(&sent, &one.first).expect("memory");
            // Its stream has not written it yet when the copy is requested.
            let mut from = one.pool.alloc::<u32>(LEN, &one.first).expect("memory");
            from.copy_from(&there).expect("a copy");
            let to = two.pool.alloc_zeroed::<u32>(LEN, &two.first).expect("memory");
            let (from, to) = stream.copy(from, to).and_then(Transfer::wait).expect("a copy");
            assert_eq!(
                (to.to_vec().expect("a copy"), to.device()),
                (sent.clone(), Device::Cuda(1))
            );
            // Pinned memory can be used with every device.
            let host = one.pinned.alloc_zeroed::<u32>(LEN).expect("memory");
            let coming = two.second.download(to, host).expect("it begins");
            assert_eq!(coming.wait().expect("it is here").0[..], sent);
            let host = one.pinned.alloc_zeroed::<u32>(LEN).expect("memory");
            let refused = two.first.download(from, host).expect_err("another device's");
            assert_eq!(
                refused.error(),
                CudaError::OtherDevice {
                    expected: 0,
                    found: 1
                }
            );
        }
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

#[test]
fn ordinary_memory_is_copied_through_slots() {
    let Some(Place {
        device, pool, first, ..
    }) = Place::new()
    else {
        return;
    };
    const SLOT: usize = 1000;
    let staging = Staging::with_slots(&device, 3, SLOT).expect("slots");
    assert_eq!((staging.slot_bytes(), staging.device().number()), (SLOT, 0));
    for len in [0, 1, 249, 250, 251, 500, 749, 750, 751, 1000, 1001, 12_345] {
        let sent = numbers(len);
        let mut there = pool.alloc::<u32>(len, &first).expect("memory");
        staging.upload(&sent, &mut there).expect("a copy");
        assert_eq!(there.to_vec().expect("a copy"), sent, "{len}");
        let mut back = vec![0; len];
        staging.download(&there, &mut back).expect("a copy");
        assert_eq!(back, sent, "{len}");
        let staged = staging.upload_owned(sent.clone(), there).expect("a thread");
        let (sent, there) = staged.wait().expect("a copy");
        let staged = staging.download_owned(there, vec![0u32; len]).expect("a thread");
        let (back, there) = staged.wait().expect("a copy");
        assert_eq!(back, sent);
        drop(staging.download_owned(there, back).expect("a thread"));
    }
    let mut there = pool.alloc::<u32>(4, &first).expect("memory");
    assert!(staging.upload(&[1, 2], &mut there).is_err() && staging.download(&there, &mut [0; 5]).is_err());
    let refused = staging
        .upload_owned(vec![1u32], there)
        .expect("a thread")
        .wait()
        .expect_err("not as many");
    assert_eq!(
        refused.error(),
        CudaError::Length {
            expected: 4,
            found: 1
        }
    );
    let (one, mut there) = refused.into_ends().expect("both");
    assert_eq!((one.len(), there.len()), (1, 4));
    for (slots, bytes) in [(1, 100), (0, 0), (3, 0)] {
        let refused = Staging::with_slots(&device, slots, bytes);
        assert!(
            matches!(refused, Err(StagingError::Slots { .. })),
            "{slots} of {bytes}"
        );
    }
    // If the caller's copy function panics, the panic reaches its caller, and the slots still work.
    let mood = std::sync::Arc::new(AtomicU64::new(0));
    let theirs = std::sync::Arc::clone(&mood);
    let moody = Staging::with_copy(&device, 2, 8, move |to, from| {
        assert_eq!(theirs.load(Ordering::Relaxed), 0, "told to");
        to.copy_from_slice(from);
    });
    let moody = moody.expect("slots");
    mood.store(1, Ordering::Relaxed);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        moody.upload(&[1, 2, 3, 4], &mut there)
    }));
    assert!(caught.is_err());
    let mut back = vec![0u32; 4];
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| moody.download(&there, &mut back)));
    assert!(caught.is_err());
    mood.store(0, Ordering::Relaxed);
    moody.upload(&[1, 2, 3, 4], &mut there).expect("a copy");
    moody.download(&there, &mut back).expect("a copy");
    assert_eq!(back, [1, 2, 3, 4]);
    drop((there, staging, moody));
    assert_eq!(pool.stats().requested.current, 0);
}
