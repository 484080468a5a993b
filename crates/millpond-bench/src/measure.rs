//! Measures alternatives in turn and summarises their times. Every benchmark of this crate is a list of cases over this module.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::fmt::{self, Display};

/// The kind of time that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The processor time of the calling thread, so other load on the machine does not count.
    Thread,
    /// The processor time of all threads of the process.
    Process,
    /// Wall-clock time, for threads and devices that wait for each other.
    Wall,
}

impl Clock {
    fn now(self) -> Timespec {
        clock_gettime(match self {
            Self::Thread => ClockId::ThreadCPUTime,
            Self::Process => ClockId::ProcessCPUTime,
            Self::Wall => ClockId::Monotonic,
        })
    }
}

/// A running clock.
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    clock: Clock,
    start: Timespec,
}

impl Timer {
    /// Starts the timer.
    #[must_use]
    pub fn start(clock: Clock) -> Self {
        let start = clock.now();
        Self { clock, start }
    }

    /// Returns the nanoseconds since the start.
    #[must_use]
    pub fn nanoseconds(&self) -> f64 {
        let now = self.clock.now();
        (now.tv_sec - self.start.tv_sec) as f64 * 1e9 + (now.tv_nsec - self.start.tv_nsec) as f64
    }
}

/// Repeats some work and returns the nanoseconds of one repetition.
///
/// # Errors
/// Returns the first error of the work.
pub fn repeat<E>(clock: Clock, count: usize, mut work: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let timer = Timer::start(clock);
    for _ in 0..count {
        work()?;
    }
    Ok(timer.nanoseconds() / count.max(1) as f64)
}

/// Returns the order in which alternatives run, as pairs of a round and an alternative. The first alternative changes from round
/// to round, and every other round runs backwards, so that no alternative always follows the same one.
pub fn order(alternatives: usize, rounds: usize) -> impl Iterator<Item = (usize, usize)> {
    let of_round = move |round: usize| {
        let turns = (0..alternatives).map(move |turn| match round % 2 {
            0 => turn,
            _ => alternatives - 1 - turn,
        });
        turns.map(move |turn| (round, (turn + round.div_ceil(2)) % alternatives))
    };
    (0..rounds).flat_map(of_round)
}

/// Measures each of `alternatives` alternatives once in every round. `measure` runs the alternative with this number and returns
/// its time.
///
/// A round before the others brings memory and caches into their final state. Its times do not count.
///
/// # Errors
/// Returns the first error of a measurement.
pub fn all_in_turn<E>(
    alternatives: usize,
    rounds: usize,
    mut measure: impl FnMut(usize) -> Result<f64, E>,
) -> Result<Vec<Samples>, E> {
    let mut samples = vec![Samples::new(); alternatives];
    for (round, alternative) in order(alternatives, rounds + 1) {
        let time = measure(alternative)?;
        if round > 0 {
            samples[alternative].add(time);
        }
    }
    Ok(samples)
}

/// Measures `N` alternatives as [`all_in_turn`] does.
///
/// # Errors
/// Returns the first error of a measurement.
pub fn in_turn<const N: usize, E>(
    rounds: usize,
    measure: impl FnMut(usize) -> Result<f64, E>,
) -> Result<[Samples; N], E> {
    let mut samples = all_in_turn(N, rounds, measure)?.into_iter();
    Ok([(); N].map(|()| samples.next().unwrap_or_default()))
}

/// The times of one alternative, one for each round.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Creates an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds the time of a round.
    pub fn add(&mut self, time: f64) {
        self.0.push(time);
    }

    /// Returns the summary. Without a sample, every figure is NaN.
    #[must_use]
    pub fn spread(&self) -> Spread {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let quarter = |number: usize| {
            let at = (sorted.len().saturating_sub(1) * number + 2) / 4;
            sorted.get(at).copied().unwrap_or(f64::NAN)
        };
        Spread {
            least: quarter(0),
            lower: quarter(1),
            median: quarter(2),
            upper: quarter(3),
            most: quarter(4),
        }
    }

    /// Returns the median.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.spread().median
    }

    /// Returns the ratio of this alternative to another one in each round.
    #[must_use]
    pub fn over(&self, other: &Self) -> Self {
        self.0
            .iter()
            .zip(&other.0)
            .map(|(one, other)| one / other)
            .collect()
    }

    /// Returns the difference of this alternative and another one in each round.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.0
            .iter()
            .zip(&other.0)
            .map(|(one, other)| one - other)
            .collect()
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(times: I) -> Self {
        Self(times.into_iter().collect())
    }
}

/// The summary of samples. Each figure is one of the samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The minimum.
    pub least: f64,
    /// The lower quartile.
    pub lower: f64,
    /// The median.
    pub median: f64,
    /// The upper quartile.
    pub upper: f64,
    /// The maximum.
    pub most: f64,
}

impl Spread {
    /// Formats the median with the minimum and the maximum.
    pub fn show<T: Display>(&self, figure: impl Fn(f64) -> T) -> String {
        let [median, least, most] = [self.median, self.least, self.most].map(figure);
        format!("{median} ({least} to {most})")
    }

    /// Formats the median with both quartiles.
    pub fn show_quartiles<T: Display>(&self, figure: impl Fn(f64) -> T) -> String {
        let [median, lower, upper] = [self.median, self.lower, self.upper].map(figure);
        format!("{median} ({lower} to {upper})")
    }
}

/// A number that is printed with `places` decimal places.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    value: f64,
    places: usize,
}

/// Returns a function that formats numbers with this many decimal places.
pub fn fixed(places: usize) -> impl Fn(f64) -> Fixed {
    move |value| Fixed { value, places }
}

impl Display for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.*}", self.places, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn a_summary_consists_of_samples() {
        let spread = Samples::from_iter([5.0, 1.0, 3.0, 2.0, 4.0]).spread();
        assert_eq!(
            (
                spread.least,
                spread.lower,
                spread.median,
                spread.upper,
                spread.most
            ),
            (1.0, 2.0, 3.0, 4.0, 5.0)
        );
        assert_eq!(spread.show(fixed(1)), "3.0 (1.0 to 5.0)");
        assert_eq!(spread.show_quartiles(fixed(0)), "3 (2 to 4)");
        assert_eq!(Samples::from_iter([7.0, 9.0]).median(), 9.0);
        assert!(Samples::new().median().is_nan());
    }

    #[test]
    fn ratios_and_differences_are_of_the_same_round() {
        let [one, other] = [[1.0, 6.0, 2.0], [2.0, 3.0, 2.0]].map(Samples::from_iter);
        assert_eq!(one.over(&other).0, [0.5, 2.0, 1.0]);
        assert_eq!(one.minus(&other).0, [-1.0, 3.0, 0.0]);
    }

    #[test]
    fn every_alternative_runs_once_a_round_and_the_first_round_does_not_count() {
        let mut calls = Vec::new();
        let samples = in_turn::<3, Infallible>(2, |alternative| {
            calls.push(alternative);
            Ok(calls.len() as f64)
        });
        assert_eq!(calls, [0, 1, 2, 0, 2, 1, 1, 2, 0]);
        let Ok(samples) = samples;
        assert_eq!(
            samples.map(|samples| samples.0),
            [[4.0, 9.0], [6.0, 7.0], [5.0, 8.0]]
        );
        assert_eq!(order(0, 3).count(), 0);
    }

    #[test]
    fn the_time_of_a_repetition_is_returned() {
        let mut done = 0;
        let time = repeat(Clock::Wall, 4, || -> Result<(), Infallible> {
            done += 1;
            Ok(())
        });
        let Ok(time) = time;
        assert!(done == 4 && time > 0.0);
    }
}
