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

/// Returns a preset from hundredths of a GiB and MiB. PyTorch prints what a driver reports in hundredths of a
/// GiB. The total is rounded up, so that it prints as the same number again.
const fn card(name: &'static str, hundredths_of_gib: u64, context_mib: u64) -> Card {
    Card {
        name,
        total: (hundredths_of_gib << 30).div_ceil(100),
        context: context_mib << 20,
    }
}

/// Totals are those that drivers report to a program, which is less than the memory of the card. They come
/// from the "total capacity" in PyTorch's out-of-memory messages that users of these cards have published.
/// They differ by up to 2 % between drivers and settings such as ECC. This table holds the smaller ones,
/// which newer drivers report. The context is an assumption based on reports of users of these cards about a
/// PyTorch process.
const CARDS: &[Card] = &[
    card("rtx3060", 1163, 350),
    card("rtx3090", 2368, 400),
    card("rtx4080", 1570, 400),
    card("rtx4090", 2364, 450),
    card("rtx5090", 3136, 500),
    card("t4", 1456, 350),
    card("l4", 2203, 400),
    card("a10g", 2207, 400),
    card("v100-16g", 1578, 400),
    card("v100-32g", 3173, 400),
    card("a6000", 4740, 450),
    card("l40s", 4439, 450),
    card("a100-40g", 3939, 450),
    card("a100-80g", 7914, 450),
    card("h100", 7910, 550),
    card("h200", 13980, 600),
    card("b200", 17835, 700),
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
    fn a_prefix_that_only_one_name_has_selects_the_card() {
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
    fn part_of_a_name_lists_the_cards_that_contain_it() {
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
