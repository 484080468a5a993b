//! The events that wake the watching thread: stalls, a reached limit, the interval, or the end.

use crate::pressure::files::Files;
use crate::pressure::{LimitKind, Pressure, Scope, Thresholds, Why};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{File, OpenOptions};
use std::io::{PipeReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The maximum number of nested cgroups that are observed.
const MOST_FOLDERS: usize = 8;

/// How a watch learns of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Means {
    /// The scope whose stalls the system reports immediately, or the reason why it reports none.
    pub trigger: Result<Scope, Why>,
    /// The number of cgroups for which the system reports reached limits.
    pub events: usize,
    /// The interval between checks without a notification.
    pub interval: Duration,
}

/// The reason for a wakeup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    Stop,
    Time,
    Trigger(Scope),
    Events,
}

#[derive(Debug)]
pub(super) struct Alarm {
    files: Files,
    /// The microseconds of stall that trigger a notification, and the window in microseconds.
    stall: [(u64, u64); 2],
    trigger: Result<(File, Scope), Why>,
    events: Vec<File>,
    /// The cgroup for which it was armed.
    armed: Option<Option<PathBuf>>,
    interval: Duration,
}

impl Alarm {
    pub(super) fn new(files: Files, thresholds: &Thresholds, interval: Duration) -> Self {
        let share = u64::from(thresholds.some.high().as_hundredths());
        Self {
            files,
            // Without privileges, the window must be a multiple of two seconds.
            stall: [1_000_000, 2_000_000].map(|window| ((window * share / 10_000).max(1), window)),
            trigger: Err(Why::Absent),
            events: Vec::new(),
            armed: None,
            interval,
        }
    }

    pub(super) fn means(&self) -> Means {
        Means {
            trigger: self.trigger.as_ref().map(|(_, scope)| *scope).map_err(|why| *why),
            events: self.events.len(),
            interval: self.interval,
        }
    }

    /// Observes the cgroups in which the process is now. Returns true if they have changed.
    pub(super) fn follow(&mut self, now: &Pressure) -> bool {
        let folder = now.stall_folder();
        if self
            .armed
            .as_ref()
            .is_some_and(|armed| armed.as_deref() == folder)
        {
            return false;
        }
        self.trigger = self.arm(folder);
        self.events = self.listen(now);
        self.armed = Some(folder.map(Path::to_owned));
        true
    }

    fn arm(&self, folder: Option<&Path>) -> Result<(File, Scope), Why> {
        if !self.files.is_system() {
            // In a directory that simulates a system, this would overwrite a plain file.
            return Err(Why::Absent);
        }
        let (path, scope) = match folder {
            Some(folder) => (folder.join("memory.pressure"), Scope::Cgroup),
            None => (PathBuf::from("/proc/pressure/memory"), Scope::System),
        };
        let [first, second] = self.stall;
        let file = trigger(&path, first).or_else(|_| trigger(&path, second))?;
        Ok((file, scope))
    }

    fn listen(&self, now: &Pressure) -> Vec<File> {
        let limited = now
            .limits()
            .iter()
            .filter(|limit| matches!(limit.kind, LimitKind::CgroupMax | LimitKind::CgroupHigh));
        let mut folders: Vec<&Path> = limited.filter_map(|limit| limit.folder.as_deref()).collect();
        folders.dedup();
        folders.truncate(MOST_FOLDERS);
        let open = |folder: &Path| {
            let path = self.files.place(&folder.join("memory.events.local"));
            let file = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(path)
                .ok()?;
            heard(&file).then_some(file)
        };
        folders.into_iter().filter_map(open).collect()
    }

    /// Waits until an event occurs or the interval has passed.
    pub(super) fn wait(&mut self, stop: &PipeReader) -> Woken {
        let mut places = Vec::with_capacity(2 + self.events.len());
        places.push(PollFd::new(stop, PollFlags::IN));
        let trigger = self.trigger.as_ref().ok();
        places.extend(trigger.map(|(file, _)| PollFd::new(file, PollFlags::PRI)));
        let first_event = places.len();
        places.extend(self.events.iter().map(|file| PollFd::new(file, PollFlags::PRI)));
        match poll(&mut places, Some(&timespec(self.interval))) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Woken::Time,
            Ok(_) => {}
            Err(_) => {
                // There is no known reason for an error here. The files are dropped, so that a lasting error does not
                // cause a busy loop.
                drop(places);
                self.trigger = Err(Why::Odd);
                self.events.clear();
                return self.pause(stop, self.interval);
            }
        }
        let flags: Vec<PollFlags> = places.iter().map(PollFd::revents).collect();
        drop(places);
        if !flags[0].is_empty() {
            return Woken::Stop;
        }
        let mut heard_events = flags[first_event..].iter().map(|flags| flags.is_empty());
        let before = self.events.len();
        let mut told = false;
        self.events.retain(|file| {
            let quiet = heard_events.next().unwrap_or(true);
            told |= !quiet;
            // Reading the file arms it again. If it cannot be read, its cgroup is gone.
            quiet || heard(file)
        });
        let lost = self.events.len() < before;
        if first_event == 2 && !flags[1].is_empty() {
            if flags[1].intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
                self.trigger = Err(Why::Absent);
            } else if let Ok((_, scope)) = self.trigger {
                return Woken::Trigger(scope);
            }
        }
        if told && !lost { Woken::Events } else { Woken::Time }
    }

    /// Waits until the watch is stopped or the time has passed. Ignores all other events.
    pub(super) fn pause(&self, stop: &PipeReader, time: Duration) -> Woken {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&timespec(left))) {
                Ok(0) => return Woken::Time,
                Ok(_) => return Woken::Stop,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => {
                    std::thread::sleep(left);
                    return Woken::Time;
                }
            }
        }
    }
}

/// Requests a notification when tasks stall for the given microseconds in the given window.
fn trigger(path: &Path, (stall, window): (u64, u64)) -> Result<File, Why> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let mut file = options.open(path)?;
    // The text must be written in one call. The system removes the last byte.
    file.write_all(format!("some {stall} {window}\0").as_bytes())?;
    Ok(file)
}

/// Reads the counts of events, which arms the notification. Returns false if they cannot be read.
fn heard(file: &File) -> bool {
    let mut buffer = [0; 512];
    file.read_at(&mut buffer, 0).is_ok()
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}
