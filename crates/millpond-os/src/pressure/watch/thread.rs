//! The watching thread.

use super::alarm::{Alarm, Woken};
use super::calls::Changed;
use super::hysteresis::Hysteresis;
use super::{Change, DeviceChange, Shared, WatchBuilder};
use crate::device::Device;
use crate::pressure::{Cause, Events, Level, Pressure, Thresholds, level};
use crate::reentrancy::inside;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The minimum time between two checks. A cgroup at its limit sends a hundred notifications per second.
const LEAST_GAP: Duration = Duration::from_millis(20);

pub(super) struct Watcher {
    shared: Arc<Shared>,
    rules: WatchBuilder,
    lower: Thresholds,
    alarm: Alarm,
    hysteresis: Hysteresis,
    /// The state of each device that was ever seen.
    devices: Vec<(Device, Hysteresis)>,
    /// The counts of limit events at the last check, and the cgroup.
    events: Option<(Option<PathBuf>, Events)>,
}

impl Watcher {
    pub(super) fn new(shared: Arc<Shared>, rules: WatchBuilder) -> Self {
        let files = rules.readings.files.clone();
        Self {
            lower: rules.thresholds.lower(rules.margin),
            alarm: Alarm::new(files, &rules.thresholds, rules.interval),
            hysteresis: Hysteresis::new(rules.calm),
            devices: Vec::new(),
            events: None,
            shared,
            rules,
        }
    }

    /// Checks and runs callbacks until the watch is stopped.
    pub(super) fn run(mut self) {
        let mut woken = Woken::Time;
        while woken != Woken::Stop {
            let began = Instant::now();
            self.look(woken);
            woken = self.alarm.wait(&self.shared.stop.0);
            let gap = LEAST_GAP.saturating_sub(began.elapsed());
            if woken != Woken::Stop
                && !gap.is_zero()
                && self.alarm.pause(&self.shared.stop.0, gap) == Woken::Stop
            {
                woken = Woken::Stop;
            }
        }
        self.shared.end();
    }

    fn look(&mut self, woken: Woken) {
        let (now, events) = self.read();
        let (mut met, mut cause) = (now.level(), now.cause());
        let mut raise = |level, by| {
            if level > met {
                (met, cause) = (level, by);
            }
        };
        if let Woken::Trigger(scope) = woken {
            raise(Level::High, Cause::Trigger(scope));
        }
        raise(events, Cause::Events);
        let falling = level(&now.evidence, &self.lower).0.max(met);
        let change = self.hysteresis.step(met, falling, Instant::now());
        self.shared.set(change.map(|(_, to)| to), Arc::clone(&now));
        if let Some((from, to)) = change {
            self.shared.calls.tell(Changed::Process(&Change {
                from,
                to,
                cause,
                pressure: &now,
            }));
        }
        self.look_at_devices(&now);
    }

    /// Reads the pressure, and the level from limit events. This must not use the program's memory, which may be
    /// scarce.
    fn read(&mut self) -> (Arc<Pressure>, Level) {
        let _inside = inside();
        let now = Arc::new(self.rules.readings.pressure(&self.rules.thresholds));
        if self.alarm.follow(&now) {
            self.shared.set_means(self.alarm.means());
        }
        let events = self.events(&now);
        (now, events)
    }

    fn look_at_devices(&mut self, now: &Pressure) {
        for device in now.devices() {
            let found = self.devices.iter().position(|(known, _)| *known == device.device);
            let place = found.unwrap_or_else(|| {
                let hysteresis = Hysteresis::new(self.rules.calm);
                self.devices.push((device.device, hysteresis));
                self.devices.len() - 1
            });
            let falling = self.lower.used.level(device.used_share()).max(device.level);
            let hysteresis = &mut self.devices[place].1;
            if let Some((from, to)) = hysteresis.step(device.level, falling, Instant::now()) {
                self.shared.calls.tell(Changed::Device(&DeviceChange {
                    device: *device,
                    from,
                    to,
                    pressure: now,
                }));
            }
        }
    }

    /// Returns the level for the limits that were reached since the last check.
    fn events(&mut self, now: &Pressure) -> Level {
        let (cgroup, after) = (now.cgroup(), now.events());
        let before = self.events.replace((cgroup.map(Into::into), after));
        let Some((_, before)) = before.filter(|(folder, _)| folder.as_deref() == cgroup) else {
            return Level::Low;
        };
        if after.oom > before.oom || after.oom_kill > before.oom_kill {
            Level::Critical
        } else if after.max > before.max || after.high > before.high {
            Level::High
        } else {
            Level::Low
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::{Readings, Scope, Watch};

    #[test]
    fn a_stall_notification_raises_the_level_before_the_averages_do() {
        let rules = Watch::builder().readings(Readings::under("/nowhere/at/all"));
        let shared = Shared::new(&rules).expect("a pipe");
        let mut watcher = Watcher::new(Arc::clone(&shared), rules);
        watcher.look(Woken::Time);
        assert_eq!(shared.level(), Level::Low);
        watcher.look(Woken::Trigger(Scope::System));
        assert_eq!(shared.level(), Level::High);
    }
}
