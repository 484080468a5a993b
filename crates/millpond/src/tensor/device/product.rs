//! Products of matrices: what they are of, and who forms them.

use super::blas;
use super::launch::{Target, Task, walk};
use super::storage::Side;
use crate::gpu::kernels::Entry;
use crate::gpu::launch::{Arguments, BLOCKS, Shape};
use crate::tensor::error::TensorError;
use crate::tensor::layout::Layout;
use crate::tensor::walk::Walk;

/// Rows and columns of a tile of a product.
const TILE: usize = 16;

/// The matrices of a view of two dimensions or more: theirs, and where each begins.
pub(super) struct Matrices {
    pub(super) shape: [usize; 2],
    pub(super) strides: [usize; 2],
    batches: Layout,
}

impl Matrices {
    fn of(layout: &Layout) -> Self {
        let last = |numbers: &[usize]| numbers.last_chunk::<2>().copied().unwrap_or([1; 2]);
        let before = layout.rank().saturating_sub(2);
        // Both are there, so nothing is refused.
        let batches = layout.gone(before).and_then(|layout| layout.gone(before));
        Self {
            shape: last(layout.shape()),
            strides: last(layout.strides()),
            batches: batches.unwrap_or(*layout),
        }
    }
}

/// Where the matrices of three views lie: dimensions that are none of theirs, joined where they can be.
pub(super) struct Batches(Vec<(usize, [usize; 3])>);

impl Batches {
    fn of(matrices: [&Matrices; 3]) -> Self {
        let dims = Walk::in_any_order(matrices.map(|of| &of.batches)).dims();
        Self(dims.into_iter().flatten().collect())
    }

    /// How many matrices the longest dimension has and how far they are apart, and where those begin for each place of all the other
    /// dimensions; none where these are more than `most`.
    pub(super) fn parts(&self, most: usize) -> Option<(usize, [usize; 3], Vec<[usize; 3]>)> {
        let (longest, (many, apart)) = self.0.iter().enumerate().max_by_key(|(_, (size, _))| *size)?;
        let others = || self.0.iter().enumerate().filter(|(dim, _)| *dim != longest);
        let calls = others().try_fold(1_usize, |calls, (_, (size, _))| calls.checked_mul(*size));
        calls.filter(|calls| *calls <= most)?;
        let mut places = vec![[0; 3]];
        for (_, (size, strides)) in others() {
            let along = |place: [usize; 3]| {
                let step = move |at: usize| [0, 1, 2].map(|view| place[view] + at * strides[view]);
                (0..*size).map(step)
            };
            places = places.into_iter().flat_map(along).collect();
        }
        Some((*many, *apart, places))
    }
}

impl Target<'_> {
    /// Products of matrices: the last two dimensions of each, for every place of those before, which are the same in all.
    pub(super) fn matmul(self, left: Side<'_>, right: Side<'_>) -> Result<(), TensorError> {
        if self.is_empty() {
            return Ok(());
        }
        let sides = [self.side(), left, right];
        let matrices = sides.map(|side| Matrices::of(side.layout()));
        let calls = || {
            let (all, addresses) = (matrices.each_ref(), sides.map(|side| side.address()));
            blas::calls(all, addresses, &Batches::of(all), self.side().dtype().size())
        };
        if self.by_cublas(left, right, calls) {
            return Ok(());
        }
        tiled(&sides, &matrices)
    }
}

/// By our own kernel, which takes any view.
fn tiled(sides: &[Side<'_>; 3], [out, first, second]: &[Matrices; 3]) -> Result<(), TensorError> {
    let [rows, columns] = out.shape;
    let tiles = |size: usize, most: usize| size.div_ceil(TILE).min(most) as u32;
    let many = out.batches.len().clamp(1, usize::from(u16::MAX)) as u32;
    let product: [u64; 9] = [
        rows,
        columns,
        first.shape[1],
        out.strides[0],
        out.strides[1],
        first.strides[0],
        first.strides[1],
        second.strides[0],
        second.strides[1],
    ]
    .map(|number| number as u64);
    let mut arguments = Arguments::default();
    arguments.push(walk([&out.batches, &first.batches, &second.batches]));
    arguments.push(product);
    sides.iter().for_each(|side| arguments.push(side.address()));
    Task {
        entry: Entry::Matmul(sides[0].dtype()),
        shape: Shape {
            grid: [tiles(columns, BLOCKS), tiles(rows, usize::from(u16::MAX)), many],
            block: [TILE as u32, TILE as u32, 1],
            shared: 0,
        },
        arguments,
        sides,
    }
    .run(sides[0].stream())
}
