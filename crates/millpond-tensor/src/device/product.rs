//! Products of matrices: their layouts, and the choice between cuBLAS and the kernel.

use super::blas;
use super::launch::{Target, Task, walk};
use super::storage::DeviceView;
use crate::error::TensorError;
use crate::layout::Layout;
use crate::walk::Walk;
pub(crate) use millpond_cuda::kernels::Entry;
use millpond_cuda::launch::{Arguments, BLOCKS, Shape};

/// The rows and columns of a tile of a product.
const TILE: usize = 16;

/// The matrices of a view of at least two dimensions: their layout, and that of their first elements.
pub(super) struct Matrices {
    pub(super) shape: [usize; 2],
    pub(super) strides: [usize; 2],
    batches: Layout,
}

impl Matrices {
    fn of(layout: &Layout) -> Self {
        let last = |numbers: &[usize]| numbers.last_chunk::<2>().copied().unwrap_or([1; 2]);
        let before = layout.rank().saturating_sub(2);
        // Both dimensions exist, so neither call fails.
        let batches = layout.gone(before).and_then(|layout| layout.gone(before));
        Self {
            shape: last(layout.shape()),
            strides: last(layout.strides()),
            batches: batches.unwrap_or(*layout),
        }
    }
}

/// The positions of the matrices of three views: the sizes and strides of the batch dimensions, merged where possible.
pub(super) struct Batches(Vec<(usize, [usize; 3])>);

impl Batches {
    fn of(matrices: [&Matrices; 3]) -> Self {
        let dims = Walk::in_any_order(matrices.map(|of| &of.batches)).dims();
        Self(dims.into_iter().flatten().collect())
    }

    /// Returns the size and strides of the longest batch dimension, and the offsets at which it begins for each index
    /// of all other dimensions. Returns `None` if there are more than `most` of these.
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
    /// Computes a product of matrices for every index of the leading dimensions. The last two dimensions are those of
    /// the matrices, and the leading dimensions have the same sizes in all views.
    pub(super) fn matmul(self, left: DeviceView<'_>, right: DeviceView<'_>) -> Result<(), TensorError> {
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

/// Computes the products with this crate's kernel, which supports any view.
fn tiled(sides: &[DeviceView<'_>; 3], [out, first, second]: &[Matrices; 3]) -> Result<(), TensorError> {
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
    .run(sides[0].queue().stream())
}
