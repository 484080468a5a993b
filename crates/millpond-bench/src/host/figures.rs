//! The result of one run of a workload, and its textual form between parent and child.

use std::fmt::{self, Display};
use std::str::FromStr;

/// The cost of one part of a workload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Time {
    /// The name of the part, one word.
    pub(crate) part: String,
    /// Nanoseconds for one operation.
    pub(crate) nanoseconds: f64,
    /// The number of operations.
    pub(crate) operations: u64,
    /// Minor page faults for one operation.
    pub(crate) faults: f64,
    /// Bytes of one operation, or 0 if a rate has no meaning.
    pub(crate) bytes: u64,
}

/// Resident bytes at the stages of a workload, and the bytes that the workload held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Before the first allocation.
    pub(crate) start: u64,
    /// The maximum.
    pub(crate) peak: u64,
    /// The most bytes that the workload held at once.
    pub(crate) live: u64,
    /// After the workload's frees.
    pub(crate) freed: u64,
    /// After the frees and a trim.
    pub(crate) trimmed: u64,
    /// Bytes that the workload still held then.
    pub(crate) left: u64,
}

impl Memory {
    /// Returns the figures in the order of the fields.
    pub(crate) fn stages(self) -> [u64; 6] {
        let Self {
            start,
            peak,
            live,
            freed,
            trimmed,
            left,
        } = self;
        [start, peak, live, freed, trimmed, left]
    }

    /// Creates the figures in the order of the fields.
    pub(crate) fn from_stages([start, peak, live, freed, trimmed, left]: [u64; 6]) -> Self {
        Self {
            start,
            peak,
            live,
            freed,
            trimmed,
            left,
        }
    }
}

/// The figures of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    pub(crate) times: Vec<Time>,
    pub(crate) memory: Option<Memory>,
}

impl Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for t in &self.times {
            let (part, each, bytes) = (&t.part, t.nanoseconds, t.bytes);
            writeln!(f, "time {part} {each} {} {} {bytes}", t.operations, t.faults)?;
        }
        if let Some(memory) = self.memory {
            writeln!(
                f,
                "memory {}",
                memory.stages().map(|bytes| bytes.to_string()).join(" ")
            )?;
        }
        Ok(())
    }
}

impl FromStr for Figures {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut figures = Self::default();
        for line in text.lines() {
            read(line, &mut figures).ok_or_else(|| format!("the output of a run is invalid: '{line}'"))?;
        }
        if figures.times.is_empty() {
            return Err("the output of a run contains no time".to_owned());
        }
        Ok(figures)
    }
}

fn read(line: &str, figures: &mut Figures) -> Option<()> {
    let mut words = line.split(' ');
    match words.next()? {
        "time" => figures.times.push(Time {
            part: words.next()?.to_owned(),
            nanoseconds: next(&mut words)?,
            operations: next(&mut words)?,
            faults: next(&mut words)?,
            bytes: next(&mut words)?,
        }),
        "memory" if figures.memory.is_none() => {
            let mut stages = [0; 6];
            for stage in &mut stages {
                *stage = next(&mut words)?;
            }
            figures.memory = Some(Memory::from_stages(stages));
        }
        _ => return None,
    }
    words.next().is_none().then_some(())
}

fn next<'a, T: FromStr>(words: &mut impl Iterator<Item = &'a str>) -> Option<T> {
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_reads_the_output_of_its_child() {
        let figures = Figures {
            times: ["hot", "cold"]
                .map(|part| Time {
                    part: part.to_owned(),
                    nanoseconds: 36.7,
                    operations: 140_000,
                    faults: 0.012_5,
                    bytes: 64,
                })
                .to_vec(),
            memory: Some(Memory {
                start: 1,
                peak: 2,
                live: 3,
                freed: 4,
                trimmed: 5,
                left: 6,
            }),
        };
        assert_eq!(figures.to_string().parse(), Ok(figures));
    }

    #[test]
    fn invalid_output_of_a_child_is_an_error() {
        for text in [
            "",
            "memory 1 2 3 4 5 6",
            "time hot 1 2 3",
            "time hot 1 2 3 4 5",
            "time hot x 2 3 4",
            "time hot 1 2 3 4\nhello",
        ] {
            assert!(text.parse::<Figures>().is_err(), "{text}");
        }
    }
}
