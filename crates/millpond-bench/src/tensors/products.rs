//! Measures matrix products: as a new tensor, into an existing one, as Genesis's loop does it, and with `ndarray` in both ways.

use super::{Settings, counted};
use crate::Table;
use crate::host::text::digits;
use crate::measure::{Clock, in_turn, repeat};
use millpond::{DType, Pool, Tensor, TensorError, pools, set_threads};
use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2};
use std::error::Error;
use std::hint::black_box;

/// Rows of a batch, features and outputs: of a small layer, of a large layer, and of a square.
const SHAPES: [[usize; 3]; 3] = [[64, 64, 10], [64, 784, 128], [512, 512, 512]];

/// A batch, weights, and the tensor for their product.
struct Layer {
    batch: Tensor,
    weights: Tensor,
    out: Tensor,
    shape: [usize; 3],
}

/// A side. It writes the product to the layer's output, or creates and drops a new tensor. Returns one element of the product.
type Side = fn(&mut Layer) -> Result<f32, TensorError>;

const SIDES: [Side; 4] = [
    |layer| {
        let product = layer.batch.matmul(&layer.weights)?;
        Ok(last(product.as_slice()?))
    },
    |layer| {
        layer.batch.matmul_into(&layer.weights, &mut layer.out)?;
        Ok(last(layer.out.as_slice()?))
    },
    |layer| {
        let (batch, weights, _) = layer.arrays()?;
        let product = batch.dot(&weights);
        Ok(last(product.as_slice().unwrap_or(&[])))
    },
    |layer| {
        let (batch, weights, mut out) = layer.arrays()?;
        general_mat_mul(1.0, &batch, &weights, 0.0, &mut out);
        Ok(last(layer.out.as_slice()?))
    },
];

fn last(elements: &[f32]) -> f32 {
    black_box(elements).last().copied().unwrap_or(f32::NAN)
}

type Arrays<'a> = (ArrayView2<'a, f32>, ArrayView2<'a, f32>, ArrayViewMut2<'a, f32>);

impl Layer {
    fn new(pool: &Pool, shape: [usize; 3]) -> Result<Self, TensorError> {
        let [rows, inner, columns] = shape;
        // Small whole numbers, so that sums are exact in any order.
        let numbers = |rows, columns, step: usize| {
            Tensor::from_fn_in(pool, [rows, columns], |at| ((at[0] * step + at[1]) % 5) as f32)
        };
        Ok(Self {
            batch: numbers(rows, inner, 3)?,
            weights: numbers(inner, columns, 7)?,
            out: Tensor::zeros_in(pool, [rows, columns], DType::F32)?,
            shape,
        })
    }

    fn arrays(&mut self) -> Result<Arrays<'_>, TensorError> {
        let [rows, inner, columns] = self.shape;
        let refused = |_| TensorError::Zero { what: "a size" };
        Ok((
            ArrayView2::from_shape((rows, inner), self.batch.as_slice()?).map_err(refused)?,
            ArrayView2::from_shape((inner, columns), self.weights.as_slice()?).map_err(refused)?,
            ArrayViewMut2::from_shape((rows, columns), self.out.as_mut_slice()?).map_err(refused)?,
        ))
    }
}

/// Measures the products and prints a table. Fails if the sides disagree.
pub(super) fn measure(settings: &Settings) -> Result<(), Box<dyn Error>> {
    let pool = pools().host()?;
    set_threads(1);
    let mut table = Table::new(&[
        "products, us for one",
        "into (min to max)",
        "GFLOP/s",
        "new",
        "ndarray into",
        "ndarray dot",
        "allocs",
    ]);
    for shape in SHAPES {
        let (mut layer, [rows, inner, columns]) = (Layer::new(&pool, shape)?, shape);
        let operations = 2 * rows * inner * columns;
        let passes = (20_000_000 / operations).clamp(1, 2_000);
        let (mut results, mut allocations) = ([0.0; SIDES.len()], [0; SIDES.len()]);
        let times: [_; SIDES.len()] = in_turn(settings.rounds, |side| {
            let (time, asked) = counted(&pool, || {
                repeat(Clock::Thread, passes, || {
                    results[side] = SIDES[side](black_box(&mut layer))?;
                    Ok::<(), TensorError>(())
                })
            });
            allocations[side] += asked;
            Ok::<f64, TensorError>(time? / 1e3)
        })?;
        if results.iter().any(|other| *other != results[0]) {
            return Err(
                format!("products of {shape:?}: the sides give different results: {results:?}").into(),
            );
        }
        let calls = ((settings.rounds + 1) * passes) as f64;
        let ratio = |side: usize| format!("{:.2}x", times[side].over(&times[1]).median());
        let into = times[1].spread();
        table.row([
            format!("{rows}x{inner} by {inner}x{columns}"),
            into.show(digits),
            format!("{:.1}", operations as f64 / 1e3 / into.median),
            ratio(0),
            ratio(3),
            ratio(2),
            format!(
                "{:.2}, {:.2}",
                allocations[0] as f64 / calls,
                allocations[1] as f64 / calls
            ),
        ]);
    }
    print!("{table}");
    println!(
        "into: the product into an existing tensor, as with Genesis's `matmul(.., out=)`\n\
         new, ndarray into, ndarray dot: their time over that of `into`\n\
         allocs: allocations from the pool per product, for `new` and for `into`\n"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sides_compute_the_product() -> Result<(), Box<dyn Error>> {
        let pool = pools().host()?;
        for shape in [[3, 4, 5], SHAPES[0]] {
            let [rows, inner, columns] = shape;
            for (which, side) in SIDES.into_iter().enumerate() {
                let mut layer = Layer::new(&pool, shape)?;
                let (batch, weights) = (layer.batch.to_vec::<f32>()?, layer.weights.to_vec::<f32>()?);
                let cell = |row: usize, column: usize| {
                    let products =
                        (0..inner).map(|at| batch[row * inner + at] * weights[at * columns + column]);
                    products.sum::<f32>()
                };
                assert_eq!(side(&mut layer)?, cell(rows - 1, columns - 1), "side {which}");
                let written = layer.out.to_vec::<f32>()?;
                let all: Vec<f32> = (0..rows * columns)
                    .map(|at| cell(at / columns, at % columns))
                    .collect();
                assert_eq!(written == all, which % 2 == 1, "side {which}");
            }
        }
        Ok(())
    }
}
