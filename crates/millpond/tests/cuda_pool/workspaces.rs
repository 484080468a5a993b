//! Workspaces on a device: permanent buffers, scopes, allocations from the pool, and waits for other streams.

use crate::support::emulator;
use crate::{builder, device, is_alone};
use millpond::cuda::{
    CudaError, CudaQueue, CudaStream, DevicePool, DeviceTensor, DeviceWorkspace, UnpooledDevice,
};
use millpond::{AllocError, DType, Device, TensorError, workspace::WorkspaceError};
use std::panic::{AssertUnwindSafe, catch_unwind};

const LEN: usize = 5000;

fn queue() -> Option<(DevicePool, CudaStream, CudaQueue)> {
    let (device, stream) = device()?;
    let pool = builder().build(&device).expect("a pool");
    let queue = pool.on(&stream).expect("room for sums");
    Some((pool, stream, queue))
}

#[test]
fn named_tensors_are_zeroed_and_have_their_type() {
    let Some((pool, stream, queue)) = queue() else {
        return;
    };
    let before = pool.stats().requested.current;
    let mut workspace = DeviceWorkspace::builder(&queue)
        .buffer::<f32>("x", 100)
        .buffer::<u16>("y", 7)
        .buffer::<u16>("z", 7)
        .buffer::<u64>("none", 0)
        .tensor("a", [2, 3], DType::I32)
        .tensor("b", [3], DType::I32)
        .build()
        .expect("room");
    assert_eq!(
        workspace.named().names().collect::<Vec<_>>(),
        ["x", "y", "z", "none", "a", "b"]
    );
    assert_eq!(workspace.stats().named_bytes, 400 + 14 + 14 + 24 + 12);
    let x = workspace.get::<f32>("x").expect("there");
    assert_eq!(
        (x.to_vec().expect("a copy"), x.stream()),
        (vec![0.0; 100], &stream)
    );
    let [z, y] = workspace
        .named()
        .get_disjoint_mut::<u16, 2>(["z", "y"])
        .expect("both");
    y.copy_from_host(&[1; 7]).expect("as many");
    z.copy_from(y).expect("as many");
    let z = workspace.get::<u16>("z").expect("there");
    assert_eq!(z.to_vec().expect("a copy"), [1; 7]);
    let [b, a] = workspace.named().tensors_mut(["b", "a"]).expect("both");
    b.fill(4).expect("alone");
    a.copy_from(&*b).expect("repeated");
    assert_eq!(a.to_vec::<i32>().expect("a copy"), [4; 6]);
    let held = workspace.tensor("b").expect("there").clone();
    let shared = workspace.tensor_mut("b").expect("there").fill(1);
    assert!(matches!(shared, Err(TensorError::Shared { .. })));
    drop(held);

    let said = |error: WorkspaceError| error.to_string();
    assert_eq!(
        said(workspace.get::<u32>("x").expect_err("they are f32")),
        "the elements of \"x\" are f32, not u32"
    );
    assert_eq!(
        said(workspace.get_mut::<f32>("w").expect_err("no such")),
        "the workspace has no buffer \"w\": it has x, y, z, none"
    );
    assert_eq!(
        said(workspace.tensor("x").expect_err("a buffer")),
        "the workspace has no tensor \"x\": it has a, b"
    );
    assert!(matches!(
        workspace.named().tensors_mut(["a", "b", "a"]),
        Err(WorkspaceError::Twice { name }) if name == "a"
    ));
    let twice = DeviceWorkspace::builder(&queue)
        .buffer::<u8>("a", 1)
        .tensor("a", [1], DType::F32)
        .build();
    assert!(matches!(twice, Err(WorkspaceError::Twice { name }) if name == "a"));
    workspace.free();
    assert_eq!(pool.stats().requested.current, before);
}

#[test]
fn repeated_passes_do_not_call_the_pool() {
    let Some((pool, _, queue)) = queue() else { return };
    let mut workspace = DeviceWorkspace::builder(&queue).build().expect("nothing to take");
    let mut addresses = Vec::new();
    for pass in 0..5u32 {
        let calls = pool.stats().allocations;
        workspace.scope(|scratch| {
            let mut first = scratch.alloc::<u32>(LEN).expect("room");
            assert_eq!((first.address() % 256, first.device()), (0, Device::Cuda(0)));
            first.copy_from_host(&[pass; LEN]).expect("as many");
            let kept = scratch.alloc_from(&[7u8; 300]).expect("room");
            scratch.scope(|inner| {
                let zeros = inner.alloc_zeroed::<u64>(LEN).expect("room");
                assert_eq!(zeros.to_vec().expect("a copy"), [0; LEN]);
                let mut square = inner.tensor::<f32>([4, 4]).expect("room");
                square.fill(3.0).expect("a number");
                square.mul_assign(2.0).expect("a number");
                assert_eq!(square.sum().expect("a sum").to_f64(), Some(96.0));
                addresses.push(zeros.address());
            });
            let again = scratch.alloc::<u64>(LEN).expect("room");
            assert_eq!(Some(&again.address()), addresses.last(), "the inner scope's");
            assert!(again.address() >= kept.address() + 300);
            assert_eq!(first.to_vec().expect("a copy"), [pass; LEN], "nobody else's");
            assert_eq!(kept.to_vec().expect("a copy"), [7; 300]);
            assert_eq!(scratch.alloc::<u8>(0).expect("nothing").address(), 0);
        });
        if pass > 0 {
            assert_eq!(pool.stats().allocations, calls);
        }
    }
    assert!(addresses.windows(2).all(|pair| pair[0] == pair[1]));
    let stats = workspace.stats();
    assert_eq!((stats.scopes, stats.growths), (5, 1));
    assert!(stats.scratch_peak >= 12 * LEN as u64 && stats.scratch_peak <= stats.scratch_bytes);
    workspace.trim();
    assert_eq!(workspace.stats().scratch_bytes, 0);
}

#[test]
fn every_type_has_temporary_tensors() {
    let Some((_, _, queue)) = queue() else { return };
    let mut workspace = DeviceWorkspace::builder(&queue)
        .scratch_bytes(4096)
        .build()
        .expect("room");
    for dtype in DType::all() {
        workspace.scope(|scratch| {
            // The previous contents do not matter.
            scratch
                .alloc_from(&[0xffu8; 1000])
                .expect("room is left over as it was");
        });
        workspace.scope(|scratch| {
            let tensor = scratch.tensor_of([3, 5], dtype).expect("room");
            assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &[3, 5][..]));
            if dtype == DType::Bool {
                assert_eq!(tensor.sum().expect("a sum").to_u64(), Some(0));
            }
            assert!(scratch.tensor_of([0, 2], dtype).expect("nothing").is_empty());
            assert!(scratch.tensor_of([usize::MAX, 2], dtype).is_err());
        });
    }
    assert_eq!(workspace.stats().growths, 1);
}

#[test]
fn temporaries_are_operands_and_outputs() {
    let Some((_, _, queue)) = queue() else { return };
    let mut workspace = DeviceWorkspace::builder(&queue)
        .tensor("sums", [2], DType::F32)
        .build()
        .expect("nothing to take");
    workspace.scope_with(|named, scratch| {
        let room = |shape: &[usize]| scratch.tensor::<f32>(shape).expect("room");
        let [mut x, mut doubled, mut product] = [[2, 2]; 3].map(|shape| room(&shape));
        x.fill(1.5).expect("a number");
        x.mul_into(2, &mut doubled).expect("of one shape");
        x.add_scaled_into(2, &doubled, &mut product)
            .expect("of one shape");
        assert_eq!(product.to_vec::<f32>().expect("a copy"), [7.5; 4]);
        x.matmul_into(&doubled, &mut product).expect("matrices");
        assert_eq!(product.to_vec::<f32>().expect("a copy"), [9.0; 4]);
        let column = product.reborrow().slice(1, ..1).expect("a view");
        assert_eq!(column.to_vec::<f32>().expect("brought in order"), [9.0; 2]);
        assert!(column.to_vec::<f64>().is_err());
        let mut cast = scratch.tensor::<u8>([2, 2]).expect("room");
        product.cast_into(&mut cast).expect("a way");
        assert_eq!(cast.to_vec::<u8>().expect("a copy"), [9; 4]);
        let sums = named.tensor_mut("sums").expect("there");
        product.sum_dim_into(0, sums).expect("of the shape");
        product.div_assign(&doubled).expect("of one shape");
        assert!(product.dot(&x).is_err(), "no vectors");
        assert_eq!(product.to_vec::<f32>().expect("a copy"), [3.0; 4]);
    });
    let sums = workspace.tensor("sums").expect("there");
    assert_eq!(sums.to_vec::<f32>().expect("a copy"), [18.0; 2]);
}

#[test]
fn a_panic_ends_a_scope() {
    let Some((_, _, queue)) = queue() else { return };
    let mut workspace = DeviceWorkspace::builder(&queue).build().expect("nothing to take");
    let mut address = 0;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        workspace.scope(|scratch| {
            address = scratch.alloc::<u8>(1000).expect("room").address();
            panic!("on purpose");
        });
    }));
    assert!(panicked.is_err());
    workspace.scope(|scratch| {
        assert_eq!(scratch.alloc::<u8>(1000).expect("room").address(), address);
    });
}

/// Work on another stream comes before the next scope's. The library records it for its own calls, and the caller for
/// others, also if the scope panics.
#[test]
fn the_next_scope_comes_after_other_streams() {
    let options = (0..6).map(|seed| format!("streams:seeded,seed:{seed},strict:on"));
    emulator::in_children(
        "workspaces::the_next_scope_comes_after_other_streams",
        options,
        || {
            let Some((pool, stream, queue)) = queue() else {
                return;
            };
            let other = CudaStream::new(stream.device()).expect("a stream");
            let mut workspace = DeviceWorkspace::builder(&queue).build().expect("nothing to take");
            let mut there = pool.alloc::<u8>(LEN, &other).expect("fits");
            for pass in 0..8u8 {
                let work = |scratch: &mut millpond::cuda::DeviceScratch<'_>| {
                    let bytes = scratch.alloc_from(&[1u8; LEN]).expect("room");
                    scratch.record_use(&other).expect("of the device");
                    // This work bypasses the library. Slow work precedes it, so that it runs late.
                    for _ in 0..4 {
                        emulator::set_bytes(there.address(), 0, LEN, other.as_raw());
                    }
                    emulator::set_bytes(bytes.address(), 2, LEN, other.as_raw());
                    if pass % 2 == 1 {
                        panic!("on purpose");
                    }
                };
                let outcome = catch_unwind(AssertUnwindSafe(|| workspace.scope(work)));
                assert_eq!(outcome.is_err(), pass % 2 == 1);
                workspace.scope(|scratch| {
                    let mut bytes = scratch.alloc::<u8>(LEN).expect("room");
                    bytes.fill_zero().expect("it is put there");
                    assert_eq!(
                        bytes.to_vec().expect("a copy"),
                        [0; LEN],
                        "the other stream came late"
                    );
                    bytes.copy_from_host(&[pass; LEN]).expect("as many");
                    // This copy goes through the library, so it precedes later work here.
                    bytes.copy_to(&mut there).expect("as many");
                });
                workspace.scope(|scratch| {
                    scratch.alloc_zeroed::<u8>(LEN).expect("room");
                });
                assert_eq!(there.to_vec().expect("a copy"), [pass; LEN]);
            }
            let (count, text) = emulator::findings();
            assert_eq!(count, 0, "{text}");
        },
    );
}

#[test]
fn another_device_is_refused() {
    emulator::in_children(
        "workspaces::another_device_is_refused",
        ["devices:2".to_owned()].into_iter(),
        || {
            let Some((_, _, queue)) = queue() else { return };
            let far = millpond::cuda::CudaDevice::get(1).expect("a device");
            let far = CudaStream::new(&far).expect("a stream");
            let mut workspace = DeviceWorkspace::builder(&queue).build().expect("nothing to take");
            let refused = workspace.scope(|scratch| scratch.record_use(&far));
            assert!(matches!(refused, Err(CudaError::OtherDevice { .. })));
        },
    );
}

/// A captured scope uses the existing memory. An allocation of more is refused, and nothing is lost.
#[test]
fn a_captured_scope_cannot_allocate_more_memory() {
    if !is_alone("workspaces::a_captured_scope_cannot_allocate_more_memory") {
        return;
    }
    let Some((pool, stream, queue)) = queue() else {
        return;
    };
    let mut workspace = DeviceWorkspace::builder(&queue)
        .buffer::<u32>("output", LEN)
        .scratch_bytes(64 << 10)
        .build()
        .expect("room");
    let input = pool.alloc_from(&[5u32; LEN], &stream).expect("fits");
    let capture = pool.capture(&stream).expect("it begins");
    workspace.scope_with(|named, scratch| {
        let mut between = scratch.alloc::<u32>(LEN).expect("there is room");
        between.copy_from(&input).expect("it is written down");
        let output = named.get_mut::<u32>("output").expect("there");
        between.copy_to(output).expect("it is written down");
        let refused = scratch.alloc::<u8>(1 << 20).expect_err("more room");
        assert!(
            matches!(&refused, AllocError::Cuda(error) if error.downcast_ref() == Some(&CudaError::RoomInCapture)),
            "{refused}"
        );
    });
    let built = DeviceWorkspace::builder(&queue).buffer::<u8>("x", 1).build();
    assert!(built.is_err(), "what is named neither");
    let graph = capture.end().expect("a graph");
    // SAFETY: the workspace and the input exist, and the stream is theirs.
    unsafe { graph.launch(&stream) }.expect("it is launched");
    workspace.scope(|scratch| {
        scratch.alloc_zeroed::<u8>(1 << 20).expect("now there is more");
    });
    let output = workspace.get::<u32>("output").expect("there");
    assert_eq!(output.to_vec().expect("a copy"), [5; LEN]);
}

#[test]
fn a_workspace_may_own_its_pool_or_have_none() {
    let Some((device, stream)) = device() else { return };
    let mut owner = {
        let pool = builder().limit(8 << 20).build(&device).expect("a pool");
        let queue = pool.on(&stream).expect("room");
        DeviceWorkspace::builder(&queue)
            .buffer::<u8>("x", 1000)
            .build()
            .expect("room")
    };
    owner.scope(|scratch| {
        assert!(scratch.alloc::<u8>(1 << 20).is_ok());
        assert!(scratch.alloc::<u8>(16 << 20).is_err(), "the pool's limit");
        assert!(scratch.alloc::<u8>(1 << 20).is_ok(), "nothing was lost");
    });
    assert_eq!(owner.queue().pool().limit(), 8 << 20);
    drop(owner);

    let plain = UnpooledDevice::new(&device).expect("a device");
    let queue = plain.on(&stream).expect("room");
    let mut workspace = DeviceWorkspace::builder(&queue)
        .tensor("x", [4], DType::F32)
        .build()
        .expect("room");
    assert!(workspace.tensor("x").expect("there").pool().is_none());
    workspace.scope(|scratch| assert!(scratch.alloc_zeroed::<u8>(100).is_ok()));
    drop((workspace, queue));
    assert_eq!(plain.held_bytes(), 0);
}

/// The six properties of memory on a device, for every owner of it.
#[test]
fn properties_of_memory_can_be_read() {
    let Some((pool, stream, queue)) = queue() else {
        return;
    };
    let buffer = pool.alloc::<u16>(300, &stream).expect("fits");
    assert!(buffer.address() != 0 && buffer.pool() == Some(&pool));
    assert_eq!(
        (buffer.bytes(), buffer.len(), buffer.device(), buffer.dtype()),
        (600, 300, Device::Cuda(0), DType::U16)
    );
    let tensor = DeviceTensor::zeros(&queue, [3, 4], DType::F64).expect("fits");
    let row = tensor.slice(0, 1..2).expect("a view");
    assert!(row.pool() == Some(&pool) && row.address() == tensor.address() + 32);
    assert_eq!(
        (row.storage_bytes(), row.len(), row.device(), row.dtype()),
        (96, 4, Device::Cuda(0), DType::F64)
    );
    let plain = UnpooledDevice::new(stream.device()).expect("a device");
    let alone = plain.alloc::<u16>(300, &stream).expect("fits");
    assert!(alone.address() != 0 && alone.pool().is_none());
    assert_eq!(
        (alone.bytes(), alone.len(), alone.device(), alone.dtype()),
        (600, 300, Device::Cuda(0), DType::U16)
    );
    let alone = DeviceTensor::zeros(&plain.on(&stream).expect("room"), [3], DType::F64).expect("fits");
    assert!(alone.address() != 0 && alone.pool().is_none());
    assert_eq!(
        (alone.storage_bytes(), alone.len(), alone.device(), alone.dtype()),
        (24, 3, Device::Cuda(0), DType::F64)
    );
}
