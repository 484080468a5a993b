//! Memory pressure of devices: queries, callbacks, and the release of memory.

use crate::support::emulator;
use crate::{MIB, builder};
use millpond::cuda::{CudaDevice, CudaStream};
use millpond::pressure::{Level, Readings, Share, Turn, WatchBuilder};
use millpond::{Device, Pools, pressure, pressure::Watch};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Far longer than anything in these tests.
const LONG: Duration = Duration::from_secs(60);

fn with_small_devices(test: &str, body: impl FnOnce()) {
    emulator::in_children(test, ["devices:2,memory:64M".to_owned()].into_iter(), body);
}

/// Returns a watch of devices only, without readings of the process.
fn quick() -> WatchBuilder {
    Watch::builder()
        .readings(Readings::under("/nowhere/at/all"))
        .interval(Duration::ZERO)
        .calm(Duration::from_millis(60))
}

/// Allocates memory of the first device, bypassing this crate's pools, until at most `free` bytes are free.
fn leave(device: &CudaDevice, free: u64) -> u64 {
    let now = device.memory().expect("it says").free;
    emulator::allocate(usize::try_from(now - free).expect("it fits"))
}

#[test]
fn devices_that_are_not_open_are_not_queried() {
    with_small_devices("pressure::devices_that_are_not_open_are_not_queried", || {
        let of_process = pressure().level();
        assert!(pressure().devices().is_empty());
        assert_eq!(emulator::calls(None), 0, "no driver is loaded for that");

        let devices = [0, 1].map(|number| CudaDevice::get(number).expect("a device"));
        let again = CudaDevice::get(0).expect("a device");
        let held = leave(&devices[0], 4 * MIB);
        let now = pressure();
        let [first, second] = now.devices() else {
            panic!("each of both once: {now:?}")
        };
        assert_eq!((first.device, second.device), (Device::Cuda(0), Device::Cuda(1)));
        assert_eq!(
            (first.total, first.available(), first.level),
            (64 * MIB, 4 * MIB, Level::High)
        );
        assert_eq!(first.used_share(), Share::of(60, 64));
        assert_eq!(
            (second.level, second.used),
            (Level::Low, 64 * MIB - second.available())
        );
        assert_eq!(devices[0].pressure().expect("it says"), *first);
        assert_eq!(now.level(), of_process, "that is of the process's own memory");

        // SAFETY: the child only queries the pressure, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let none = pressure().devices().is_empty();
            // SAFETY: the call ends the child at once.
            unsafe { libc::_exit(i32::from(!none)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child that was just made; the status is a local variable.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);

        emulator::free(held);
        drop((devices, again));
        assert!(pressure().devices().is_empty(), "they are closed");
    });
}

type Seen = (&'static str, Device, Level, Level);

fn note(
    sender: &Sender<Seen>,
    who: &'static str,
) -> impl Fn(&millpond::pressure::DeviceChange<'_>) + Send + Sync + use<> {
    let sender = Mutex::new(sender.clone());
    move |change| {
        let sender = sender.lock().expect("a sender");
        let _ = sender.send((who, change.device.device, change.from, change.to));
    }
}

fn next(seen: &Receiver<Seen>) -> Seen {
    seen.recv_timeout(LONG).expect("a call")
}

#[test]
fn device_changes_call_trims_before_other_callbacks() {
    with_small_devices(
        "pressure::device_changes_call_trims_before_other_callbacks",
        || {
            let [first, _second] = [0, 1].map(|number| CudaDevice::get(number).expect("a device"));
            let (sender, seen) = channel();
            let of_process = Arc::new(Mutex::new(0));
            let told = Arc::clone(&of_process);
            let watch = quick()
                .tell(move |_| *told.lock().expect("whole") += 1)
                .tell_device(note(&sender, "tell"))
                .trim_device(note(&sender, "trim"))
                .start()
                .expect("a watch");
            let late = watch.add_device(Turn::Trim, note(&sender, "late trim"));
            let on = Device::Cuda(0);
            let held = leave(&first, 5 * MIB);
            for who in ["trim", "late trim", "tell"] {
                assert_eq!(next(&seen), (who, on, Level::Low, Level::High));
            }
            drop(late);
            let more = leave(&first, MIB);
            for who in ["trim", "tell"] {
                assert_eq!(next(&seen), (who, on, Level::High, Level::Critical));
            }
            emulator::free(more);
            emulator::free(held);
            for who in ["trim", "tell"] {
                assert_eq!(next(&seen), (who, on, Level::Critical, Level::Low));
            }
            assert_eq!(
                *of_process.lock().expect("whole"),
                0,
                "nobody is told of what is another's"
            );
            assert_eq!(watch.last().expect("a reading").devices().len(), 2);
        },
    );
}

#[test]
fn a_set_frees_the_cached_memory_of_its_pool_on_the_device() {
    with_small_devices(
        "pressure::a_set_frees_the_cached_memory_of_its_pool_on_the_device",
        || {
            let set = Pools::builder().cuda_template(builder().trim_every(None)).build();
            let fill = |number| {
                let pool = set.cuda(number).expect("a pool");
                let stream = CudaStream::new(pool.device()).expect("a stream");
                drop(pool.alloc::<u8>(32 << 20, &stream).expect("fits"));
                pool
            };
            let pools = [fill(0), fill(1)];
            let reserved = |at: usize| pools[at].stats().reserved.current;
            let (sender, seen) = channel();
            let watch = set
                .watch_pressure(quick().tell_device(note(&sender, "tell")))
                .expect("a watch");
            let held = leave(pools[0].device(), 4 * MIB);
            assert_eq!(next(&seen), ("tell", Device::Cuda(0), Level::Low, Level::High));
            assert_eq!((reserved(0), reserved(1) >= 32 * MIB), (0, true));
            emulator::free(held);
            drop(watch);

            fill(0);
            let watch = quick()
                .tell_device(note(&sender, "heard"))
                .start()
                .expect("a watch");
            let heeds = set.heed(&watch);
            let held = leave(pools[0].device(), MIB);
            assert_eq!(
                next(&seen),
                ("heard", Device::Cuda(0), Level::Low, Level::Critical)
            );
            assert_eq!((reserved(0), reserved(1) >= 32 * MIB), (0, true));
            drop(heeds);
            emulator::free(held);
        },
    );
}
