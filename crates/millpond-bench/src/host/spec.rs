//! The names of workloads. One workload is measured in one process.

use crate::host::allocator::Touch;
use crate::host::work::batch::BLOCKS;
use crate::host::work::seeds::{SEEDS, Seed};
use millpond_engine::display_size;
use std::fmt::{self, Display};
use std::str::FromStr;

/// One workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spec {
    /// W1: allocate and free one size.
    Hot { size: usize, align: usize, touch: Touch },
    /// W2: 10,000 mixed blocks, all allocated, then all freed.
    Batch,
    /// W2 in two threads at once.
    Batches,
    /// W3: 200 live blocks. Each step replaces a random one.
    Live { steps: usize },
    /// W4: the same with 100 small blocks in each of two threads.
    LiveThreads,
    /// W5: one thread allocates and another one frees.
    Handoff,
    /// W6: zeroed memory that is read and written.
    Zeroed { size: usize, align: usize },
    /// 1,000 blocks. A random half is freed, and a trim follows.
    Half,
    /// A loop from the documents of a tensor library.
    Seed(&'static Seed),
}

impl Spec {
    /// Returns the number of threads of the workload.
    pub(crate) fn threads(self) -> usize {
        match self {
            Self::Batches | Self::LiveThreads | Self::Handoff => 2,
            _ => 1,
        }
    }

    /// Returns the number of pairs in one loop, for workloads that have such a number.
    pub(crate) fn pairs(self) -> u64 {
        match self {
            Self::Batch => BLOCKS as u64,
            Self::Half => 500,
            Self::Seed(seed) => seed.pairs(),
            _ => 1,
        }
    }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The groups of workloads that can be requested by name.
pub(crate) const GROUPS: [&str; 8] = ["w1", "w2", "w3", "w4", "w5", "w6", "half", "seeds"];

/// Returns the workloads of a group.
pub(crate) fn group(name: &str) -> Vec<Spec> {
    match name {
        "w1" => hot(),
        "w2" => vec![Spec::Batch, Spec::Batches],
        "w3" => [8_000, 20_000].map(|steps| Spec::Live { steps }).to_vec(),
        "w4" => vec![Spec::LiveThreads],
        "w5" => vec![Spec::Handoff],
        "w6" => [64, 16]
            .into_iter()
            .flat_map(|align| {
                [1, 4, 16, 64].map(|mib| Spec::Zeroed {
                    size: mib * MIB,
                    align,
                })
            })
            .collect(),
        "half" => vec![Spec::Half],
        "seeds" => SEEDS.iter().map(Spec::Seed).collect(),
        _ => Vec::new(),
    }
}

fn hot() -> Vec<Spec> {
    let mut all = Vec::new();
    for align in [64, 16] {
        all.extend((6..=25).map(|power| Spec::Hot {
            size: 1 << power,
            align,
            touch: Touch::None,
        }));
    }
    for size in [64 * KIB, MIB, 16 * MIB, 64 * MIB] {
        all.extend([Touch::Page, Touch::Full].map(|touch| Spec::Hot {
            size,
            align: 64,
            touch,
        }));
    }
    all
}

impl Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hot { size, align, touch } => {
                let touch = match touch {
                    Touch::None | Touch::First => "",
                    Touch::Page => ":touch",
                    Touch::Full => ":fill",
                };
                write!(f, "w1:{size}:a{align}{touch}")
            }
            Self::Batch => write!(f, "w2"),
            Self::Batches => write!(f, "w2x2"),
            Self::Live { steps } => write!(f, "w3:{steps}"),
            Self::LiveThreads => write!(f, "w4"),
            Self::Handoff => write!(f, "w5"),
            Self::Zeroed { size, align } => write!(f, "w6:{size}:a{align}"),
            Self::Half => write!(f, "half"),
            Self::Seed(seed) => write!(f, "{}", seed.name),
        }
    }
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            format!(
                "there is no workload '{text}': use w1:SIZE[:aALIGN][:touch|:fill], w2, w2x2, w3:STEPS, w4, w5, w6:SIZE[:aALIGN], half or one of {}",
                SEEDS.each_ref().map(|seed| seed.name).join(", ")
            )
        };
        let lower = text.to_ascii_lowercase();
        if let Some(seed) = SEEDS.iter().find(|seed| seed.name == lower) {
            return Ok(Self::Seed(seed));
        }
        let mut words = lower.split(':');
        let name = words.next().unwrap_or_default();
        let number = words.next();
        let (mut align, mut touch) = (64, Touch::None);
        for word in words {
            match (name, word, word.strip_prefix('a').map(str::parse::<usize>)) {
                ("w1", "touch", _) => touch = Touch::Page,
                ("w1", "fill", _) => touch = Touch::Full,
                ("w1" | "w6", _, Some(Ok(asked))) if asked.is_power_of_two() && asked <= 4096 => {
                    align = asked;
                }
                _ => return Err(unknown()),
            }
        }
        let number = number.map(|n| size(n).ok_or_else(unknown)).transpose()?;
        match (name, number) {
            ("w1", Some(size)) => Ok(Self::Hot { size, align, touch }),
            ("w2", None) => Ok(Self::Batch),
            ("w2x2", None) => Ok(Self::Batches),
            ("w3", Some(steps)) if steps <= 1_000_000 => Ok(Self::Live { steps }),
            ("w4", None) => Ok(Self::LiveThreads),
            ("w5", None) => Ok(Self::Handoff),
            ("w6", Some(size)) => Ok(Self::Zeroed { size, align }),
            ("half", None) => Ok(Self::Half),
            _ => Err(unknown()),
        }
    }
}

/// Parses bytes, plain or with a unit, from 1 to 1 GiB.
fn size(text: &str) -> Option<usize> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match &text[end..] {
        "" | "b" => 1,
        "k" | "kib" => KIB,
        "m" | "mib" => MIB,
        _ => return None,
    };
    let size = text[..end].parse::<usize>().ok()?.checked_mul(unit)?;
    (1..=1 << 30).contains(&size).then_some(size)
}

/// Returns a description of a workload for the heading of its table.
pub(crate) fn describe(spec: Spec) -> String {
    match spec {
        Spec::Hot { size, align, touch } => {
            let touch = touch.describe();
            let size = display_size(size as u64);
            format!("{size} allocated and freed, aligned to {align}, {touch}")
        }
        Spec::Batch => "10,000 blocks of 64 B to 64 KiB, first byte written; then all freed".to_owned(),
        Spec::Batches => {
            "w2 in two threads, wall-clock time; (loop) shares nothing, so its slowdown is the machine's"
                .to_owned()
        }
        Spec::Live { steps } => {
            format!("200 live blocks of 4 KiB to 32 MiB, a random one replaced {steps} times, pages touched")
        }
        Spec::LiveThreads => {
            "two threads, each with 100 live blocks of 4 KiB to 4 MiB, 10,000 replaced; wall-clock time"
                .to_owned()
        }
        Spec::Handoff => {
            "one thread allocates and touches blocks of 1 KiB to 1 MiB, another frees them; ring of 64"
                .to_owned()
        }
        Spec::Zeroed { size, align } => {
            let size = display_size(size as u64);
            format!("{size} zeroed, aligned to {align}; all read, one byte of each 4 KiB written, freed")
        }
        Spec::Half => "1,000 blocks of 4 KiB to 4 MiB touched, a random half freed, then a trim".to_owned(),
        Spec::Seed(seed) => seed.describe(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_is_parsed_from_its_name() {
        for spec in GROUPS.into_iter().flat_map(group) {
            assert_eq!(spec.to_string().parse(), Ok(spec));
        }
        let parsed = "W1:64KiB:a16:touch".parse();
        let wanted = Spec::Hot {
            size: 64 << 10,
            align: 16,
            touch: Touch::Page,
        };
        assert_eq!(parsed, Ok(wanted));
        assert_eq!(
            "W1:64".parse(),
            Ok(Spec::Hot {
                size: 64,
                align: 64,
                touch: Touch::None
            })
        );
    }

    #[test]
    fn every_heading_fits_100_columns() {
        for spec in GROUPS.into_iter().flat_map(group) {
            let head = format!("{spec}: {}", describe(spec));
            assert!(head.chars().count() <= 100, "{head}");
        }
    }

    #[test]
    fn invalid_names_of_workloads_are_errors() {
        for text in [
            "",
            "w1",
            "w1:",
            "w1:0",
            "w1:64:a3",
            "w1:2G",
            "w1:99999999999999999999",
            "w2:64",
            "w3",
            "w9",
            "w2:fill",
            "w1:é",
            "w6:1M:fill",
        ] {
            assert!(text.parse::<Spec>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_hot_pair_is_measured_at_every_size_and_both_alignments() {
        let all = group("w1");
        let plain = |align| {
            all.iter()
                .filter(move |s| matches!(s, Spec::Hot { align: a, touch: Touch::None, .. } if *a == align))
                .count()
        };
        assert_eq!((plain(64), plain(16)), (20, 20));
        assert!(all.contains(&Spec::Hot {
            size: 32 << 20,
            align: 16,
            touch: Touch::None
        }));
        assert!(all.contains(&Spec::Hot {
            size: 64 << 20,
            align: 64,
            touch: Touch::Page
        }));
    }
}
