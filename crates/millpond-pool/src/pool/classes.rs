//! The sizes of blocks.
//!
//! Small blocks are cut from spans. Their sizes are multiples of 64 bytes up to 1 KiB, and eight sizes per octave from
//! there to [`SMALL`]. Rounding costs at most an eighth. Larger blocks come from the policy, in whole pages of 4 KiB, and a
//! thread caches them in bins of an eighth of an octave.

/// The minimum alignment of every address, and the unit of the sizes of small blocks.
pub(crate) const LEAST: usize = 64;
/// Bytes of the largest small block.
pub(crate) const SMALL: usize = 64 << 10;
/// The number of sizes of small blocks.
pub(crate) const CLASSES: usize = 16 + 6 * 8;
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

/// Returns the bytes of a block of a class.
pub(crate) const fn class_bytes(class: usize) -> usize {
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

    #[test]
    fn a_class_is_the_smallest_that_holds_a_size() {
        for bytes in 1..=SMALL {
            let class = class_of(bytes);
            assert_eq!(class_and_bytes(bytes), (class, class_bytes(class)));
            assert!(class_bytes(class) >= bytes, "{bytes} in {class}");
            assert!(class == 0 || class_bytes(class - 1) < bytes, "{bytes} in {class}");
        }
        assert_eq!(class_of(SMALL), CLASSES - 1);
        assert_eq!(class_bytes(CLASSES - 1), SMALL);
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
