//! Tests of foreign structures, including malformed ones, and of the calls of their deleters.

use super::*;
use crate::{Tensor, TensorError};
use millpond_account::error::AllocError;
use millpond_pool::dtype::{DType, Element};
use millpond_pool::unpooled::fake;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The data that the other library in these tests keeps for a structure.
struct Kept<F> {
    managed: *mut F,
    shape: Vec<i64>,
    strides: Vec<i64>,
    data: Vec<u64>,
    deleted: Arc<AtomicUsize>,
}

unsafe extern "C" fn delete<F: Form>(managed: *mut F) {
    // SAFETY: `made` has stored the pointer. The deleter is called once, which the tests check by the count.
    let kept = unsafe { &*managed }.manager_ctx().cast::<Kept<F>>();
    // SAFETY: as above.
    let kept = unsafe { Box::from_raw(kept) };
    kept.deleted.fetch_add(1, Ordering::SeqCst);
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(kept.managed) });
}

/// Returns a structure whose bytes are 0, 1, 2 and so on, modified by `change`, and the number of calls of its deleter.
fn made<F: Form>(
    shape: &[i64],
    strides: &[i64],
    flags: u64,
    change: impl FnOnce(&mut DLTensor),
) -> (*mut F, Arc<AtomicUsize>) {
    let deleted = Arc::new(AtomicUsize::new(0));
    let bytes: Vec<u8> = (0..=255).collect();
    let kept = Box::leak(Box::new(Kept::<F> {
        managed: ptr::null_mut(),
        shape: shape.to_vec(),
        strides: strides.to_vec(),
        data: bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect(),
        deleted: Arc::clone(&deleted),
    }));
    let mut tensor = DLTensor {
        data: kept.data.as_mut_ptr().cast(),
        device: DLDevice {
            device_type: 1,
            device_id: 0,
        },
        ndim: shape.len() as i32,
        dtype: DType::U16.into(),
        shape: kept.shape.as_mut_ptr(),
        strides: kept.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    change(&mut tensor);
    let context: *mut Kept<F> = kept;
    let managed = Box::into_raw(Box::new(F::new(tensor, flags, context.cast(), delete::<F>)));
    // SAFETY: it was leaked above.
    unsafe { (*context).managed = managed };
    (managed, deleted)
}

/// A modification that makes a structure malformed.
type Change = fn(&mut DLTensor);

/// A part of the expected message.
type Says = &'static str;

fn refused<F: Form>(shape: &[i64], strides: &[i64], change: Change, says: Says) {
    let count = |deleted: &Arc<AtomicUsize>| deleted.load(Ordering::SeqCst);
    let (raw, deleted) = made::<F>(shape, strides, 0, change);
    // SAFETY: the structure is valid except for the refused modification.
    let error = unsafe { Tensor::from_dlpack(raw) }.expect_err(says);
    assert!(error.to_string().contains(says), "{says}: {error}");
    assert_eq!(count(&deleted), 1, "{says}");
    let copied = says.contains("copy_from_dlpack");
    let source = fake::unpooled();
    let (raw, deleted) = made::<F>(shape, strides, 0, change);
    // SAFETY: as above.
    let copy = unsafe { Tensor::copy_from_dlpack_in(&source, raw) };
    assert_eq!(copy.is_ok(), copied, "{says}: {copy:?}");
    assert_eq!(count(&deleted), 1, "{says}");
}

#[test]
fn invalid_structures_are_refused_and_deleted_once() {
    let most = i64::MAX;
    let cases: Vec<(Vec<i64>, Vec<i64>, Change, Says)> = vec![
        (vec![2], vec![1], |t| t.device.device_type = 2, "on CUDA (0)"),
        (
            vec![2],
            vec![1],
            |t| t.device.device_type = 99,
            "on device type 99 (0)",
        ),
        (
            vec![2],
            vec![1],
            |t| t.dtype.lanes = 4,
            "type 1 of 16 bits and 4 lanes",
        ),
        (vec![2], vec![1], |t| t.dtype.lanes = 0, "of 16 bits and 0 lanes"),
        (vec![2], vec![1], |t| t.dtype.bits = 0, "type 1 of 0 bits"),
        (vec![2], vec![1], |t| t.dtype.bits = 4, "type 1 of 4 bits"),
        (vec![2], vec![1], |t| t.dtype.code = 3, "type 3 of 16 bits"),
        (vec![2], vec![1], |t| t.dtype.code = 17, "type 17 of 16 bits"),
        (vec![1; 9], vec![1; 9], |_| {}, "at most 8 dimensions, not 9"),
        (vec![2], vec![1], |t| t.ndim = i32::MAX, "not 2147483647"),
        (vec![2], vec![1], |t| t.ndim = -1, "not -1"),
        (vec![2], vec![1], |t| t.shape = ptr::null_mut(), "(None)"),
        (vec![2, -1], vec![1, 1], |_| {}, "Some([2, -1])"),
        (vec![i64::MIN], vec![1], |_| {}, "must be 0 or more"),
        (vec![most, 2], vec![1, 1], |_| {}, "exceed the address space"),
        (
            vec![1 << 40, 1 << 40],
            vec![0, 0],
            |_| {},
            "exceed the address space",
        ),
        (
            vec![0, most, most],
            vec![1, 1, 1],
            |_| {},
            "exceed the address space",
        ),
        (vec![3, 3], vec![most, 1], |_| {}, "exceed the address space"),
        (vec![3, 3], vec![i64::MIN, 1], |_| {}, "exceed the address space"),
        (vec![2, 2], vec![most, most], |_| {}, "exceed the address space"),
        (vec![1 << 62], vec![1], |_| {}, "exceed the address space"),
        (vec![2], vec![1 << 62], |_| {}, "exceed the address space"),
        (vec![2], vec![-(1 << 61)], |_| {}, "exceed the address space"),
        (
            vec![2],
            vec![1],
            |t| t.byte_offset = u64::MAX,
            "exceed the address space",
        ),
        (
            vec![2],
            vec![1],
            |t| t.data = ptr::null_mut(),
            "the pointer to the 2 elements",
        ),
        (
            vec![],
            vec![],
            |t| t.data = ptr::null_mut(),
            "the pointer to the 1 elements",
        ),
        (
            vec![2],
            vec![1],
            |t| t.byte_offset = 1,
            "not a multiple of 2, the alignment of u16: use `copy_from_dlpack`",
        ),
        (
            vec![2, 3],
            vec![3, -1],
            |t| t.byte_offset = 4,
            "the stride of dimension 1 is negative (strides [3, -1]): use `copy_from_dlpack`",
        ),
    ];
    for (shape, strides, change, says) in cases {
        refused::<DLManagedTensorVersioned>(&shape, &strides, change, says);
        refused::<DLManagedTensor>(&shape, &strides, change, says);
    }
    // SAFETY: the pointer is null.
    let error = unsafe { Tensor::from_dlpack::<DLManagedTensor>(ptr::null_mut()) }.expect_err("nothing");
    assert!(matches!(error, DlpackError::NoStructure));
}

#[test]
fn a_structure_of_another_major_version_is_refused_and_deleted() {
    for major in [0, 2, u32::MAX] {
        // If another field were read, the error would be about the rank.
        let (raw, deleted) = made::<DLManagedTensorVersioned>(&[2], &[1], 0, |tensor| tensor.ndim = -7);
        // SAFETY: the structure was just created.
        unsafe { (*raw).version.major = major };
        // SAFETY: the structure begins like that of every version.
        let error = unsafe { Tensor::from_dlpack(raw) }.expect_err("another version");
        assert!(matches!(error, DlpackError::Version { found } if found.major == major));
        assert_eq!(deleted.load(Ordering::SeqCst), 1);
    }
    // A structure of another minor version has the same layout.
    let (raw, deleted) = made::<DLManagedTensorVersioned>(&[2], &[1], 0, |_| {});
    // SAFETY: as above.
    unsafe { (*raw).version.minor = 99 };
    // SAFETY: the structure is complete.
    let tensor = unsafe { Tensor::from_dlpack(raw) }.expect("the same structure");
    assert_eq!(tensor.to_vec::<u16>().expect("u16"), [0x0100, 0x0302]);
    drop(tensor);
    assert_eq!(deleted.load(Ordering::SeqCst), 1);
}

#[test]
fn imported_elements_follow_the_strides_and_offset_of_the_structure() {
    let look = |shape: &[i64], strides: &[i64], change: Change| {
        let (raw, deleted) = made::<DLManagedTensorVersioned>(shape, strides, 0, |tensor| {
            tensor.dtype = DType::U8.into();
            change(tensor);
        });
        let count = Arc::clone(&deleted);
        // SAFETY: the structure is complete, and no other code uses it.
        let tensor = unsafe { Tensor::from_dlpack(raw) }.expect("a tensor");
        let sizes: Vec<usize> = shape.iter().map(|size| *size as usize).collect();
        assert_eq!(tensor.shape(), sizes);
        assert!(tensor.is_foreign() && tensor.pool().is_none());
        let seen = tensor.to_vec::<u8>().expect("u8");
        let view = tensor.clone();
        drop(tensor);
        assert_eq!(count.load(Ordering::SeqCst), 0, "another tensor is there");
        drop(view);
        assert_eq!(count.load(Ordering::SeqCst), 1);
        seen
    };
    assert_eq!(look(&[2, 3], &[3, 1], |_| {}), [0, 1, 2, 3, 4, 5]);
    assert_eq!(
        look(&[2, 3], &[0, 0], |tensor| tensor.strides = ptr::null_mut()),
        [0, 1, 2, 3, 4, 5]
    );
    assert_eq!(
        look(&[3, 2], &[1, 3], |tensor| tensor.byte_offset = 7),
        [7, 10, 8, 11, 9, 12]
    );
    assert_eq!(look(&[2, 2], &[0, 5], |_| {}), [0, 5, 0, 5]);
    // These are windows that share elements.
    assert_eq!(look(&[3, 2], &[1, 1], |_| {}), [0, 1, 1, 2, 2, 3]);
    assert_eq!(look(&[], &[], |tensor| tensor.byte_offset = 200), [200]);
    assert_eq!(
        look(&[], &[], |tensor| {
            (tensor.shape, tensor.strides) = (ptr::null_mut(), ptr::null_mut());
        }),
        [0]
    );
    // The strides of dimensions of size 1 are ignored.
    assert_eq!(look(&[1, 2, 1], &[-9, 1, i64::MIN], |_| {}), [0, 1]);
    assert_eq!(
        look(&[2, 0], &[i64::MAX, -1], |tensor| tensor.data = ptr::null_mut()),
        [0; 0]
    );
    assert_eq!(look(&[2], &[1], |tensor| tensor.device.device_type = 3), [0, 1]);
}

#[test]
fn reversed_or_misaligned_elements_are_copied_in_order() {
    let source = fake::unpooled();
    let copy = |shape: &[i64], strides: &[i64], offset: u64| {
        let (raw, deleted) = made::<DLManagedTensor>(shape, strides, 0, |tensor| tensor.byte_offset = offset);
        // SAFETY: the structure is complete, and no other code uses it.
        let copy = unsafe { Tensor::copy_from_dlpack_in(&source, raw) }.expect("room");
        assert_eq!(deleted.load(Ordering::SeqCst), 1);
        assert!(!copy.is_foreign() && copy.is_contiguous());
        // The expected values are computed from the bytes of each element.
        let mut expected = vec![];
        for index in crate::tests::model::indices(copy.shape()) {
            let steps = index.iter().zip(strides).map(|(at, stride)| *at as i64 * stride);
            let at = offset as i64 + 2 * steps.sum::<i64>();
            expected.push(u16::from_ne_bytes([at as u8, at as u8 + 1]));
        }
        assert_eq!(copy.to_vec::<u16>().expect("u16"), expected);
    };
    copy(&[2, 3], &[3, 1], 0);
    copy(&[2, 3], &[3, 1], 1);
    copy(&[2, 3], &[3, -1], 4);
    copy(&[2, 3], &[-3, -1], 10);
    copy(&[3, 2, 2], &[-4, 1, 20], 17);
    copy(&[2, 3], &[0, -1], 5);
    copy(&[], &[], 3);
    copy(&[0, 3], &[-3, 1], 3);
    assert_eq!(source.held_bytes(), 0);
}

#[test]
fn imported_memory_is_written_only_if_the_structure_permits_it() {
    let source = fake::unpooled();
    let (raw, _) = made::<DLManagedTensorVersioned>(&[4], &[1], READ_ONLY, |_| {});
    // SAFETY: the structure is complete, and no other code uses it.
    let fixed = unsafe { Tensor::from_dlpack(raw) }.expect("a tensor");
    let (raw, _) = made::<DLManagedTensor>(&[4], &[1], 0, |_| {});
    // SAFETY: as above.
    let older = unsafe { Tensor::from_dlpack(raw) }.expect("a tensor");
    let (raw, _) = made::<DLManagedTensorVersioned>(&[3, 2], &[1, 1], 0, |_| {});
    // SAFETY: as above.
    let windows = unsafe { Tensor::from_dlpack(raw) }.expect("a tensor");
    let (raw, _) = made::<DLManagedTensorVersioned>(&[2, 2], &[0, 1], 0, |_| {});
    // SAFETY: as above.
    let repeated = unsafe { Tensor::from_dlpack(raw) }.expect("a tensor");
    for mut tensor in [fixed, older, windows] {
        assert!(matches!(tensor.fill(7u8), Err(TensorError::ReadOnly)));
        assert!(matches!(tensor.as_mut_slice::<u16>(), Err(TensorError::ReadOnly)));
        assert!(matches!(tensor.add_assign(1u8), Err(TensorError::ReadOnly)));
        let mut copy = tensor.deep_copy_in(&source).expect("room");
        copy.fill(7u8).expect("ours");
        let out = tensor.into_dlpack().expect("room");
        assert_eq!(out.parts().1, READ_ONLY, "still");
    }
    let mut repeated = repeated;
    assert!(repeated.fill(7u8).is_err());
    for flags in [0, IS_COPIED, 1 << 40] {
        let (raw, deleted) = made::<DLManagedTensorVersioned>(&[2, 2], &[3, 1], flags, |_| {});
        // SAFETY: as above.
        let mut tensor = unsafe { Tensor::from_dlpack(raw) }.expect("a tensor");
        let first = tensor.storage().pointer();
        let other = tensor.clone();
        assert!(matches!(tensor.fill(7u8), Err(TensorError::Shared { others: 1 })));
        drop(other);
        tensor.fill(7u8).expect("alone");
        // SAFETY: this is the element between the rows. It belongs to the other library and was initialised.
        let between = unsafe { *first.as_ptr().cast::<u16>().wrapping_add(2) };
        assert_eq!(between, 0x0504, "not written");
        assert_eq!(tensor.to_vec::<u16>().expect("u16"), [7; 4]);
        assert_eq!(deleted.load(Ordering::SeqCst), 0);
        tensor.free().expect("alone");
        assert_eq!(deleted.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn imported_memory_cannot_be_taken_out_as_a_storage() {
    let (raw, deleted) = made::<DLManagedTensorVersioned>(&[4], &[1], 0, |_| {});
    // SAFETY: the structure is complete, and no other code uses it.
    let tensor = unsafe { Tensor::from_dlpack(raw) }.expect("a tensor");
    assert!(matches!(tensor.storage().try_clone(), Err(AllocError::Foreign)));
    assert!(tensor.storage().is_foreign());
    let other = tensor.clone();
    let refused = tensor.try_into_storage().expect_err("another");
    assert_eq!(refused.others, 1);
    drop(other);
    let refused = refused.tensor.try_into_storage().expect_err("of others");
    assert_eq!(
        (refused.others, refused.to_string().as_str()),
        (
            0,
            "the memory belongs to another library, which frees it when the tensor is dropped: use a `deep_copy`"
        )
    );
    assert_eq!(deleted.load(Ordering::SeqCst), 0);
    drop(refused);
    assert_eq!(deleted.load(Ordering::SeqCst), 1);
}

#[test]
fn a_structure_without_a_deleter_is_imported() {
    let mut shape = [3];
    let mut stride = [1];
    let mut data = [1.5f64, 2.5, 3.5];
    let mut managed = DLManagedTensor {
        dl_tensor: DLTensor {
            data: data.as_mut_ptr().cast(),
            device: DLDevice {
                device_type: 1,
                device_id: 0,
            },
            ndim: 1,
            dtype: DType::F64.into(),
            shape: shape.as_mut_ptr(),
            strides: stride.as_mut_ptr(),
            byte_offset: 0,
        },
        manager_ctx: ptr::null_mut(),
        deleter: None,
    };
    // SAFETY: the structure is complete and outlives the tensor.
    let tensor = unsafe { Tensor::from_dlpack(&raw mut managed) }.expect("a tensor");
    assert_eq!(tensor.sum_in_f64(), 7.5);
    drop(tensor);
}

impl Tensor {
    fn sum_in_f64(&self) -> f64 {
        self.to_vec::<f64>().expect("f64").iter().sum()
    }
}

#[test]
fn the_deleter_is_called_once_on_any_thread() {
    let (raw, deleted) = made::<DLManagedTensorVersioned>(&[8], &[1], 0, |_| {});
    // SAFETY: the structure is complete, and no other code uses it.
    let tensor = unsafe { Tensor::from_dlpack(raw) }.expect("a tensor");
    std::thread::scope(|threads| {
        for view in tensor.batches(0, 2).expect("a size") {
            threads.spawn(move || assert_eq!(view.to_vec::<u16>().expect("u16").len(), 2));
        }
        threads.spawn(move || drop(tensor));
    });
    assert_eq!(deleted.load(Ordering::SeqCst), 1);
    // This crate's structures may be deleted on any thread.
    let source = fake::unpooled();
    let tensor = Tensor::zeros_in(&source, [8], DType::F32).expect("room");
    let managed = tensor.into_dlpack().expect("room");
    std::thread::spawn(move || drop(managed))
        .join()
        .expect("no panic");
    assert_eq!(source.held_bytes(), 0);
}

#[test]
fn element_types_have_the_codes_of_the_standard_and_survive_a_round_trip() {
    let source = fake::unpooled();
    let numbers = [
        (DType::F64, 2, 64),
        (DType::F32, 2, 32),
        (DType::F16, 2, 16),
        (DType::BF16, 4, 16),
        (DType::I8, 0, 8),
        (DType::I16, 0, 16),
        (DType::I32, 0, 32),
        (DType::I64, 0, 64),
        (DType::U8, 1, 8),
        (DType::U16, 1, 16),
        (DType::U32, 1, 32),
        (DType::U64, 1, 64),
        (DType::Bool, 6, 8),
        (DType::Complex64, 5, 64),
        (DType::Complex128, 5, 128),
    ];
    assert!(DType::all().eq(numbers.map(|row| row.0)));
    for (dtype, code, bits) in numbers {
        let expected = DLDataType { code, bits, lanes: 1 };
        assert_eq!(
            (DLDataType::from(dtype), expected.dtype()),
            (expected, Some(dtype))
        );
        let mut bytes = source.storage(dtype, 3).expect("room");
        for (at, byte) in bytes.as_mut_bytes().iter_mut().enumerate() {
            *byte = if dtype == DType::Bool { 1 } else { at as u8 };
        }
        let (place, expected) = (bytes.pointer(), bytes.as_bytes().to_vec());
        let tensor = Tensor::from(bytes);
        let back = tensor.into_dlpack().expect("room").into_tensor().expect("ours");
        assert_eq!((back.dtype(), back.storage().pointer()), (dtype, place));
        assert_eq!(back.storage().as_bytes(), expected);
        drop(back);
        assert_eq!(source.held_bytes(), 0);
    }
}

#[test]
fn a_tensor_uses_the_memory_of_a_vec() {
    fn through<T: Element + PartialEq + std::fmt::Debug>(values: Vec<T>) {
        let (place, expected) = (values.as_ptr(), values.clone());
        let mut tensor = Tensor::from_vec(values, [expected.len()]).expect("as many");
        assert!(tensor.is_foreign());
        assert_eq!(tensor.as_slice::<T>().expect("its type"), expected);
        assert_eq!(tensor.as_slice::<T>().expect("its type").as_ptr(), place);
        let slice = tensor.as_mut_slice::<T>().expect("alone");
        slice.reverse();
        let back = tensor.into_dlpack().expect("room").into_tensor().expect("ours");
        assert_eq!(
            back.as_slice::<T>().expect("its type").as_ptr() == place,
            !expected.is_empty()
        );
        let reversed: Vec<T> = expected.into_iter().rev().collect();
        assert_eq!(back.to_vec::<T>().expect("its type"), reversed);
    }
    through(vec![1u8, 2, 3]);
    through(Vec::<f64>::new());
    through(vec![[1.0f32, 2.0], [3.0, 4.0]]);
    let mut spare = Vec::with_capacity(100);
    spare.extend([1i64, -2]);
    through(spare);
    assert!(matches!(
        Tensor::from_vec(vec![1u8; 5], [2, 3]),
        Err(TensorError::Elements {
            expected: 6,
            found: 5,
            ..
        })
    ));
    assert_eq!(Tensor::from(vec![1i16, 2]).shape(), [2]);
}

#[test]
fn the_deleter_accepts_null() {
    let source = fake::unpooled();
    let tensor = Tensor::zeros_in(&source, [2], DType::U8).expect("room");
    let raw = tensor.into_dlpack().expect("room").into_raw();
    // SAFETY: this crate has created the structure.
    let deleter = unsafe { (*raw).deleter }.expect("always");
    // SAFETY: some consumers call the deleter with null.
    unsafe { deleter(ptr::null_mut::<c_void>().cast()) };
    assert!(source.held_bytes() > 0);
    // SAFETY: the structure is no longer used.
    unsafe { deleter(raw) };
    assert_eq!(source.held_bytes(), 0);
}

/// A normal run cannot detect the data race that this test is about, but Miri reports it.
#[test]
fn a_consumer_writes_after_the_last_read_of_another_thread() {
    fn exported<F: Form>(export: fn(Tensor) -> Result<ManagedTensor<F>, NotExported>) {
        let source = fake::unpooled();
        let tensor = Tensor::from_slice_in(&source, &[1u16, 2, 3, 4], [4]).expect("room");
        let reader = tensor.clone();
        let reader = thread::spawn(move || reader.to_vec::<u16>().expect("its type"));
        while tensor.holders() > 1 {
            thread::yield_now();
        }
        let managed = export(tensor).expect("nobody else has it");
        let (elements, _) = managed.parts();
        // SAFETY: there are four elements of this type, and no other code uses them.
        unsafe { elements.data.cast::<u16>().write(7) };
        drop(managed);
        assert_eq!(source.held_bytes(), 0);
        assert_eq!(reader.join().expect("no panic"), [1, 2, 3, 4]);
    }
    // The legacy form cannot mark elements as read-only, so the export fails if they are read-only.
    exported(Tensor::into_dlpack_legacy);
    exported(Tensor::into_dlpack);
}
