//! The sizes of blocks.
//!
//! Small blocks are cut from spans. Their sizes are multiples of 64 bytes up to 1 KiB, and eight sizes per octave from
//! there to [`SMALL`]. Rounding costs at most an eighth. Larger blocks come from the policy, in whole pages of 4 KiB, and a
//! thread caches them in bins of an eighth of an octave.
//!
//! The program's pool also has the multiples of 16 bytes up to [`FINE`] for `malloc`, which frees a block without its size. These
//! classes follow the others.

/// The minimum alignment of every address, and the unit of the sizes of small blocks.
pub(crate) const LEAST: usize = 64;
/// Bytes of the largest small block.
pub(crate) const SMALL: usize = 64 << 10;
/// The number of sizes of small blocks of every pool.
const COARSE: usize = 16 + 6 * 8;
/// Bytes of the largest block of a size that only `malloc` uses.
pub(crate) const FINE: usize = 512;
/// The unit of the sizes that only `malloc` uses.
pub(crate) const FINE_UNIT: usize = 16;
/// The number of sizes of small blocks. Three of four multiples of 16 are no multiples of 64.
pub(crate) const CLASSES: usize = COARSE + FINE / LEAST * 3;
/// The unit of the sizes of larger blocks.
pub(crate) const PAGE: usize = 4 << 10;
/// Bytes of the largest block that a thread caches.
pub(crate) const KEPT: usize = 32 << 20;
/// The number of bins of larger blocks.
pub(crate) const BINS: usize = 9 * 8 + 1;

/// Returns the class of a small block of at least `bytes` bytes, which must be from 1 to [`SMALL`].
#[inline]
pub(crate) fn class_of(bytes: usize) -> usize {
    debug_assert!((1..=SMALL).contains(&bytes));
    class_and_bytes(bytes).0
}

/// Returns the class of a small block of at least `bytes` bytes, and the bytes of its blocks.
#[inline]
pub(crate) fn class_and_bytes(bytes: usize) -> (usize, usize) {
    debug_assert!((1..=SMALL).contains(&bytes));
    let last = bytes - 1;
    if last < 1024 {
        return (last / LEAST, (last / LEAST + 1) * LEAST);
    }
    let shift = last.ilog2() as usize - 3;
    // This is from 8 to 15: the highest bit and the three bits below it, which count eighths of the octave.
    let eighths = last >> shift;
    (16 + (shift - 7) * 8 + (eighths - 8), (eighths + 1) << shift)
}

/// Returns the class of a small block for `malloc` of at least `bytes` bytes, which must be from 1 to [`SMALL`], and the bytes of its
/// blocks.
#[inline]
pub(crate) fn fine_class_and_bytes(bytes: usize) -> (usize, usize) {
    debug_assert!((1..=SMALL).contains(&bytes));
    if bytes > FINE {
        return class_and_bytes(bytes);
    }
    let unit = (bytes - 1) / FINE_UNIT;
    (usize::from(FINE_CLASSES[unit]), (unit + 1) * FINE_UNIT)
}

/// The classes of the multiples of [`FINE_UNIT`] up to [`FINE`].
const FINE_CLASSES: [u8; FINE / FINE_UNIT] = {
    let mut classes = [0; FINE / FINE_UNIT];
    let mut unit = 0;
    while unit < classes.len() {
        classes[unit] = match (unit / 4, unit % 4) {
            (class, 3) => class as u8,
            (before, nth) => (COARSE + before * 3 + nth) as u8,
        };
        unit += 1;
    }
    classes
};

/// Returns the class of blocks of exactly `bytes` bytes.
pub(crate) fn class_of_block(bytes: usize) -> usize {
    fine_class_and_bytes(bytes).0
}

/// Returns whether only `malloc` uses blocks of a class.
pub(crate) const fn is_fine(class: usize) -> bool {
    class >= COARSE
}

/// Returns the bytes of a block of a class.
pub(crate) const fn class_bytes(class: usize) -> usize {
    if is_fine(class) {
        let (before, nth) = ((class - COARSE) / 3, (class - COARSE) % 3);
        return before * LEAST + (nth + 1) * FINE_UNIT;
    }
    if class < 16 {
        return (class + 1) * LEAST;
    }
    let (octave, eighth) = ((class - 16) / 8, (class - 16) % 8);
    (9 + eighth) << (octave + 7)
}

/// Returns the bin of a larger block of `bytes` bytes: whole eighths of octaves, rounded down.
#[inline]
pub(crate) fn bin_of(bytes: usize) -> usize {
    debug_assert!((SMALL..=KEPT).contains(&bytes));
    let log = bytes.ilog2() as usize;
    (log - 16) * 8 + ((bytes >> (log - 3)) & 7)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_class_is_the_smallest_that_holds_a_size() {
        for bytes in 1..=SMALL {
            let class = class_of(bytes);
            assert_eq!(class_and_bytes(bytes), (class, class_bytes(class)));
            assert!(class_bytes(class) >= bytes, "{bytes} in {class}");
            assert!(class == 0 || class_bytes(class - 1) < bytes, "{bytes} in {class}");
        }
        assert_eq!(class_of(SMALL), COARSE - 1);
        assert_eq!(class_bytes(COARSE - 1), SMALL);
    }

    #[test]
    fn a_class_for_malloc_is_the_smallest_that_holds_a_size() {
        let mut seen = BTreeSet::new();
        for bytes in 1..=SMALL {
            let (class, of_block) = fine_class_and_bytes(bytes);
            assert_eq!(of_block, class_bytes(class), "{bytes}");
            let unit = if bytes <= FINE { FINE_UNIT } else { LEAST };
            assert!(
                of_block >= bytes && of_block <= bytes.next_multiple_of(unit).max(class_and_bytes(bytes).1)
            );
            if bytes <= FINE {
                assert_eq!(of_block, bytes.next_multiple_of(FINE_UNIT));
            }
            assert_eq!(class_of_block(of_block), class);
            seen.insert(class);
        }
        assert_eq!(seen.len(), CLASSES);
    }

    #[test]
    fn rounding_costs_an_eighth_at_most() {
        for bytes in 513..=SMALL {
            let over = class_bytes(class_of(bytes)) - bytes;
            assert!(over * 8 <= bytes, "{bytes} costs {over}");
        }
    }

    #[test]
    fn bins_ascend_and_none_is_left_out() {
        let mut last = 0;
        let mut bytes = SMALL;
        while bytes <= KEPT {
            let bin = bin_of(bytes);
            assert!(bin == last || bin == last + 1, "{bytes} in {bin} after {last}");
            last = bin;
            bytes += PAGE;
        }
        assert_eq!(last, BINS - 1);
    }
}
