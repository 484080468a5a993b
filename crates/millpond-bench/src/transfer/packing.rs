//! Measures the host's work for a copy that leaves out zeros: packing, compared with a plain copy of the same bytes.

use crate::Table;
use crate::measure::{Clock, in_turn, repeat};
use millpond::cuda;
use std::convert::Infallible;
use std::hint::black_box;

/// The number of bytes that are packed at once.
const SLOT: usize = 8 << 20;

/// Packs and copies `bytes` bytes, and returns a table of the best of `rounds` rounds.
pub(super) fn table(bytes: usize, rounds: usize) -> Table {
    let mut table = Table::new(&["on the host", "packing GB/s", "copying GB/s", "packing / copying"]);
    for (name, one_in) in [("all zeros", 0), ("half zeros", 2), ("no zeros: refused", 1)] {
        let (pack, copy) = speeds(&words(bytes / 4, one_in), rounds);
        table.row([
            name.to_owned(),
            format!("{pack:.2}"),
            format!("{copy:.2}"),
            format!("{:.2}", pack / copy),
        ]);
    }
    table
}

/// Returns words of which one in `one_in` is not zero. If `one_in` is 0, all are zero.
fn words(len: usize, one_in: u32) -> Vec<u32> {
    let mut seed = 1u32;
    let word = |_| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let kept = one_in > 0 && (seed >> 8).is_multiple_of(one_in);
        if kept { seed | 1 } else { 0 }
    };
    (0..len).map(word).collect()
}

/// Returns the speed of packing and of copying in gigabytes per second, measured in turn.
fn speeds(words: &[u32], rounds: usize) -> (f64, f64) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut slot = vec![1u8; SLOT];
    let work = |side| {
        repeat(Clock::Wall, 1, || {
            for piece in bytes.chunks(SLOT) {
                if side == 0 {
                    let _ = black_box(cuda::pack(piece, &mut slot));
                } else {
                    slot[..piece.len()].copy_from_slice(piece);
                    black_box(&slot);
                }
            }
            Ok(())
        })
    };
    let Ok(times) = in_turn::<2, Infallible>(rounds, work);
    let [pack, copy] = times.map(|times| bytes.len() as f64 / times.spread().least);
    (pack, copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_zero_as_often_as_they_are_to_be() {
        let kept = |one_in| words(10_000, one_in).iter().filter(|word| **word != 0).count();
        assert_eq!((kept(0), kept(1)), (0, 10_000));
        assert!((4_500..5_500).contains(&kept(2)));
    }

    #[test]
    fn each_kind_has_its_speeds() {
        let text = table(1 << 20, 1).to_string();
        for name in ["all zeros", "half zeros", "no zeros: refused"] {
            assert!(text.contains(name), "{text}");
        }
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}
