//! Closures of the host in the order of a stream, and closures as kernels of the emulated driver.

use crate::{device, each_call_fails, emulator, in_any_order, in_children};
use millpond::cuda::{
    CudaError, CudaManaged, CudaModule, CudaQueue, DeviceTensorMut, DeviceWorkspace, EmulatedLaunch,
    KernelError, emulate_kernel,
};
use millpond::{Buffer, Pool};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const LEN: usize = 1000;

/// Returns a queue and a pool of managed memory.
fn managed() -> Option<(CudaQueue, Pool)> {
    let (device, pool, stream) = device()?;
    let source = CudaManaged::new(&device).expect("managed memory");
    let managed = Pool::builder().over(Box::new(source)).expect("a pool");
    Some((pool.on(&stream).expect("a queue"), managed))
}

/// Doubles the elements on the device, adds their positions on the host, and doubles them again on the device.
fn through_both(queue: &CudaQueue, table: &mut Buffer<f32>) -> Result<(), Box<dyn Error>> {
    queue.stream().lend(table, |table| {
        DeviceTensorMut::from_buffer(queue, &mut *table, [LEN])?.scal(2.0)?;
        table.run_on_host(|table| {
            for (at, value) in table.iter_mut().enumerate() {
                *value += at as f32;
            }
        })?;
        DeviceTensorMut::from_buffer(queue, table, [LEN])?.scal(2.0)?;
        Ok::<(), Box<dyn Error>>(())
    })?
}

#[test]
fn a_function_runs_after_earlier_work_and_before_later_work() {
    const TEST: &str = "closures::a_function_runs_after_earlier_work_and_before_later_work";
    in_any_order(TEST, 10, || {
        let (queue, managed) = managed().expect("a device");
        let mut table = managed.alloc_from(&[1.0f32; LEN]).expect("memory");
        for _ in 0..3 {
            table.fill(1.0);
            through_both(&queue, &mut table).expect("nothing fails");
            let expected = |at| 2.0 * (2.0 + at as f32);
            assert!(table.iter().enumerate().all(|(at, value)| *value == expected(at)));
        }
        // A buffer without elements is lent too.
        let mut none = managed.alloc_zeroed::<f32>(0).expect("no memory");
        let ran = Arc::new(AtomicUsize::new(0));
        let of_function = Arc::clone(&ran);
        let lent = queue.stream().lend(&mut none, |none| {
            none.run_on_host(move |none| {
                assert!(none.is_empty());
                of_function.fetch_add(1, Ordering::SeqCst);
            })
        });
        lent.expect("no capture").expect("it is queued");
        assert_eq!((ran.load(Ordering::SeqCst), Arc::strong_count(&ran)), (1, 1));
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

#[test]
fn a_function_that_panics_or_uses_cuda_is_an_error() {
    let Some((queue, managed)) = managed() else { return };
    let mut table = managed.alloc_from(&[0u32; 4]).expect("memory");
    let device = queue.device().clone();
    let lent = queue.stream().lend(&mut table, |table| {
        table.run_on_host(|_| panic!("as planned")).expect("it is queued");
        table
            .run_on_host(move |table| {
                let refused = device.memory() == Err(CudaError::InCallback);
                table[1] = u32::from(refused);
            })
            .expect("it is queued");
    });
    assert_eq!(lent, Err(CudaError::HostPanicked));
    assert_eq!(table[..], [0, 1, 0, 0]);
    let lent = queue
        .stream()
        .lend(&mut table, |table| table.run_on_host(|table| table[2] = 7));
    assert_eq!((lent, table[2]), (Ok(Ok(())), 7));
}

#[test]
fn functions_run_on_managed_memory_outside_captures() {
    let Some((queue, managed)) = managed() else { return };
    let workspace = DeviceWorkspace::builder(&queue).build();
    let mut workspace = workspace.expect("a workspace");
    workspace.scope(|scratch| {
        let mut slice = scratch.alloc::<f32>(4).expect("memory");
        assert_eq!(slice.run_on_host(|_| ()), Err(CudaError::NotManaged));
    });
    let mut table = managed.alloc_from(&[0u32; 4]).expect("memory");
    let _ = queue.stream().lend(&mut table, |table| {
        let capture = queue.pool().capture(queue.stream()).expect("a capture");
        assert_eq!(table.run_on_host(|_| ()), Err(CudaError::Captured));
        capture.end().expect("a graph without work");
    });
}

#[test]
fn each_failing_call_of_a_loan_is_reported_or_handled() {
    in_children(
        "closures::each_failing_call_of_a_loan_is_reported_or_handled",
        std::iter::once("streams:seeded,strict:on".to_owned()),
        || {
            let (queue, managed) = managed().expect("a device");
            let pool = queue.pool().clone();
            each_call_fails(&pool, || {
                let mut table = managed.alloc_from(&[1.0f32; LEN])?;
                through_both(&queue, &mut table)
            });
        },
    );
}

const PTX: &str = ".version 8.0\n.target sm_70\n
    .visible .entry mixed(.param .u64 a, .param .u8 b, .param .f32 c, .param .u32 d) { }
    .visible .entry bare() { }";

#[test]
fn a_closure_gets_the_parameters_the_shape_and_the_memory() {
    if emulator::is_real() {
        eprintln!("skipped: a real driver runs the code of the kernel");
        return;
    }
    let Some((device, pool, stream)) = device() else {
        return;
    };
    let module = CudaModule::load(&device, PTX).expect("a module");
    emulate_kernel("mixed", |_, (..): (u64, u8, f32, u32)| {
        unreachable!("it is replaced")
    })
    .expect("a kernel");
    emulate_kernel("mixed", |launch, (a, b, c, d): (u64, u8, f32, u32)| {
        let mut value = [0.0f32];
        launch.read(a, &mut value)?;
        let [gx, gy, gz] = launch.grid();
        let threads: u32 = launch.block().iter().product();
        let values = [
            value[0],
            f32::from(b),
            c,
            d as f32,
            (gx + gy + gz) as f32,
            threads as f32,
        ];
        launch.write(a, &values)
    })
    .expect("a kernel");
    let mixed = module.kernel("mixed").expect("it is there");
    assert_eq!(mixed.parameters(), Some(&[8, 1, 4, 4][..]));
    let mut buffer = pool.alloc_from(&[9.0f32; 6], &stream).expect("memory");
    let launch = mixed.launch(&stream).grid([2, 3, 4]).block([8, 2, 1]);
    let launch = launch.arg_mut(&mut buffer).arg(200u8).arg(0.5f32).arg(77u32);
    // SAFETY: the arguments are those that the closure expects.
    unsafe { launch.launch() }.expect("it is launched");
    assert_eq!(
        buffer.to_vec().expect("a copy"),
        [9.0, 200.0, 0.5, 77.0, 9.0, 16.0]
    );
    let refused = emulate_kernel("a\0b", |_, (): ()| Ok(())).expect_err("no such name");
    assert!(matches!(refused, KernelError::NoEntry { .. }), "{refused}");
    let none = module.kernel("bare").expect_err("nobody has registered it");
    assert!(none.to_string().contains("`emulate_kernel`"), "{none}");
}

/// Launches this kernel, which makes the device unusable.
fn launch_fails(test: &str, kernel: fn(&EmulatedLaunch<'_>, ()) -> Result<(), CudaError>) {
    let options = ["streams:threads", ""].map(str::to_owned);
    in_children(test, options.into_iter(), || {
        let (device, _, stream) = device().expect("a device");
        emulate_kernel("bare", kernel).expect("a kernel");
        let module = CudaModule::load(&device, PTX).expect("a module");
        let bare = module.kernel("bare").expect("it is there");
        // SAFETY: the kernel has no parameters.
        let _ = unsafe { bare.launch(&stream).launch() };
        let lost = stream.synchronize().expect_err("the device is lost");
        assert!(lost.is_fatal(), "{lost}");
    });
}

#[test]
fn a_closure_that_fails_makes_the_device_unusable() {
    const TEST: &str = "closures::a_closure_that_fails_makes_the_device_unusable";
    launch_fails(TEST, |launch, ()| launch.write(64, &[1u8]));
}

#[test]
fn a_closure_that_panics_makes_the_device_unusable() {
    const TEST: &str = "closures::a_closure_that_panics_makes_the_device_unusable";
    launch_fails(TEST, |_, ()| panic!("as planned"));
}
