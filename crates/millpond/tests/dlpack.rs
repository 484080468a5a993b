//! Tests DLPack with other libraries: the structures and tensors of `dlpark`, and NumPy itself.

#![cfg(target_os = "linux")]

#[path = "support/example.rs"]
mod example;
#[path = "support/files.rs"]
mod files;

use dlpark::allocation::dynamic::Allocation;
use dlpark::{DlpackFlags, ManagedTensorBase, ffi};
use millpond::dlpack::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, IS_COPIED,
    READ_ONLY, VERSION,
};
use millpond::{DType, Pool, Tensor};
use std::mem::offset_of;
use std::process::Command;

/// Compares size, alignment and field offsets of this crate's structures with `dlpark`'s.
macro_rules! alike {
    ($($ours:ident as $theirs:ident { $($field:ident),* })*) => {
        $(
            assert_eq!(size_of::<$ours>(), size_of::<ffi::$theirs>());
            assert_eq!(align_of::<$ours>(), align_of::<ffi::$theirs>());
            $(assert_eq!(
                offset_of!($ours, $field),
                offset_of!(ffi::$theirs, $field),
                stringify!($ours.$field)
            );)*
        )*
    };
}

#[test]
fn the_structures_are_those_of_the_header() {
    alike! {
        DLPackVersion as DLPackVersion { major, minor }
        DLDevice as DLDevice { device_type, device_id }
        DLDataType as DLDataType { code, bits, lanes }
        DLTensor as DLTensor { data, device, ndim, dtype, shape, strides, byte_offset }
        DLManagedTensor as DLManagedTensor { dl_tensor, manager_ctx, deleter }
        DLManagedTensorVersioned as DLManagedTensorVersioned { version, manager_ctx, deleter, flags, dl_tensor }
    }
    assert_eq!(
        (VERSION.major, VERSION.minor),
        (ffi::DLPACK_MAJOR_VERSION, ffi::DLPACK_MINOR_VERSION)
    );
    assert_eq!(READ_ONLY, u64::from(ffi::DLPACK_FLAG_BITMASK_READ_ONLY));
    assert_eq!(IS_COPIED, u64::from(ffi::DLPACK_FLAG_BITMASK_IS_COPIED));
}

#[test]
fn another_library_uses_our_tensors() {
    let pool = Pool::host().expect("a pool");
    let tensor = Tensor::from_fn_in(&pool, [3, 4], |at| (10 * at[0] + at[1]) as i16).expect("room");
    let turned = tensor.transpose(0, 1).expect("two");
    drop(tensor);
    let shared = turned.to_dlpack().expect("room").into_raw();
    // SAFETY: the structures have the same layout, which a test checks.
    let theirs: dlpark::versioned::Dlpack =
        unsafe { dlpark::Managed::from_raw(shared.cast()) }.expect("theirs");
    let seen = theirs.validate_export().expect("whole");
    assert_eq!((seen.shape(), seen.strides()), (&[4, 3][..], Some(&[1, 4][..])));
    assert_eq!(
        (theirs.flags(), seen.dtype()),
        (DlpackFlags::READ_ONLY, ffi::DLDataType::of::<i16>())
    );
    drop(theirs);
    let rows = turned.transpose(0, 1).expect("two");
    drop(turned);
    let given = rows.into_dlpack_legacy().expect("alone").into_raw();
    // SAFETY: as above.
    let mut theirs: dlpark::legacy::Dlpack =
        unsafe { dlpark::Managed::from_raw(given.cast()) }.expect("theirs");
    let mut seen = theirs.validate_mut().expect("whole");
    // SAFETY: the tensor belongs to the other library.
    let slice = unsafe { seen.cpu_slice_mut::<i16>() }.expect("row after row");
    slice[11] += 1;
    assert_eq!(slice, [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 24]);
    assert_eq!(pool.stats().requested.current, 24);
    drop(theirs);
    assert_eq!(pool.stats().requested.current, 0);
}

fn theirs<M: ManagedTensorBase>(shape: [i64; 2], strides: [i64; 2], data: Vec<f32>) -> *mut M {
    let mut room = Allocation::<M>::allocate(4).expect("few");
    room.extra_mut().copy_from_slice(&[shape, strides].concat());
    let data = Box::new(data);
    let first = data.as_ptr().cast_mut().cast();
    let mut tensor = room.initialize(data, 2).expect("two");
    let extra = tensor.extra_mut().as_mut_ptr();
    tensor.tensor_mut().shape = extra;
    tensor.tensor_mut().strides = extra.wrapping_add(2);
    tensor.tensor_mut().data = first;
    tensor.set_dtype(ffi::DLDataType::of::<f32>());
    tensor.set_device(ffi::DLDevice::CPU);
    // SAFETY: shape, strides and data were set, and stay for as long as the tensor.
    unsafe { tensor.finish() }.into_raw()
}

#[test]
fn we_use_tensors_of_another_library() {
    let data: Vec<f32> = (0u8..6).map(f32::from).collect();
    let place = data.as_ptr();
    let raw = theirs::<ffi::DLManagedTensorVersioned>([2, 3], [1, 2], data.clone());
    // SAFETY: the structures have the same layout, which a test checks, and this call alone has the structure.
    let mut tensor = unsafe { Tensor::from_dlpack(raw.cast::<DLManagedTensorVersioned>()) }.expect("whole");
    assert_eq!((tensor.dtype(), tensor.strides()), (DType::F32, &[1, 2][..]));
    tensor.add_assign(1.0).expect("it may be written");
    assert_eq!(
        tensor.to_vec::<f32>().expect("f32"),
        [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]
    );
    let raw = theirs::<ffi::DLManagedTensor>([3, 2], [2, 1], data);
    // SAFETY: as above.
    let tensor = unsafe { Tensor::from_dlpack(raw.cast::<DLManagedTensor>()) }.expect("whole");
    assert_eq!(tensor.as_slice::<f32>().expect("row after row").as_ptr(), place);
}

#[test]
fn tensors_and_numpy_arrays_are_exchanged() {
    let Some(python) = files::python(&["numpy"]) else {
        return;
    };
    let output = Command::new(python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/numpy.py"))
        // The other half of the test, which is also an example.
        .arg(example::example("numpy", "libnumpy.so"))
        .env_remove("MILLPOND_CONF")
        .output()
        .expect("a child");
    let (said, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success() && said.contains("lost: proven"),
        "{said}{error}"
    );
}
