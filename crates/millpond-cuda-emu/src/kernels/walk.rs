//! Positions of the elements of up to three views of one shape: `Walk` of `millpond`'s kernels (`walk.cuh`).

use super::{Call, Params};
use crate::access::Access;
use crate::error::{Answer, Code};
use crate::memory::os::Reach;

/// The size of a walk as a parameter, in bytes.
pub(super) const SIZE: usize = 34 * 8;
const MOST: usize = 8;

/// The elements that a kernel visits. Invariant: the number of elements is the product of the sizes, and every offset fits in
/// an address.
#[derive(Debug)]
pub(super) struct Walk {
    pub(super) len: u64,
    sizes: Vec<u64>,
    strides: [Vec<u64>; 3],
}

/// The first element of a view, the size of an element, and whether the kernel writes the view.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) at: u64,
    pub(super) size: u64,
    pub(super) write: bool,
}

impl Walk {
    /// Reads a walk from a parameter. Fails with an illegal address if the walk is invalid.
    pub(super) fn read(params: &Params, index: usize) -> Answer<Self> {
        let numbers = params.numbers(index);
        let walk = Self::of(&numbers).ok_or(Code::ILLEGAL_ADDRESS)?;
        let elements = walk
            .sizes
            .iter()
            .try_fold(1_u64, |len, size| len.checked_mul(*size));
        let near = (0..3).all(|view| walk.extent(view).is_some_and(|extent| extent < 1 << 44));
        Code::ILLEGAL_ADDRESS.when(elements != Some(walk.len) || !near)?;
        Ok(walk)
    }

    fn of(numbers: &[u64]) -> Option<Self> {
        let (&[len, rank], dims) = numbers.split_first_chunk::<2>()?;
        let rank = usize::try_from(rank).ok().filter(|rank| *rank <= MOST)?;
        let part = |at: usize| dims.get(at * MOST..at * MOST + rank).map(<[u64]>::to_vec);
        Some(Self {
            len,
            sizes: part(0)?,
            strides: [part(1)?, part(2)?, part(3)?],
        })
    }

    /// Returns the number of elements from a view's first to its last.
    pub(super) fn extent(&self, view: usize) -> Option<u64> {
        if self.len == 0 {
            return Some(0);
        }
        let dims = self.sizes.iter().zip(&self.strides[view]);
        let mut last = 0_u64;
        for (size, stride) in dims {
            last = last.checked_add(size.checked_sub(1)?.checked_mul(*stride)?)?;
        }
        last.checked_add(1)
    }

    /// Returns the number of distinct elements of a view.
    fn distinct(&self, view: usize) -> u64 {
        let dims = self.sizes.iter().zip(&self.strides[view]);
        let sizes = dims.filter(|(_, stride)| **stride > 0).map(|(size, _)| *size);
        if self.len == 0 { 0 } else { sizes.product() }
    }

    /// Returns the bytes of a view, from its first element to its last. `more` elements lie behind each.
    pub(super) fn access(&self, view: usize, of: View, more: u64) -> Access {
        let extent = self.extent(view).unwrap_or(0);
        let extent = if extent == 0 {
            0
        } else {
            extent.saturating_add(more)
        };
        Access {
            at: of.at,
            len: extent.saturating_mul(of.size),
            write: of.write,
        }
    }

    /// Returns the bytes of a view's distinct elements.
    pub(super) fn bytes(&self, view: usize, size: u64) -> u64 {
        self.distinct(view).saturating_mul(size)
    }

    /// Returns a view's memory for a running kernel.
    pub(super) fn reach(&self, call: &Call<'_>, view: usize, of: View, more: u64) -> Answer<Reach> {
        let Access { at, len, write } = self.access(view, of, more);
        call.memory.reach(at, len, write)
    }

    /// Calls `f` with the position of each element in every view, in elements.
    pub(super) fn each(&self, mut f: impl FnMut([u64; 3])) {
        let mut at = vec![0_u64; self.sizes.len()];
        let mut places = [0_u64; 3];
        for _ in 0..self.len {
            f(places);
            for dim in (0..at.len()).rev() {
                at[dim] += 1;
                let ends = at[dim] == self.sizes[dim];
                for (place, strides) in places.iter_mut().zip(&self.strides) {
                    *place += strides[dim];
                    if ends {
                        *place -= strides[dim] * self.sizes[dim];
                    }
                }
                if !ends {
                    break;
                }
                at[dim] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(len: u64, rank: u64, sizes: &[u64], strides: [&[u64]; 3]) -> Params {
        let mut numbers = vec![len, rank];
        for part in [sizes].into_iter().chain(strides) {
            let mut dims = [0; MOST];
            dims[..part.len()].copy_from_slice(part);
            numbers.extend(dims);
        }
        Params(vec![
            numbers.iter().flat_map(|number| number.to_ne_bytes()).collect(),
        ])
    }

    #[test]
    fn positions_follow_the_strides() {
        let walk = Walk::read(&params(6, 2, &[2, 3], [&[1, 2], &[10, 1], &[0, 4]]), 0).unwrap();
        let mut all = Vec::new();
        walk.each(|places| all.push(places));
        let expected = [
            [0, 0, 0],
            [2, 1, 4],
            [4, 2, 8],
            [1, 10, 0],
            [3, 11, 4],
            [5, 12, 8],
        ];
        assert_eq!(all, expected);
        assert_eq!(
            [0, 1, 2].map(|view| walk.extent(view)),
            [Some(6), Some(13), Some(9)]
        );
        assert_eq!([0, 2].map(|view| walk.bytes(view, 4)), [24, 12]);
    }

    #[test]
    fn invalid_walks_are_refused() {
        let one: [&[u64]; 3] = [&[1], &[1], &[1]];
        assert!(Walk::read(&params(7, 1, &[7], one), 0).is_ok());
        assert!(Walk::read(&params(8, 1, &[7], one), 0).is_err());
        assert!(Walk::read(&params(1, 9, &[1], one), 0).is_err());
        assert!(Walk::read(&params(2, 1, &[2], [&[u64::MAX], &[1], &[1]]), 0).is_err());
        assert!(Walk::read(&Params(vec![vec![0; 16]]), 0).is_err());
        let nothing = Walk::read(&params(0, 1, &[0], one), 0).unwrap();
        nothing.each(|_| panic!("there is nothing"));
    }
}
