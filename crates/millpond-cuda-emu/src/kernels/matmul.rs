//! Matrix products of `millpond`'s tensors (`matmul.cu`).

use super::number::{Factor, each_type};
use super::walk::{self, View, Walk};
use super::{Call, Kernels, Params};
use crate::access::Access;
use crate::error::{Answer, Code};

/// The reuse that tiles achieve: each element of a factor is read once for this many rows or columns of the product.
const TILE: u64 = 16;

/// A launch: one product for each position of its walk.
struct Product {
    batches: Walk,
    rows: u64,
    columns: u64,
    inner: u64,
    /// The distances between rows and between columns, in the product and in each factor.
    strides: [[u64; 2]; 3],
    addresses: [u64; 3],
}

impl Product {
    fn read(params: &Params) -> Answer<Self> {
        let numbers = params.numbers(1);
        let &[rows, columns, inner, a, b, c, d, e, f] = numbers.as_slice() else {
            return Err(Code::ILLEGAL_ADDRESS);
        };
        let product = Self {
            batches: Walk::read(params, 0)?,
            rows,
            columns,
            inner,
            strides: [[a, b], [c, d], [e, f]],
            addresses: [2, 3, 4].map(|index| params.u64(index)),
        };
        let near = (0..3).all(|view| product.more(view).is_some_and(|more| more < 1 << 44));
        Code::ILLEGAL_ADDRESS.when(!near)?;
        Ok(product)
    }

    /// Returns the rows and columns of the product, or of a factor.
    fn shape(&self, view: usize) -> [u64; 2] {
        match view {
            0 => [self.rows, self.columns],
            1 => [self.rows, self.inner],
            _ => [self.inner, self.columns],
        }
    }

    /// Returns the number of elements in memory behind the first one of a matrix.
    fn more(&self, view: usize) -> Option<u64> {
        let dims = self.shape(view).into_iter().zip(self.strides[view]);
        dims.map(|(size, stride)| size.saturating_sub(1).checked_mul(stride))
            .try_fold(0_u64, |more, reach| more.checked_add(reach?))
    }

    fn view(&self, view: usize, size: usize) -> View {
        View {
            at: self.addresses[view],
            size: size as u64,
            write: view == 0,
        }
    }

    fn accesses(&self, size: usize) -> Vec<Access> {
        let there = |view: &usize| !self.shape(*view).contains(&0);
        let access = |view| {
            let more = self.more(view).unwrap_or(0);
            self.batches.access(view, self.view(view, size), more)
        };
        (0..3).filter(there).map(access).collect()
    }

    fn bytes(&self, size: usize) -> u64 {
        let product = self.rows.saturating_mul(self.columns);
        let factors = product.saturating_mul(self.inner).saturating_mul(2) / TILE;
        let each = product.saturating_add(factors).saturating_mul(size as u64);
        each.saturating_mul(self.batches.len)
    }

    fn run<T: Factor>(&self, call: &Call<'_>) -> Answer {
        if self.rows == 0 || self.columns == 0 {
            return Ok(());
        }
        let reach = |view| {
            let more = self.more(view).unwrap_or(0);
            self.batches.reach(call, view, self.view(view, T::SIZE), more)
        };
        let to = reach(0)?;
        // An empty sum of products is 0 and reads no memory.
        let factors = (self.inner > 0).then(|| Ok((reach(1)?, reach(2)?)));
        let factors = factors.transpose()?;
        let [out, left, right] = self.strides;
        self.batches.each(|[into, a, b]| {
            for row in 0..self.rows {
                for column in 0..self.columns {
                    let mut sum = T::Sum::default();
                    if let Some((first, second)) = &factors {
                        for at in 0..self.inner {
                            let one = T::get(first, a + row * left[0] + at * left[1]);
                            let other = T::get(second, b + at * right[0] + column * right[1]);
                            sum = T::add_product(sum, one, other);
                        }
                    }
                    T::of_sum(sum).put(&to, into + row * out[0] + column * out[1]);
                }
            }
        });
        Ok(())
    }
}

pub(super) fn register_type<T: Factor>(kernels: &mut Kernels) {
    kernels.add(
        &format!("millpond_matmul_{}", T::NAME),
        &[walk::SIZE, 9 * 8, 8, 8, 8],
        Product::read,
        |product| product.accesses(T::SIZE),
        |product| product.bytes(T::SIZE),
        Product::run::<T>,
    );
}

pub(super) fn register(kernels: &mut Kernels) {
    each_type!(T => register_type::<T>(kernels));
}
