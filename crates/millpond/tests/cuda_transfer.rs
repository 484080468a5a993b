//! Pinned and managed memory, transfers, staging and passes that come to a device, on the emulated driver; on the machine's own with
//! `MILLPOND_TEST_CUDA=real`, where modelled time is not asked for.

#![cfg(target_os = "linux")]

#[path = "support/files.rs"]
mod files;
#[path = "cuda_transfer/staging.rs"]
mod staging;
mod support;

use cudarc::driver::sys;
use files::Folder;
use millpond::cuda::{
    Advice, CudaDevice, CudaError, CudaManaged, CudaPinned, CudaStream, DeviceBuffer, DevicePool, Registered,
    Staging, StagingError, Transfer,
};
use millpond::engine::{Limit, Limited, Source};
use millpond::{
    Buffer, DataError, DataSet, Device, Element, MemoryKind, MemorySource, Pool, Unpooled, is_pinned,
};
use std::error::Error;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use support::emulator::{self, in_any_order, in_children};
use support::suite::{account, contents, faults, misuse, programs};

type Outcome = Result<(), Box<dyn Error>>;

/// A device; none, with a message, where there is no driver to be had.
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

// The suite of every source of memory: see tests/sources.rs.
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

/// A device, a pool of it, one of pinned memory, and two streams.
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

/// Ordinary memory.
fn ordinary<T: Element>(elements: &[T]) -> Buffer<T> {
    let pool = Pool::host().expect("a pool");
    pool.alloc_from(elements).expect("memory")
}

const LEN: usize = 300_000;

fn numbers(len: usize) -> Vec<u32> {
    (0..len as u32).map(|n| n.wrapping_mul(0x9e37_79b9)).collect()
}

#[test]
fn pools_of_pinned_memory_are_pools() {
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
    // Guarded blocks take pages that can be closed.
    let guarded = Pool::builder()
        .guard(true)
        .over(Box::new(CudaPinned::new(&device)));
    assert!(guarded.is_err());
    assert_eq!(device.address_of(&ordinary(&[1u8])), Err(CudaError::Pageable));
}

#[test]
fn ordinary_buffers_are_registered_for_a_while() {
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
    // The driver has let go of it too: it can be registered again, and again after a drop.
    drop(Registered::new(&device, buffer).expect("registered"));
    assert_eq!((pool.stats().requested.current, is_pinned(first)), (0, false));
    let again = Registered::new(&device, pool.alloc_from(&numbers(100_000)).expect("memory"));
    assert_eq!(again.expect("registered")[1], numbers(2)[1]);
    let none = Registered::new(&device, pool.alloc_zeroed::<u8>(0).expect("nothing"));
    assert!(none.expect("nothing").into_buffer().is_empty());
    // What the driver has pinned itself it does not register: the buffer comes back.
    let pinned = pinned_pool(&device).alloc_from(&[1u8, 2, 3]).expect("memory");
    let refused = Registered::new(&device, pinned).expect_err("pinned already");
    assert!(refused.to_string().contains("cuMemHostRegister"), "{refused}");
    let pinned = refused.into_ends().expect("it comes back");
    assert!(pinned[..] == [1, 2, 3] && is_pinned(pinned.as_ptr()));
}

#[test]
fn managed_memory_goes_where_it_is_wanted() {
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
    // Work of the device on pages that are wanted on the host leaves them there; else it takes them along.
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
fn transfers_have_both_ends_until_they_are_done() {
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
    // What was registered is as good.
    let registered = Registered::new(&place.device, ordinary(&vec![0u32; LEN])).expect("registered");
    let (registered, other) = first
        .download(other, registered)
        .and_then(Transfer::wait)
        .expect("a copy");
    assert_eq!(registered[..], sent);
    // Split, the buffer is its own stream's again at once.
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
    // Dropped, it waits; forgotten, it keeps what it has.
    drop((there, polled));
    assert_eq!(
        (pool.stats().requested.current, pinned.stats().requested.current),
        (0, 0)
    );
}

#[test]
fn what_is_forgotten_is_kept() {
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
fn what_cannot_be_copied_comes_back() {
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
    // Locked by the system is not pinned by the driver.
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
    assert!(boxed.to_string().contains("give as many"), "{boxed}");
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
    in_children("devices_copy_to_each_other", options.into_iter(), || {
        let [one, two] = [0, 1].map(|number| Place::on(CudaDevice::get(number).expect("a device")));
        let sent = numbers(LEN);
        for stream in [&one.first, &two.second, &CudaStream::legacy(&two.device)] {
            let there = one.pool.alloc_from(&sent, &one.first).expect("memory");
            // Its stream has not written it yet when the copy is asked for.
            let mut from = one.pool.alloc::<u32>(LEN, &one.first).expect("memory");
            from.copy_from(&there).expect("a copy");
            let to = two.pool.alloc_zeroed::<u32>(LEN, &two.first).expect("memory");
            let (from, to) = stream.copy(from, to).and_then(Transfer::wait).expect("a copy");
            assert_eq!(
                (to.to_vec().expect("a copy"), to.device()),
                (sent.clone(), Device::Cuda(1))
            );
            // Pinned memory is any device's, by way of whichever it was taken.
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
fn ordinary_memory_goes_through_slots() {
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
    // A copy of the caller's own: its panic is its caller's, and the slots serve on.
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

/// A file of so many numbers.
fn file(folder: &Folder, len: usize) -> std::path::PathBuf {
    let path = folder.0.join(format!("{len}.u32"));
    let bytes: Vec<u8> = numbers(len).iter().flat_map(|n| n.to_ne_bytes()).collect();
    std::fs::write(&path, bytes).expect("a file");
    path
}

fn data_of(folder: &Folder, len: usize, row: usize) -> DataSet<u32> {
    let data = DataSet::builder().file(file(folder, len)).row(row).open();
    data.expect("a data set")
}

/// Goes through a data set on the device, and puts it together there.
fn through(
    place: &Place,
    data: &DataSet<u32>,
    readers: usize,
    depth: usize,
) -> Result<Vec<u32>, Box<dyn Error>> {
    // The pass is given this block again, and may not write there before the stream has.
    drop(place.pool.alloc_zeroed::<u32>(64 * data.row(), &place.first)?);
    let mut all = Vec::new();
    let mut kept = Vec::new();
    let pass = data
        .pass()
        .rows(64)
        .readers(readers)
        .to_device(&place.pool, &place.first, depth);
    let passed = pass.try_for_each(|chunk| -> Outcome {
        assert_eq!(chunk.row_number(0), Some(chunk.number() * 64));
        assert!(!chunk.is_empty() && chunk.row_number(64).is_none());
        let mut copy = place.pool.alloc::<u32>(chunk.buffer().len(), &place.first)?;
        copy.copy_from(chunk.buffer())?;
        // The next user of the buffer has to come after this.
        chunk.buffer_mut().fill_zero()?;
        kept.push((copy, chunk.len()));
        Ok(())
    })?;
    for (copy, len) in kept {
        all.extend_from_slice(&copy.to_vec()?[..len]);
    }
    assert_eq!(passed.rows, data.rows());
    Ok(all)
}

#[test]
fn a_data_set_comes_to_the_device() {
    let Some(place) = Place::new() else { return };
    let folder = Folder::new("cuda-pass");
    for (len, row) in [(10_000, 10), (640, 10), (50, 50), (65, 1)] {
        let data = data_of(&folder, len, row);
        for (readers, depth) in [(1, 0), (1, 2), (1, 3), (3, 4)] {
            assert_eq!(
                through(&place, &data, readers, depth).expect("it comes"),
                numbers(len)
            );
        }
    }
    let data = data_of(&folder, 10_000, 10);
    let pass = || {
        data.pass()
            .rows(64)
            .pool(&place.pinned)
            .to_device(&place.pool, &place.first, 2)
    };
    let stopped = pass().try_for_each(|chunk| {
        if chunk.number() == 3 {
            Err("enough".into())
        } else {
            Ok::<_, Box<dyn Error>>(())
        }
    });
    assert_eq!(stopped.expect_err("it ends").to_string(), "enough");
    let swapped = pass().try_for_each(|chunk| {
        *chunk.buffer_mut() = place.pool.alloc(5, &place.first).expect("memory");
        Ok::<_, DataError>(())
    });
    assert!(matches!(
        swapped,
        Err(DataError::Cuda(CudaError::Length { found: 5, .. }))
    ));
    let ordinary = Pool::host().expect("a pool");
    let pass = data
        .pass()
        .pool(&ordinary)
        .to_device(&place.pool, &place.first, 2)
        .for_each(|_| {});
    assert!(matches!(pass, Err(DataError::Cuda(CudaError::Pageable))));
    let small = data
        .pass()
        .rows(64)
        .budget(1000)
        .to_device(&place.pool, &place.first, 2)
        .for_each(|_| {});
    assert!(matches!(small, Err(DataError::Budget { .. })));
    // What the files lack is told by the pass, whichever thread it is found on.
    std::fs::write(file(&folder, 10_000), [0; 40]).expect("a file");
    assert!(matches!(
        data.pass()
            .to_device(&place.pool, &place.first, 2)
            .for_each(|_| {}),
        Err(DataError::Truncated { .. } | DataError::Changed { .. })
    ));
    assert_eq!(
        (
            place.pool.stats().requested.current,
            place.pinned.stats().requested.current
        ),
        (0, 0)
    );
}

/// All there is of this module, once.
fn program(place: &Place, data: &DataSet<u32>, managed: &Unpooled) -> Outcome {
    let Place {
        device,
        pool,
        pinned,
        first,
        second,
    } = place;
    let sent = numbers(LEN);
    let there = pool.alloc_zeroed::<u32>(LEN, first)?;
    let (host, there) = second.upload(pinned.alloc_from(&sent)?, there)?.wait()?;
    let other = pool.alloc::<u32>(LEN, second)?;
    let (there, mut other) = first.copy(there, other)?.wait()?;
    let (host, mut there) = second.upload(host, there)?.split()?;
    there.fill_zero()?;
    drop(host);
    let registered = Registered::new(device, ordinary(&sent))?;
    let (registered, back) = second.download(other, registered)?.wait()?;
    assert_eq!(registered[..], sent);
    other = back;
    let staging = Staging::with_slots(device, 2, 400_000)?;
    staging.upload(&registered.into_buffer(), &mut other)?;
    let mut back = vec![0u32; LEN];
    staging.download(&other, &mut back)?;
    assert_eq!(back, sent);
    let (back, _) = staging.upload_owned(back, other)?.wait()?;
    let mut table = managed.alloc_from(&back)?;
    device.advise(&table, Advice::Prefer(Device::Cuda(0)))?;
    table = second.prefetch(table, Device::Cuda(0))?.wait()?;
    assert_eq!(table[..], sent);
    assert_eq!(
        through(place, data, 1, 2)?,
        numbers(data.rows() as usize * data.row())
    );
    pool.compact();
    pinned.compact();
    Ok(())
}

fn whole(place: &Place, managed: &Unpooled) {
    let device = place.pool.stats();
    assert_eq!(
        (device.requested.current, device.allocations),
        (0, device.frees),
        "on the device"
    );
    let pinned = place.pinned.stats();
    assert_eq!(
        (pinned.requested.current, pinned.allocations),
        (0, pinned.frees),
        "pinned"
    );
    assert_eq!(managed.held_bytes(), 0);
}

/// Each call of the driver that the program makes fails once: it is told, nothing is lost, and all of it serves afterwards.
#[test]
fn each_call_fails_in_turn() {
    let options = ["strict:on", "streams:seeded,seed:5,strict:on"].map(str::to_owned);
    in_children("each_call_fails_in_turn", options.into_iter(), || {
        let place = Place::on(CudaDevice::get(0).expect("a device"));
        let folder = Folder::new("cuda-faults");
        let data = data_of(&folder, 300, 1);
        let managed = Unpooled::over(Box::new(CudaManaged::new(&place.device).expect("managed memory")));
        program(&place, &data, &managed).expect("nothing fails");
        let before = emulator::calls(None);
        program(&place, &data, &managed).expect("nothing fails");
        let calls = emulator::calls(None) - before;
        whole(&place, &managed);
        let free = place.device.memory().expect("figures").free;
        let (mut told, mut mended) = (0, 0);
        for nth in 1..=calls {
            emulator::fail(Some(nth));
            match program(&place, &data, &managed) {
                Ok(()) => mended += 1,
                Err(_) => told += 1,
            }
            emulator::fail(None);
            whole(&place, &managed);
            assert_eq!(place.pool.lost(), None, "call {nth} of {calls}");
            program(&place, &data, &managed)
                .unwrap_or_else(|error| panic!("after call {nth} of {calls} failed: {error}"));
            whole(&place, &managed);
        }
        assert_eq!(place.device.memory().expect("figures").free, free);
        assert_eq!(place.pinned.stats().reserved.current, 0);
        assert_eq!(millpond::pinned_bytes(), 0);
        println!("{calls} calls: {told} failures told, {mended} made good");
        assert!(calls > 200 && told > 50 && mended > 50);
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// Work as late and as interleaved as CUDA allows: every byte is right, and nothing is used that is not ordered.
#[test]
fn any_order_of_work_is_right() {
    in_any_order("any_order_of_work_is_right", 100, || {
        let place = Place::on(CudaDevice::get(0).expect("a device"));
        let folder = Folder::new("cuda-orders");
        let data = data_of(&folder, 1000, 1);
        let managed = Unpooled::over(Box::new(CudaManaged::new(&place.device).expect("managed memory")));
        for _ in 0..2 {
            program(&place, &data, &managed).expect("nothing fails");
            whole(&place, &managed);
        }
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// A transfer comes after what others do with the device's end, if they were recorded; and one that is dropped keeps the host's until
/// it is done.
#[test]
fn transfers_wait_for_others_and_others_for_them() {
    in_any_order("transfers_wait_for_others_and_others_for_them", 20, || {
        let Place {
            pool,
            pinned,
            first,
            second,
            device,
        } = Place::on(CudaDevice::get(0).expect("a device"));
        let third = CudaStream::new(&device).expect("a stream");
        let mut there: DeviceBuffer<u32> = pool.alloc_zeroed(LEN, &first).expect("memory");
        third.wait_for(&first).expect("it waits");
        emulator::set_bytes(there.address(), 7, 4 * LEN, third.as_raw());
        there.record_use(&third).expect("its device");
        let host = pinned.alloc_zeroed::<u32>(LEN).expect("memory");
        let coming = second.download(there, host).and_then(Transfer::wait);
        let (host, there) = coming.expect("a copy");
        assert!(host.iter().all(|n| *n == 0x0707_0707));

        let (going, there) = second
            .upload(host, there)
            .and_then(Transfer::split)
            .expect("it begins");
        drop(going);
        let next = pinned.alloc_from(&vec![1u32; LEN]).expect("memory");
        assert!(there.to_vec().expect("a copy").iter().all(|n| *n == 0x0707_0707));
        assert_eq!(next[0], 1);
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// Whatever the driver gave for all of that it has back.
#[test]
fn what_the_driver_gave_goes_back() {
    in_children(
        "what_the_driver_gave_goes_back",
        std::iter::once(String::new()),
        || {
            let device = CudaDevice::get(0).expect("a device");
            let folder = Folder::new("cuda-balance");
            let data = data_of(&folder, 300, 1);
            let managed = Unpooled::over(Box::new(CudaManaged::new(&device).expect("managed memory")));
            let place = Place::on(device);
            program(&place, &data, &managed).expect("nothing fails");
            drop((place, managed));
            for (given, back) in [
                (c"cuMemHostAlloc", c"cuMemFreeHost"),
                (c"cuMemHostRegister", c"cuMemHostUnregister"),
                (c"cuMemAllocManaged", c"cuMemFree"),
                (c"cuEventCreate", c"cuEventDestroy"),
                (c"cuStreamCreate", c"cuStreamDestroy"),
            ] {
                let calls = [given, back].map(|name| emulator::calls(Some(name)));
                assert!(calls[0] > 0 && calls[0] == calls[1], "{given:?}: {calls:?}");
            }
        },
    );
}

/// What is planted is found: another stream writes what a transfer copies, and waits for nothing.
#[test]
fn a_missing_wait_is_found() {
    let options = std::iter::once("streams:seeded,seed:1,strict:on".to_owned());
    in_children("a_missing_wait_is_found", options, || {
        let Place {
            pool,
            pinned,
            first,
            second,
            ..
        } = Place::on(CudaDevice::get(0).expect("a device"));
        let there: DeviceBuffer<u32> = pool.alloc_zeroed(LEN, &first).expect("memory");
        let (address, host) = (there.address(), pinned.alloc_from(&numbers(LEN)).expect("memory"));
        let (host, there) = second
            .upload(host, there)
            .and_then(Transfer::split)
            .expect("it begins");
        assert_eq!(emulator::findings(), (0, String::new()), "all of that is ordered");
        let third = CudaStream::new(there.stream().device()).expect("a stream");
        emulator::set_bytes(address, 7, 4 * LEN, third.as_raw());
        drop((host, there));
        assert!(emulator::findings().0 > 0, "the planted race was not found");
    });
}

/// Modelled nanoseconds that something takes.
fn modelled(work: impl FnOnce()) -> u64 {
    let began = emulator::host_work(0);
    work();
    emulator::host_work(0) - began
}

/// A staging whose copies on the host take modelled time: at so many gigabytes a second.
fn staging_at(device: &CudaDevice, speed: u64) -> Staging {
    let (slots, bytes) = (3, 8 << 20);
    let copy = move |to: &mut [u8], from: &[u8]| {
        to.copy_from_slice(from);
        emulator::host_work(from.len() as u64 / speed);
    };
    Staging::with_copy(device, slots, bytes, copy).expect("slots")
}

/// Ordinary memory through slots takes no more than a tenth longer than pinned memory, each way, on a link of 25 GB/s where the host
/// copies 30 GB/s; by the driver alone it takes twice as long. Where the host copies 12 GB/s it is the host that is waited for.
#[test]
fn staged_copies_are_nearly_as_fast_as_pinned_ones() {
    let name = "staged_copies_are_nearly_as_fast_as_pinned_ones";
    in_children(name, std::iter::once("link:25".to_owned()), || {
        const BYTES: usize = 256 << 20;
        let Place {
            device,
            pool,
            pinned,
            first,
            ..
        } = Place::on(CudaDevice::get(0).expect("a device"));
        let mut there = pool.alloc_zeroed::<u8>(BYTES, &first).expect("memory");
        let mut ordinary = vec![7u8; BYTES];
        first.synchronize().expect("done");

        let mut ends = Some((pinned.alloc_zeroed::<u8>(BYTES).expect("memory"), there));
        let mut pinned_way = |up: bool| {
            modelled(|| {
                let (host, there) = ends.take().expect("both");
                let going = if up {
                    first.upload(host, there)
                } else {
                    first.download(there, host)
                };
                ends = Some(going.and_then(Transfer::wait).expect("a copy"));
            })
        };
        let [up, down] = [true, false].map(&mut pinned_way);
        there = ends.take().expect("both").1;

        let pageable = modelled(|| there.copy_from_host(&ordinary).expect("a copy"));
        let mut staged_at = |speed| {
            let staging = staging_at(&device, speed);
            let up = modelled(|| {
                staging.upload(&ordinary, &mut there).expect("a copy");
                first.synchronize().expect("done");
            });
            (
                up,
                modelled(|| staging.download(&there, &mut ordinary).expect("a copy")),
            )
        };
        let (fast, slow) = (staged_at(30), staged_at(12));
        let host = BYTES as u64 / 12;
        println!(
            "256 MiB, up and down, in modelled us: pinned {} {}, staged {} {} (the host at 30 GB/s), {} {} (at 12 GB/s), pageable {}",
            up / 1000,
            down / 1000,
            fast.0 / 1000,
            fast.1 / 1000,
            slow.0 / 1000,
            slow.1 / 1000,
            pageable / 1000
        );
        assert!(
            up >= BYTES as u64 / 25 && down >= BYTES as u64 / 25,
            "the link is a limit"
        );
        assert!(fast.0 * 10 <= up * 11 && fast.1 * 10 <= down * 11);
        assert!(pageable * 10 >= up * 19);
        assert!(slow.0 >= host && slow.0 * 10 <= host * 11 && slow.1 >= host && slow.1 * 10 <= host * 11);
        assert!(ordinary.iter().all(|byte| *byte == 7));
    });
}

/// A kernel of the test's own, which takes its time.
struct Kernel(sys::CUfunction);

impl Kernel {
    fn new(name: &CStr, nanoseconds: u64) -> Self {
        emulator::register(name, nanoseconds);
        let name_of = name.to_str().expect("a name");
        let text = std::ffi::CString::new(format!(".version 8.0\n.visible .entry {name_of}() {{ }}"));
        let text = text.expect("no zero in it");
        let (mut context, mut module, mut function) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: the pointer is to a local, and there is a device 0.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, 0) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
        // SAFETY: the context was retained just now.
        let code = unsafe { sys::cuCtxSetCurrent(context) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
        // SAFETY: the first pointer is to a local, the other to a C string.
        let code = unsafe { sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
        // SAFETY: the module was loaded just now, and the name is a C string.
        let code = unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
        Self(function)
    }

    fn launch(&self, stream: &CudaStream) {
        let none = ptr::null_mut();
        let stream = stream.as_raw().cast();
        // SAFETY: the function takes no parameters, and the stream lives.
        let code = unsafe { sys::cuLaunchKernel(self.0, 1, 1, 1, 1, 1, 1, 0, stream, none, ptr::null_mut()) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    }
}

/// A pass to the device takes no more than a tenth longer than its slowest stage alone, whichever that is; and copying and computing
/// overlap by nine tenths of the shorter of the two. Reading is modelled by what the reader's thread does to each chunk.
#[test]
fn a_pass_is_as_fast_as_its_slowest_stage() {
    let name = "a_pass_is_as_fast_as_its_slowest_stage";
    let options = [
        "link:1",
        "link:1,streams:threads",
        "link:1,streams:seeded,seed:3,strict:on",
    ];
    in_children(name, options.into_iter().map(str::to_owned), || {
        const CHUNKS: u64 = 64;
        const CHUNK: usize = 128 << 10;
        let place = Place::on(CudaDevice::get(0).expect("a device"));
        let folder = Folder::new("cuda-stages");
        let data = data_of(&folder, CHUNK * CHUNKS as usize, 1);
        // What a chunk takes on a link of 1 GB/s: 512 KiB, and what comes before the first byte.
        let copying = 4 * CHUNK as u64 + 8_000;
        for (reading, computing) in [
            (800_000, 400_000),
            (200_000, 500_000),
            (100_000, 800_000),
            (532_000, 532_000),
        ] {
            let kernel = Kernel::new(c"takes_its_time", computing);
            place.first.synchronize().expect("done");
            let pass = data.pass().rows(CHUNK).prepare(|_| {
                emulator::host_work(reading);
            });
            let taken = modelled(|| {
                let pass = pass.to_device(&place.pool, &place.first, 3);
                let passed = pass.for_each(|_| kernel.launch(&place.first)).expect("it comes");
                assert_eq!(passed.rows, data.rows());
                place.first.synchronize().expect("done");
            });
            let slowest = CHUNKS * reading.max(copying).max(computing);
            let (copies, work) = (CHUNKS * copying, CHUNKS * computing);
            let overlap = (copies + work).saturating_sub(taken);
            println!(
                "{CHUNKS} chunks, in modelled us: reading {} each, copying {}, computing {}: {} in all, {} for the slowest alone",
                reading / 1000,
                copying / 1000,
                computing / 1000,
                taken / 1000,
                slowest / 1000
            );
            assert!(taken >= slowest && taken * 10 <= slowest * 11);
            // Where reading is the slowest the others wait for it and not for each other.
            assert!(reading > copying.max(computing) || overlap * 10 >= copies.min(work) * 9);
        }
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// Words of which one in so many is not zero, picked as by chance.
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

/// What is sent without its zeros is there with them, whatever it holds and wherever it ends.
#[test]
fn zeros_are_left_out_and_put_back() {
    in_any_order("zeros_are_left_out_and_put_back", 20, || {
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
            // What lay there before is not seen through the holes.
            let mut again = pool.alloc_from(&vec![u32::MAX; len], &first).expect("memory");
            staging
                .upload_compressed(&numbers, &mut again, &pool)
                .expect("a copy");
            assert_eq!(again.to_vec().expect("a copy"), numbers);
        }
        // Much is zero where the sample looks, and nothing elsewhere: each slot for itself is sent as it is.
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

/// Each call of the driver fails once: it is told, and nothing is lost.
#[test]
fn a_compressed_copy_that_fails_loses_nothing() {
    let options = std::iter::once("strict:on".to_owned());
    in_children("a_compressed_copy_that_fails_loses_nothing", options, || {
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
    });
}

/// What a host packs at 8 GB/s goes over a slow link without its zeros, and over a fast one as it is.
#[test]
fn zeros_stay_where_the_link_is_faster_than_the_host() {
    let options = ["link:5", "link:100"].map(str::to_owned).into_iter();
    in_children(
        "zeros_stay_where_the_link_is_faster_than_the_host",
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

/// Half zeros come faster than the link carries bytes, where the host leaves them out at the speed it copies with; what is as good as
/// random comes within 2 % of a plain copy, as it is refused after a look.
#[test]
fn zeros_are_faster_than_the_link() {
    let options = std::iter::once("link:25".to_owned());
    in_children("zeros_are_faster_than_the_link", options, || {
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
