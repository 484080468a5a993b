//! Pools, their blocks, budgets, and recordings of them.

use crate::block::Block;
use millpond::engine::{Gauge, display_size, parse_size};
use millpond::{AllocError, Budget as Limited, PoolStats, Recorder as Recording, Tag, Tracking};
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// A number of bytes, or a text such as `"2GiB"`.
#[derive(FromPyObject)]
pub(crate) enum Size {
    Bytes(u64),
    Text(String),
}

impl Size {
    pub(crate) fn bytes(self) -> PyResult<u64> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Text(text) => parse_size(&text).map_err(refused),
        }
    }
}

/// A pool of memory.
#[pyclass(frozen, weakref, module = "millpond._millpond")]
pub(crate) struct Pool(millpond::Pool);

/// Figures by name.
pub(crate) type Figures = Vec<(&'static str, u64)>;

/// The live blocks of one tag: the tag, their number, and their bytes.
type Live = (&'static str, u64, u64);

#[pymethods]
impl Pool {
    #[new]
    fn new(
        name: Option<String>,
        memory: &str,
        limit: Option<Size>,
        budget: Option<PyRef<'_, Budget>>,
        settings: Option<&str>,
    ) -> PyResult<Self> {
        let mut builder = millpond::Pool::builder().track(Some(Tracking::All));
        if let Some(name) = name {
            builder = builder.name(name);
        }
        if let Some(limit) = limit {
            builder = builder.limit(limit.bytes()?);
        }
        if let Some(budget) = budget {
            builder = builder.budget(&budget.0);
        }
        if let Some(settings) = settings {
            builder = builder.settings(settings);
        }
        let pool = match memory {
            "host" => builder.host(),
            "pinned" => builder.pinned(),
            other => {
                return Err(PyValueError::new_err(format!(
                    "unknown memory '{other}': write 'host' or 'pinned'"
                )));
            }
        };
        Ok(Self(pool.map_err(refused)?))
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
    fn set_limit(&self, limit: Size) -> PyResult<()> {
        self.0.set_limit(limit.bytes()?);
        Ok(())
    }

    /// Allocates a block with a tag.
    fn block(slf: &Bound<'_, Self>, bytes: usize, zeroed: bool, tag: &str) -> PyResult<Block> {
        let pool = &slf.get().0;
        let _tag = Tag::new(tag).enter();
        let object = || slf.clone().into_any().unbind();
        let block = match zeroed {
            true => pool
                .alloc_zeroed(bytes)
                .map(|buffer| Block::zeroed(buffer, object())),
            false => pool.alloc(bytes).map(|buffer| Block::uninit(buffer, object())),
        };
        block.map_err(out_of_memory)
    }

    /// Returns the figures by name.
    fn stats(&self) -> Figures {
        figures(&self.0.stats())
    }

    /// Returns the live blocks by tag, the largest sum first.
    fn live(&self) -> Vec<Live> {
        let report = self.0.leak_report();
        let groups = report.iter().flat_map(|report| &report.groups);
        let name = |tag: Tag| if tag == Tag::NONE { "" } else { tag.name() };
        groups
            .map(|group| (name(group.tag), group.blocks, group.bytes))
            .collect()
    }

    fn trim(&self, py: Python<'_>) {
        py.detach(|| self.0.trim());
    }

    fn reset_peak(&self) {
        self.0.reset_peak();
    }

    fn __str__(&self) -> String {
        format!("pool '{}': {}", self.0.name(), self.0.stats())
    }
}

impl Pool {
    pub(crate) fn pool(&self) -> &millpond::Pool {
        &self.0
    }
}

fn figures(stats: &PoolStats) -> Figures {
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
            builder = builder.limit(limit.bytes()?);
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
    fn set_limit(&self, limit: Option<Size>) -> PyResult<()> {
        self.0.set_limit(limit.map(Size::bytes).transpose()?);
        Ok(())
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
        let recording = Recording::start(path).map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self(Mutex::new(Some(recording))))
    }

    /// Stops the recording when the file is complete.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let recording = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let recording = recording.ok_or_else(|| PyRuntimeError::new_err("the recording has ended"))?;
        let stopped = py.detach(|| recording.stop().map(drop));
        stopped.map_err(|error| PyOSError::new_err(error.to_string()))
    }
}

/// Marks this moment in the recording of this process, if there is one.
#[pyfunction]
pub(crate) fn mark(text: &str) {
    millpond::mark(text);
}

pub(crate) fn refused(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Returns the exception for a refused request: a `MemoryError` with the post-mortem.
fn out_of_memory(error: AllocError) -> PyErr {
    PyMemoryError::new_err(without_places(&error.to_string()))
}

/// Returns a text that names holders by their tags, without the operations and the places that the Python code adds to them.
pub(crate) fn without_places(text: &str) -> String {
    let lines = text.lines().map(|line| line.split(";;").next().unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}
