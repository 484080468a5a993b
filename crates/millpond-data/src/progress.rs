//! The progress of a pass.

use millpond_engine::display_size;
use std::fmt;
use std::time::Duration;

/// The progress of a [pass](super::Pass), or the result of one that has ended.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("millpond-progress-{}.u8", std::process::id()));
/// # std::fs::write(&path, [0; 1000])?;
/// use millpond::DataSet;
/// use std::time::Duration;
///
/// let data = DataSet::<u8>::builder().file(&path).row(10).open()?;
/// let passed = data
///     .pass()
///     .progress(Duration::from_secs(1), |progress| eprintln!("{progress}"))
///     .for_each(|chunk| chunk.fill(1))?;
/// assert_eq!((passed.rows, passed.bytes(), passed.part()), (100, 1000, 1.0));
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// The number of rows that were computed on.
    pub rows: u64,
    /// The number of rows of the whole pass.
    pub of_rows: u64,
    /// The bytes of a row.
    pub row_bytes: u64,
    /// The time since the pass began.
    pub elapsed: Duration,
    /// The time for which the computation waited for rows.
    pub waited: Duration,
}

impl Progress {
    /// Returns the bytes that were computed on.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.rows * self.row_bytes
    }

    /// Returns the completed share, from 0 to 1.
    #[must_use]
    pub fn part(&self) -> f64 {
        if self.of_rows == 0 {
            1.0
        } else {
            self.rows as f64 / self.of_rows as f64
        }
    }

    /// Returns the bytes per second, over the whole time so far.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.bytes() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns the estimated remaining time, or `None` before the first chunk.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        let left = self.elapsed.as_secs_f64() * (self.of_rows - self.rows) as f64 / self.rows as f64;
        (self.rows > 0)
            .then(|| Duration::try_from_secs_f64(left).ok())
            .flatten()
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.of_rows * self.row_bytes;
        write!(
            f,
            "{} of {} ({:.0} %), {}/s",
            display_size(self.bytes()),
            display_size(of),
            self.part() * 100.0,
            display_size(self.rate() as u64)
        )?;
        match self.left() {
            Some(left) if self.rows < self.of_rows => write!(f, ", {:.1} s left", left.as_secs_f64()),
            _ => write!(f, " in {:.1} s", self.elapsed.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_formatted() {
        let mut progress = Progress {
            rows: 1 << 20,
            of_rows: 4 << 20,
            row_bytes: 1 << 10,
            elapsed: Duration::from_millis(500),
            waited: Duration::ZERO,
        };
        assert_eq!(
            progress.to_string(),
            "1.00 GiB of 4.00 GiB (25 %), 2.00 GiB/s, 1.5 s left"
        );
        progress.rows = 4 << 20;
        progress.elapsed = Duration::from_secs(2);
        assert_eq!(
            progress.to_string(),
            "4.00 GiB of 4.00 GiB (100 %), 2.00 GiB/s in 2.0 s"
        );
        (progress.rows, progress.of_rows) = (0, 0);
        assert_eq!((progress.part(), progress.left()), (1.0, None));
    }
}
