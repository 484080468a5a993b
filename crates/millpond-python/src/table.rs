//! Tables for other libraries, which take them without a copy through Arrow's C stream interface and Python's capsules.

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchIterator,
    RecordBatchOptions, StringArray,
};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyInt, PyString};
use std::collections::HashSet;
use std::sync::Arc;

/// A table in the memory layout of Arrow.
#[pyclass(frozen, module = "millpond._millpond")]
pub(crate) struct Table {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

/// A value of a column.
enum Cell {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Cell {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(value) = object.extract() {
            return Ok(Self::Bool(value));
        }
        if let Ok(number) = object.cast::<PyInt>() {
            let wide = |_| PyValueError::new_err(format!("{} does not fit into 64 bits", number.to_owned()));
            return number.extract().map(Self::Int).map_err(wide);
        }
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Self::Text(text.to_string_lossy().into_owned()));
        }
        let kind = object.get_type();
        let other =
            |_| PyTypeError::new_err(format!("a table holds numbers, strings and booleans, not {kind}"));
        object.extract().map(Self::Float).map_err(other)
    }
}

#[pymethods]
impl Table {
    /// Returns a table of these columns, which have one type each. None is a missing value.
    #[new]
    fn new(columns: Vec<(String, Vec<Option<Cell>>)>) -> PyResult<Self> {
        let columns = columns
            .into_iter()
            .map(|(name, cells)| Ok((name, array(&cells)?)));
        Self::of(columns.collect::<PyResult<_>>()?)
    }

    #[getter]
    fn columns(&self) -> Vec<String> {
        let fields = self.schema.fields().iter();
        fields.map(|field| field.name().clone()).collect()
    }

    fn __len__(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// Returns the table as a stream. A requested schema is ignored, as the interface allows.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let batches = self.batches.clone().into_iter().map(Ok);
        let reader = RecordBatchIterator::new(batches, Arc::clone(&self.schema));
        let stream = FFI_ArrowArrayStream::new(Box::new(reader));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.schema.as_ref()).map_err(failed)?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }
}

impl Table {
    pub(crate) fn of_events(events: millpond_cli::Events) -> Self {
        Self {
            schema: events.schema,
            batches: events.batches,
        }
    }

    fn of(columns: Vec<(String, ArrayRef)>) -> PyResult<Self> {
        let rows = columns.first().map_or(0, |(_, array)| array.len());
        if columns.iter().any(|(_, array)| array.len() != rows) {
            return Err(PyValueError::new_err(
                "the columns of a table must have the same number of values",
            ));
        }
        let mut names = HashSet::new();
        if let Some((name, _)) = columns.iter().find(|(name, _)| !names.insert(name)) {
            return Err(PyValueError::new_err(format!(
                "two columns have the name '{name}'"
            )));
        }
        let fields = columns.iter();
        let fields = fields.map(|(name, array)| Field::new(name, array.data_type().clone(), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let arrays = columns.into_iter().map(|(_, array)| array).collect();
        let batch =
            RecordBatch::try_new_with_options(Arc::clone(&schema), arrays, &options).map_err(failed)?;
        Ok(Self {
            schema,
            batches: vec![batch],
        })
    }
}

/// Returns the cells as an array of the type of the first cell. Integers may be mixed with floating-point numbers.
fn array(cells: &[Option<Cell>]) -> PyResult<ArrayRef> {
    let has = |is: fn(&Cell) -> bool| cells.iter().flatten().any(is);
    let kind = match cells.iter().flatten().next() {
        Some(Cell::Bool(_)) => DataType::Boolean,
        Some(Cell::Text(_)) | None => DataType::Utf8,
        Some(_) if has(|cell| matches!(cell, Cell::Float(_))) => DataType::Float64,
        Some(_) => DataType::Int64,
    };
    fn typed<'a, T>(
        cells: &'a [Option<Cell>],
        of: impl Fn(&'a Cell) -> Option<T>,
    ) -> PyResult<Vec<Option<T>>> {
        let wrong = || PyValueError::new_err("a column has values of different types");
        let cell = |cell: &'a Option<Cell>| match cell {
            Some(cell) => of(cell).map(Some).ok_or_else(wrong),
            None => Ok(None),
        };
        cells.iter().map(cell).collect()
    }
    Ok(match kind {
        DataType::Boolean => Arc::new(BooleanArray::from(typed(cells, |cell| match cell {
            Cell::Bool(value) => Some(*value),
            _ => None,
        })?)),
        DataType::Int64 => Arc::new(Int64Array::from(typed(cells, |cell| match cell {
            Cell::Int(value) => Some(*value),
            _ => None,
        })?)),
        DataType::Float64 => Arc::new(Float64Array::from(typed(cells, |cell| match cell {
            Cell::Float(value) => Some(*value),
            Cell::Int(value) => Some(*value as f64),
            _ => None,
        })?)),
        _ => Arc::new(StringArray::from(typed(cells, |cell| match cell {
            Cell::Text(value) => Some(value.as_str()),
            _ => None,
        })?)),
    })
}

fn failed(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
