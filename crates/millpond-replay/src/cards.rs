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
    /// The public report of its total, as a GitHub repository and the number of an issue. Empty if none is
    /// known; then the total is an assumption too.
    pub source: &'static str,
}

/// Returns a preset from a total in hundredths of a GiB and a context in MiB. PyTorch prints the total that a
/// driver reports in hundredths of a GiB. The total is rounded up, so that it prints as the same number again.
const fn card(name: &'static str, hundredths_of_gib: u64, context_mib: u64, source: &'static str) -> Card {
    Card {
        name,
        total: (hundredths_of_gib << 30).div_ceil(100),
        context: context_mib << 20,
        source,
    }
}

/// Totals are those that drivers report to a program, which is less than the memory of the card. They differ
/// by up to 2 % between drivers and settings such as ECC. If several are published, this table contains one of
/// the smaller ones, which newer drivers report. The context is an assumption based on reports of users of
/// these cards about a PyTorch process.
const CARDS: &[Card] = &[
    card("rtx3060", 1176, 350, "TencentARC/PhotoMaker#47"),
    card("rtx3070", 776, 350, "sshan-zhao/GASDA#19"),
    card("rtx3080", 978, 350, "zai-org/CogVideo#34"),
    card("rtx3090", 2359, 400, "Stable-X/StableNormal#33"),
    card("rtx4060", 775, 350, "ESRSchao/EdgeRegNet#2"),
    card("rtx4070ti", 1173, 400, "OpenLMLab/LOMO#17"),
    card("rtx4080", 1560, 400, "shanice-l/UNOPose#4"),
    card("rtx4090", 2352, 450, "Soul-AILab/SoulX-FlashTalk#5"),
    card("rtx5090", 3137, 500, "Wan-Video/Wan2.1#465"),
    card("a4000", 1561, 400, "DengKaiCQ/VGGT-Long#6"),
    card("a6000", 4740, 450, ""),
    card("rtx6000ada", 4443, 450, "DINGYANB/MTVCrafter#21"),
    card("p40", 2238, 350, "LinkSoul-AI/Chinese-Llama-2-7b#56"),
    card("t4", 1456, 350, "Zheng-Chong/CatVTON#133"),
    card("v100-16g", 1578, 400, ""),
    card("v100-32g", 3174, 400, "liucongg/ChatGLM-Finetuning#73"),
    card("a10g", 2230, 400, "nvidia-cosmos/cosmos-transfer1#213"),
    card("a30", 2353, 400, "google/RB-Modulation#5"),
    card("l4", 2203, 400, ""),
    card("l40", 4440, 450, "QwenLM/Qwen3-VL#2097"),
    card("l40s", 4442, 450, "stepfun-ai/Step-Video-T2V#8"),
    card("a100-40g", 3950, 450, "TianheWu/CoSeR#10"),
    card("a100-80g", 7925, 450, "HiDream-ai/VAREdit#6"),
    card("h100", 7910, 550, "huggingface/trl#2688"),
    card("h100-nvl", 9300, 550, "ali-vilab/VACE#56"),
    card("gh200", 9488, 550, "Lightning-AI/litgpt#1892"),
    card("h200", 13980, 600, ""),
    card("b200", 17835, 700, "pytorch/ao#4002"),
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

/// Words in the names that drivers report. They do not distinguish cards.
const FILLERS: [&str; 11] = [
    "nvidia",
    "geforce",
    "tesla",
    "generation",
    "sxm",
    "sxm2",
    "sxm3",
    "sxm4",
    "sxm5",
    "pcie",
    "hbm3",
];

/// Returns the form of a name in which names are compared: lower case, without fillers, blanks, hyphens and
/// underscores. `80GB` becomes `80g`, and `RTX A6000` becomes `a6000`.
fn plain(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let words = lower
        .split([' ', '-', '_'])
        .filter(|word| !FILLERS.contains(word));
    let words: Vec<&str> = words.map(|word| memory_word(word).unwrap_or(word)).collect();
    match words.as_slice() {
        ["rtx", model, ..] if model.starts_with('a') => words[1..].concat(),
        _ => words.concat(),
    }
}

/// Returns `80g` for `80gb`.
fn memory_word(word: &str) -> Option<&str> {
    let short = word.strip_suffix('b')?;
    short.strip_suffix('g')?.parse::<u32>().is_ok().then_some(short)
}

/// Returns whether `text` is the card's name, a prefix of the name, or the name followed by the card's memory, as
/// in `H100 80GB HBM3`. The memory must match, because some cards are sold with different amounts.
fn is_named(card: &Card, text: &str) -> bool {
    let (name, text) = (plain(card.name), plain(text));
    let memory = text.strip_prefix(&name).and_then(|rest| rest.strip_suffix('g'));
    let nominal = card.total.div_ceil(1 << 30);
    name.starts_with(&text)
        || memory.is_some_and(|gib| {
            gib.parse()
                .is_ok_and(|gib: u64| nominal.abs_diff(gib) * 16 <= gib)
        })
}

/// Returns the presets that a text may mean. A preset of exactly that name is the only result. Otherwise
/// these are the presets whose names begin with the text, or else those that contain it, or else those with
/// which the text begins, such as `rtx3080` for `RTX 3080 Ti`. Case, blanks, hyphens, underscores and
/// fillers are ignored.
#[must_use]
pub fn cards_like(text: &str) -> Vec<&'static Card> {
    let wanted = plain(text);
    let alike = |how: fn(&str, &str) -> bool| -> Vec<&'static Card> {
        let cards = CARDS.iter().filter(|card| how(&plain(card.name), &wanted));
        cards.collect()
    };
    let ways: [fn(&str, &str) -> bool; 4] = [
        |name, wanted| name == wanted,
        |name, wanted| name.starts_with(wanted),
        |name, wanted| name.contains(wanted),
        |name, wanted| wanted.starts_with(name),
    ];
    let found = ways.into_iter().map(alike).find(|found| !found.is_empty());
    found.filter(|_| !wanted.is_empty()).unwrap_or_default()
}

/// Reads a size or the name of a preset, also in the form that the driver reports. A prefix of a name is enough
/// if only one preset begins with it.
///
/// # Errors
/// Returns an error if the text is neither.
pub fn parse_device(text: &str) -> Result<DeviceSize, ParseSizeError> {
    // Sizes begin with a digit, cards with a letter.
    let is_name = text.trim().starts_with(|c: char| c.is_ascii_alphabetic());
    if let [card] = cards_like(text).as_slice()
        && is_name
        && is_named(card, text)
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
    fn a_name_that_the_driver_reports_selects_the_card() {
        for (text, name) in [
            ("NVIDIA GeForce RTX 4090", "rtx4090"),
            ("NVIDIA A100-SXM4-80GB", "a100-80g"),
            ("NVIDIA A100 80GB PCIe", "a100-80g"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA H100 NVL", "h100-nvl"),
            ("Tesla V100-SXM2-16GB", "v100-16g"),
            ("Tesla T4", "t4"),
            ("NVIDIA RTX A6000", "a6000"),
            ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
            ("RTX 4090 24GB", "rtx4090"),
        ] {
            let device = parse_device(text);
            assert_eq!(device.map(|device| device.name).as_deref(), Ok(name), "{text}");
        }
        // Another card, or the same card with other memory.
        for text in [
            "NVIDIA GeForce RTX 3080 Ti",
            "NVIDIA GeForce RTX 3080 12GB",
            "NVIDIA GeForce RTX 4090 Laptop GPU",
            "NVIDIA",
        ] {
            assert!(parse_device(text).is_err(), "{text}");
        }
    }

    #[test]
    fn part_of_a_name_lists_the_cards_that_contain_it() {
        let names = |text| cards_like(text).iter().map(|card| card.name).collect::<Vec<_>>();
        assert_eq!(names("a100"), ["a100-40g", "a100-80g"]);
        assert_eq!(names("4090"), ["rtx4090"]);
        assert_eq!(names("H100 SXM"), ["h100"]);
        assert_eq!(names("rtx 3080 Ti"), ["rtx3080"]);
        assert!(names("").is_empty() && names("k80").is_empty());
    }

    #[test]
    fn names_are_unique_and_sources_are_issues() {
        for (index, card) in CARDS.iter().enumerate() {
            assert!(
                CARDS[..index]
                    .iter()
                    .all(|other| plain(other.name) != plain(card.name)),
                "{}",
                card.name
            );
            let issue = card.source.split_once('#').map(|(repository, number)| {
                repository.split('/').count() == 2 && number.parse::<u32>().is_ok()
            });
            assert!(card.source.is_empty() || issue == Some(true), "{}", card.source);
        }
        assert_eq!(CARDS.iter().filter(|card| card.source.is_empty()).count(), 4);
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
