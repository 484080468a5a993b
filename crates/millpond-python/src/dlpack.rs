//! Exchanges arrays with other libraries through DLPack.

use millpond::DType;
use millpond::cuda::{CudaError, CudaStream, DeviceBuffer};
use millpond::dlpack::{
    DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLTensor, Form, ManagedTensor, VERSION,
};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict};
use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};

/// The standard's numbers of the kinds of memory that are exchanged: memory of the host, memory of a device, pinned memory, and managed
/// memory.
const HOST: i32 = 1;
pub(crate) const CUDA: i32 = 2;
const PINNED: i32 = 3;
const MANAGED: i32 = 13;

/// The forms of the structure in a capsule.
trait Exchanged: Form {
    /// The name of a capsule whose structure was not taken yet.
    const NAME: &'static CStr;
    /// The name of a capsule whose structure was taken.
    const TAKEN: &'static CStr;

    fn describe(tensor: DLTensor, context: *mut c_void) -> Self;

    fn tensor(&self) -> &DLTensor;

    fn context(&self) -> *mut c_void;
}

impl Exchanged for DLManagedTensor {
    const NAME: &'static CStr = c"dltensor";
    const TAKEN: &'static CStr = c"used_dltensor";

    fn describe(dl_tensor: DLTensor, manager_ctx: *mut c_void) -> Self {
        Self {
            dl_tensor,
            manager_ctx,
            deleter: Some(delete::<Self>),
        }
    }

    fn tensor(&self) -> &DLTensor {
        &self.dl_tensor
    }

    fn context(&self) -> *mut c_void {
        self.manager_ctx
    }
}

impl Exchanged for DLManagedTensorVersioned {
    const NAME: &'static CStr = c"dltensor_versioned";
    const TAKEN: &'static CStr = c"used_dltensor_versioned";

    fn describe(dl_tensor: DLTensor, manager_ctx: *mut c_void) -> Self {
        Self {
            version: VERSION,
            manager_ctx,
            deleter: Some(delete::<Self>),
            flags: 0,
            dl_tensor,
        }
    }

    fn tensor(&self) -> &DLTensor {
        &self.dl_tensor
    }

    fn context(&self) -> *mut c_void {
        self.manager_ctx
    }
}

/// An exported structure, and the data that it points to.
///
/// Invariant: `export_as` has created it. It is at the address of its context until its deleter is called, and the structure is written
/// before its address is handed out.
struct Export<F> {
    managed: Option<F>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// Keeps the elements alive.
    _array: Py<PyAny>,
}

/// The deleter of exported structures.
///
/// # Safety
/// The pointer is null, or points to the structure of an [`Export`] that is not used any more.
unsafe extern "C" fn delete<F: Exchanged>(managed: *mut F) {
    // SAFETY: the caller's promise.
    let Some(managed) = (unsafe { managed.as_ref() }) else {
        return;
    };
    let export = managed.context().cast::<Export<F>>();
    // SAFETY: by the invariant, the context is the address of the boxed export.
    let mut export = Some(unsafe { Box::from_raw(export) });
    // With the interpreter's lock, the array is freed at once.
    Python::try_attach(|_| drop(export.take()));
    // If the interpreter has ended, none of its objects may be accessed.
    std::mem::forget(export);
}

/// Returns a capsule with elements in C order on a device. They belong to an array, which the capsule keeps alive. `at` is the address of
/// the elements, and the number of the device.
pub(crate) fn export<'py>(
    array: &Bound<'py, PyAny>,
    at: (u64, u32),
    shape: &[usize],
    dtype: DType,
    is_new: bool,
) -> PyResult<Bound<'py, PyAny>> {
    match is_new {
        true => export_as::<DLManagedTensorVersioned>(array, at, shape, dtype),
        false => export_as::<DLManagedTensor>(array, at, shape, dtype),
    }
}

fn export_as<'py, F: Exchanged>(
    array: &Bound<'py, PyAny>,
    (address, device): (u64, u32),
    shape: &[usize],
    dtype: DType,
) -> PyResult<Bound<'py, PyAny>> {
    let mut strides = vec![1_i64; shape.len()];
    for dim in (1..shape.len()).rev() {
        // Only the strides of arrays without elements can be too large.
        let size = i64::try_from(shape[dim].max(1)).unwrap_or(i64::MAX);
        strides[dim - 1] = strides[dim].saturating_mul(size);
    }
    let mut export = Box::new(Export::<F> {
        managed: None,
        shape: shape.iter().map(|size| *size as i64).collect(),
        strides,
        _array: array.clone().unbind(),
    });
    let tensor = DLTensor {
        data: ptr::with_exposed_provenance_mut(usize::try_from(address)?),
        device: DLDevice {
            device_type: CUDA,
            device_id: i32::try_from(device)?,
        },
        ndim: i32::try_from(shape.len())?,
        dtype: dtype.into(),
        shape: export.shape.as_mut_ptr(),
        strides: export.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let export = Box::into_raw(export);
    // SAFETY: the box was made just now, and is ours alone.
    let managed = unsafe { &mut (*export).managed }.insert(F::describe(tensor, export.cast()));
    let managed = NonNull::from(managed);
    // SAFETY: the structure is whole, and its deleter frees the box. The destructor is for capsules of this form.
    unsafe { PyCapsule::new_with_pointer_and_destructor(array.py(), managed.cast(), F::NAME, Some(end::<F>)) }
        .map(Bound::into_any)
        .inspect_err(|_| {
            // SAFETY: no capsule has the structure.
            unsafe { delete(managed.as_ptr()) };
        })
}

/// The destructor of capsules. It deletes the structure if it was not taken.
///
/// # Safety
/// The object is a capsule, and the interpreter is attached.
unsafe extern "C" fn end<F: Exchanged>(capsule: *mut ffi::PyObject) {
    // SAFETY: the caller's promise.
    if unsafe { ffi::PyCapsule_IsValid(capsule, F::NAME.as_ptr()) } == 0 {
        return;
    }
    // SAFETY: the capsule has this name.
    let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, F::NAME.as_ptr()) };
    // SAFETY: a capsule with this name has a structure of this form that was not taken.
    unsafe { delete(managed.cast::<F>()) };
}

/// The elements of an array of another library, which are in C order.
///
/// Invariant: if there are bytes, they are at the address, in the memory of the place, and may be read until the owner is dropped.
pub(crate) struct Elements {
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    place: DLDevice,
    /// The address of the first element, or an arbitrary number if there are no elements.
    address: usize,
    bytes: usize,
    /// Keeps the elements alive.
    _owner: Box<dyn Send + Sync>,
}

impl Elements {
    /// Takes the elements of an array on the host or on this device, for use on a stream of the device.
    pub(crate) fn of(array: &Bound<'_, PyAny>, device: u32, stream: &CudaStream) -> PyResult<Self> {
        let place: (i32, i32) = array.call_method0("__dlpack_device__")?.extract()?;
        let options = PyDict::new(array.py());
        if matches!(place.0, CUDA | MANAGED) {
            // The standard's number of the default stream is 1.
            options.set_item("stream", stream.as_raw().addr().max(1))?;
        }
        options.set_item("max_version", (VERSION.major, VERSION.minor))?;
        let capsule = array
            .call_method("__dlpack__", (), Some(&options))
            .or_else(|error| {
                // Older libraries do not know the versions.
                if !error.is_instance_of::<PyTypeError>(array.py()) {
                    return Err(error);
                }
                options.del_item("max_version")?;
                array.call_method("__dlpack__", (), Some(&options))
            })?;
        let capsule = capsule.cast_into::<PyCapsule>();
        let capsule = capsule.map_err(|_| refused("the object's __dlpack__ returned no capsule"))?;
        let elements = match capsule.is_valid_checked(Some(DLManagedTensorVersioned::NAME)) {
            true => Self::take::<DLManagedTensorVersioned>(&capsule),
            false => Self::take::<DLManagedTensor>(&capsule),
        }?;
        let is_host = |kind| matches!(kind, HOST | PINNED);
        let DLDevice {
            device_type,
            device_id,
        } = elements.place;
        if (device_type, device_id) != place && !(is_host(device_type) && is_host(place.0)) {
            return Err(refused(
                "the object's __dlpack_device__ and __dlpack__ name different devices",
            ));
        }
        match device_type {
            HOST | PINNED => Ok(elements),
            CUDA | MANAGED if u32::try_from(device_id) == Ok(device) => Ok(elements),
            _ => Err(PyBufferError::new_err(format!(
                "the array is in the memory of {}, but the pool has memory of cuda:{device}: copy the array to the host first",
                elements.place
            ))),
        }
    }

    fn take<F: Exchanged>(capsule: &Bound<'_, PyCapsule>) -> PyResult<Self> {
        if !capsule.is_valid_checked(Some(F::NAME)) {
            return Err(refused(
                "the object's __dlpack__ returned a capsule without an array, or one that was already used",
            ));
        }
        let pointer = capsule.pointer_checked(Some(F::NAME))?.cast::<F>();
        // SAFETY: the capsule is valid, and the name lives forever.
        if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), F::TAKEN.as_ptr()) } != 0 {
            return Err(PyErr::fetch(capsule.py()));
        }
        // SAFETY: the capsule had the name of a structure that was not taken, and only this call takes it. By the standard, the structure
        // is valid, and its elements exist until its deleter is called.
        let owner = unsafe { ManagedTensor::from_raw(pointer.as_ptr()) };
        let owner = owner.map_err(refused)?;
        // SAFETY: the structure was checked, and is owned.
        let tensor = *unsafe { &*owner.as_ptr() }.tensor();
        // SAFETY: the owner keeps a valid structure.
        let shape = unsafe { numbers(tensor.ndim, tensor.shape) };
        let shape = shape.ok_or_else(|| refused("the array has no shape"))?;
        // SAFETY: as above.
        let strides = unsafe { numbers(tensor.ndim, tensor.strides) };
        let shape: Result<Vec<_>, _> = shape.iter().map(|size| usize::try_from(*size)).collect();
        let shape = shape.map_err(|_| refused("the array has a negative size"))?;
        if strides.is_some_and(|strides| !is_in_order(&shape, strides)) {
            return Err(refused(
                "the elements are not in C order: use a copy of the array in C order",
            ));
        }
        let dtype = tensor.dtype.dtype();
        let dtype = dtype.ok_or_else(|| refused(format!(
                "a pool does not support {}: it supports integers, floating-point numbers, complex numbers and bool, with one number in each element",
                tensor.dtype
            )))?;
        let bytes = shape.iter().copied().try_fold(dtype.size(), usize::checked_mul);
        let bytes = bytes.filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes = bytes.ok_or_else(|| refused("the array is larger than the address space"))?;
        let address = tensor.data.expose_provenance();
        let address = usize::try_from(tensor.byte_offset)
            .ok()
            .and_then(|offset| address.checked_add(offset))
            .filter(|_| bytes == 0 || address != 0)
            .ok_or_else(|| refused("the array has elements, but its address is null"))?;
        Ok(Self {
            shape,
            dtype,
            place: tensor.device,
            address,
            bytes,
            _owner: Box::new(owner),
        })
    }

    /// Copies the elements to a buffer of the same size on a device, and waits until the copy is complete. After an error, the copy may
    /// still run.
    pub(crate) fn copy_to(&self, to: &mut DeviceBuffer<u8>, stream: &CudaStream) -> Result<(), CudaError> {
        if self.bytes == 0 {
            return Ok(());
        }
        if matches!(self.place.device_type, HOST | PINNED) {
            let address = ptr::with_exposed_provenance(self.address);
            // SAFETY: by the invariant of this type. The memory is that of the host.
            return to.copy_from_host(unsafe { std::slice::from_raw_parts(address, self.bytes) });
        }
        // SAFETY: by the invariant. `of` has checked that the device is the stream's, and the other library has ordered its work before the
        // stream. The elements are only read. This waits for the stream, and after an error the caller keeps the owner.
        let from =
            unsafe { DeviceBuffer::<u8>::foreign(self.address as u64, self.bytes, stream, Box::new(())) };
        let copied = to.copy_from(&from);
        stream.wait().and(copied)
    }
}

/// Returns a number for each dimension, or `None` if the pointer is null or the number of dimensions is negative.
///
/// # Safety
/// A pointer that is not null points to `ndim` numbers, which do not change while they are borrowed.
unsafe fn numbers<'a>(ndim: i32, pointer: *const i64) -> Option<&'a [i64]> {
    match usize::try_from(ndim).ok()? {
        0 => Some(&[]),
        // SAFETY: the caller's promise.
        count => (!pointer.is_null()).then(|| unsafe { std::slice::from_raw_parts(pointer, count) }),
    }
}

fn is_in_order(shape: &[usize], strides: &[i64]) -> bool {
    let mut expected = 1_i64;
    shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(size, stride)| {
            let is_next = *size == 1 || *stride == expected;
            expected = expected.saturating_mul(i64::try_from(*size).unwrap_or(i64::MAX));
            is_next
        })
}

fn refused(error: impl std::fmt::Display) -> PyErr {
    PyBufferError::new_err(error.to_string())
}
