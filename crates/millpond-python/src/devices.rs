//! Arrays in a device's memory.
//!
//! The memory of an array is reused only after the work on its streams. These are its own stream, the default stream, the streams that
//! PyTorch and CuPy use when they get the array, and those that the program declares.
//!
//! A function that a stream runs on the host may need the interpreter's lock. So no thread waits for the driver, a pool or an array while it
//! has that lock, and no Python code runs while a thread has the lock of an array.

use crate::buffer::HostBytes;
use crate::dlpack::{self, Elements};
use crate::pools::{Pool, out_of_memory, refused};
use crate::stream::{self, failed};
use millpond::DType;
use millpond::cuda::{CudaError, CudaStream, DeviceBuffer, DevicePool};
use millpond::{AllocError, Device, Tag};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An array in a device's memory, with its elements in C order. PyTorch, CuPy, Numba and other libraries use it without a copy.
///
/// The memory goes back to the pool when neither the array nor an object of another library uses it any more.
#[pyclass(frozen, weakref, module = "millpond")]
pub(crate) struct DeviceArray {
    memory: Mutex<DeviceBuffer<u8>>,
    /// The stream that the memory belongs to.
    stream: CudaStream,
    address: u64,
    nbytes: usize,
    shape: Vec<usize>,
    dtype: DType,
    /// Live blocks are listed through the objects of pools, so a pool's object lives as long as its arrays.
    pool: Py<Pool>,
}

/// Allocates an array with a tag, with arbitrary contents or with zeros.
#[pyfunction]
pub(crate) fn device_array(
    pool: &Bound<'_, Pool>,
    shape: Vec<usize>,
    dtype: &str,
    zeroed: bool,
    tag: &str,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<DeviceArray> {
    let stream = stream::of(pool.get().device()?.device(), stream)?;
    let dtype = dtype.parse().map_err(refused)?;
    DeviceArray::new(pool, shape, dtype, zeroed, tag, &stream)
}

/// Allocates an array with a tag, and copies the elements of an object that supports DLPack. The copy is complete when this returns.
#[pyfunction]
pub(crate) fn device_copy(
    pool: &Bound<'_, Pool>,
    array: &Bound<'_, PyAny>,
    tag: &str,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<DeviceArray> {
    let device = pool.get().device()?.device();
    let stream = stream::of(device, stream)?;
    let elements = Elements::of(array, device.number(), &stream)?;
    let copy = DeviceArray::new(pool, elements.shape.clone(), elements.dtype, false, tag, &stream)?;
    let copied = pool.py().detach(|| elements.copy_to(&mut copy.lock(), &stream));
    if let Err(error) = copied {
        // The copy may have begun, so the other library must not reuse the elements.
        std::mem::forget(elements);
        return Err(failed(error));
    }
    Ok(copy)
}

impl DeviceArray {
    fn new(
        pool: &Bound<'_, Pool>,
        shape: Vec<usize>,
        dtype: DType,
        zeroed: bool,
        tag: &str,
        stream: &CudaStream,
    ) -> PyResult<Self> {
        let of = pool.get().device()?;
        let mut sizes = shape.iter().copied();
        let bytes = sizes.try_fold(dtype.size(), usize::checked_mul);
        // A call of the driver may take a long time.
        let memory = pool.py().detach(|| {
            let _tag = Tag::new(tag).enter();
            let bytes = bytes.ok_or(AllocError::UNCOUNTABLE)?;
            match zeroed {
                true => of.alloc_zeroed(bytes, stream),
                false => of.alloc(bytes, stream),
            }
        });
        let memory = memory.map_err(out_of_memory)?;
        Ok(Self {
            address: memory.address(),
            nbytes: memory.len(),
            memory: Mutex::new(memory),
            stream: stream.clone(),
            shape,
            dtype,
            pool: pool.clone().unbind(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, DeviceBuffer<u8>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self) -> PyResult<&DevicePool> {
        self.pool.get().device()
    }

    /// Declares uses on these streams. This may wait for other threads.
    fn record(&self, py: Python<'_>, streams: &[CudaStream]) -> PyResult<()> {
        let recorded = py.detach(|| {
            let mut memory = self.lock();
            streams.iter().try_for_each(|stream| memory.record_use(stream))
        });
        recorded.map_err(failed)
    }

    /// Declares the uses of a library that receives the address.
    fn lend(&self, py: Python<'_>) -> PyResult<()> {
        let device = self.of()?.device();
        // This calls Python code, so the lock must not be held.
        let mut streams = stream::current(py, device)?;
        streams.push(CudaStream::legacy(device));
        self.record(py, &streams)
    }

    /// Calls a function that copies the elements, after all uses that are queued now.
    fn copy(
        &self,
        py: Python<'_>,
        copy: impl Send + FnOnce(&mut DeviceBuffer<u8>) -> Result<(), CudaError>,
    ) -> PyResult<()> {
        let copied = py.detach(|| {
            let mut memory = self.lock();
            memory.order_before(&self.stream)?;
            copy(&mut memory)
        });
        copied.map_err(failed)
    }
}

#[pymethods]
impl DeviceArray {
    /// The sizes of the dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The type of the elements, such as ``"float32"``.
    #[getter]
    fn dtype(&self) -> String {
        let name = self.dtype.name();
        let (kind, bits) = name.split_at(name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len()));
        let kind = match kind {
            "f" => "float",
            "bf" => "bfloat",
            "i" => "int",
            "u" => "uint",
            other => other,
        };
        format!("{kind}{bits}")
    }

    /// The number of bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// The name of the device, such as ``"cuda:0"``.
    #[getter]
    fn device(&self) -> PyResult<String> {
        Ok(Device::Cuda(self.of()?.device().number()).to_string())
    }

    /// The address of the first element on the device, a multiple of 256, or 0 if there are no elements.
    #[getter]
    fn address(&self) -> u64 {
        self.address
    }

    /// Declares that work on a stream uses the array. After the array is freed, its memory is reused only when the work that is queued on
    /// the stream by then is complete.
    fn record_use(&self, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = stream.py();
        let stream = stream::of(self.of()?.device(), Some(stream))?;
        self.record(py, &[stream])
    }

    /// Copies the bytes of an object with the buffer protocol, such as a NumPy array, to the array, and waits until the copy is complete. The
    /// copy comes after the work on the array that is queued on its streams.
    fn copy_from(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let host = HostBytes::of(array, self.nbytes)?;
        let bytes = host.bytes();
        self.copy(py, |memory| memory.copy_from_host(bytes))
    }

    /// Copies the bytes of the array to an object with the buffer protocol, and waits until the copy is complete. The copy comes after the
    /// work on the array that is queued on its streams.
    fn copy_to(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut host = HostBytes::writable(array, self.nbytes)?;
        let bytes = host.bytes_mut();
        self.copy(py, |memory| memory.copy_to_host(bytes))
    }

    /// Copies the array to NumPy's memory, like ``copy_to``, and returns the NumPy array.
    fn to_numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let array = py
            .import("numpy")?
            .call_method1("empty", (self.shape(py)?, self.dtype()))
            .map_err(|error| match self.dtype {
                DType::BF16 => PyTypeError::new_err(
                    "NumPy has no bfloat16: import ml_dtypes, which adds it, or use another library through DLPack",
                ),
                _ => error,
            })?;
        // Arrays of a type that NumPy itself does not have may lack the buffer protocol.
        let bytes = array
            .call_method1("reshape", (-1,))?
            .call_method1("view", ("uint8",))?;
        self.copy_to(py, &bytes)?;
        Ok(array)
    }

    fn __dlpack_device__(&self) -> PyResult<(i32, u32)> {
        Ok((dlpack::CUDA, self.of()?.device().number()))
    }

    /// Exports the array to another library, without a copy. ``stream`` waits, on the device, for the work that is queued on the array's own
    /// stream now.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<isize>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, u32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = slf.get();
        if dl_device.is_some_and(|asked| array.__dlpack_device__().is_ok_and(|own| own != asked)) {
            return Err(PyBufferError::new_err(
                "the array can only be exported on its own device: copy it with to_numpy or in the other library",
            ));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err(
                "the array can only be exported without a copy: copy it in the other library",
            ));
        }
        array.lend(slf.py())?;
        let device = array.of()?.device();
        let py = slf.py();
        stream::with_handle(device, stream, |stream| {
            py.detach(|| array.lock().order_before(stream))
        })?;
        let is_new = max_version.is_some_and(|(major, _)| major >= 1);
        let place = (array.address, device.number());
        dlpack::export(slf.as_any(), place, &array.shape, array.dtype, is_new)
    }

    /// The array for Numba, CuPy and other libraries with this interface.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let kind = match self.dtype {
            DType::BF16 => {
                return Err(PyAttributeError::new_err(
                    "this interface has no bfloat16: use DLPack",
                ));
            }
            DType::F64 | DType::F32 | DType::F16 => 'f',
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => 'i',
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => 'u',
            DType::Bool => 'b',
            DType::Complex64 | DType::Complex128 => 'c',
        };
        self.lend(py)?;
        let order = if self.dtype.size() == 1 { '|' } else { '<' };
        // The interface's number of the default stream is 1.
        let stream = self.stream.as_raw().addr().max(1);
        let fields = PyDict::new(py);
        fields.set_item("version", 3)?;
        fields.set_item("shape", self.shape(py)?)?;
        fields.set_item("typestr", format!("{order}{kind}{}", self.dtype.size()))?;
        fields.set_item("data", (self.address, false))?;
        fields.set_item("strides", py.None())?;
        fields.set_item("stream", stream)?;
        Ok(fields)
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.shape.first().copied();
        first.ok_or_else(|| PyTypeError::new_err("an array without dimensions has no length"))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (shape, dtype, device) = (self.shape(py)?, self.dtype(), self.device()?);
        Ok(format!("<millpond.DeviceArray: {dtype} {shape} on {device}>"))
    }
}
