//! Reads statistics on a separate thread, so that a process that does not answer cannot delay keys.

use super::fetch::{self, FetchError};
use super::find::{self, Process, Target};
use super::stats::Stats;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// The time between two reads if the process does not suggest one.
const PAUSE: Duration = Duration::from_secs(1);
/// The shortest time between two reads.
const LEAST: Duration = Duration::from_millis(100);

/// The result of a read. It names the process that was read, because an answer may come late.
pub(crate) enum Look {
    Process(Target, Box<Result<Stats, FetchError>>),
    All(Vec<Process>),
}

/// The thread that reads. It ends when this is dropped.
pub(crate) struct Source {
    orders: Sender<Option<Target>>,
    looks: Receiver<Look>,
}

impl Source {
    pub(crate) fn start(target: Option<Target>) -> std::io::Result<Self> {
        let (orders, taken) = channel();
        let (told, looks) = channel();
        thread::Builder::new()
            .name("looks".to_owned())
            .spawn(move || run(target, &taken, &told))?;
        Ok(Self { orders, looks })
    }

    /// Follows this process from now on, or all processes if it is `None`.
    pub(crate) fn follow(&self, target: Option<Target>) {
        // The thread ends only after this is dropped, so the send cannot fail.
        let _ = self.orders.send(target);
    }

    pub(crate) fn next(&self) -> Option<Look> {
        self.looks.try_recv().ok()
    }
}

fn run(mut target: Option<Target>, orders: &Receiver<Option<Target>>, looks: &Sender<Look>) {
    loop {
        let (look, pause) = match &target {
            None => (Look::All(find::processes()), PAUSE),
            Some(target) => {
                let outcome = fetch::stats(target);
                let interval = outcome
                    .as_ref()
                    .map(|stats| Duration::from_millis(stats.monitor.interval_ms));
                let pause = interval.unwrap_or(PAUSE).clamp(LEAST, PAUSE);
                (Look::Process(target.clone(), Box::new(outcome)), pause)
            }
        };
        if looks.send(look).is_err() {
            return;
        }
        match orders.recv_timeout(pause) {
            Ok(order) => target = orders.try_iter().last().unwrap_or(order),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
