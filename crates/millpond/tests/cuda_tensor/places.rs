//! Tensors on a device by its name, and tensors of memory that others own.

use crate::{device, each_call_fails, emulator, in_any_order, in_children};
use millpond::cuda::{
    CudaError, CudaManaged, CudaPinned, CudaQueue, CudaStream, DevicePool, DeviceTensor, DeviceTensorMut,
    DeviceTensorRef,
};
use millpond::{DType, Device, Pool, Pools, Tensor, TensorError, Unpooled};
use std::error::Error;

const CUDA: Device = Device::Cuda(0);

#[test]
fn a_device_stands_for_its_pool_and_stream_in_every_constructor() {
    let Some((device, ..)) = device() else { return };
    let set = Pools::new();
    set.scope(|| {
        let zeros = DeviceTensor::zeros(CUDA, [2, 3], DType::I64).expect("memory");
        let queue = set.cuda_queue(0).expect("it is there");
        assert_eq!(zeros.pool(), Some(&set.cuda(0).expect("it is there")));
        assert_eq!(zeros.stream(), queue.stream());
        assert_eq!(queue.stream(), &CudaStream::legacy(&device));
        assert_eq!(zeros.to_vec::<i64>().expect("a copy"), [0; 6]);
        let ones = DeviceTensor::ones(&device, [3], DType::I64).expect("memory");
        let fours = DeviceTensor::full(CUDA, [3], 4i64).expect("memory");
        let fives = DeviceTensor::full_of(CUDA, [3], 5, DType::I64).expect("memory");
        let given = DeviceTensor::from_slice(CUDA, &[7i64, 8, 9], [3]).expect("memory");
        let mut sum = DeviceTensor::empty(CUDA, [3], DType::I64).expect("memory");
        sum.fill(0).expect("it fits");
        for part in [&ones, &fours, &fives, &given] {
            sum.add_assign(part).expect("alike");
        }
        assert_eq!(sum.to_vec::<i64>().expect("a copy"), [17, 18, 19]);

        let host = Tensor::arange(0i32, 6, 1).expect("memory");
        let there = host.to(&device).expect("a copy");
        assert!(!there.is_shared() && there.pool() == zeros.pool());
        assert!(there.to(&device).expect("it is there").is_shared());
        let bytes = set.stats().on(CUDA).requested.current;
        assert_eq!(bytes, 8 * 6 + 5 * 8 * 3 + 4 * 6 + 8 * 1025);
    });
}

#[test]
fn a_place_that_is_no_device_is_refused() {
    if device().is_none() {
        return;
    }
    let refused = DeviceTensor::zeros(Device::Host, [2], DType::F32).expect_err("no device");
    assert!(matches!(refused, TensorError::NotCuda), "{refused}");
    let refused = DeviceTensor::zeros(Device::Cuda(99), [2], DType::F32).expect_err("no device");
    assert!(refused.to_string().contains("99"), "{refused}");
    let refused = Tensor::zeros_on(CUDA, [2], DType::F32).expect_err("not the host's");
    assert!(refused.to_string().contains("DeviceTensor"), "{refused}");
}

#[test]
fn a_set_has_one_queue_for_each_pool() {
    let Some((device, ..)) = device() else { return };
    let set = Pools::new();
    let queue = set.cuda_queue(0).expect("memory");
    let pool = set.cuda(0).expect("it is there");
    let held = pool.stats().requested.current;
    let again = set.cuda_queue(0).expect("it is there");
    assert_eq!((again.pool(), pool.stats().requested.current), (&pool, held));
    drop((queue, again));
    let other = DevicePool::new(&device).expect("a pool");
    set.insert_cuda(other.clone());
    assert_eq!(set.cuda_queue(0).expect("memory").pool(), &other);
    assert_eq!(pool.stats().requested.current, 0, "the old queue is gone");
    assert_eq!(set.remove_cuda(0), Some(other.clone()));
    assert_eq!(other.stats().requested.current, 0, "the queue is gone");
}

/// Returns a queue, and a stream that is not the queue's.
fn two_streams() -> Option<(CudaQueue, CudaStream)> {
    let (device, pool, stream) = device()?;
    let other = CudaStream::new(&device).expect("a stream");
    Some((pool.on(&stream).expect("memory"), other))
}

#[test]
fn buffers_of_other_streams_are_operands_in_the_order_of_both_streams() {
    const TEST: &str = "places::buffers_of_other_streams_are_operands_in_the_order_of_both_streams";
    in_any_order(TEST, 20, || {
        let (queue, other) = two_streams().expect("a device");
        let (pool, len) = (queue.pool(), 1000);
        for round in 0..5u32 {
            let mut x = pool.alloc::<f32>(len, &other).expect("memory");
            let mut y = pool.alloc::<f32>(len, &other).expect("memory");
            let mut twos = DeviceTensorMut::from_buffer(&queue, &mut x, [len]).expect("it fits");
            twos.fill(2.0).expect("it fits");
            y.fill_zero().expect("there");
            let half = DeviceTensorRef::from_buffer(&queue, &x, [len / 2, 2]).expect("it fits");
            let half = half.select(1, 0).expect("a view");
            let mut view = DeviceTensorMut::from_buffer(&queue, &mut y, [len]).expect("it fits");
            let mut every_second = view.reborrow().step(0, 2).expect("a view");
            every_second.axpy(f64::from(round), half).expect("alike");
            every_second.scal(0.5).expect("it fits");
            let sum = view.sum().expect("a number").to_f64();
            assert_eq!(sum, Some(f64::from(round) * len as f64 / 2.0));
            // A copy on the buffers' own stream comes after the kernels.
            x.copy_from(&y).expect("one device");
            let host = x.to_vec().expect("a copy");
            assert_eq!((host[0], host[1]), (round as f32, 0.0));
        }
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

#[test]
fn sums_and_products_are_written_to_buffers_of_other_streams() {
    const TEST: &str = "places::sums_and_products_are_written_to_buffers_of_other_streams";
    in_any_order(TEST, 20, || {
        let (queue, other) = two_streams().expect("a device");
        let pool = queue.pool();
        let ones = DeviceTensor::ones(&queue, [10_000], DType::F32).expect("memory");
        let mut sum = pool.alloc_from(&[0.0f32], &other).expect("memory");
        let mut out = DeviceTensorMut::from_buffer(&queue, &mut sum, []).expect("one element");
        ones.sum_into(&mut out).expect("it fits");
        assert_eq!(sum.to_vec().expect("a copy"), [10_000.0]);

        let a = pool.alloc_from(&[1.0f32, 2.0, 3.0, 4.0], &other).expect("memory");
        let mut product = pool.rent::<f32>(4, &other).expect("memory");
        let len = product.len();
        let a = DeviceTensorRef::from_buffer(&queue, &a, [2, 2]).expect("it fits");
        let out = DeviceTensorMut::from_buffer(&queue, &mut product, [len]).expect("it fits");
        let out = out.slice(0, ..4).and_then(|out| out.reshape([2, 2]));
        let turned = a.transpose(0, 1).expect("a view");
        a.matmul_into(turned, &mut out.expect("a view"))
            .expect("matrices");
        assert_eq!(product.to_vec().expect("a copy")[..4], [5.0, 11.0, 11.0, 25.0]);
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

#[test]
fn a_buffer_becomes_a_tensor_without_a_copy() {
    let Some((queue, other)) = two_streams() else {
        return;
    };
    let buffer = queue
        .pool()
        .alloc_from(&[1u8, 2, 3, 4, 5, 6], &other)
        .expect("memory");
    let address = buffer.address();
    let mut tensor = DeviceTensor::from_buffer(&queue, buffer, [2, 3]).expect("it fits");
    assert_eq!((tensor.address(), tensor.dtype()), (address, DType::U8));
    tensor.mul_assign(2).expect("it fits");
    assert_eq!(
        tensor
            .transpose(0, 1)
            .expect("a view")
            .to_vec::<u8>()
            .expect("a copy"),
        [2, 8, 4, 10, 6, 12]
    );
    let buffer = queue.pool().alloc_from(&[1u8; 5], &other).expect("memory");
    assert!(matches!(
        DeviceTensor::from_buffer(&queue, buffer, [2, 3]),
        Err(TensorError::Elements { found: 5, .. })
    ));
    let held = queue.pool().stats().requested.current;
    drop(tensor);
    assert_eq!(queue.pool().stats().requested.current, held - 6);
}

#[test]
fn a_managed_buffer_is_prefetched_changed_by_a_kernel_and_read() {
    const TEST: &str = "places::a_managed_buffer_is_prefetched_changed_by_a_kernel_and_read";
    in_any_order(TEST, 10, || {
        let (queue, other) = two_streams().expect("a device");
        let stream = queue.stream();
        let managed = CudaManaged::new(queue.device()).expect("managed memory");
        let managed = Unpooled::over(Box::new(managed));
        let mut table = managed.alloc_from(&[1.0f32; 1000]).expect("memory");
        for round in 2..10 {
            let to = |place, table| stream.prefetch(table, place).and_then(|moved| moved.wait());
            table = to(CUDA, table).expect("it moves");
            let scaled = stream.lend(&mut table, |table| -> Result<(), TensorError> {
                let queue = queue.pool().on(&other)?;
                DeviceTensorMut::from_buffer(&queue, table, [10, 100])?.add_assign(1.0)
            });
            scaled.expect("no capture").expect("it fits");
            assert!(table.iter().all(|value| *value == round as f32));
            table = to(Device::Host, table).expect("it moves");
            assert!(table.iter().all(|value| *value == round as f32));
        }
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = stream.lend(&mut table, |table| {
                table.fill_zero().expect("there");
                panic!("on purpose");
            });
        }));
        assert!(panicked.is_err() && table.iter().all(|value| *value == 0.0));
        let mut pageable = Unpooled::host()
            .expect("a source")
            .alloc_from(&[1.0f32])
            .expect("memory");
        assert!(matches!(
            stream.lend(&mut pageable, |_| ()),
            Err(CudaError::NotManaged)
        ));
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

#[test]
fn managed_tensors_are_shared_by_host_and_device() {
    const TEST: &str = "places::managed_tensors_are_shared_by_host_and_device";
    in_any_order(TEST, 10, || {
        let (queue, other) = two_streams().expect("a device");
        let other = queue.pool().on(&other).expect("the same device");
        let managed = CudaManaged::new(queue.device()).expect("managed memory");
        let managed = Unpooled::over(Box::new(managed));
        let mut host = Tensor::from_buffer(managed.alloc_from(&[1.0f32; 1000]).expect("memory"), [10, 100]);
        let mut reads = Vec::new();
        for round in 1..10 {
            let mut tensor = host.expect("whole elements");
            tensor
                .view_mut()
                .expect("nobody shares it")
                .as_mut_slice::<f32>()
                .expect("f32")[101] = 0.5;
            let there = tensor
                .transpose(0, 1)
                .expect("two dimensions")
                .to(&queue)
                .expect("a device");
            assert!(there.is_shared() && there.pool().is_none() && there.storage_bytes() == 4000);
            let mut there = there.into_tensor();
            assert_eq!((there.shape(), there.strides()), (&[100, 10][..], &[1, 100][..]));
            // Both can read, and neither can write.
            let sum = there
                .add(&there)
                .expect("memory")
                .to(Device::Host)
                .expect("memory");
            assert_eq!(sum.as_slice::<f32>().expect("f32")[11], 1.0);
            assert!(matches!(
                there.add_assign(1.0),
                Err(TensorError::Shared { others: 1 })
            ));
            assert!(matches!(
                tensor.view_mut(),
                Err(TensorError::Shared { others: 1 })
            ));
            // The device alone can write, on any stream.
            drop(tensor);
            there.add_assign(1.0).expect("nobody shares it");
            let again = there.to(&other).expect("the same device");
            assert!(again.is_shared());
            drop(again);
            let back = there.to(Device::Host).expect("it is there");
            assert!(back.is_shared());
            // Work that reads is still queued when the last tensor on the device is dropped.
            reads.push(there.deep_copy().expect("memory"));
            drop(there);
            let back = back.into_tensor().transpose(0, 1).expect("two dimensions");
            let values = back.as_slice::<f32>().expect("contiguous");
            assert!(
                values[0] == 1.0 + round as f32 && values[101] == 1.5,
                "{round}: {values:?}"
            );
            host = Ok(back);
        }
        for read in reads {
            assert_eq!(read.to_vec::<f32>().expect("a copy")[11], 1.5);
        }
        let tensor = host.expect("whole elements");
        // A device and the default pool share it too.
        let set = Pools::new();
        let shared = set.scope(|| tensor.to(queue.device()).expect("a device").is_shared());
        assert!(shared);
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

#[test]
fn borrowed_views_survive_each_failing_call() {
    let Some((queue, other)) = two_streams() else {
        return;
    };
    if emulator::is_real() {
        return;
    }
    let pool = queue.pool().clone();
    each_call_fails(&pool, || -> Result<(), Box<dyn Error>> {
        let x = pool.alloc_from(&[1.0f32, 2.0], &other)?;
        let mut y = pool.alloc_zeroed::<f32>(2, &other)?;
        let x = DeviceTensorRef::from_buffer(&queue, &x, [2])?;
        DeviceTensorMut::from_buffer(&queue, &mut y, [2])?.axpy(3.0, x)?;
        assert_eq!(y.to_vec()?, [3.0, 6.0]);
        Ok(())
    });
}

#[test]
fn the_queue_of_a_device_is_no_leak_at_the_end_of_the_process() {
    const TEST: &str = "places::the_queue_of_a_device_is_no_leak_at_the_end_of_the_process";
    if !emulator::load() {
        return;
    }
    if emulator::is_child(TEST) {
        let tensor = DeviceTensor::from_slice(CUDA, &[1.0f32; 100], [100]).expect("memory");
        if std::env::var_os("MILLPOND_TEST_LEAK").is_some() {
            std::mem::forget(tensor);
        }
        return;
    }
    let report = ("MILLPOND_CONF", "leak-report:on");
    let told = "live in 1 block";
    let (passed, text) = emulator::child_with(TEST, &[report]);
    assert!(passed && !text.contains("when the process ended"), "{text}");
    let (passed, text) = emulator::child_with(TEST, &[report, ("MILLPOND_TEST_LEAK", "1")]);
    assert!(passed && text.contains(told), "{text}");
}

const MIB: usize = 1 << 20;

/// Copies a tensor to the device and back, and returns the number of the driver's copies in each direction.
fn copies(queue: &CudaQueue, from: &Tensor) -> [u64; 2] {
    let counts = || [c"cuMemcpyHtoDAsync", c"cuMemcpyDtoHAsync"].map(|name| emulator::calls(Some(name)));
    let before = counts();
    let there = from.to(queue).expect("memory");
    assert!(!there.is_shared());
    let back = there.into_tensor().to(Device::Host).expect("memory");
    let back = back.into_tensor();
    assert!(back.as_slice::<i32>().expect("i32") == from.as_slice::<i32>().expect("i32"));
    let [up, down] = counts();
    [up - before[0], down - before[1]]
}

/// The copies of 20 MiB of ordinary memory: ten slots of 2 MiB if there are several threads.
fn staged() -> [u64; 2] {
    if millpond::threads() > 1 { [10; 2] } else { [1; 2] }
}

#[test]
fn large_tensors_of_ordinary_memory_go_through_pinned_slots() {
    const TEST: &str = "places::large_tensors_of_ordinary_memory_go_through_pinned_slots";
    let options = ["streams:threads", "streams:seeded,strict:on"].map(str::to_owned);
    in_children(TEST, options.into_iter(), || {
        let (device, pool, stream) = device().expect("a device");
        let queue = pool.on(&stream).expect("a queue");
        let values: Vec<i32> = (0..5 * MIB as i32).collect();
        let ordinary = Tensor::from_slice(&values, [5, MIB]).expect("memory");
        let source = Box::new(CudaPinned::new(&device));
        let pinned = Pool::builder().over(source).expect("a pool");
        let pinned = Tensor::from_buffer(pinned.alloc_from(&values).expect("memory"), [5, MIB]);
        assert_eq!(copies(&queue, &ordinary), staged());
        // The driver copies pinned memory as fast as the link allows.
        assert_eq!(copies(&queue, &pinned.expect("whole elements")), [1, staged()[1]]);
        // A small tensor gains nothing.
        let small = Tensor::from_slice(&values[..MIB], [MIB]).expect("memory");
        assert_eq!(copies(&queue, &small), [1, 1]);
        // The queues of a device share the slots.
        let other = DevicePool::new(&device).expect("a pool").on(&stream);
        let allocated = emulator::calls(Some(c"cuMemHostAlloc"));
        assert_eq!(copies(&other.expect("a queue"), &ordinary), staged());
        assert_eq!(emulator::calls(Some(c"cuMemHostAlloc")), allocated);
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

#[test]
fn large_tensors_are_copied_without_pinned_memory_too() {
    const TEST: &str = "places::large_tensors_are_copied_without_pinned_memory_too";
    let options = "streams:seeded,strict:on,fail:cuMemHostAlloc@1,fail:cuMemHostAlloc@2";
    in_children(TEST, std::iter::once(options.to_owned()), || {
        let (_, pool, stream) = device().expect("a device");
        let queue = pool.on(&stream).expect("a queue");
        let values: Vec<i32> = (0..5 * MIB as i32).collect();
        let ordinary = Tensor::from_slice(&values, [5, MIB]).expect("memory");
        let refused = if millpond::threads() > 1 { [1; 2] } else { staged() };
        assert_eq!(copies(&queue, &ordinary), refused);
        // The next copies ask again.
        assert_eq!(copies(&queue, &ordinary), staged());
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}
