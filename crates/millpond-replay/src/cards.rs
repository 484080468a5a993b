//! Device presets for common cards: their memory, and the share that the driver's context takes.

use millpond_engine::{ParseSizeError, parse_size};

/// A device preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// Name on the command line.
    pub name: &'static str,
    /// Total bytes that the driver reports.
    pub total: u64,
    /// Bytes that a CUDA context with its loaded modules takes before the first allocation. This is an
    /// assumption.
    pub context: u64,
}

const MIB: u64 = 1 << 20;

/// Converts hundredths of a GiB to bytes. PyTorch prints what a driver reports in this unit. The result is
/// rounded up, so that it prints as the same number again.
const fn gib(hundredths: u64) -> u64 {
    (hundredths * (1 << 30)).div_ceil(100)
}

/// Totals are those that drivers report to a program, which is less than the memory of the card. They come
/// from the "total capacity" in PyTorch's out-of-memory messages that users of these cards have published.
/// They differ by up to 2 % between drivers and settings such as ECC. This table holds the smaller ones,
/// which newer drivers report. The context is an assumption based on reports of users of these cards about a
/// PyTorch process.
const CARDS: &[Card] = &[
    Card {
        name: "rtx3060",
        total: gib(1163),
        context: 350 * MIB,
    },
    Card {
        name: "rtx3090",
        total: gib(2368),
        context: 400 * MIB,
    },
    Card {
        name: "rtx4080",
        total: gib(1570),
        context: 400 * MIB,
    },
    Card {
        name: "rtx4090",
        total: gib(2364),
        context: 450 * MIB,
    },
    Card {
        name: "rtx5090",
        total: gib(3136),
        context: 500 * MIB,
    },
    Card {
        name: "t4",
        total: gib(1456),
        context: 350 * MIB,
    },
    Card {
        name: "l4",
        total: gib(2203),
        context: 400 * MIB,
    },
    Card {
        name: "a10g",
        total: gib(2207),
        context: 400 * MIB,
    },
    Card {
        name: "v100-16g",
        total: gib(1578),
        context: 400 * MIB,
    },
    Card {
        name: "v100-32g",
        total: gib(3173),
        context: 400 * MIB,
    },
    Card {
        name: "a6000",
        total: gib(4740),
        context: 450 * MIB,
    },
    Card {
        name: "l40s",
        total: gib(4439),
        context: 450 * MIB,
    },
    Card {
        name: "a100-40g",
        total: gib(3939),
        context: 450 * MIB,
    },
    Card {
        name: "a100-80g",
        total: gib(7914),
        context: 450 * MIB,
    },
    Card {
        name: "h100",
        total: gib(7910),
        context: 550 * MIB,
    },
    Card {
        name: "h200",
        total: gib(13980),
        context: 600 * MIB,
    },
    Card {
        name: "b200",
        total: gib(17835),
        context: 700 * MIB,
    },
];

/// A device that was named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSize {
    /// The name as the user wrote it.
    pub name: String,
    /// Total bytes.
    pub total: u64,
    /// Bytes that the program cannot use: the context of a preset.
    pub context: u64,
}

impl DeviceSize {
    /// Returns the bytes left for the program when other data on the card takes `reserve` bytes.
    #[must_use]
    pub fn available(&self, reserve: u64) -> u64 {
        self.total.saturating_sub(self.context).saturating_sub(reserve)
    }
}

/// Returns all presets.
#[must_use]
pub fn cards() -> &'static [Card] {
    CARDS
}

/// Returns a card's name in lower case without blanks, hyphens and underscores, which users write
/// differently.
fn plain(name: &str) -> String {
    let kept = name.chars().filter(|c| !matches!(c, ' ' | '-' | '_'));
    kept.map(|c| c.to_ascii_lowercase()).collect()
}

/// Returns the presets that a text may mean. A preset of exactly that name is the only result. Otherwise
/// these are the presets whose names begin with the text, or else those that contain it. Case, blanks,
/// hyphens and underscores make no difference.
#[must_use]
pub fn cards_like(text: &str) -> Vec<&'static Card> {
    let wanted = plain(text);
    let alike = |how: fn(&str, &str) -> bool| -> Vec<&'static Card> {
        let cards = CARDS.iter().filter(|card| how(&plain(card.name), &wanted));
        cards.collect()
    };
    let ways: [fn(&str, &str) -> bool; 3] = [
        |name, wanted| name == wanted,
        |name, wanted| name.starts_with(wanted),
        |name, wanted| name.contains(wanted),
    ];
    let found = ways.into_iter().map(alike).find(|found| !found.is_empty());
    found.filter(|_| !wanted.is_empty()).unwrap_or_default()
}

/// Reads a size or the name of a preset. A prefix of a name is enough if only one preset begins with it.
///
/// # Errors
/// Returns an error if the text is neither.
pub fn parse_device(text: &str) -> Result<DeviceSize, ParseSizeError> {
    // Sizes begin with a digit, cards with a letter.
    let is_name = text.trim().starts_with(|c: char| c.is_ascii_alphabetic());
    let begins = |card: &Card| plain(card.name).starts_with(&plain(text));
    if let [card] = cards_like(text).as_slice()
        && is_name
        && begins(card)
    {
        return Ok(DeviceSize {
            name: card.name.to_owned(),
            total: card.total,
            context: card.context,
        });
    }
    Ok(DeviceSize {
        name: text.trim().to_owned(),
        total: parse_size(text)?,
        context: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_known_by_as_much_of_its_name_as_is_of_no_other() {
        for (text, name) in [
            ("rtx4090", "rtx4090"),
            ("RTX 4090", "rtx4090"),
            ("rtx-4090", "rtx4090"),
            ("A100-80G", "a100-80g"),
            ("a100 80g", "a100-80g"),
            ("L4", "l4"),
            ("b2", "b200"),
        ] {
            assert_eq!(
                parse_device(text).map(|device| device.name).as_deref(),
                Ok(name),
                "{text}"
            );
        }
        for text in ["a100", "rtx", "a", "", "100", "x"] {
            assert!(parse_device(text).is_err() || text == "100", "{text}");
        }
        assert_eq!(parse_device("100").map(|device| device.total), Ok(100));
    }

    #[test]
    fn what_may_be_meant_is_known() {
        let names = |text| cards_like(text).iter().map(|card| card.name).collect::<Vec<_>>();
        assert_eq!(names("a100"), ["a100-40g", "a100-80g"]);
        assert_eq!(names("4090"), ["rtx4090"]);
        assert!(names("").is_empty() && names("k80").is_empty());
    }

    #[test]
    fn a_driver_reports_less_than_the_card_has() {
        let reported = |name| parse_device(name).expect("a card").total as f64 / f64::from(1 << 30);
        for (name, least, nominal) in [
            ("rtx4090", 23.5, 24.0),
            ("a100-80g", 79.1, 80.0),
            ("h100", 79.1, 80.0),
        ] {
            let total = reported(name);
            assert!(least <= total && total < nominal - 0.3, "{name}: {total}");
        }
    }
}
