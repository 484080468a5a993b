//! A progress bar on stderr, for work long enough to want one.

use crate::text::harmless;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Work shorter than this shows no bar.
const PATIENCE: Duration = Duration::from_millis(300);

/// One bar for one piece of work; shows itself when the work turns out long, and is gone when dropped.
///
/// Nothing is drawn where stderr is no terminal.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    start: Instant,
    visible: Mutex<bool>,
}

impl Progress {
    /// A bar for reading bytes.
    pub(crate) fn bytes(quiet: bool, what: &str) -> Self {
        Self::new(
            quiet,
            what,
            "{msg} {wide_bar:.dim} {binary_bytes}/{binary_total_bytes} ",
        )
    }

    /// A bar for doing a number of things.
    pub(crate) fn steps(quiet: bool, what: &str) -> Self {
        Self::new(quiet, what, "{msg} {wide_bar:.dim} {pos}/{len} {elapsed} ")
    }

    /// A bar for a share of the whole.
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

    /// So much is done.
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
