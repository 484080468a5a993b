//! Exported tensors, which the tests read only through the structure.

use super::model::Model;
use super::views::{shape, start, steps, take};
use super::*;
use crate::dlpack::{DLManagedTensorVersioned, DLTensor, DlpackError, IS_COPIED, READ_ONLY, VERSION};

/// Returns the elements as another library would read them.
///
/// # Safety
/// The structure is complete, and its elements are `i32`.
unsafe fn seen(tensor: &DLTensor) -> Model<i32> {
    let numbers = |pointer: *const i64| {
        // SAFETY: there is a number for each dimension.
        (0..tensor.ndim as usize).map(move |dim| unsafe { *pointer.wrapping_add(dim) })
    };
    let shape: Vec<usize> = numbers(tensor.shape).map(|size| size as usize).collect();
    let strides: Vec<isize> = numbers(tensor.strides).map(|stride| stride as isize).collect();
    let first: *const i32 = tensor.data.wrapping_byte_add(tensor.byte_offset as usize).cast();
    Model::from_fn(&shape, |index| {
        let place = index
            .iter()
            .zip(&strides)
            .map(|(at, stride)| *at as isize * stride);
        // SAFETY: the element lies at this address.
        unsafe { *first.wrapping_offset(place.sum()) }
    })
}

fn crosses(tensor: Tensor, model: &Model<i32>) {
    let (alone, repeated) = (
        tensor.holders() == 1,
        tensor
            .strides()
            .iter()
            .zip(tensor.shape())
            .any(|(stride, size)| *stride == 0 && *size > 1),
    );
    let (dtype, strides, empty) = (tensor.dtype(), tensor.strides().to_vec(), tensor.is_empty());
    for shared in [true, false] {
        let managed = if shared {
            tensor.to_dlpack().expect("room")
        } else {
            tensor.clone().into_dlpack().expect("room")
        };
        // SAFETY: the structure is complete.
        let raw: &DLManagedTensorVersioned = unsafe { &*managed.as_ptr() };
        assert_eq!((raw.version, raw.flags), (VERSION, READ_ONLY), "two have it");
        assert_eq!(raw.dl_tensor.data.is_null(), empty);
        // SAFETY: the structure is valid, and its elements are `i32`.
        assert_eq!(&unsafe { seen(&raw.dl_tensor) }, model);
        let back = managed.into_tensor().expect("ours");
        assert_eq!((back.dtype(), back.shape()), (dtype, &model.shape[..]));
        assert_eq!(back.to_vec::<i32>().expect("i32"), model.values);
        assert_eq!(tensor.holders(), if alone { 2 } else { 3 });
    }
    let managed = tensor.into_dlpack().expect("room");
    // SAFETY: the structure is complete.
    let flags = unsafe { (*managed.as_ptr()).flags };
    let lent = alone && (!repeated || empty);
    assert_eq!(flags, if lent { 0 } else { READ_ONLY });
    let mut back = managed.into_tensor().expect("ours");
    let filled = back.fill(-1);
    assert_eq!(filled.is_ok(), lent, "{filled:?} of {strides:?}");
}

proptest! {
    #![proptest_config(config(300))]

    // Copies come from the default pool, which Miri cannot run.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn exported_views_have_the_same_elements(shape in shape(), steps in steps(8)) {
        let (mut tensor, mut model) = start::<i32>(&shape);
        for step in &steps {
            if let Some(next) = take(&tensor, &model, step) {
                (tensor, model) = next;
            }
        }
        crosses(tensor, &model);
    }
}

#[test]
fn some_exported_views_have_the_same_elements() {
    let (tensor, model) = start::<i32>(&[3, 4]);
    crosses(tensor.transpose(0, 1).expect("two"), &model.permute(&[1, 0]));
    crosses(tensor.slice(1, 1..3).expect("inside"), &model.slice(1, 1, 3));
    crosses(tensor.step(1, 3).expect("a step"), &model.step(1, 3));
    crosses(
        tensor.select(0, 2).and_then(|row| row.select(0, 1)).expect("one"),
        &model.select(0, 2).select(0, 1),
    );
    crosses(
        tensor
            .slice(0, 1..2)
            .and_then(|row| row.broadcast_to([5, 4]))
            .expect("of size 1"),
        &model.slice(0, 1, 2).broadcast_to(&[5, 4]),
    );
    crosses(tensor.slice(0, 3..).expect("nothing"), &model.slice(0, 3, 3));
    crosses(tensor, &model);
}

#[test]
fn the_legacy_form_refuses_read_only_tensors() {
    let source = fake::unpooled();
    let tensor = Tensor::zeros_in(&source, [1, 3], DType::F32).expect("room");
    let other = tensor.clone();
    let refused = tensor.into_dlpack_legacy().expect_err("another sees it");
    assert!(matches!(refused.why, DlpackError::ReadOnly));
    drop(other);
    let tensor = *refused.tensor;
    let repeated = tensor.broadcast_to([2, 3]).expect("of size 1");
    drop(tensor);
    let refused = repeated.into_dlpack_legacy().expect_err("elements share memory");
    let row = refused.tensor.select(0, 0).expect("one");
    drop(refused);
    let managed = row.into_dlpack_legacy().expect("alone");
    let raw = managed.into_raw();
    // SAFETY: the structure is complete.
    assert_eq!(unsafe { &*raw }.dl_tensor.ndim, 1);
    assert!(source.held_bytes() > 0);
    // SAFETY: as above, and no other code uses it.
    drop(unsafe { Tensor::from_dlpack(raw) }.expect("ours"));
    assert_eq!(source.held_bytes(), 0);
}

#[test]
#[cfg_attr(miri, ignore)]
fn an_exported_copy_is_marked_as_a_copy() {
    let (tensor, model) = start::<i32>(&[2, 3]);
    let turned = tensor.transpose(0, 1).expect("two");
    let managed = turned.copy_to_dlpack().expect("room");
    drop(turned);
    // SAFETY: the structure is complete.
    let raw: &DLManagedTensorVersioned = unsafe { &*managed.as_ptr() };
    // SAFETY: the structure is valid, and its elements are `i32`.
    let (flags, seen) = (raw.flags, unsafe { seen(&raw.dl_tensor) });
    assert_eq!((flags, seen), (IS_COPIED, model.permute(&[1, 0])));
    assert_eq!(tensor.holders(), 1);
    let mut copy = managed.into_tensor().expect("ours");
    copy.fill(0).expect("its own");
    assert_eq!(tensor.to_vec::<i32>().expect("i32"), model.values);
}
