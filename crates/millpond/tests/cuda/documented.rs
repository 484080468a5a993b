//! Tests that the library relies only on what the driver's documentation promises. They cover drivers that refuse what most drivers
//! allow, old drivers, libraries that are not drivers, and streams of other libraries that end. They run on emulated drivers only.

use crate::support::emulator::{self, in_children};
use millpond::cuda::{
    self, CudaDevice, CudaError, CudaMemory, CudaPinned, CudaSharing, CudaSource, CudaStream, DevicePool,
    DriverPool, Registered,
};
use millpond::engine::Source;
use millpond::{Pool, Unpooled};
use std::path::Path;

fn one(options: &str) -> impl Iterator<Item = String> {
    std::iter::once(options.to_owned())
}

fn setup() -> (CudaDevice, CudaStream) {
    let device = CudaDevice::get(0).expect("a device");
    let stream = CudaStream::new(&device).expect("a stream");
    (device, stream)
}

/// The documentation promises that one call unmaps one mapping. If a driver refuses to unmap several at once, each has its own call.
#[test]
fn mappings_are_unmapped_one_by_one_if_the_driver_refuses_several() {
    const TEST: &str = "documented::mappings_are_unmapped_one_by_one_if_the_driver_refuses_several";
    in_children(TEST, one("unmap:single,strict:on"), || {
        let (device, stream) = setup();
        let mut source = CudaSource::new(&device, CudaMemory::Virtual).expect("a source");
        let page = source.page_bytes();
        let (from, to) = (source.reserve(8 * page), source.reserve(8 * page));
        let (from, to) = (from.expect("addresses"), to.expect("addresses"));
        source.commit(&from, 0, 4 * page, page).expect("memory");
        let moved = source.move_pages((&from, 0), (&to, page), 4 * page);
        assert_eq!(moved.expect("they move"), 4);
        emulator::set_bytes(to.address() + page, 7, 4 * page as usize, stream.as_raw());
        // The caller of `decommit` has to ensure that nothing uses the pages any more.
        stream.synchronize().expect("it ends");
        assert_eq!(source.decommit(&to, page, 4 * page), 4);
        assert_eq!((source.lost(), source.used_bytes()), (None, 0));
        source.release(from);
        source.release(to);
        drop(source);

        let pool = DevicePool::builder().memory(CudaMemory::Virtual).build(&device);
        let pool = pool.expect("a pool");
        drop(pool.alloc::<u8>(50 << 20, &stream).expect("memory"));
        pool.compact();
        assert_eq!((pool.lost(), pool.stats().reserved.current), (None, 0));
        drop(pool.alloc::<u8>(50 << 20, &stream).expect("the pool serves"));
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// Four handles move. The driver unmaps the first and refuses to unmap the next, however often it is asked. All four stay at their old
/// addresses and remain usable.
#[test]
fn a_move_that_fails_between_two_mappings_changes_nothing() {
    const TEST: &str = "documented::a_move_that_fails_between_two_mappings_changes_nothing";
    let options = "unmap:single,strict:on,fail:cuMemUnmap@3,fail:cuMemUnmap@4,fail:cuMemUnmap@5";
    in_children(TEST, one(options), || {
        let (device, stream) = setup();
        let mut source = CudaSource::new(&device, CudaMemory::Virtual).expect("a source");
        let page = source.page_bytes();
        let (from, to) = (source.reserve(4 * page), source.reserve(4 * page));
        let (from, to) = (from.expect("addresses"), to.expect("addresses"));
        source.commit(&from, 0, 4 * page, page).expect("memory");
        source
            .move_pages((&from, 0), (&to, 0), 4 * page)
            .expect_err("the driver refuses");
        assert_eq!((source.lost(), source.used_bytes()), (None, 4 * page));
        emulator::set_bytes(from.address(), 7, 4 * page as usize, stream.as_raw());
        stream.synchronize().expect("the pages are there");
        let moved = source.move_pages((&from, 0), (&to, 0), 4 * page);
        assert_eq!(moved.expect("nothing is in the way"), 4);
        drop(source);
        assert_eq!(
            device.memory().map(|memory| memory.free),
            device.memory().map(|memory| memory.total)
        );
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// A page at two addresses is one page: work on it has to be ordered, whichever address it uses. The second program is a planted fault.
#[test]
fn work_through_a_second_mapping_is_ordered_after_the_first() {
    const TEST: &str = "documented::work_through_a_second_mapping_is_ordered_after_the_first";
    in_children(TEST, one("strict:on"), || {
        for ordered in [true, false] {
            let (device, stream) = setup();
            let other = CudaStream::new(&device).expect("a stream");
            let mut source = CudaSource::new(&device, CudaMemory::Virtual).expect("a source");
            let page = source.page_bytes();
            let range = source.reserve(8 * page).expect("addresses");
            source.commit(&range, 0, 2 * page, page).expect("memory");
            let (number, number_of_other) = (source.stream_number(&stream), source.stream_number(&other));
            emulator::set_bytes(range.address(), 7, 2 * page as usize, stream.as_raw());
            let parts = [(&range, 0, 2 * page)];
            assert_eq!(source.alias(&parts, (&range, 4 * page)), Ok(2));
            if ordered {
                let event = source.record_event(number.expect("a number"));
                source.wait_event(number_of_other.expect("a number"), event);
            }
            emulator::set_bytes(range.address() + 4 * page, 8, 2 * page as usize, other.as_raw());
            source.synchronize();
            assert_eq!(source.unmap(range.address(), 2 * page), 2);
            assert_eq!(source.decommit(&range, 4 * page, 2 * page), 2);
            source.release(range);
            assert_eq!((source.lost(), source.used_bytes()), (None, 0));
            let (count, text) = emulator::findings();
            assert_eq!(count > 0, !ordered, "{text}");
            assert!(
                ordered || text.contains("where the same page is mapped"),
                "{text}"
            );
        }
    });
}

/// Nothing is lost if the driver refuses a second mapping.
#[test]
fn a_second_mapping_that_fails_changes_nothing() {
    const TEST: &str = "documented::a_second_mapping_that_fails_changes_nothing";
    let options = ["cuMemMap@6", "cuMemSetAccess@2"].map(|call| format!("strict:on,fail:{call}"));
    in_children(TEST, options.into_iter(), || {
        let (device, stream) = setup();
        let mut source = CudaSource::new(&device, CudaMemory::Virtual).expect("a source");
        let page = source.page_bytes();
        let range = source.reserve(16 * page).expect("addresses");
        source.commit(&range, 0, 4 * page, page).expect("memory");
        let parts = [(&range, 0, 4 * page)];
        source
            .alias(&parts, (&range, 8 * page))
            .expect_err("the driver refuses");
        assert_eq!((source.lost(), source.used_bytes()), (None, 4 * page));
        emulator::set_bytes(range.address(), 7, 4 * page as usize, stream.as_raw());
        stream.synchronize().expect("the pages are there");
        assert_eq!(source.alias(&parts, (&range, 8 * page)), Ok(4));
        drop(source);
        assert_eq!(
            device.memory().map(|memory| memory.free),
            device.memory().map(|memory| memory.total)
        );
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// The free pages of a handle go back, and the live ones keep their address and contents.
#[test]
fn pages_under_live_blocks_are_replaced() {
    const TEST: &str = "documented::pages_under_live_blocks_are_replaced";
    let options = ["", ",unmap:single"].map(|more| format!("strict:on{more}"));
    in_children(TEST, options.into_iter(), || {
        let (device, stream) = setup();
        let build = |conf: &str| {
            let builder = DevicePool::builder().settings(conf);
            // SAFETY: this thread alone submits work.
            unsafe { builder.allow_relocation() }.build(&device)
        };
        for (relocates, compacts) in [(false, false), (true, false), (false, true), (true, true)] {
            let more = if relocates { ",relocate:on" } else { "" };
            let conf = format!("limit:66MiB,handle:8MiB,handle-share:1,trim-every:off{more}");
            let pool = build(&conf).expect("a pool");
            drop(pool.alloc::<u8>(64 << 20, &stream).expect("fits"));
            let part = |number: usize| vec![number as u8; 2 << 20];
            let all: Vec<_> = (0..32)
                .map(|number| pool.alloc_from(&part(number), &stream).expect("fits"))
                .collect();
            let kept: Vec<_> = all.into_iter().skip(1).step_by(4).collect();
            let addresses: Vec<u64> = kept.iter().map(|buffer| buffer.address()).collect();
            if compacts {
                pool.trim();
                assert_eq!(pool.stats().reserved.current, 64 << 20, "a trim replaces nothing");
                let left = if relocates { 16 << 20 } else { 64 << 20 };
                assert_eq!(pool.compact().reserved_after, left);
                assert_eq!(pool.stats().reserved.current, left);
            }
            let large = pool.alloc::<u8>(50 << 20, &stream);
            assert_eq!(large.is_ok(), relocates, "{large:?}");
            for (index, buffer) in kept.iter().enumerate() {
                assert_eq!(buffer.address(), addresses[index]);
                let there = buffer.to_vec().expect("a copy");
                assert!(there == part(4 * index + 1), "what lay in block {index} is lost");
            }
            drop((kept, large));
            pool.compact();
            assert_eq!((pool.lost(), pool.stats().reserved.current), (None, 0));
        }
        assert_eq!(emulator::findings(), (0, String::new()));
        let refused = DevicePool::builder().settings("relocate:on").build(&device);
        let refused = refused.expect_err("nobody allowed it").to_string();
        assert!(refused.contains("allow_relocation"), "{refused}");
    });
}

#[test]
fn a_setting_that_replaces_pages_is_refused_without_permission() {
    const TEST: &str = "documented::a_setting_that_replaces_pages_is_refused_without_permission";
    if !emulator::load() {
        return;
    }
    if !emulator::is_child(TEST) {
        let (passed, text) = emulator::child_with(TEST, &[("MILLPOND_CONF", "relocate:on")]);
        assert!(passed, "{text}");
        return;
    }
    let (device, _) = setup();
    let refused = DevicePool::new(&device)
        .expect_err("nobody allowed it")
        .to_string();
    assert!(refused.contains("allow_relocation"), "{refused}");
    assert!(Pool::host().is_ok(), "a host has no such handles");
}

/// Nothing is lost if the driver refuses a step.
#[test]
fn a_replacement_that_fails_changes_nothing() {
    const TEST: &str = "documented::a_replacement_that_fails_changes_nothing";
    in_children(TEST, one("strict:on"), || {
        let (device, stream) = setup();
        let mut source = CudaSource::new(&device, CudaMemory::Virtual).expect("a source");
        // SAFETY: this thread alone submits work.
        unsafe { source.allow_relocation() };
        let page = source.page_bytes();
        let range = source.reserve(8 * page).expect("addresses");
        let kept = [(page, page), (3 * page, 2 * page)];
        let (mut failed, mut calls, mut nth) = (0, 1, 0);
        while nth <= calls {
            source.commit(&range, 0, 8 * page, 8 * page).expect("memory");
            let bytes = 8 * page as usize;
            emulator::set_bytes(range.address(), 7, bytes, stream.as_raw());
            stream.synchronize().expect("it ends");
            let before = emulator::calls(None);
            // Nothing fails the first time.
            emulator::fail(Some(nth).filter(|nth| *nth > 0));
            let outcome = source.relocate(&range, 0, 8 * page, &kept);
            emulator::fail(None);
            calls = calls.max(emulator::calls(None) - before);
            failed += u64::from(outcome.is_err());
            assert_eq!(source.lost(), None, "call {nth}");
            let parts: &[(u64, u64)] = match outcome {
                Ok(()) => &kept,
                Err(_) => &[(0, 8 * page)],
            };
            let held: u64 = parts.iter().map(|part| part.1).sum();
            assert_eq!(source.used_bytes(), held, "call {nth}: {outcome:?}");
            for (offset, bytes) in parts {
                let mut there = vec![0; *bytes as usize];
                assert_eq!(emulator::read(range.address() + offset, &mut there), 0);
                assert!(there.iter().all(|byte| *byte == 7), "call {nth}: a part is lost");
                assert!(source.decommit(&range, *offset, *bytes) > 0);
            }
            nth += 1;
        }
        assert!(failed >= 8, "{failed} of {calls}");
        drop(source);
        assert_eq!(
            device.memory().map(|memory| memory.free),
            device.memory().map(|memory| memory.total)
        );
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// A toolkit's stub returns error 34 from every call.
#[test]
fn a_stub_of_the_toolkit_is_not_accepted_as_a_driver() {
    const TEST: &str = "documented::a_stub_of_the_toolkit_is_not_accepted_as_a_driver";
    in_children(TEST, one("fail:cuInit=34"), || {
        let error = CudaDevice::get(0).expect_err("no driver");
        assert_eq!(error, CudaError::NoDriver);
        assert!(
            error.to_string().contains("stub") && error.to_string().contains("34"),
            "{error}"
        );
    });
}

/// The driver installs `libcuda.so.1`. A file `libcuda.so` next to it may be any library.
#[test]
fn the_installed_name_of_the_driver_is_tried_before_the_name_for_linking() {
    const TEST: &str = "documented::the_installed_name_of_the_driver_is_tried_before_the_name_for_linking";
    if emulator::is_child(TEST) {
        let device = CudaDevice::get(0).expect("the driver is found beside another library");
        assert!(device.is_emulated());
        return;
    }
    if emulator::is_real() || emulator::is_given() || !emulator::load() {
        eprintln!("skipped: on an emulated driver of its own only");
        return;
    }
    let driver = emulator::library().expect("it is loaded");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
    let mut paths = maps
        .lines()
        .filter_map(|line| line.split_once('/'))
        .map(|(_, path)| format!("/{path}"));
    let other = paths.find(|path| path.contains("libc.so") || path.contains("libc-"));
    let other = other.expect("every program has it");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("driver-beside-a-stub");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    for (library, name) in [
        (driver.as_path(), "libcuda.so.1"),
        (Path::new(&other), "libcuda.so"),
    ] {
        std::os::unix::fs::symlink(library, folder.join(name)).expect("a link");
    }
    let folder = folder.to_str().expect("a path of text");
    let (passed, text) =
        emulator::child_with(TEST, &[("LD_LIBRARY_PATH", folder), ("MILLPOND_CUDA_EMU", "")]);
    assert!(passed, "{text}");
}

/// The driver documents the flags of memory only for memory that it allocated. The emulated driver refuses them for registered memory.
#[test]
fn copies_accept_pinned_memory_and_refuse_ordinary_memory() {
    const TEST: &str = "documented::copies_accept_pinned_memory_and_refuse_ordinary_memory";
    in_children(TEST, one("strict:on"), || {
        let (device, stream) = setup();
        let pool = DevicePool::new(&device).expect("a pool");
        let host = Pool::host().expect("a pool");
        let there = || pool.alloc::<u32>(1000, &stream).expect("memory");
        let ordinary = host.alloc_zeroed::<u32>(1000).expect("memory");
        let error = stream.upload(ordinary, there()).expect_err("it is ordinary");
        assert_eq!(error.error(), CudaError::Pageable);
        let registered =
            Registered::new(&device, host.alloc_zeroed(1000).expect("memory")).expect("registered");
        stream
            .upload(registered, there())
            .expect("it is pinned")
            .wait()
            .expect("it ends");
        let pinned = Unpooled::over(Box::new(CudaPinned::new(&device)));
        let pinned = pinned.alloc_zeroed::<u32>(1000).expect("memory");
        assert!(device.address_of(&pinned).is_ok());
        stream
            .upload(pinned, there())
            .expect("it is pinned")
            .wait()
            .expect("it ends");
        let managed = cuda::CudaManaged::new(&device).expect("managed memory");
        let managed = Unpooled::over(Box::new(managed))
            .alloc_zeroed::<u32>(1000)
            .expect("memory");
        assert_eq!(device.address_of(&managed), Err(CudaError::Pageable));
    });
}

/// Older drivers ignore a pool's limit, because they use its field for something else.
#[test]
fn a_limit_is_refused_if_the_driver_would_ignore_it() {
    const TEST: &str = "documented::a_limit_is_refused_if_the_driver_would_ignore_it";
    in_children(
        TEST,
        ["version:12010", "version:12020"].into_iter().map(str::to_owned),
        || {
            let (device, _) = setup();
            let version = CudaDevice::driver_version().expect("a version");
            let limited = DriverPool::builder().limit(64 << 20).build(&device);
            match version {
                12_010 => assert!(
                    matches!(
                        limited,
                        Err(CudaError::OldDriver {
                            needed: 12_020,
                            found: 12_010,
                            ..
                        })
                    ),
                    "{limited:?}"
                ),
                _ => assert_eq!(limited.expect("a pool").limit(), Some(64 << 20)),
            }
            assert!(DriverPool::builder().build(&device).is_ok());
        },
    );
}

/// Streams wait for each other many times, on several threads. The driver creates only a few events.
#[test]
fn events_for_waits_are_reused() {
    const TEST: &str = "documented::events_for_waits_are_reused";
    let options = ["strict:on", "strict:on,streams:seeded,seed:3"]
        .into_iter()
        .map(str::to_owned);
    in_children(TEST, options, || {
        const THREADS: u64 = 3;
        let (device, _) = setup();
        let made = || emulator::calls(Some(c"cuEventCreate"));
        let before = made();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let pool = DevicePool::builder().settings("").build(&device).expect("a pool");
                    let streams = [(); 2].map(|()| CudaStream::new(&device).expect("a stream"));
                    let mut block = pool.alloc::<u32>(1000, &streams[0]).expect("memory");
                    for turn in 0..100 {
                        let (one, other) = (&streams[turn % 2], &streams[(turn + 1) % 2]);
                        one.wait_for(other).expect("an event");
                        emulator::set_bytes(block.address(), turn as u8, 4000, one.as_raw());
                    }
                    streams[0].wait_for(&streams[1]).expect("an event");
                    block.fill_zero().expect("zeros");
                    assert_eq!(block.to_vec().expect("a copy"), [0; 1000]);
                });
            }
        });
        assert!(made() - before <= 4 * THREADS, "{} events", made() - before);
        drop(device);
        let ended = emulator::calls(Some(c"cuEventDestroy"));
        assert_eq!(made() - ended, 0, "all end with the device");
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// Returns the driver's functions that failed, with the number of failures. Queries of events and streams are left out.
fn refused() -> Vec<(&'static str, u64)> {
    let all = cuda::driver_calls().expect("a driver").into_iter();
    let failed = all.filter(|calls| {
        calls.failed > 0 && calls.function != "cuEventQuery" && calls.function != "cuStreamQuery"
    });
    failed.map(|calls| (calls.function, calls.failed)).collect()
}

/// A stream of another library ends while pools know it, hold its blocks, and wait for its work.
#[test]
fn a_retired_stream_is_never_queried() {
    const TEST: &str = "documented::a_retired_stream_is_never_queried";
    let options = (0..8).map(|seed| format!("strict:on,streams:seeded,seed:{seed}"));
    in_children(TEST, options, || {
        let (device, ours) = setup();
        let pools = [CudaMemory::Virtual, CudaMemory::Plain].map(|memory| {
            DevicePool::builder()
                .memory(memory)
                .build(&device)
                .expect("a pool")
        });
        cuda::watch_driver_calls(true);
        for turn in 0..20u8 {
            let theirs = emulator::create_stream();
            // SAFETY: the stream is of the primary context and lives until it is retired.
            let stream = unsafe { CudaStream::from_raw(&device, theirs) };
            // SAFETY: as above.
            let again = unsafe { CudaStream::from_raw(&device, theirs) };
            assert_eq!(stream, again);
            let mut held = Vec::new();
            for pool in &pools {
                let mut block = pool.alloc::<u8>(5 << 20, &ours).expect("memory");
                emulator::set_bytes(block.address(), turn, 5 << 20, ours.as_raw());
                stream.wait_for(&ours).expect("an event");
                emulator::set_bytes(block.address(), turn, 5 << 20, theirs);
                block.record_use(&again).expect("of the device");
                drop(block);
                let block = pool.alloc::<u8>(3 << 20, &again).expect("memory");
                emulator::set_bytes(block.address(), turn, 3 << 20, theirs);
                held.push(block);
            }
            stream.retire().expect("its work ends");
            emulator::destroy_stream(theirs);

            for (pool, mut block) in pools.iter().zip(held) {
                assert_eq!(again.synchronize(), Ok(()), "its work is done");
                assert_eq!(ours.wait_for(&again), Ok(()));
                assert_eq!(again.wait_for(&ours), Err(CudaError::StreamEnded));
                assert_eq!(block.fill_zero(), Err(CudaError::StreamEnded));
                assert!(pool.alloc::<u8>(100, &stream).is_err());
                drop(block);
                let mut other = pool.alloc::<u8>(4 << 20, &ours).expect("memory");
                other.fill_zero().expect("zeros");
                assert!(other.to_vec().expect("a copy").iter().all(|byte| *byte == 0));
                drop(other);
                pool.compact();
                assert_eq!(pool.lost(), None);
            }
        }
        drop(pools);
        assert_eq!(refused(), []);
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

#[test]
fn a_stream_that_is_captured_is_not_retired() {
    const TEST: &str = "documented::a_stream_that_is_captured_is_not_retired";
    in_children(TEST, one("strict:on"), || {
        let (device, _) = setup();
        let theirs = emulator::create_stream();
        // SAFETY: the stream is of the primary context and lives until the process ends.
        let stream = unsafe { CudaStream::from_raw(&device, theirs) };
        emulator::begin_capture(theirs);
        assert_eq!(stream.retire(), Err(CudaError::Captured));
        assert!(emulator::end_capture(theirs), "the capture goes on");
        let pool = DevicePool::new(&device).expect("a pool");
        assert!(pool.alloc::<u8>(100, &stream).is_ok(), "it still serves");
    });
}

#[test]
fn a_stream_can_be_retired_after_the_context_is_lost() {
    const TEST: &str = "documented::a_stream_can_be_retired_after_the_context_is_lost";
    in_children(TEST, one("lost:40"), || {
        let (device, ours) = setup();
        // SAFETY: the stream is of the primary context and lives until the process ends.
        let stream = unsafe { CudaStream::from_raw(&device, emulator::create_stream()) };
        let lost = (0..40).find_map(|_| stream.synchronize().err());
        assert!(lost.is_some_and(|error| error.is_fatal()));
        assert!(stream.retire().is_err_and(|error| error.is_fatal()));
        assert_eq!(stream.wait_for(&ours), Err(CudaError::StreamEnded));
    });
}

/// Memory that is mapped by pages is for its own device and process only, unless the pool was built to share it.
#[test]
fn memory_of_pages_is_shared_only_if_the_pool_was_built_for_it() {
    const TEST: &str = "documented::memory_of_pages_is_shared_only_if_the_pool_was_built_for_it";
    in_children(TEST, one("devices:3,strict:on"), || {
        let (device, stream) = setup();
        let peer = CudaDevice::get(1).expect("a device");
        let sharing = || CudaSharing::new().peers([peer.clone()]).exportable(true);
        let pool = |sharing| {
            DevicePool::builder()
                .sharing(sharing)
                .build(&device)
                .expect("a pool")
        };
        let (own, shared) = (pool(CudaSharing::new()), pool(sharing()));
        assert_eq!(shared.memory(), CudaMemory::Virtual);
        let block = own.alloc::<u8>(100, &stream).expect("memory");
        assert!(!emulator::can_export(block.address()));
        let block = shared.alloc::<u8>(100, &stream).expect("memory");
        assert!(emulator::can_export(block.address()));
        let access = [0, 1].map(|device| emulator::access(block.address(), device));
        assert_eq!(access, [3, 3]);
        drop(block);
        shared.compact();
        assert_eq!(shared.stats().reserved.current, 0);
        for memory in [CudaMemory::Pooled, CudaMemory::Plain] {
            let error = CudaSource::shared(&device, memory, sharing()).expect_err("not by pages");
            assert_eq!(error, CudaError::SharedByPages);
        }
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

const RDMA: &str = "documented::memory_of_pages_supports_rdma_on_request";

#[test]
fn memory_of_pages_supports_rdma_on_request() {
    in_children(RDMA, one("strict:on"), || {
        let (device, stream) = setup();
        for rdma in [false, true] {
            let sharing = CudaSharing::new().rdma(rdma);
            let pool = DevicePool::builder()
                .sharing(sharing)
                .build(&device)
                .expect("a pool");
            let block = pool.alloc::<u8>(100, &stream).expect("memory");
            assert_eq!(emulator::is_for_rdma(block.address()), rdma);
        }
    });
}
