//! The progress of work that takes long: bars on stderr, and a description for programs that contain the command.

use crate::exit::CliError;
use crate::text::{harmless, size};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millpond_replay::{ReplayError, Threads};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Work shorter than this shows no bar.
const PATIENCE: Duration = Duration::from_millis(300);

/// Work that takes long. It can be interrupted, and describes its progress. Clones refer to the same work.
#[derive(Clone, Debug, Default)]
pub struct Work {
    threads: Threads,
    quiet: bool,
    stage: Arc<Mutex<Option<Measured>>>,
}

/// The current stage of the work.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Stage {
    /// A description, such as `trying settings: 7 of 18`.
    pub text: String,
    /// The share that is done, from 0 to 1, if it is known.
    pub share: Option<f64>,
}

impl Work {
    /// Returns the work of a command. Quiet work shows no progress.
    pub(crate) fn new(quiet: bool) -> Self {
        Self::default().with_quiet(quiet)
    }

    /// Returns the same work, quiet or not.
    pub(crate) fn with_quiet(&self, quiet: bool) -> Self {
        Self {
            quiet,
            ..self.clone()
        }
    }

    pub(crate) fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Interrupts the work. It ends soon, with an error.
    pub fn interrupt(&self) {
        self.threads.interrupt();
    }

    /// # Errors
    /// Returns an error if the work was interrupted.
    pub(crate) fn check(&self) -> Result<(), CliError> {
        match self.threads.flag().is_set() {
            false => Ok(()),
            true => Err(ReplayError::Interrupted.into()),
        }
    }

    /// Returns the current stage, or `None` if it is not known.
    #[must_use]
    pub fn stage(&self) -> Option<Stage> {
        let stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        stage.as_ref().map(Measured::stage)
    }

    fn set(&self, stage: Option<Measured>) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }
}

/// The unit in which progress is counted.
#[derive(Clone, Copy, Debug)]
enum Unit {
    Bytes,
    Steps,
    Share,
}

impl Unit {
    fn template(self) -> &'static str {
        match self {
            Self::Bytes => "{msg} {wide_bar:.dim} {binary_bytes}/{binary_total_bytes} ",
            Self::Steps => "{msg} {wide_bar:.dim} {pos}/{len} {elapsed} ",
            Self::Share => "{msg} {wide_bar:.dim} {percent} % {elapsed} ",
        }
    }
}

#[derive(Clone, Debug)]
struct Measured {
    what: String,
    unit: Unit,
    done: u64,
    /// 0 means that the total is not known.
    all: u64,
}

impl Measured {
    fn stage(&self) -> Stage {
        let (done, all) = (self.done.min(self.all), self.all);
        let share = (all > 0).then(|| done as f64 / all as f64);
        let measure = match (share, self.unit) {
            (None, _) => String::new(),
            (_, Unit::Bytes) => format!(": {} of {}", size(done), size(all)),
            (_, Unit::Steps) => format!(": {done} of {all}"),
            (Some(share), Unit::Share) => format!(": {:.0} %", share * 100.0),
        };
        Stage {
            text: format!("{}{measure}", self.what),
            share,
        }
    }
}

/// The progress of one piece of work. If the work takes long and stderr is a terminal, a bar appears. It disappears when this is dropped.
pub(crate) struct Progress {
    work: Work,
    what: String,
    unit: Unit,
    bar: Option<ProgressBar>,
    start: Instant,
    visible: Mutex<bool>,
}

impl Progress {
    /// Counts bytes read.
    pub(crate) fn bytes(work: &Work, what: &str) -> Self {
        Self::new(work, what, Unit::Bytes)
    }

    /// Counts steps.
    pub(crate) fn steps(work: &Work, what: &str) -> Self {
        Self::new(work, what, Unit::Steps)
    }

    /// Shows a share of the whole.
    pub(crate) fn share(work: &Work, what: &str) -> Self {
        Self::new(work, what, Unit::Share)
    }

    fn new(work: &Work, what: &str, unit: Unit) -> Self {
        let what = harmless(what, false);
        let is_drawn = !work.quiet && console::user_attended_stderr();
        let bar = is_drawn.then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
            if let Ok(style) = ProgressStyle::with_template(unit.template()) {
                bar.set_style(style.progress_chars("━╸ "));
            }
            bar.with_message(what.clone())
        });
        let progress = Self {
            work: work.clone(),
            what,
            unit,
            bar,
            start: Instant::now(),
            visible: Mutex::new(false),
        };
        progress.tell(0, 0);
        progress
    }

    fn tell(&self, done: u64, all: u64) {
        if !self.work.quiet {
            self.work.set(Some(Measured {
                what: self.what.clone(),
                unit: self.unit,
                done,
                all,
            }));
        }
    }

    /// Sets the work that is done, and the total if it is known.
    pub(crate) fn set(&self, done: u64, all: Option<u64>) {
        self.tell(done, all.unwrap_or(0));
        let Some(bar) = &self.bar else { return };
        if let Some(all) = all {
            bar.set_length(all);
        }
        bar.set_position(done);
        let mut visible = self.visible.lock().unwrap_or_else(PoisonError::into_inner);
        if !*visible && self.start.elapsed() >= PATIENCE {
            *visible = true;
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(200));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.work.set(None);
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_describes_the_current_work() {
        let work = Work::default();
        let said = || work.stage().map(|stage| (stage.text, stage.share));
        let of = |text: &str, share| Some((text.to_owned(), share));
        let reading = Progress::bytes(&work, "reading run.csv");
        assert_eq!(said(), of("reading run.csv", None));
        reading.set(1 << 20, Some(4 << 20));
        assert_eq!(said(), of("reading run.csv: 1.00 MiB of 4.00 MiB", Some(0.25)));
        drop(reading);
        assert_eq!(said(), None);
        let replaying = Progress::share(&work, "replaying run");
        replaying.set(500, Some(2000));
        assert_eq!(said(), of("replaying run: 25 %", Some(0.25)));
        drop(replaying);
        let trying = Progress::steps(&work, "trying settings");
        trying.set(7, Some(18));
        assert_eq!(said(), of("trying settings: 7 of 18", Some(7.0 / 18.0)));
        drop(trying);
        let quiet = Progress::steps(&work.with_quiet(true), "trying settings");
        quiet.set(7, Some(18));
        assert_eq!(said(), None);
    }
}
