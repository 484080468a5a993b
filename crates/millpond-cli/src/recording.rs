//! The commands as functions of a recording in memory, for programs that contain them.

use crate::answer::Answer;
use crate::args::{ReplayArgs, ReportArgs, TuneArgs};
#[cfg(feature = "parquet")]
use crate::convert::table;
use crate::exit::{self, CliError};
#[cfg(feature = "parquet")]
use crate::progress::Progress;
#[cfg(feature = "parquet")]
use crate::symbols::ModuleSymbols;
use crate::{Work, files, replay, report, tune};
#[cfg(feature = "parquet")]
use arrow_array::RecordBatch;
use clap::Args;
use millpond_replay::analysis::Timeline;
use millpond_replay::{Selection, chart};
#[cfg(feature = "parquet")]
use millpond_trace::export::ExportOptions;
use millpond_trace::{ReadError, Trace};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// A recording in memory, with the commands as functions. `options` are those of the command line, such as `--device=24GiB`.
///
/// Progress and notes go to standard error, as those of the command do.
///
/// ```
/// use millpond_cli::{Recording, Work};
///
/// let path = std::env::temp_dir().join("millpond-recording.csv");
/// std::fs::write(&path, "time_us,action,id,bytes,stream,tag\n0,alloc,1,1048576,0,\n1,free,1,1048576,0,\n")?;
/// let work = Work::default();
/// let recording = Recording::read(&path, &work)?;
/// let answers = recording.replay(None, ["--device=24GiB"], &work)?;
/// assert!(answers[0].sentences[0].contains("1.00 MiB"));
/// // Usually another thread does this, while the work runs.
/// work.interrupt();
/// assert!(recording.report([""; 0], &work).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    traces: Vec<Trace>,
}

/// The events of a recording as a table, with one event in each row and names in place of numbers.
#[cfg(feature = "parquet")]
#[derive(Clone, Debug)]
pub struct Events {
    /// The columns.
    pub schema: arrow_schema::SchemaRef,
    /// The rows, in order.
    pub batches: Vec<RecordBatch>,
}

/// The reason why there is no answer. The message is one line that says what to do.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(#[from] CliError);

impl Error {
    /// Returns the system's error and the path if a file could not be opened, read or written.
    #[must_use]
    pub fn io(&self) -> Option<(&io::Error, &Path)> {
        match &self.0 {
            CliError::Open { path, source } => Some((source, path)),
            CliError::Read {
                path,
                source: ReadError::Io { source, .. },
            } => Some((source, path)),
            CliError::Write { what, source } => Some((source, Path::new(what))),
            _ => None,
        }
    }
}

impl Recording {
    /// Reads a recording of any format that the command reads.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, if it is not a recording, or if the work is interrupted.
    pub fn read(path: &Path, work: &Work) -> Result<Self, Error> {
        let traces = files::load(path, work)?.traces;
        Ok(Self {
            path: path.to_owned(),
            traces,
        })
    }

    /// Returns the devices with a history, by their numbers in the recorded process. -1 is the host.
    #[must_use]
    pub fn devices(&self) -> Vec<i32> {
        self.traces.iter().map(|trace| trace.origin.device).collect()
    }

    /// Replays the history of one device, or of each device, as `millpond replay` does. Returns one answer for each device.
    ///
    /// # Errors
    /// Returns an error if there is no such device, if the options are wrong, if the replay is refused or interrupted, or if a page cannot
    /// be written.
    pub fn replay(
        &self,
        device: Option<i32>,
        options: impl IntoIterator<Item = impl Into<OsString>>,
        work: &Work,
    ) -> Result<Vec<Answer>, Error> {
        let args = self.parsed::<ReplayArgs>("replay", options)?;
        files::check_times(&self.path, &self.traces, &Selection::from(&args.selection))?;
        let one = self.trace(device)?;
        let traces = match device {
            Some(_) => std::slice::from_ref(one),
            None => &self.traces,
        };
        Ok(replay::answers(&args, traces, work)?)
    }

    /// Searches settings for one device, or for the device that holds the most, as `millpond tune` does.
    ///
    /// # Errors
    /// Returns an error if there is no such device, if the options are wrong, or if the search is refused or interrupted.
    pub fn tune(
        &self,
        device: Option<i32>,
        options: impl IntoIterator<Item = impl Into<OsString>>,
        work: &Work,
    ) -> Result<Answer, Error> {
        let args = self.parsed::<TuneArgs>("tune", options)?;
        files::check_times(&self.path, &self.traces, &Selection::from(&args.selection))?;
        Ok(tune::answer(&args, self.trace(device)?, work)?)
    }

    /// Returns the device that holds the most.
    ///
    /// # Errors
    /// Returns an error if the recording has no history.
    pub fn heaviest(&self) -> Result<i32, Error> {
        Ok(self.trace(None)?.origin.device)
    }

    /// Reports which code held memory and when, as `millpond report` does. Reads the file again.
    ///
    /// # Errors
    /// Returns an error if the options are wrong, if the file can no longer be read, or if the work is interrupted.
    pub fn report(
        &self,
        options: impl IntoIterator<Item = impl Into<OsString>>,
        work: &Work,
    ) -> Result<Answer, Error> {
        let args = self.parsed::<ReportArgs>("report", options)?;
        Ok(report::answer(&args, work)?)
    }

    /// Returns the bytes held over time, in 1,000 columns, and a picture of them as SVG. `options` are those of `millpond report`. Reads
    /// the file again.
    ///
    /// # Errors
    /// Returns an error if the options are wrong, if the file can no longer be read or has no history, or if the work is interrupted.
    pub fn timeline(
        &self,
        options: impl IntoIterator<Item = impl Into<OsString>>,
        work: &Work,
    ) -> Result<(Timeline, String), Error> {
        let timeline = report::timeline(&self.parsed::<ReportArgs>("report", options)?, work)?;
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        let picture = chart::svg(&timeline, &name.to_string_lossy());
        Ok((timeline, picture))
    }

    /// Returns all events as a table, which has the columns of `millpond convert run.pickle run.parquet`. Reads the file again.
    ///
    /// # Errors
    /// Returns an error if the file can no longer be read, or if the work is interrupted.
    #[cfg(feature = "parquet")]
    pub fn events(&self, work: &Work) -> Result<Events, Error> {
        let history = files::open_history(&self.path, work)?;
        let symbols = ModuleSymbols::new(&history.definitions);
        let schema = std::sync::Arc::new(table::schema());
        let mut batches = Vec::new();
        let bar = Progress::share(work, "making the table of events");
        let report = |done: u64, all: u64| bar.set(done, Some(all));
        let options = ExportOptions {
            progress: Some(&report),
            ..ExportOptions::default()
        };
        table::batches(&history, &symbols, &options, &schema, |batch| {
            batches.push(batch);
            Ok(())
        })
        .map_err(|source| CliError::Export {
            path: self.path.clone(),
            source,
        })?;
        Ok(Events { schema, batches })
    }

    /// Returns the history of a device, or of the device that holds the most.
    fn trace(&self, device: Option<i32>) -> Result<&Trace, CliError> {
        let Some(device) = device.filter(|_| !self.traces.is_empty()) else {
            let heaviest = files::heaviest(self.traces.iter().collect());
            return heaviest.ok_or_else(|| files::no_history(&self.path));
        };
        let found = self.traces.iter().find(|trace| trace.origin.device == device);
        found.ok_or_else(|| {
            let (path, devices) = (self.path.display(), self.devices());
            CliError::Usage(format!("{path} has no device {device}; there are {devices:?}"))
        })
    }

    /// Parses the options of a command, whose file is this recording.
    fn parsed<A: Args>(
        &self,
        command: &'static str,
        options: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<A, CliError> {
        let options = options.into_iter().map(Into::into);
        let all = std::iter::once(command.into())
            .chain(options)
            .chain(["--".into(), self.path.clone().into()]);
        A::augment_args(clap::Command::new(command))
            .try_get_matches_from(all)
            .and_then(|matches| A::from_arg_matches(&matches))
            .map_err(|error| CliError::Usage(exit::line(&error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_as_on_the_command_line() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/pairs/unet.csv.zst");
        let work = Work::default();
        let recording = Recording::read(&path, &work).expect("a recording");
        let replay = |options: &[&str]| recording.replay(None, options, &work);
        let answers = replay(&["--policy=none", "--device=24GiB"]).expect("replayed");
        assert!(
            answers[0].json.contains("\"policy\": \"none\""),
            "{}",
            answers[0].json
        );
        for (options, said) in [
            (&["--source=host"][..], "leave out --source"),
            (&["--check"], "--check"),
            (&["--policy=nope"], "unknown policy"),
            (&["--no-such-option"], "--no-such-option"),
            (&["--device=24Q"], "24Q"),
        ] {
            let refused = replay(options).expect_err("refused").to_string();
            assert!(refused.contains(said) && !refused.contains('\n'), "{refused}");
        }
        let tuned = recording.tune(None, ["--source=host"], &work);
        assert!(tuned.is_err_and(|error| error.to_string().contains("simulated device")));
        assert!(recording.tune(Some(7), [""; 0], &work).is_err());
        let interrupted = Work::default();
        interrupted.interrupt();
        let device = recording.devices()[0];
        let ended = [
            Recording::read(&path, &interrupted).err(),
            recording.replay(Some(device), [""; 0], &interrupted).err(),
            recording.tune(Some(device), [""; 0], &interrupted).err(),
            recording.report([""; 0], &interrupted).err(),
            recording.timeline([""; 0], &interrupted).err(),
        ];
        for error in ended {
            assert!(error.is_some_and(|error| error.to_string().contains("interrupted")));
        }
        let missing = Recording::read(&path.with_file_name("none.csv"), &work);
        assert!(missing.is_err_and(|error| error.io().is_some()));
    }
}
