//! The whole module in one program: with each call of the driver failing, in any order of work, and with planted
//! errors.

use crate::files::Folder;
use crate::passes::{data_of, through};
use crate::support::emulator::{self, in_any_order, in_children};
use crate::tasks::block_on;
use crate::{LEN, Outcome, Place, numbers, ordinary};
use millpond::cuda::{
    Advice, CudaDevice, CudaManaged, CudaStream, DeviceBuffer, Registered, Staging, Transfer,
};
use millpond::{DataSet, Device, Unpooled};

/// Uses every part of the module once.
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
    let (there, mut other) = block_on(first.copy(there, other)?)?;
    let (host, mut there) = second.upload(host, there)?.split()?;
    there.fill_zero()?;
    drop(host);
    block_on(first.synchronize_async())?;
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

/// Each call of the driver in the program fails once. The failure is reported, nothing is lost, and everything works
/// afterwards.
#[test]
fn each_call_fails_in_turn() {
    let options = ["strict:on", "streams:seeded,seed:5,strict:on"].map(str::to_owned);
    in_children("program::each_call_fails_in_turn", options.into_iter(), || {
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
        for nth in emulator::failing(calls) {
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
        assert_eq!(millpond::source::pinned_bytes(), 0);
        println!("{calls} calls: {told} failures told, {mended} made good");
        // The long check fails every call. A sample has some calls of both kinds.
        let least = if told + mended == calls { 50 } else { 0 };
        assert!(calls > 200 && told > least && mended > least);
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

/// With work as late and as interleaved as CUDA allows, all bytes are correct, and no use is unordered.
#[test]
fn results_are_correct_in_any_order_of_work() {
    in_any_order("program::results_are_correct_in_any_order_of_work", 100, || {
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

/// A transfer comes after recorded uses of the device's buffer by others. A dropped transfer keeps the host's buffer
/// until it is complete.
#[test]
fn transfers_wait_for_others_and_others_for_them() {
    in_any_order(
        "program::transfers_wait_for_others_and_others_for_them",
        20,
        || {
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
        },
    );
}

/// All memory of the driver is returned.
#[test]
fn all_memory_of_the_driver_is_returned() {
    in_children(
        "program::all_memory_of_the_driver_is_returned",
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

/// The emulator finds a planted error: another stream writes the source of a transfer without waiting.
#[test]
fn a_missing_wait_is_found() {
    let options = std::iter::once("streams:seeded,seed:1,strict:on".to_owned());
    in_children("program::a_missing_wait_is_found", options, || {
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
