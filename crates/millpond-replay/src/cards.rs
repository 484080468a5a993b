//! Cards people have: their memory, and what the driver's context takes of it.

use millpond_engine::{ParseSizeError, parse_size};

/// A device preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// Name on the command line.
    pub name: &'static str,
    /// Bytes the driver reports in all.
    pub total: u64,
    /// Bytes a CUDA context with its loaded modules takes before the first allocation, assumed.
    pub context: u64,
}

const MIB: u64 = 1 << 20;

/// Totals are those the driver reports (ECC and reserved pages off); the context is assumed from what
/// users of these cards report for a PyTorch process.
const CARDS: &[Card] = &[
    Card {
        name: "rtx3060",
        total: 12_288 * MIB,
        context: 350 * MIB,
    },
    Card {
        name: "rtx3090",
        total: 24_576 * MIB,
        context: 400 * MIB,
    },
    Card {
        name: "rtx4080",
        total: 16_376 * MIB,
        context: 400 * MIB,
    },
    Card {
        name: "rtx4090",
        total: 24_564 * MIB,
        context: 450 * MIB,
    },
    Card {
        name: "rtx5090",
        total: 32_607 * MIB,
        context: 500 * MIB,
    },
    Card {
        name: "t4",
        total: 15_360 * MIB,
        context: 350 * MIB,
    },
    Card {
        name: "l4",
        total: 23_034 * MIB,
        context: 400 * MIB,
    },
    Card {
        name: "a10g",
        total: 23_028 * MIB,
        context: 400 * MIB,
    },
    Card {
        name: "v100-16g",
        total: 16_384 * MIB,
        context: 400 * MIB,
    },
    Card {
        name: "v100-32g",
        total: 32_768 * MIB,
        context: 400 * MIB,
    },
    Card {
        name: "a6000",
        total: 49_140 * MIB,
        context: 450 * MIB,
    },
    Card {
        name: "l40s",
        total: 46_068 * MIB,
        context: 450 * MIB,
    },
    Card {
        name: "a100-40g",
        total: 40_960 * MIB,
        context: 450 * MIB,
    },
    Card {
        name: "a100-80g",
        total: 81_920 * MIB,
        context: 450 * MIB,
    },
    Card {
        name: "h100",
        total: 81_559 * MIB,
        context: 550 * MIB,
    },
    Card {
        name: "h200",
        total: 143_771 * MIB,
        context: 600 * MIB,
    },
    Card {
        name: "b200",
        total: 183_359 * MIB,
        context: 700 * MIB,
    },
];

/// A device as named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSize {
    /// As it was written.
    pub name: String,
    /// Bytes in all.
    pub total: u64,
    /// Bytes not for the program: the context of a preset.
    pub context: u64,
}

impl DeviceSize {
    /// Bytes left for the program when `reserve` more live on the card.
    #[must_use]
    pub fn available(&self, reserve: u64) -> u64 {
        self.total.saturating_sub(self.context).saturating_sub(reserve)
    }
}

/// All presets.
#[must_use]
pub fn cards() -> &'static [Card] {
    CARDS
}

/// Reads a size or a preset's name.
///
/// # Errors
/// When it is neither.
pub fn parse_device(text: &str) -> Result<DeviceSize, ParseSizeError> {
    let wanted = text.trim().to_ascii_lowercase();
    if let Some(card) = CARDS.iter().find(|card| card.name == wanted) {
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
