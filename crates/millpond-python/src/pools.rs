//! Pools, their blocks, budgets, and recordings of them.

use crate::block::{Block, Memory};
use crate::{stream, work};
use millpond::cuda::{CudaDevice, DevicePool, DevicePoolError};
use millpond::engine::{Gauge, display_size, parse_size};
use millpond::record::RecordError;
use millpond::{AllocError, Budget as Limited, PoolStats, Recorder as Recording, Tag, Tracking};
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyString};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The number of bytes from which an allocation may take a long time.
const LARGE: usize = 1 << 20;

/// The number of requests of this process that were refused.
pub(crate) static REFUSED: AtomicU64 = AtomicU64::new(0);

/// A number of bytes. A program gives it as a number or as a text such as `"2GiB"`.
pub(crate) struct Size(pub(crate) u64);

impl<'a, 'py> FromPyObject<'a, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.cast::<PyString>() {
            return parse_size(&text.to_string_lossy()).map(Self).map_err(refused);
        }
        if object.cast::<PyInt>().is_err() || object.cast::<PyBool>().is_ok() {
            let kind = object.get_type();
            return Err(PyTypeError::new_err(format!(
                "a size must be a number of bytes or a string such as '2GiB', not {kind}"
            )));
        }
        let bytes = object.extract::<u64>().map(Self);
        bytes.map_err(|_| {
            PyValueError::new_err(format!(
                "{} is not a number of bytes below 2^64",
                object.to_owned()
            ))
        })
    }
}

/// A pool of memory.
#[pyclass(frozen, weakref, module = "millpond._millpond")]
pub(crate) struct Pool(Kind);

enum Kind {
    Host(millpond::Pool),
    Device(DevicePool),
}

/// Calls a method that pools of both kinds have.
macro_rules! of_both {
    ($pool:expr, $method:ident($($argument:expr),*)) => {
        match &$pool.0 {
            Kind::Host(pool) => pool.$method($($argument),*),
            Kind::Device(pool) => pool.$method($($argument),*),
        }
    };
}

/// Sets a builder's settings. The builders of both kinds of pools have the same methods and no common type.
macro_rules! with_settings {
    ($builder:expr, $name:ident, $limit:ident, $budget:ident, $settings:ident) => {{
        // Stacks are disabled, because they would be those of the interpreter. The report of leaks is disabled, because objects of modules
        // are often alive at the end of a program.
        let mut builder = $builder.track(Some(Tracking::All)).stacks(false).leak_report(false);
        if let Some(name) = $name {
            builder = builder.name(name);
        }
        if let Some(limit) = $limit {
            builder = builder.limit(limit.0);
        }
        if let Some(budget) = $budget {
            builder = builder.budget(&budget.0);
        }
        if let Some(settings) = $settings {
            builder = builder.settings(settings);
        }
        builder
    }};
}

/// Figures by name.
pub(crate) type Figures = Vec<(&'static str, u64)>;

/// The live blocks of one tag: the tag, their number, and their bytes.
type Live = (&'static str, u64, u64);

#[pymethods]
impl Pool {
    #[new]
    fn new(
        py: Python<'_>,
        name: Option<String>,
        memory: &str,
        device: Option<u32>,
        limit: Option<Size>,
        budget: Option<PyRef<'_, Budget>>,
        settings: Option<&str>,
    ) -> PyResult<Self> {
        let Some(device) = device else {
            let builder = with_settings!(millpond::Pool::builder(), name, limit, budget, settings);
            let pool = match memory {
                "host" => builder.host(),
                "pinned" => builder.pinned(),
                other => {
                    return Err(PyValueError::new_err(format!(
                        "unknown memory '{other}': write 'host' or 'pinned'"
                    )));
                }
            };
            return Ok(Self(Kind::Host(pool.map_err(refused)?)));
        };
        let builder = with_settings!(DevicePool::builder(), name, limit, budget, settings);
        // The driver may take seconds to start.
        let built = py.detach(|| builder.build(&CudaDevice::get(device)?));
        match built {
            Ok(pool) => Ok(Self(Kind::Device(pool))),
            Err(DevicePoolError::Cuda(error)) => Err(stream::failed(error)),
            Err(DevicePoolError::Start(error)) => Err(out_of_memory(error)),
            Err(error) => Err(refused(error)),
        }
    }

    #[getter]
    fn name(&self) -> &str {
        of_both!(self, name())
    }

    #[getter]
    fn limit(&self) -> Option<u64> {
        match &self.0 {
            Kind::Host(pool) => pool.limit(),
            Kind::Device(pool) => Some(pool.limit()),
        }
    }

    #[setter]
    fn set_limit(&self, py: Python<'_>, limit: Size) {
        py.detach(|| of_both!(self, set_limit(limit.0)));
    }

    /// Allocates a block with a tag.
    fn block(slf: &Bound<'_, Self>, bytes: usize, zeroed: bool, tag: &str) -> PyResult<Block> {
        let pool = slf.get().host()?;
        let allocate = || {
            let _tag = Tag::new(tag).enter();
            match zeroed {
                true => pool.alloc_zeroed(bytes).map(Memory::Zeroed),
                false => pool.alloc(bytes).map(Memory::Uninit),
            }
        };
        // Clearing a large block takes time, so other Python threads run meanwhile.
        let memory = match bytes < LARGE {
            true => allocate(),
            false => slf.py().detach(allocate),
        };
        let memory = memory.map_err(out_of_memory)?;
        Ok(Block::new(memory, slf.clone().into_any().unbind()))
    }

    /// Returns the figures by name.
    fn stats(&self, py: Python<'_>) -> Figures {
        figures(&self.all_stats(py))
    }

    /// Returns the live blocks by tag, the largest sum first.
    fn live(&self, py: Python<'_>) -> Vec<Live> {
        let report = py.detach(|| of_both!(self, leak_report()));
        let groups = report.iter().flat_map(|report| &report.groups);
        let name = |tag: Tag| if tag == Tag::NONE { "" } else { tag.name() };
        groups
            .map(|group| (name(group.tag), group.blocks, group.bytes))
            .collect()
    }

    fn trim(&self, py: Python<'_>) {
        py.detach(|| of_both!(self, trim()));
    }

    fn reset_peak(&self, py: Python<'_>) {
        py.detach(|| of_both!(self, reset_peak()));
    }

    fn __str__(&self, py: Python<'_>) -> String {
        format!("pool '{}': {}", self.name(), self.all_stats(py))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The last handle of a device's pool waits for streams, whose functions on the host may need the interpreter's lock.
        if let Kind::Device(pool) = &self.0 {
            Python::try_attach(|py| py.detach(|| pool.trim()));
        }
    }
}

impl Pool {
    /// Returns the statistics. The interpreter's lock is released, because another thread may hold the pool's lock while it waits for the
    /// device.
    fn all_stats(&self, py: Python<'_>) -> PoolStats {
        py.detach(|| of_both!(self, stats()))
    }

    pub(crate) fn of_device(pool: DevicePool) -> Self {
        Self(Kind::Device(pool))
    }

    pub(crate) fn host(&self) -> PyResult<&millpond::Pool> {
        match &self.0 {
            Kind::Host(pool) => Ok(pool),
            Kind::Device(_) => Err(PyTypeError::new_err(
                "expected a pool of host memory, got a pool of device memory",
            )),
        }
    }

    pub(crate) fn device(&self) -> PyResult<&DevicePool> {
        match &self.0 {
            Kind::Device(pool) => Ok(pool),
            Kind::Host(_) => Err(PyTypeError::new_err(
                "expected a pool of device memory, got a pool of host memory",
            )),
        }
    }
}

pub(crate) fn figures(stats: &PoolStats) -> Figures {
    let Gauge { current, peak } = stats.requested;
    vec![
        ("requested", current),
        ("requested_peak", peak),
        ("allocated", stats.allocated.current),
        ("allocated_peak", stats.allocated.peak),
        ("reserved", stats.reserved.current),
        ("reserved_peak", stats.reserved.peak),
        ("allocations", stats.allocations),
        ("frees", stats.frees),
        ("hits", stats.hits),
        ("refusals", stats.refusals),
    ]
}

/// A limit on the memory of several pools together.
#[pyclass(frozen, module = "millpond._millpond")]
pub(crate) struct Budget(Limited);

#[pymethods]
impl Budget {
    #[new]
    #[pyo3(signature = (name, limit=None, *, parent=None))]
    fn new(name: String, limit: Option<Size>, parent: Option<PyRef<'_, Self>>) -> PyResult<Self> {
        let mut builder = match parent {
            Some(parent) => parent.0.child_builder(name),
            None => Limited::builder(name),
        };
        if let Some(limit) = limit {
            builder = builder.limit(limit.0);
        }
        Ok(Self(builder.build().map_err(refused)?))
    }

    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    #[getter]
    fn limit(&self) -> Option<u64> {
        self.0.limit()
    }

    #[setter]
    fn set_limit(&self, limit: Option<Size>) {
        self.0.set_limit(limit.map(|limit| limit.0));
    }

    #[getter]
    fn used(&self) -> u64 {
        self.0.used()
    }

    #[getter]
    fn peak(&self) -> u64 {
        self.0.peak()
    }

    #[getter]
    fn refusals(&self) -> u64 {
        self.0.refusals()
    }

    fn __str__(&self) -> String {
        let (name, used) = (self.0.name(), display_size(self.0.used()));
        match self.0.limit() {
            Some(limit) => format!("budget '{name}': {used} in use of {}", display_size(limit)),
            None => format!("budget '{name}': {used} in use"),
        }
    }
}

/// A recording of all pools, until it is stopped.
#[pyclass(frozen, module = "millpond._millpond")]
pub(crate) struct Recorder(Mutex<Option<Recording>>);

#[pymethods]
impl Recorder {
    #[new]
    fn new(path: PathBuf) -> PyResult<Self> {
        let recording = Recording::start(path).map_err(|error| unwritten(&error))?;
        Ok(Self(Mutex::new(Some(recording))))
    }

    /// Stops the recording. Returns when the file is complete.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let recording = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let recording =
            recording.ok_or_else(|| PyRuntimeError::new_err("the recording has already ended"))?;
        let stopped = py.detach(|| recording.stop().map(drop));
        stopped.map_err(|error| unwritten(&error))
    }
}

/// Returns the number of requests of this process that were refused.
#[pyfunction]
pub(crate) fn refusals() -> u64 {
    REFUSED.load(Ordering::Relaxed) + millpond_c::plugin::refusals()
}

/// Marks this moment in the recording of this process, if there is one.
#[pyfunction]
pub(crate) fn mark(text: &str) {
    millpond::mark(text);
}

pub(crate) fn refused(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Returns the exception for a recording that cannot be written.
fn unwritten(error: &RecordError) -> PyErr {
    match error {
        RecordError::File { path, source } => work::os_error(source, path),
        error => PyOSError::new_err(error.to_string()),
    }
}

/// Returns the exception for a refused request: a `MemoryError` with the post-mortem, or a `RuntimeError` if the driver or the pool failed.
pub(crate) fn out_of_memory(error: AllocError) -> PyErr {
    if matches!(error, AllocError::Cuda(_) | AllocError::Broken { .. }) {
        return PyRuntimeError::new_err(error.to_string());
    }
    REFUSED.fetch_add(1, Ordering::Relaxed);
    PyMemoryError::new_err(without_places(&error.to_string()))
}

/// Returns a text that names holders by their tags, without the operations and the places that the Python code adds to them.
pub(crate) fn without_places(text: &str) -> String {
    let lines = text.lines().map(|line| line.split(";;").next().unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}
