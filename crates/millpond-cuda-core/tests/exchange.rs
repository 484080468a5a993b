//! Tests the exchange of buffers, streams and contexts in both directions. `cargo xtask cuda-core` runs these tests on the emulated driver.
//! It also runs them with work that is delayed and reordered as far as CUDA allows.

#![cfg(target_os = "linux")]

mod support;

use cuda_core::{DeviceBuffer, DriverError, Stream, sys};
use millpond::Budget;
use millpond::budget::Measure;
use millpond::cuda::{CudaDevice, CudaError, CudaStream, DevicePool, UnpooledDevice};
use millpond_cuda_core::{CudaCoreError, CudaCorePool, adopt, device_of, lend, stream_in, stream_of};
use std::sync::Arc;
use support::{another_context, begin_capture, device, end_capture, eventually, expect_no_findings};

const LEN: usize = 50_000;

fn numbers(turn: u32) -> Vec<u32> {
    (0..LEN as u32).map(|at| at ^ (turn << 20)).collect()
}

fn requested(pool: &DevicePool) -> u64 {
    pool.stats().requested.current
}

#[test]
fn a_pool_serves_buffers_of_cuda_core() {
    let Some((_, pool, context)) = device() else {
        return;
    };
    let stream = context.new_stream().expect("a stream");
    let mut zeros = pool.zeroed::<u32>(&stream, LEN).expect("memory");
    let from_host = pool.copied_from_host(&stream, &numbers(1)).expect("memory");
    let mut copy = pool.uninitialized::<u32>(&stream, LEN).expect("memory");
    assert_eq!(requested(&pool), 3 * 4 * LEN as u64);
    assert!(
        zeros
            .to_host_vec(&stream)
            .expect("a copy")
            .iter()
            .all(|zero| *zero == 0)
    );
    copy.copy_from_device_async(&from_host, &stream).expect("a copy");
    zeros.copy_from_device_async(&copy, &stream).expect("a copy");
    // Work of cuda-core on these buffers is queued. Their memory returns after it.
    drop((from_host, copy));
    assert_eq!(zeros.to_host_vec(&stream).expect("a copy"), numbers(1));
    eventually("two buffers come back", || requested(&pool) == 4 * LEN as u64);
    drop(zeros);
    eventually("all buffers come back", || requested(&pool) == 0);
    assert!(pool.stats().reserved.current > 0, "the pool keeps the memory");
    expect_no_findings();
}

/// cuda-core also supports types that are not elements of millpond.
#[test]
fn a_pool_serves_all_types_of_cuda_core() {
    let Some((_, pool, context)) = device() else {
        return;
    };
    let stream = context.new_stream().expect("a stream");
    let truths = pool.zeroed::<bool>(&stream, 10).expect("memory");
    assert_eq!(truths.to_host_vec(&stream).expect("a copy"), [false; 10]);
    let pairs = pool
        .copied_from_host(&stream, &[(1u8, 2u32), (3, 4)])
        .expect("memory");
    assert_eq!(pairs.to_host_vec(&stream).expect("a copy"), [(1, 2), (3, 4)]);
    let wide = pool.copied_from_host(&stream, &[u128::MAX, 7]).expect("memory");
    assert_eq!(wide.to_host_vec(&stream).expect("a copy"), [u128::MAX, 7]);
    let none = pool.zeroed::<u32>(&stream, 0).expect("no memory");
    assert!(none.is_empty() && none.to_host_vec(&stream).expect("a copy").is_empty());
    assert!(
        pool.copied_from_host::<u32>(&stream, &[])
            .expect("no memory")
            .is_empty()
    );
    expect_no_findings();
}

#[test]
fn limits_and_budgets_of_a_pool_hold_for_cuda_core() {
    let Some((device, _, context)) = device() else {
        return;
    };
    let stream = context.new_stream().expect("a stream");
    let refused = |outcome: Result<DeviceBuffer<u8>, CudaCoreError>| match outcome {
        Err(CudaCoreError::Alloc(error)) => error,
        other => panic!("{:?}", other.map(|_| ())),
    };
    let limited = DevicePool::builder()
        .settings("")
        .limit(4 << 20)
        .build(&device)
        .expect("a pool");
    let held = limited.uninitialized::<u8>(&stream, 3 << 20).expect("fits");
    assert!(refused(limited.uninitialized(&stream, 3 << 20)).is_out_of_memory());
    refused(limited.uninitialized(&stream, usize::MAX));
    drop(held);
    eventually("the memory comes back", || requested(&limited) == 0);
    drop(limited.zeroed::<u8>(&stream, 3 << 20).expect("fits"));

    let budget = Budget::builder("cuda-core")
        .measure(Measure::Allocated)
        .limit(1 << 20)
        .build();
    let tenant = limited
        .tenant(&budget.expect("a budget"))
        .expect("of allocated bytes");
    let held = tenant.uninitialized::<u8>(&stream, 600_000).expect("fits");
    let error = refused(tenant.uninitialized(&stream, 600_000));
    drop(held);
    assert!(error.to_string().contains("over budget 'cuda-core'"), "{error}");
    let error = limited
        .uninitialized::<u64>(&stream, usize::MAX)
        .map(|_| ())
        .expect_err("too many");
    assert!(matches!(error, CudaCoreError::Alloc(_)), "{error}");
    let direct = UnpooledDevice::new(&device).expect("a device");
    let buffer = direct.copied_from_host(&stream, &numbers(2)).expect("memory");
    assert_eq!(buffer.to_host_vec(&stream).expect("a copy"), numbers(2));
    expect_no_findings();
}

/// Memory that is still in use by work on a stream of one library is allocated for a stream of the other library.
#[test]
fn reused_memory_is_ordered_between_streams() {
    let Some((device, pool, context)) = device() else {
        return;
    };
    let theirs = context.new_stream().expect("a stream");
    let other = context.new_stream().expect("a stream");
    let ours = CudaStream::new(&device).expect("a stream");
    for turn in 0..20 {
        let mut first = pool.zeroed::<u32>(&theirs, LEN).expect("memory");
        // The zeros may be on their way, so cuda-core refuses its other stream or finds them.
        match first.to_host_vec(&other) {
            Ok(all) => assert!(all.iter().all(|zero| *zero == 0)),
            Err(error) => assert_eq!(error.0, sys::cudaError_enum_CUDA_ERROR_NOT_READY),
        }
        first.zero_async(&theirs).expect("zeros");
        drop(first);
        let second = pool.alloc_from(&numbers(turn), &ours).expect("memory");
        let third = pool.copied_from_host(&other, &numbers(turn + 1)).expect("memory");
        assert_eq!(second.to_vec().expect("a copy"), numbers(turn));
        drop(second);
        let fourth = pool
            .copied_from_host(&theirs, &numbers(turn + 2))
            .expect("memory");
        assert_eq!(third.to_host_vec(&theirs).expect("a copy"), numbers(turn + 1));
        assert_eq!(fourth.to_host_vec(&other).expect("a copy"), numbers(turn + 2));
    }
    eventually("all buffers come back", || requested(&pool) == 0);
    expect_no_findings();
}

/// A block that was freed on a stream is allocated for cuda-core on that stream while earlier work still uses it.
#[test]
fn cuda_core_refuses_other_streams_until_earlier_work_has_passed() {
    let Some((_, pool, context)) = device() else {
        return;
    };
    let theirs = context.new_stream().expect("a stream");
    let other = context.new_stream().expect("a stream");
    let ours = stream_of(&theirs).expect("the same");
    for turn in 0..20 {
        let mut earlier = pool.alloc::<u32>(LEN, &ours).expect("memory");
        earlier.fill_zero().expect("zeros");
        let address = earlier.address();
        drop(earlier);
        let mut buffer = pool.uninitialized::<u32>(&theirs, LEN).expect("memory");
        assert_eq!(
            buffer.cu_deviceptr(),
            address,
            "the stream gets its memory back at once"
        );
        let refused = |error: DriverError| assert_eq!(error.0, sys::cudaError_enum_CUDA_ERROR_NOT_READY);
        match buffer.zero_async(&other) {
            Ok(()) => other.synchronize().expect("it ends"),
            Err(error) => refused(error),
        }
        buffer.copy_from_host(&theirs, &numbers(turn)).expect("a copy");
        assert_eq!(buffer.to_host_vec(&other).expect("a copy"), numbers(turn));
        drop(buffer);
        eventually("the buffer comes back", || requested(&pool) == 0);
    }
    expect_no_findings();
}

/// Work of cuda-core on lent elements runs after earlier work of millpond and before later work. Neither `lend` nor `take_back` makes the
/// host wait.
#[test]
fn elements_are_lent_and_come_back() {
    let Some((device, pool, context)) = device() else {
        return;
    };
    let ours = CudaStream::new(&device).expect("a stream");
    let theirs = context.new_stream().expect("a stream");
    let mut buffer = pool.alloc_from(&numbers(0), &ours).expect("memory");
    for turn in 1..10 {
        buffer.fill_zero().expect("zeros");
        let mut lent = lend(buffer, &theirs).expect("lent");
        assert_eq!(lent.len(), LEN);
        let there = lent.to_host_vec(&theirs).expect("a copy");
        assert!(there.iter().all(|zero| *zero == 0));
        let source = pool.copied_from_host(&theirs, &numbers(turn)).expect("memory");
        lent.copy_from_device_async(&source, &theirs).expect("a copy");
        drop(source);
        buffer = lent.take_back().expect("taken back");
        let mut copy = pool.alloc::<u32>(LEN, &ours).expect("memory");
        copy.copy_from(&buffer).expect("a copy");
        assert_eq!(copy.to_vec().expect("a copy"), numbers(turn));
        // The buffer is freed while work may still run, and allocated again.
        drop(buffer);
        buffer = pool.alloc_from(&numbers(turn), &ours).expect("memory");
    }
    drop(buffer);
    eventually("all buffers come back", || requested(&pool) == 0);
    expect_no_findings();
}

#[test]
fn a_loan_with_another_view_is_not_taken_back() {
    let Some((device, pool, context)) = device() else {
        return;
    };
    let ours = CudaStream::new(&device).expect("a stream");
    let theirs = context.new_stream().expect("a stream");
    let lent = lend(pool.alloc_from(&numbers(1), &ours).expect("memory"), &theirs);
    let mut lent = lent.expect("lent");
    let view = lent.storage().clone();
    let (error, back) = lent.take_back().expect_err("there is a view").into_parts();
    assert!(matches!(error, CudaCoreError::Shared), "{error}");
    lent = back;
    drop(view);
    // The caller replaces the lent buffer by another buffer of the same size.
    let another = pool.zeroed::<u32>(&theirs, LEN).expect("memory");
    let original = std::mem::replace(&mut *lent, another);
    let (error, back) = lent
        .take_back()
        .expect_err("the elements are elsewhere")
        .into_parts();
    assert!(matches!(error, CudaCoreError::Shared), "{error}");
    lent = back;
    assert_eq!(original.to_host_vec(&theirs).expect("a copy"), numbers(1));
    *lent = original;
    let buffer = lent.take_back().expect("taken back");
    assert_eq!(buffer.to_vec().expect("a copy"), numbers(1));
    // The caller drops the lent buffer by replacing it.
    let mut lent = lend(buffer, &theirs).expect("lent");
    *lent = pool.zeroed::<u32>(&theirs, 1).expect("memory");
    let mut left = Some(lent);
    for _ in 0..20_000 {
        match left.take().expect("a loan").take_back() {
            Ok(buffer) => {
                assert_eq!(buffer.to_vec().expect("a copy"), numbers(1));
                break;
            }
            Err(refused) => {
                let (error, lent) = refused.into_parts();
                assert!(matches!(error, CudaCoreError::Shared), "{error}");
                left = Some(lent);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
    assert!(left.is_none(), "the allocation has ended");
    expect_no_findings();
}

/// The host must wait for work on a stream of cuda-core that the loan does not know.
#[test]
fn a_loan_that_another_stream_uses_is_busy() {
    let Some((device, pool, context)) = device() else {
        return;
    };
    let ours = CudaStream::new(&device).expect("a stream");
    let theirs = context.new_stream().expect("a stream");
    let other = context.new_stream().expect("a stream");
    for turn in 0..100 {
        let lent = lend(pool.alloc_from(&numbers(turn), &ours).expect("memory"), &theirs);
        let mut lent = lent.expect("lent");
        theirs.synchronize().expect("it ends");
        lent.zero_async(&other).expect("zeros");
        let buffer = lent.take_back().or_else(|refused| {
            let (error, lent) = refused.into_parts();
            assert!(matches!(error, CudaCoreError::Busy), "{error}");
            other.synchronize().expect("it ends");
            lent.take_back()
        });
        let there = buffer.expect("taken back").to_vec().expect("a copy");
        assert!(there.iter().all(|zero| *zero == 0));
    }
    expect_no_findings();
}

#[test]
fn a_loan_that_is_not_taken_back_returns_to_its_pool() {
    let Some((device, pool, context)) = device() else {
        return;
    };
    let ours = CudaStream::new(&device).expect("a stream");
    let theirs = context.new_stream().expect("a stream");
    let lent = || lend(pool.alloc_from(&numbers(3), &ours).expect("memory"), &theirs);
    drop(lent().expect("lent"));
    eventually("the memory comes back", || requested(&pool) == 0);
    let buffer = lent().expect("lent").into_theirs();
    assert_eq!(buffer.to_host_vec(&theirs).expect("a copy"), numbers(3));
    let view = buffer.storage().clone();
    drop(buffer);
    assert_eq!(requested(&pool), 4 * LEN as u64, "there is a view");
    drop(view);
    eventually("the memory comes back", || requested(&pool) == 0);
    expect_no_findings();
}

/// cuda-core does not track work that unsafe code queues. This work is still ordered if it is on the stream of the buffer.
#[test]
fn untracked_work_on_the_stream_of_a_buffer_is_ordered() {
    let Some((device, pool, context)) = device() else {
        return;
    };
    let theirs = context.new_stream().expect("a stream");
    let ours = CudaStream::new(&device).expect("a stream");
    let fill = |buffer: &DeviceBuffer<u32>, value| {
        context.bind_to_thread().expect("a context");
        // SAFETY: the buffer has these elements, and all other work uses its memory in the order of the stream.
        let code =
            unsafe { sys::cuMemsetD32Async(buffer.cu_deviceptr(), value, buffer.len(), theirs.cu_stream()) };
        assert_eq!(code, 0);
    };
    let expect = |turn| {
        let numbers = numbers(turn);
        let next = pool.alloc_from(&numbers, &ours).expect("memory");
        assert_eq!(next.to_vec().expect("a copy"), numbers);
    };
    for turn in 0..10 {
        let buffer = pool.uninitialized::<u32>(&theirs, LEN).expect("memory");
        fill(&buffer, turn);
        drop(buffer);
        expect(turn);
        let lent = lend(pool.alloc_from(&numbers(turn), &ours).expect("memory"), &theirs);
        let lent = lent.expect("lent");
        fill(&lent, turn);
        let buffer = lent.take_back().expect("taken back");
        assert_eq!(buffer.to_vec().expect("a copy"), [turn; LEN]);
        let lent = lend(buffer, &theirs).expect("lent");
        fill(&lent, turn + 1);
        drop(lent);
        expect(turn + 1);
        let buffer = DeviceBuffer::from_host(&theirs, &numbers(turn)).expect("memory");
        fill(&buffer, turn);
        let adopted = adopt(buffer, &theirs).expect("adopted");
        assert_eq!(adopted.to_vec().expect("a copy"), [turn; LEN]);
    }
    expect_no_findings();
}

#[test]
fn a_buffer_of_cuda_core_is_adopted() {
    let Some((device, pool, context)) = device() else {
        return;
    };
    let theirs = context.new_stream().expect("a stream");
    let ours = CudaStream::new(&device).expect("a stream");
    let free = || device.memory().expect("it says so").free;
    drop(pool.alloc_from(&numbers(0), &ours).expect("memory"));
    let before = free();
    for turn in 1..5 {
        let buffer = DeviceBuffer::from_host(&theirs, &numbers(turn)).expect("memory");
        let view = buffer.storage().clone();
        let (error, mut buffer) = adopt(buffer, &theirs).expect_err("there is a view").into_parts();
        assert!(matches!(error, CudaCoreError::Shared), "{error}");
        drop(view);
        buffer.zero_async(&theirs).expect("zeros");
        let mut adopted = adopt(buffer, &theirs).expect("adopted");
        assert!(adopted.pool().is_none() && adopted.len() == LEN);
        assert!(adopted.to_vec().expect("a copy").iter().all(|zero| *zero == 0));
        let source = pool.alloc_from(&numbers(turn), &ours).expect("memory");
        adopted.copy_from(&source).expect("a copy");
        let mut copy = pool.alloc::<u32>(LEN, &ours).expect("memory");
        copy.copy_from(&adopted).expect("a copy");
        adopted.record_use(&ours).expect("of the device");
        // The copy from the adopted buffer may still have to run.
        drop(adopted);
        assert_eq!(copy.to_vec().expect("a copy"), numbers(turn));
    }
    eventually("cuda-core frees the memory", || free() >= before);
    // A buffer of a pool comes back through both libraries.
    let buffer = pool.copied_from_host(&theirs, &numbers(7)).expect("memory");
    let adopted = adopt(buffer, &theirs).expect("adopted");
    assert_eq!(adopted.to_vec().expect("a copy"), numbers(7));
    drop(adopted);
    eventually("the memory comes back", || requested(&pool) == 0);
    expect_no_findings();
}

#[test]
fn a_buffer_that_another_stream_uses_is_not_adopted() {
    let Some((_, _, context)) = device() else { return };
    let theirs = context.new_stream().expect("a stream");
    let other = context.new_stream().expect("a stream");
    for turn in 0..100 {
        let mut buffer = DeviceBuffer::from_host(&theirs, &numbers(turn)).expect("memory");
        buffer.zero_async(&other).expect("zeros");
        let adopted = adopt(buffer, &theirs).or_else(|refused| {
            let (error, buffer) = refused.into_parts();
            assert!(matches!(error, CudaCoreError::Busy), "{error}");
            other.synchronize().expect("it ends");
            adopt(buffer, &theirs)
        });
        let there = adopted.expect("adopted").to_vec().expect("a copy");
        assert!(there.iter().all(|zero| *zero == 0));
    }
    expect_no_findings();
}

/// Each library keeps a stream of the other alive.
#[test]
fn streams_are_exchanged_in_both_directions() {
    let Some((device, pool, context)) = device() else {
        return;
    };
    assert_eq!(device_of(&context).expect("the device").number(), device.number());
    let theirs = context.new_stream().expect("a stream");
    let weak = Arc::downgrade(&theirs);
    let ours = stream_of(&theirs).expect("the same");
    assert_eq!(ours.as_raw(), theirs.cu_stream().cast());
    let buffer = pool.alloc_from(&numbers(3), &ours).expect("memory");
    drop((theirs, ours));
    assert_eq!(buffer.to_vec().expect("a copy"), numbers(3));
    drop((buffer, pool));
    assert!(weak.upgrade().is_none(), "nobody has the stream");

    let ours = CudaStream::new(&device).expect("a stream");
    let theirs = stream_in(&context, &ours).expect("the same");
    assert_eq!(ours.as_raw(), theirs.cu_stream().cast());
    assert!(stream_of(&theirs).expect("the same") == ours);
    drop(ours);
    let buffer = DeviceBuffer::from_host(&theirs, &numbers(4)).expect("memory");
    assert_eq!(buffer.to_host_vec(&theirs).expect("a copy"), numbers(4));

    // SAFETY: the stream lives longer than this handle, and no pool knows it.
    let borrowed = unsafe { CudaStream::from_raw(&device, theirs.cu_stream().cast()) };
    let told = stream_in(&context, &borrowed).expect_err("it may end");
    assert!(matches!(told, CudaCoreError::NotKept), "{told}");
    assert!(stream_in(&context, &CudaStream::legacy(&device)).is_ok());

    // The default stream of the context is the legacy stream.
    let default = stream_of(&context.default_stream()).expect("the legacy stream");
    assert!(default == CudaStream::legacy(&device));
    // SAFETY: the driver knows this stream.
    let per_thread = unsafe { Stream::borrow_raw(std::ptr::without_provenance_mut(2), &context) };
    let told = stream_of(&per_thread).expect_err("another on each thread");
    assert!(matches!(told, CudaError::PerThread), "{told}");
    expect_no_findings();
}

#[test]
fn another_context_is_refused() {
    let Some((device, pool, context)) = device() else {
        return;
    };
    let foreign = another_context(&context);
    let ours = CudaStream::new(&device).expect("a stream");
    let theirs = foreign.new_stream().expect("a stream");
    let expected =
        |error: CudaError| assert!(matches!(error, CudaError::OtherContext { device: 0 }), "{error}");
    let told = |error: CudaCoreError| match error {
        CudaCoreError::Cuda(error) => expected(error),
        other => panic!("{other}"),
    };
    expected(device_of(&foreign).expect_err("another context"));
    expected(stream_of(&theirs).expect_err("another context"));
    told(stream_in(&foreign, &ours).expect_err("another context"));
    told(
        pool.zeroed::<u32>(&theirs, 10)
            .map(|_| ())
            .expect_err("another context"),
    );
    let (error, buffer) = lend(pool.alloc_from(&[1u32, 2], &ours).expect("memory"), &theirs)
        .expect_err("no loan")
        .into_parts();
    told(error);
    assert_eq!(buffer.to_vec().expect("it is whole"), [1, 2]);
    let buffer = DeviceBuffer::from_host(&theirs, &[3u32, 4]).expect("memory");
    let (error, buffer) = adopt(buffer, &theirs).expect_err("another context").into_parts();
    told(error);
    // A stream of the primary context does not fit the buffer either.
    let primary = context.new_stream().expect("a stream");
    let (error, buffer) = adopt(buffer, &primary).expect_err("another context").into_parts();
    assert!(matches!(error, CudaCoreError::Driver(_)), "{error}");
    assert_eq!(buffer.to_host_vec(&theirs).expect("it is whole"), [3, 4]);
    expect_no_findings();
}

#[test]
fn another_device_is_refused() {
    let Some((_, pool, context)) = device() else {
        return;
    };
    if CudaDevice::count().expect("a number") < 2 {
        eprintln!("skipped: there is only one device");
        return;
    }
    let second = cuda_core::Context::new(1).expect("a context");
    let stream = second.new_stream().expect("a stream");
    let told = pool
        .zeroed::<u32>(&stream, 10)
        .map(|_| ())
        .expect_err("another device");
    let other = |error: &CudaError| {
        matches!(
            error,
            CudaError::OtherDevice {
                expected: 0,
                found: 1
            }
        )
    };
    assert!(
        matches!(&told, CudaCoreError::Cuda(error) if other(error)),
        "{told}"
    );
    let ours = stream_of(&stream).expect("the same");
    let told = stream_in(&context, &ours).expect_err("another device");
    assert!(
        matches!(
            told,
            CudaCoreError::Cuda(CudaError::OtherDevice {
                expected: 1,
                found: 0
            })
        ),
        "{told}"
    );
    expect_no_findings();
}

/// Captured work runs later, when the memory may belong to another buffer. The capture itself continues.
#[test]
fn captured_streams_are_refused() {
    let Some((device, pool, context)) = device() else {
        return;
    };
    let theirs = context.new_stream().expect("a stream");
    let ours = CudaStream::new(&device).expect("a stream");
    let also_ours = stream_in(&context, &ours).expect("the same");
    let told = |error: CudaCoreError| match error {
        CudaCoreError::Cuda(CudaError::Capturing) => {}
        other => panic!("{other}"),
    };
    let buffer = pool.alloc_from(&[1u32, 2], &ours).expect("memory");
    let own = DeviceBuffer::from_host(&theirs, &[3u32, 4]).expect("memory");
    let lent = lend(pool.alloc_from(&[5u32, 6], &ours).expect("memory"), &theirs);
    let lent = lent.expect("lent");

    begin_capture(&theirs);
    told(pool.zeroed::<u32>(&theirs, 10).map(|_| ()).expect_err("captured"));
    let (error, buffer) = lend(buffer, &theirs).expect_err("captured").into_parts();
    told(error);
    let (error, own) = adopt(own, &theirs).expect_err("captured").into_parts();
    told(error);
    let (error, lent) = lent.take_back().expect_err("captured").into_parts();
    told(error);
    assert!(end_capture(&theirs), "the capture is broken");

    begin_capture(&also_ours);
    let (error, buffer) = lend(buffer, &theirs).expect_err("captured").into_parts();
    told(error);
    let (error, lent) = lent.take_back().expect_err("captured").into_parts();
    told(error);
    assert!(end_capture(&also_ours), "the capture is broken");

    assert_eq!(buffer.to_vec().expect("a copy"), [1, 2]);
    assert_eq!(own.to_host_vec(&theirs).expect("a copy"), [3, 4]);
    let buffer = lent.take_back().expect("taken back");
    assert_eq!(buffer.to_vec().expect("a copy"), [5, 6]);
    expect_no_findings();
}

#[test]
fn buffers_without_elements_are_exchanged() {
    let Some((device, pool, context)) = device() else {
        return;
    };
    let theirs = context.new_stream().expect("a stream");
    let ours = CudaStream::new(&device).expect("a stream");
    let lent = lend(pool.alloc::<u32>(0, &ours).expect("no memory"), &theirs).expect("lent");
    assert!(lent.is_empty());
    assert!(lent.take_back().expect("taken back").is_empty());
    let none = DeviceBuffer::<u32>::zeroed(&theirs, 0).expect("no memory");
    assert!(adopt(none, &theirs).expect("adopted").is_empty());
    expect_no_findings();
}
