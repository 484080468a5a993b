//! The state of the display, and the effect of keys on it. Independent of the terminal and of processes.

use super::fetch::FetchError;
use super::find::{Process, Target};
use super::stats::{PoolStats, Stats};
use std::cmp::Ordering;
use std::time::Instant;

/// The effect of a key on the loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Nothing,
    Quit,
    /// Follow this process from now on, or list all processes if it is `None`.
    Follow(Option<Target>),
}

/// The keys that have an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Back,
}

/// Columns by which pools are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Name,
    Allocated,
    Reserved,
    Utilisation,
    HitRate,
    Rate,
    Misses,
    Refusals,
}

impl Column {
    pub(crate) const ALL: [Self; 8] = [
        Self::Name,
        Self::Allocated,
        Self::Reserved,
        Self::Utilisation,
        Self::HitRate,
        Self::Rate,
        Self::Misses,
        Self::Refusals,
    ];
}

/// The process that is displayed.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) target: Target,
    /// The first statistics of the process.
    first: Option<Stats>,
    before: Option<Stats>,
    pub(crate) now: Option<Stats>,
    /// The time since when it has not answered, and the reason.
    pub(crate) gone: Option<(Instant, String)>,
}

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) watched: Option<Watched>,
    pub(crate) processes: Vec<Process>,
    /// Whether the list was ever filled.
    pub(crate) looked: bool,
    /// The index of the selected process in the list.
    pub(crate) chosen: usize,
    /// The row of the selected pool.
    pub(crate) pool: usize,
    pub(crate) sort: Column,
    pub(crate) reversed: bool,
    pub(crate) paused: bool,
    pub(crate) help: bool,
    pub(crate) colours: bool,
}

impl App {
    pub(crate) fn new(target: Option<Target>) -> Self {
        Self {
            watched: target.map(Watched::new),
            processes: Vec::new(),
            looked: false,
            chosen: 0,
            pool: 0,
            sort: Column::Reserved,
            reversed: false,
            paused: false,
            help: false,
            colours: false,
        }
    }

    /// Displays new statistics of the process, unless the display is paused.
    pub(crate) fn take_stats(&mut self, outcome: Result<Stats, FetchError>) {
        let (Some(watched), false) = (&mut self.watched, self.paused) else {
            return;
        };
        match outcome {
            Ok(stats) => {
                self.pool = self.pool.min(stats.pools.len().saturating_sub(1));
                watched.take(stats);
            }
            Err(why) => {
                let since = watched.gone.take().map_or_else(Instant::now, |(since, _)| since);
                watched.gone = Some((since, why.to_string()));
            }
        }
    }

    pub(crate) fn take_processes(&mut self, processes: Vec<Process>) {
        if self.paused {
            return;
        }
        self.looked = true;
        let chosen = self.processes.get(self.chosen).map(|of| of.id);
        let place = chosen.and_then(|id| processes.iter().position(|of| of.id == id));
        self.chosen = place
            .unwrap_or(self.chosen)
            .min(processes.len().saturating_sub(1));
        self.processes = processes;
    }

    /// Returns the pools in display order.
    pub(crate) fn pools(&self) -> Vec<&PoolStats> {
        let Some(watched) = &self.watched else {
            return Vec::new();
        };
        let mut pools: Vec<&PoolStats> = watched.now.iter().flat_map(|now| &now.pools).collect();
        pools.sort_by(|a, b| {
            let order = watched.compare(self.sort, a, b).then(a.id.cmp(&b.id));
            if self.reversed { order.reverse() } else { order }
        });
        pools
    }

    pub(crate) fn on_key(&mut self, key: Key) -> Action {
        if self.help {
            self.help = false;
            return if key == Key::Char('q') {
                Action::Quit
            } else {
                Action::Nothing
            };
        }
        match key {
            Key::Char('q') => return Action::Quit,
            Key::Char('?' | 'h') => self.help = true,
            Key::Char('p' | ' ') => self.paused = !self.paused,
            _ if self.watched.is_some() => return self.on_key_of_process(key),
            _ => return self.on_key_of_list(key),
        }
        Action::Nothing
    }

    fn on_key_of_process(&mut self, key: Key) -> Action {
        let rows = self.pools().len();
        match key {
            Key::Char('l') | Key::Back => {
                self.watched = None;
                (self.pool, self.paused) = (0, false);
                return Action::Follow(None);
            }
            Key::Char('r') => self.reversed = !self.reversed,
            Key::Left => self.sort = self.beside(Column::ALL.len() - 1),
            Key::Right => self.sort = self.beside(1),
            Key::Up => self.pool = self.pool.saturating_sub(1),
            Key::Down => self.pool += 1,
            Key::PageUp => self.pool = self.pool.saturating_sub(10),
            Key::PageDown => self.pool += 10,
            Key::Home => self.pool = 0,
            Key::End => self.pool = rows,
            Key::Char(_) | Key::Enter => {}
        }
        self.pool = self.pool.min(rows.saturating_sub(1));
        Action::Nothing
    }

    fn beside(&self, steps: usize) -> Column {
        let place = Column::ALL.iter().position(|column| *column == self.sort);
        Column::ALL[(place.unwrap_or(0) + steps) % Column::ALL.len()]
    }

    fn on_key_of_list(&mut self, key: Key) -> Action {
        let last = self.processes.len().saturating_sub(1);
        match key {
            Key::Up => self.chosen = self.chosen.saturating_sub(1),
            Key::Down => self.chosen = (self.chosen + 1).min(last),
            Key::PageUp => self.chosen = self.chosen.saturating_sub(10),
            Key::PageDown => self.chosen = (self.chosen + 10).min(last),
            Key::Home => self.chosen = 0,
            Key::End => self.chosen = last,
            Key::Enter | Key::Right => {
                let Some(process) = self.processes.get(self.chosen) else {
                    return Action::Nothing;
                };
                let target = Target::Socket(process.socket.clone());
                self.watched = Some(Watched::new(target.clone()));
                self.paused = false;
                return Action::Follow(Some(target));
            }
            Key::Back => return Action::Quit,
            Key::Char(_) | Key::Left => {}
        }
        Action::Nothing
    }
}

impl Watched {
    fn new(target: Target) -> Self {
        Self {
            target,
            first: None,
            before: None,
            now: None,
            gone: None,
        }
    }

    fn take(&mut self, stats: Stats) {
        self.gone = None;
        let same = |other: &Stats| {
            other.process.id == stats.process.id && other.monitor.samples <= stats.monitor.samples
        };
        if !self.first.as_ref().is_some_and(same) {
            // This is another process, or another monitor of it. Earlier statistics do not belong to it.
            (self.first, self.before, self.now) = (Some(stats.clone()), None, None);
        }
        let is_new = self
            .now
            .as_ref()
            .is_none_or(|now| now.monitor.samples != stats.monitor.samples);
        if is_new {
            self.before = self.now.replace(stats);
        }
    }

    /// Returns the first statistics of the process, if there are later ones.
    pub(crate) fn first(&self) -> Option<&Stats> {
        self.before.as_ref().and(self.first.as_ref())
    }

    /// Returns allocations per second since the previous statistics, if there are any.
    pub(crate) fn rate(&self, pool: &PoolStats) -> Option<f64> {
        let (before, now) = (self.before.as_ref()?, self.now.as_ref()?);
        let other = before.pools.iter().find(|other| other.id == pool.id)?;
        let seconds = now.time_ms.checked_sub(before.time_ms).filter(|ms| *ms > 0)? as f64 / 1000.0;
        Some(pool.allocations.saturating_sub(other.allocations) as f64 / seconds)
    }

    /// Compares two pools. Names ascend and figures descend.
    fn compare(&self, column: Column, a: &PoolStats, b: &PoolStats) -> Ordering {
        let share = |of: &PoolStats| of.allocated as f64 / of.reserved.max(1) as f64;
        match column {
            Column::Name => a.name.cmp(&b.name),
            Column::Allocated => b.allocated.cmp(&a.allocated),
            Column::Reserved => b.reserved.cmp(&a.reserved),
            Column::Utilisation => share(b).total_cmp(&share(a)),
            Column::HitRate => b.hit_rate.total_cmp(&a.hit_rate),
            Column::Rate => {
                let rate = |of| self.rate(of).unwrap_or(0.0);
                rate(b)
                    .total_cmp(&rate(a))
                    .then(b.allocations.cmp(&a.allocations))
            }
            Column::Misses => b.misses.cmp(&a.misses),
            Column::Refusals => b.refusals.cmp(&a.refusals),
        }
    }
}
