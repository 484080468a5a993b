//! A monitor of devices: the driver's figures, the pools' share, and the use by each process from NVML.

use crate::support::emulator;
use crate::{MIB, builder};
use millpond::cuda::{CudaDevice, CudaStream};
use millpond::monitor::{Quantity, Threshold};
use millpond::pressure::Share;
use millpond::{Device, Monitor, Snapshot};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Runs the body in a process of its own, with a management library at this path.
fn with_library(test: &str, library: &str, body: impl FnOnce()) {
    if emulator::is_child(test) {
        assert!(emulator::load());
        return body();
    }
    if emulator::is_real() || emulator::is_given() || !emulator::load() {
        eprintln!("skipped: on an emulated driver of its own only");
        return;
    }
    let variables = [
        ("MILLPOND_CUDA_EMU", "devices:2,memory:64M"),
        ("MILLPOND_NVML", library),
    ];
    let (passed, text) = emulator::child_with(test, &variables);
    assert!(passed, "{text}");
}

#[test]
fn figures_are_separate_for_each_device_and_for_this_process() {
    let library = emulator::library().unwrap_or_default();
    with_library(
        "monitored::figures_are_separate_for_each_device_and_for_this_process",
        &library.to_string_lossy(),
        || {
            assert!(Snapshot::take().devices.is_empty(), "nobody was opened");
            let devices = [0, 1].map(|number| CudaDevice::get(number).expect("a device"));
            let stream = CudaStream::new(&devices[0]).expect("a stream");
            let pool = builder().name("on a device").build(&devices[0]).expect("a pool");
            let held = pool.alloc_zeroed::<u8>(20 << 20, &stream).expect("memory");
            let _others = emulator::allocate(10 << 20);
            let now = Snapshot::take();
            let of = now
                .pools
                .iter()
                .find(|of| of.name == "on a device")
                .expect("it is there");
            let reserved = pool.stats().reserved.current;
            assert_eq!(
                (of.device, of.stats.allocated.current, of.stale),
                (Device::Cuda(0), 20 * MIB, false)
            );
            let [first, second] = &now.devices[..] else {
                panic!("both: {now:?}")
            };
            assert_eq!((first.device, second.device), (Device::Cuda(0), Device::Cuda(1)));
            let memory = devices[0].memory().expect("it says");
            assert_eq!(
                (first.free, first.total, first.ours),
                (memory.free, memory.total, reserved)
            );
            assert!(first.unexplained() >= 10 * MIB && first.unexplained() == first.used() - reserved);
            assert_eq!(second.ours, 0);
            let processes = first.processes.as_ref().expect("there is such a library");
            let ours = (processes[0].id, processes[0].used);
            assert_eq!(
                (processes.len(), ours),
                (1, (std::process::id(), Some(first.used())))
            );
            drop(held);
        },
    );
}

#[test]
fn a_full_device_is_reported_once_even_without_a_management_library() {
    let test = "monitored::a_full_device_is_reported_once_even_without_a_management_library";
    with_library(test, "/nowhere/libnvidia-ml.so", || {
        let device = CudaDevice::get(0).expect("a device");
        let stream = CudaStream::new(&device).expect("a stream");
        let pool = builder().limit(64 * MIB).build(&device).expect("a pool");
        let (sender, told) = channel();
        let monitor = Monitor::builder()
            .interval(Duration::from_millis(10))
            .on(Threshold::device(Share::percent(90)), move |crossing| {
                let _ = sender.send(crossing.clone());
            })
            .start()
            .expect("a monitor");
        assert_eq!(monitor.last().expect("here").devices[0].processes, None);
        for _ in 0..2 {
            assert!(told.try_recv().is_err());
            let held = pool.alloc_zeroed::<u8>(40 << 20, &stream).expect("memory");
            let free = device.memory().expect("it says").free;
            // Any other user of the device counts too.
            let others = emulator::allocate(usize::try_from(free - 4 * MIB).expect("it fits"));
            let crossing = told.recv_timeout(Duration::from_secs(60)).expect("it is told");
            assert!(
                crossing.of.to_string() == "cuda:0" && crossing.share > Share::percent(90),
                "{crossing}"
            );
            drop(held);
            pool.compact();
            emulator::free(others);
            let until = std::time::Instant::now() + Duration::from_secs(60);
            while !monitor.passed().is_empty() {
                assert!(std::time::Instant::now() < until, "{:?}", monitor.passed());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let report = monitor.stop();
        let used = report.get("cuda:0", Quantity::Used).expect("followed");
        assert!(used.peak > 58 * MIB && used.last < used.peak, "{report}");
        assert_eq!(report.crossings.len(), 2);
    });
}
