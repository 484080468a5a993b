//! Tensors on a device: sharing, refusals, allocations, and the order of work.

use crate::agree::Random;
use crate::{device, each_call_fails, emulator, in_any_order, in_children};
use millpond::cuda::{CudaDevice, CudaError, CudaModule, CudaQueue, CudaStream, DevicePool, DeviceTensor};
use millpond::{DType, Device, Tensor, TensorError, tensor::SharedOrCopied};
use std::error::Error;

fn queue() -> Option<CudaQueue> {
    let (_, pool, stream) = device()?;
    Some(pool.on(&stream).expect("memory"))
}

fn numbers(queue: &CudaQueue, shape: &[usize]) -> DeviceTensor {
    let len: usize = shape.iter().product();
    let values: Vec<f32> = (0..len as u16).map(f32::from).collect();
    DeviceTensor::from_slice(queue, &values, shape).expect("memory")
}

#[test]
fn views_share_and_copies_do_not() {
    let Some(queue) = queue() else { return };
    let tensor = numbers(&queue, &[3, 4]);
    let allocations = queue.pool().stats().allocations;
    let turned = tensor.transpose(0, 1).expect("a view");
    let part = turned
        .slice(0, 1..3)
        .and_then(|view| view.select(1, 2))
        .expect("a view");
    let rows: Vec<_> = tensor.batches(0, 2).expect("batches").collect();
    assert_eq!(
        (rows.len(), rows[1].shape(), rows[1].offset()),
        (2, &[1, 4][..], 8)
    );
    assert_eq!(
        (part.shape(), part.strides(), part.offset()),
        (&[2][..], &[1][..], 9)
    );
    assert_eq!(part.address(), tensor.address() + 9 * 4);
    assert_eq!((tensor.holders(), part.shares_storage_with(&tensor)), (5, true));
    assert_eq!((tensor.len(), tensor.rank(), tensor.is_empty()), (12, 2, false));
    assert!(tensor.to(&queue).expect("it is there").is_shared());
    assert!(tensor.reshaped([2, 6]).expect("a view").is_shared());
    assert_eq!(queue.pool().stats().allocations, allocations);
    assert_eq!(part.to_vec::<f32>().expect("a copy"), [9.0, 10.0]);
    assert_eq!(queue.pool().stats().allocations, allocations);

    let SharedOrCopied::Copied(bent) = turned.reshaped([12]).expect("a copy") else {
        panic!("it is no view");
    };
    assert_eq!(bent.to_vec::<f32>().expect("a copy")[..4], [0.0, 4.0, 8.0, 1.0]);
    assert!(!turned.to_contiguous().expect("a copy").is_shared());
    let host = turned.to(Device::Host).expect("a copy").into_tensor();
    assert_eq!(
        (host.shape(), host.to_vec::<f32>().expect("a copy")[1]),
        (&[4, 3][..], 4.0)
    );
    // These copies to and from the host have elements that are not contiguous.
    let again = host
        .transpose(0, 1)
        .and_then(|host| host.to(&queue))
        .expect("a copy");
    assert_eq!(
        again.to_vec::<f32>().expect("a copy"),
        tensor.to_vec::<f32>().expect("a copy")
    );
    assert_eq!(
        format!("{part:?}"),
        "DeviceTensor { shape: [2], strides: [1], dtype: F32, device: Cuda(0), .. }"
    );
}

#[test]
fn device_tensors_refuse_the_same_operations_as_host_tensors() {
    let Some(queue) = queue() else { return };
    let (mut a, b) = (numbers(&queue, &[2, 3]), numbers(&queue, &[4]));
    let (mut host, other) = (
        Tensor::zeros([2, 3], DType::F32).expect("memory"),
        Tensor::zeros([4], DType::F32).expect("memory"),
    );
    let whole = DeviceTensor::full(&queue, [3], 2i32).expect("memory");
    let numbers = Tensor::full([3], 2i32).expect("memory");
    macro_rules! alike {
        ($($there:expr, $host:expr;)*) => {
            $({
                let (there, host) = ($there.err().expect("refused"), $host.err().expect("refused"));
                assert_eq!(there.to_string(), host.to_string());
            })*
        };
    }
    alike! {
        a.add(&b), host.add(&other);
        a.add_assign(&b), host.add_assign(&other);
        a.mul(&whole), host.mul(&numbers);
        a.axpy([1.0f64, 2.0], &whole), host.axpy([1.0f64, 2.0], &numbers);
        whole.add(0.5), numbers.add(0.5);
        whole.div(0), numbers.div(0);
        whole.dot(2), numbers.dot(2);
        a.dot(&b), host.dot(&other);
        a.matmul(&a), host.matmul(&host);
        a.matmul(2.0), host.matmul(2.0);
        a.slice(2, ..), host.slice(2, ..);
        a.slice(1, 2..5), host.slice(1, 2..5);
        a.reshape([7]), host.reshape([7]);
        a.transpose(0, 1).and_then(|a| a.reshape([6])), host.transpose(0, 1).and_then(|a| a.reshape([6]));
        a.permute([0, 0]), host.permute([0, 0]);
        a.broadcast_to([3, 3]), host.broadcast_to([3, 3]);
        a.batches(0, 0), host.batches(0, 0);
        a.sum_dim(2), host.sum_dim(2);
        a.to_vec::<f64>(), host.to_vec::<f64>();
        a.fill(true), host.fill(true);
        a.copy_from(&b), host.copy_from(&other);
        DeviceTensor::from_slice(&queue, &[1u8], [2]), Tensor::from_slice(&[1u8], [2]);
        DeviceTensor::zeros(&queue, [usize::MAX, 2], DType::U8), Tensor::zeros([usize::MAX, 2], DType::U8);
        DeviceTensor::zeros(&queue, [1; 9], DType::U8), Tensor::zeros([1; 9], DType::U8);
    }
    // The outputs have another shape or another type, or are shared, or have overlapping elements.
    let mut out = DeviceTensor::zeros(&queue, [3, 2], DType::F32).expect("memory");
    let mut host_out = Tensor::zeros([3, 2], DType::F32).expect("memory");
    alike! {
        a.add_into(&a, &mut out), host.add_into(&host, &mut host_out);
        a.sum_into(&mut out), host.sum_into(&mut host_out);
        a.cast_into(&mut out), host.cast_into(&mut host_out);
        whole.sum_dim_into(0, &mut out), numbers.sum_dim_into(0, &mut host_out);
    }
    let (view, host_view) = (a.clone(), host.clone());
    alike! {
        a.add_assign(1.0), host.add_assign(1.0);
        a.fill(1.0), host.fill(1.0);
    }
    drop((view, host_view));
    let row = |tensor: &DeviceTensor| tensor.slice(0, ..1).and_then(|row| row.broadcast_to([4, 3]));
    let mut wide = row(&a).expect("a view");
    assert!(matches!(wide.fill(1.0), Err(TensorError::Overlapping { .. })));
    // Some of the integers are divided by 0, in all three ways. Nothing is written.
    let zeros = DeviceTensor::from_slice(&queue, &[1, 0, 2], [3]).expect("memory");
    let mut out = DeviceTensor::full(&queue, [3], 9i32).expect("memory");
    assert!(matches!(
        whole.div(&zeros),
        Err(TensorError::DivisionByZero { operation: "div" })
    ));
    let into = whole.div_into(&zeros, &mut out);
    assert!(matches!(
        into,
        Err(TensorError::DivisionByZero {
            operation: "div_into"
        })
    ));
    assert!(out.div_assign(&zeros).is_err() && zeros.rdiv(1).is_err() && out.div_assign(0).is_err());
    assert_eq!(out.to_vec::<i32>().expect("a copy"), [9; 3]);
    // There are no kernels for these types.
    for dtype in [DType::Bool, DType::Complex64, DType::Complex128] {
        let mut tensor = DeviceTensor::zeros(&queue, [2, 2], dtype).expect("memory");
        let same = tensor.clone();
        let refused = |error: TensorError| {
            assert!(matches!(error, TensorError::Unsupported { .. }), "{error}");
        };
        refused(tensor.add(&same).expect_err("no kernel"));
        refused(tensor.matmul(&same).expect_err("no kernel"));
        drop(same);
        let other = DeviceTensor::zeros(&queue, [2, 2], dtype).expect("memory");
        refused(tensor.mul_assign(&other).expect_err("no kernel"));
        if dtype != DType::Bool {
            refused(tensor.sum().expect_err("no kernel"));
            refused(tensor.cast(DType::F32).expect_err("no kernel"));
        }
    }
    // A device's number is not a queue.
    assert!(a.to(Device::Cuda(0)).is_err());
}

#[test]
fn in_place_and_into_outputs_nothing_is_allocated() {
    let Some(queue) = queue() else { return };
    let mut a = numbers(&queue, &[64, 64]);
    let b = numbers(&queue, &[64, 64]).transpose(0, 1).expect("a view");
    let mut out = DeviceTensor::zeros(&queue, [64, 64], DType::F32).expect("memory");
    let mut row = DeviceTensor::zeros(&queue, [64], DType::F32).expect("memory");
    let mut one = DeviceTensor::zeros(&queue, [], DType::F32).expect("memory");
    let mut wide = DeviceTensor::zeros(&queue, [64, 64], DType::F64).expect("memory");
    let before = queue.pool().stats();
    let mut all = || -> Result<(), TensorError> {
        a.add_assign(&b)?;
        a.axpy(0.5, &b)?;
        a.scal(2.0)?;
        a.add_into(&b, &mut out)?;
        a.add_scaled_into(2.0, &b, &mut out)?;
        a.matmul_into(&b, &mut out)?;
        a.sum_dim_into(0, &mut row)?;
        a.sum_into(&mut one)?;
        a.sum()?;
        row.dot_into(&row.clone(), &mut one)?;
        a.cast_into(&mut wide)?;
        a.copy_from(&b)?;
        a.fill(0.0)
    };
    all().expect("it goes");
    let after = queue.pool().stats();
    assert_eq!(after.allocations, before.allocations);
    assert_eq!(after.requested.current, before.requested.current);
}

/// There are more elements than a sum has parts, so each part sums several.
#[test]
fn a_sum_has_no_more_parts_than_there_is_room_for() {
    let Some(queue) = queue() else { return };
    const LEN: usize = 5_000_001;
    // These tensors surround the parts in the pool's memory.
    let full = |_| DeviceTensor::full(&queue, [64], 9i64).expect("memory");
    let around: Vec<_> = (0..16).map(full).collect();
    let one = DeviceTensor::ones(&queue, [1], DType::I8).expect("memory");
    let many = one.broadcast_to([LEN]).expect("a view");
    assert_eq!(many.sum().expect("a sum").to_i64(), Some(LEN as i64));
    for tensor in around {
        assert_eq!(tensor.to_vec::<i64>().expect("a copy"), [9; 64]);
    }
}

/// Runs a chain of operations over two streams and a part of a tensor. Returns the result.
fn chain(pool: &DevicePool, streams: [&CudaStream; 2]) -> Result<Vec<f32>, Box<dyn Error>> {
    let [first, second] = [pool.on(streams[0])?, pool.on(streams[1])?];
    let host = Tensor::arange(0, 6000, 1)?.cast(DType::F32)?.reshape([60, 100])?;
    let a = host.to(&first)?.into_tensor();
    let mut b = DeviceTensor::full(&second, [60, 100], 2.0f32)?;
    // Operands belong to both streams, in both directions, and their streams use them afterwards.
    b.add_assign(&a)?;
    let mut c = a.mul(&b)?;
    drop(a);
    b.fill(1.0)?;
    c.sub_assign(&b)?;
    c.view_mut()?.slice(1, ..10)?.fill(3.0)?;
    let gram = c.transpose(0, 1)?.slice(0, ..4)?.matmul(&b.slice(1, 1..3)?)?;
    let mut sums = DeviceTensor::zeros(&second, [100], DType::F32)?;
    c.sum_dim_into(0, &mut sums)?;
    let mut total = DeviceTensor::zeros(&second, [], DType::F32)?;
    c.sum_into(&mut total)?;
    let doubles = c.cast(DType::F64)?.sum()?;
    assert!(doubles.to_f64().is_some_and(|sum| sum > 1e6));
    let mut results = gram.to_vec::<f32>()?;
    drop((gram, b));
    let next = DeviceTensor::zeros(&first, [60, 100], DType::F32)?;
    drop(next);
    results.extend(sums.to_vec::<f32>()?);
    results.extend(total.to_vec::<f32>()?);
    results.push(c.dot_of_first_row()?);
    Ok(results)
}

trait FirstRow {
    fn dot_of_first_row(&self) -> Result<f32, TensorError>;
}

impl FirstRow for DeviceTensor {
    fn dot_of_first_row(&self) -> Result<f32, TensorError> {
        let row = self.select(0, 0)?;
        let product = row.dot(&row)?.to_f64().unwrap_or_default();
        Ok(product as f32)
    }
}

/// Runs the same chain on the host.
fn expected() -> Vec<f32> {
    let on_host = || -> Result<Vec<f32>, TensorError> {
        let a = Tensor::arange(0, 6000, 1)?.cast(DType::F32)?.reshape([60, 100])?;
        let mut c = a.mul(&a.add(2.0)?)?.sub(1.0)?;
        c.view_mut()?.slice(1, ..10)?.fill(3.0)?;
        let ones = Tensor::ones([60, 2], DType::F32)?;
        let mut results = c.transpose(0, 1)?.slice(0, ..4)?.matmul(&ones)?.to_vec::<f32>()?;
        results.extend(c.sum_dim(0)?.to_vec::<f32>()?);
        results.push(c.sum()?.to_f64().unwrap_or_default() as f32);
        let row = c.select(0, 0)?;
        results.push(row.dot(&row)?.to_f64().unwrap_or_default() as f32);
        Ok(results)
    };
    on_host().expect("nothing fails")
}

fn compare(found: &[f32]) {
    let expected = expected();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found - expected).abs() <= 1e-5 * expected.abs(),
            "{found}, {expected}"
        );
    }
}

fn two_streams(device: &CudaDevice) -> [CudaStream; 2] {
    [(); 2].map(|()| CudaStream::new(device).expect("a stream"))
}

#[test]
fn a_chain_over_two_streams_is_correct() {
    let Some((device, pool, _)) = device() else { return };
    let [first, second] = two_streams(&device);
    compare(&chain(&pool, [&first, &second]).expect("nothing fails"));
    compare(&chain(&pool, [&first, &first]).expect("nothing fails"));
    assert_eq!(pool.stats().requested.current, 0);
}

#[test]
fn a_chain_is_correct_in_any_order_of_work() {
    in_any_order("tensors::a_chain_is_correct_in_any_order_of_work", 100, || {
        let (device, pool, _) = device().expect("a device");
        let [first, second] = two_streams(&device);
        for _ in 0..2 {
            compare(&chain(&pool, [&first, &second]).expect("nothing fails"));
        }
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

#[test]
fn each_call_of_a_chain_fails_in_turn() {
    let options = std::iter::once("strict:on".to_owned());
    in_children("tensors::each_call_of_a_chain_fails_in_turn", options, || {
        let (device, pool, _) = device().expect("a device");
        let [first, second] = two_streams(&device);
        each_call_fails(&pool, || {
            chain(&pool, [&first, &second]).map(|found| compare(&found))
        });
    });
}

/// Failures include those of loading and finding the kernels.
#[test]
fn each_call_of_the_first_launch_fails_in_turn() {
    let options = (1..40).map(|nth| format!("fail:@{nth}"));
    in_children(
        "tensors::each_call_of_the_first_launch_fails_in_turn",
        options,
        || {
            let made = || -> Result<Vec<i64>, Box<dyn Error>> {
                let device = CudaDevice::get(0)?;
                let pool = DevicePool::new(&device)?;
                let queue = pool.on(&CudaStream::new(&device)?)?;
                Ok(DeviceTensor::full(&queue, [2], 3i64)?.mul(5)?.to_vec()?)
            };
            match made() {
                Ok(found) => assert_eq!(found, [15, 15]),
                Err(error) => match made() {
                    Ok(found) => assert_eq!(found, [15, 15]),
                    // A driver whose initialisation failed stays unusable.
                    Err(_) => assert!(error.to_string().contains("cuInit"), "{error}"),
                },
            }
        },
    );
}

/// Calls a function that must use the tensor on its own stream and then, without a wait, on the other stream. The emulator must find that.
fn planted(use_elsewhere: impl FnOnce(&CudaDevice, &mut DeviceTensor, &CudaStream)) {
    let (device, pool, stream) = device().expect("a device");
    let queue = pool.on(&stream).expect("memory");
    let mut tensor = numbers(&queue, &[100]);
    stream.synchronize().expect("it is done");
    assert_eq!(emulator::findings().0, 0);
    let other = CudaStream::new(&device).expect("a stream");
    use_elsewhere(&device, &mut tensor, &other);
    let (count, text) = emulator::findings();
    assert!(
        count > 0 && text.contains("cuLaunchKernel"),
        "the planted race was not found: {text}"
    );
}

/// The emulator finds a planted error, because this crate's kernels declare the memory that they access.
#[test]
fn a_missing_wait_for_a_tensor_is_found() {
    let options = std::iter::once("streams:seeded,seed:1,strict:on".to_owned());
    in_children("tensors::a_missing_wait_for_a_tensor_is_found", options, || {
        planted(|_, tensor, other| {
            tensor.add_assign(1.0).expect("it goes");
            emulator::set_bytes(tensor.address(), 7, 400, other.as_raw());
        });
    });
}

/// The emulator also finds a launch whose argument is an address as a number, although its owner is unknown.
#[test]
fn a_missing_wait_of_a_launch_is_found() {
    let options = std::iter::once("streams:seeded,seed:1,strict:on".to_owned());
    in_children("tensors::a_missing_wait_of_a_launch_is_found", options, || {
        planted(|device, tensor, other| {
            let ptx = ".version 7.0\n.target sm_70\n.visible .entry fill() { ret; }";
            let fill = CudaModule::load(device, ptx).and_then(|module| module.kernel("fill"));
            tensor.fill(2.0).expect("it goes");
            let fill = fill.expect("it is there");
            let launch = fill.launch(other).arg(tensor.address()).arg(1.0f32).arg(100u64);
            // SAFETY: the sizes agree; the missing wait is the error that the test must find.
            unsafe { launch.launch() }.expect("it goes");
        });
    });
}

#[test]
fn a_programs_own_kernel_takes_tensors() {
    in_any_order("tensors::a_programs_own_kernel_takes_tensors", 5, || {
        let (device, pool, _) = device().expect("a device");
        let [first, second] = two_streams(&device);
        let [here, there] = [&first, &second].map(|stream| pool.on(stream).expect("memory"));
        let scale =
            CudaModule::load(&device, crate::launches::SCALE).and_then(|module| module.kernel("scale"));
        let (input, mut out) = (numbers(&here, &[4, 5]), numbers(&there, &[4, 5]));
        let rows = input.slice(0, 2..).expect("a view");
        let target = out.view_mut().and_then(|out| out.slice(0, ..2)).expect("a view");
        let scale = scale.expect("it is there");
        let launch = scale
            .launch(&first)
            .block(16)
            .arg_mut(target)
            .arg(&rows)
            .arg(-1.0f32)
            .arg(10u64);
        // SAFETY: the views' elements follow one another, 10 of them.
        unsafe { launch.launch() }.expect("it goes");
        let found = out.to_vec::<f32>().expect("a copy");
        assert_eq!((found[0], found[9], found[10]), (-10.0, -19.0, 10.0));
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

#[test]
fn tensors_of_different_devices_are_refused() {
    let options = std::iter::once("devices:2".to_owned());
    in_children(
        "tensors::tensors_of_different_devices_are_refused",
        options,
        || {
            let queues = [0, 1].map(|number| {
                let device = CudaDevice::get(number).expect("a device");
                let pool = DevicePool::new(&device).expect("a pool");
                pool.on(&CudaStream::new(&device).expect("a stream"))
                    .expect("memory")
            });
            let (near, far) = (numbers(&queues[0], &[2, 3]), numbers(&queues[1], &[2, 3]));
            let refused = near.add(&far).expect_err("elsewhere");
            assert!(
                matches!(
                    refused,
                    TensorError::Cuda(CudaError::OtherDevice {
                        expected: 0,
                        found: 1
                    })
                ),
                "{refused}"
            );
            let brought = far
                .transpose(0, 1)
                .and_then(|far| far.to(&queues[0]))
                .expect("a copy");
            assert!(!brought.is_shared());
            assert_eq!(brought.device(), Device::Cuda(0));
            let sum = near
                .add(&brought.transpose(0, 1).expect("a view"))
                .expect("the same device");
            assert_eq!(
                sum.to_vec::<f32>().expect("a copy"),
                [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
            );
            let stream = CudaStream::new(queues[1].device()).expect("a stream");
            assert!(queues[0].pool().on(&stream).is_err());
        },
    );
}

#[test]
fn threads_share_a_queue() {
    let Some(queue) = queue() else { return };
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let queue = &queue;
            scope.spawn(move || {
                let mut random = Random(thread);
                for _ in 0..20 {
                    let (len, value) = (1 + random.below(20_000), random.below(100) as i64);
                    let tensor = DeviceTensor::full(queue, [len], value).expect("memory");
                    let sum = tensor.sum().expect("a sum").to_i64();
                    assert_eq!(sum, Some(value * len as i64));
                }
            });
        }
    });
}
