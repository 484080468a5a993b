//! Limits on the memory of a part of a program, for tests.

use crate::pools::{Figures, Size, refused};
use millpond::limits::{Limits as Most, LimitsError, LimitsScope as Entered};
use pyo3::exceptions::{PyAssertionError, PyRuntimeError};
use pyo3::prelude::*;

/// A part of this thread's program whose memory is measured. The part begins with the creation of the scope, and ends with `end`.
#[pyclass(unsendable, module = "millpond._millpond")]
pub(crate) struct LimitsScope(Option<Entered>);

#[pymethods]
impl LimitsScope {
    #[new]
    fn new(
        peak: Option<Size>,
        total: Option<Size>,
        leaked: Option<Size>,
        allocations: Option<u64>,
    ) -> PyResult<Self> {
        let mut limits = Most::new();
        if let Some(peak) = peak {
            limits = limits.peak(peak.0);
        }
        if let Some(total) = total {
            limits = limits.total(total.0);
        }
        if let Some(leaked) = leaked {
            limits = limits.leaked(leaked.0);
        }
        if let Some(allocations) = allocations {
            limits = limits.allocations(allocations);
        }
        Ok(Self(Some(limits.enter().map_err(refused)?)))
    }

    /// Ends the part. Returns the figures by name, and a text about the exceeded limits if there are any.
    fn end(&mut self) -> PyResult<(Figures, Option<String>)> {
        let scope = self.0.take();
        let scope = scope.ok_or_else(|| PyRuntimeError::new_err("the measured part has already ended"))?;
        let (usage, exceeded) = match scope.end() {
            Ok(usage) => (usage, None),
            Err(LimitsError::Exceeded(exceeded)) => (exceeded.usage.clone(), Some(exceeded.to_string())),
            Err(error) => return Err(PyAssertionError::new_err(error.to_string())),
        };
        let figures = vec![
            ("peak", usage.peak),
            ("total", usage.total),
            ("leaked", usage.leaked.bytes),
            ("allocations", usage.allocations),
        ];
        Ok((figures, exceeded.map(|text| crate::pools::without_places(&text))))
    }
}
