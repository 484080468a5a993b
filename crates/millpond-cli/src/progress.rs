//! Progress bars on stderr for work that takes long.

use crate::text::harmless;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Work shorter than this shows no bar.
const PATIENCE: Duration = Duration::from_millis(300);

/// A progress bar for one piece of work. It appears if the work takes long, and disappears when it is dropped.
///
/// Nothing is drawn if stderr is not a terminal.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    start: Instant,
    visible: Mutex<bool>,
}

impl Progress {
    /// Returns a bar that counts bytes read.
    pub(crate) fn bytes(quiet: bool, what: &str) -> Self {
        Self::new(
            quiet,
            what,
            "{msg} {wide_bar:.dim} {binary_bytes}/{binary_total_bytes} ",
        )
    }

    /// Returns a bar that counts steps.
    pub(crate) fn steps(quiet: bool, what: &str) -> Self {
        Self::new(quiet, what, "{msg} {wide_bar:.dim} {pos}/{len} {elapsed} ")
    }

    /// Returns a bar that shows a share of the whole.
    pub(crate) fn share(quiet: bool, what: &str) -> Self {
        Self::new(quiet, what, "{msg} {wide_bar:.dim} {percent} % {elapsed} ")
    }

    fn new(quiet: bool, what: &str, template: &str) -> Self {
        let start = Instant::now();
        if quiet || !console::user_attended_stderr() {
            return Self {
                bar: None,
                start,
                visible: Mutex::new(false),
            };
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━╸ "));
        }
        bar.set_message(harmless(what, false));
        Self {
            bar: Some(bar),
            start,
            visible: Mutex::new(false),
        }
    }

    /// Sets the work that is done, and the total if it is known.
    pub(crate) fn set(&self, done: u64, all: Option<u64>) {
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
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
