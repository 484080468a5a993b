//! Recordings in memory, and answers to questions about them.

use crate::table::Table;
use crate::work;
use millpond_replay::analysis::{Band, Sample, Timeline};
use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

/// A recording in memory. Options are those of the command line.
#[pyclass(frozen, module = "millpond._millpond")]
pub(crate) struct Recording(Arc<millpond_cli::Recording>);

/// The answer of a command.
#[pyclass(frozen, get_all, module = "millpond._millpond")]
pub(crate) struct Answer {
    device: i32,
    sentences: Vec<String>,
    text: String,
    json: String,
    page: Option<PathBuf>,
}

impl From<millpond_cli::Answer> for Answer {
    fn from(answer: millpond_cli::Answer) -> Self {
        Self {
            device: answer.device,
            sentences: answer.sentences,
            text: answer.text,
            json: answer.json,
            page: answer.page,
        }
    }
}

/// A column of a table: its name, and its numbers.
type Column = (String, Vec<u64>);

/// Returns the maximum number of bytes in each column of a timeline, and the names of the groups.
fn columns(timeline: Timeline) -> (Vec<Column>, Vec<String>) {
    let most = |samples: &[Sample]| samples.iter().map(|sample| sample.most).collect();
    let begins = (0..timeline.columns()).map(|column| timeline.begins(column));
    let mut columns = vec![
        ("time_ns".to_owned(), begins.collect()),
        ("held".to_owned(), most(&timeline.total)),
    ];
    let others = [
        ("reserved", &timeline.reserved),
        ("unexplained", &timeline.unexplained),
    ];
    for (name, samples) in others {
        columns.extend(samples.iter().map(|samples| (name.to_owned(), most(samples))));
    }
    let mut groups = timeline.bands;
    if timeline.rest_groups > 0 {
        groups.push(Band {
            name: format!("{} others", timeline.rest_groups),
            samples: timeline.rest,
        });
    }
    // At the peak of a column, the groups add up to the held bytes.
    let at_peak = |group: &Band| -> Vec<u64> { group.samples.iter().map(|sample| sample.at_peak).collect() };
    let mut names = Vec::new();
    for group in &groups {
        // The names of columns are unique.
        let mut name = group.name.clone();
        for number in 2.. {
            if columns.iter().all(|(other, _)| *other != name) {
                break;
            }
            name = format!("{} ({number})", group.name);
        }
        names.push(name.clone());
        columns.push((name, at_peak(group)));
    }
    (columns, names)
}

#[pymethods]
impl Recording {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let recording = work::run(py, move |work| millpond_cli::Recording::read(&path, work))?;
        Ok(Self(Arc::new(recording)))
    }

    #[getter]
    fn devices(&self) -> Vec<i32> {
        self.0.devices()
    }

    fn heaviest(&self, py: Python<'_>) -> PyResult<i32> {
        let recording = Arc::clone(&self.0);
        work::run(py, move |_| recording.heaviest())
    }

    fn replay(&self, py: Python<'_>, device: Option<i32>, options: Vec<OsString>) -> PyResult<Vec<Answer>> {
        let recording = Arc::clone(&self.0);
        let answers = work::run(py, move |work| recording.replay(device, options, work))?;
        Ok(answers.into_iter().map(Answer::from).collect())
    }

    fn tune(&self, py: Python<'_>, device: Option<i32>, options: Vec<OsString>) -> PyResult<Answer> {
        let recording = Arc::clone(&self.0);
        Ok(work::run(py, move |work| recording.tune(device, options, work))?.into())
    }

    fn report(&self, py: Python<'_>, options: Vec<OsString>) -> PyResult<Answer> {
        let recording = Arc::clone(&self.0);
        Ok(work::run(py, move |work| recording.report(options, work))?.into())
    }

    /// Returns the columns of a timeline, the names of the groups in it, and a picture.
    fn timeline(
        &self,
        py: Python<'_>,
        options: Vec<OsString>,
    ) -> PyResult<(Vec<Column>, Vec<String>, String)> {
        let recording = Arc::clone(&self.0);
        let (timeline, picture) = work::run(py, move |work| recording.timeline(options, work))?;
        let (columns, groups) = columns(timeline);
        Ok((columns, groups, picture))
    }

    fn events(&self, py: Python<'_>) -> PyResult<Table> {
        let recording = Arc::clone(&self.0);
        Ok(Table::of_events(work::run(py, move |work| {
            recording.events(work)
        })?))
    }
}
