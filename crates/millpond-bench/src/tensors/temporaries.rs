//! Measures temporary tensors, as the loops in the documents create them: from the pool, from the system, from the program's
//! heap, and not at all.

use super::Settings;
use crate::Table;
use crate::host::text::{digits, time};
use crate::measure::{Clock, in_turn, repeat};
use millpond::{DType, Pool, Tensor, TensorError, Unpooled, pool::Origin, pools};
use ndarray::Array2;
use std::error::Error;
use std::hint::black_box;

const SIDE: usize = 100;
/// The number of turns of a document's loop.
const TURNS: usize = 1_000;

/// The data of a turn: an existing result, and operands. TensorCore's elements are `f64`, and tendo's are `f32`.
struct Kept {
    pool: Pool,
    unpooled: Unpooled,
    one: Tensor,
    double: Tensor,
    result: Tensor,
    array: Array2<f32>,
}

impl Kept {
    fn new() -> Result<Self, Box<dyn Error>> {
        let pool = pools().host()?;
        Ok(Self {
            one: Tensor::ones_in(&pool, [SIDE, SIDE], DType::F32)?,
            double: Tensor::zeros_in(&pool, [SIDE, SIDE], DType::F64)?,
            result: Tensor::zeros_in(&pool, [SIDE, SIDE], DType::F32)?,
            array: Array2::ones((SIDE, SIDE)),
            unpooled: Unpooled::host()?,
            pool,
        })
    }
}

type Turn = fn(&mut Kept) -> Result<(), TensorError>;

/// A document's loop with a pooled tensor, with a separately mapped tensor, with an array from the program's heap, and in
/// existing memory.
type Loop = (&'static str, [Turn; 4]);

fn cleared(from: &impl Origin) -> Result<(), TensorError> {
    drop(black_box(Tensor::zeros_in(from, [SIDE, SIDE], DType::F64)?));
    Ok(())
}

/// Creates zeros that are read, and a sum that is written.
fn summed(from: &impl Origin, one: &Tensor) -> Result<(), TensorError> {
    let zeros = Tensor::zeros_in(from, [SIDE, SIDE], DType::F32)?;
    let (zeros, one) = (zeros.as_slice::<f32>()?, one.as_slice::<f32>()?);
    let sum = Tensor::empty_in::<f32>(from, [SIDE, SIDE])?.write_with(|at| zeros[at] + one[at]);
    drop(black_box(sum));
    Ok(())
}

const LOOPS: [Loop; 2] = [
    (
        "TensorCore: temp({100, 100})",
        [
            |kept| cleared(&kept.pool),
            |kept| cleared(&kept.unpooled),
            |_| {
                drop(black_box(Array2::<f64>::zeros((SIDE, SIDE))));
                Ok(())
            },
            |kept| kept.double.view_mut()?.fill(0.0),
        ],
    ),
    (
        "tendo: Zeros(100, 100), sum",
        [
            |kept| {
                let zeros = Tensor::zeros_in(&kept.pool, [SIDE, SIDE], DType::F32)?;
                drop(black_box(zeros.add(&kept.one)?));
                Ok(())
            },
            |kept| summed(&kept.unpooled, &kept.one),
            |kept| {
                let zeros = Array2::<f32>::zeros((SIDE, SIDE));
                drop(black_box(&zeros + &kept.array));
                Ok(())
            },
            |kept| {
                let mut result = kept.result.view_mut()?;
                result.fill(0.0f32)?;
                result.add_assign(&kept.one)
            },
        ],
    ),
];

/// Measures the loops and prints a table.
pub(super) fn measure(settings: &Settings) -> Result<(), Box<dyn Error>> {
    let mut kept = Kept::new()?;
    let mut table = Table::new(&[
        "time of one temporary",
        "pooled (min to max)",
        "no pool",
        "ndarray",
        "in place",
        "over pooled",
    ]);
    for (name, turns) in LOOPS {
        let times = in_turn::<4, TensorError>(settings.rounds, |side| {
            repeat(Clock::Thread, TURNS, || turns[side](black_box(&mut kept)))
        })?;
        let over_pooled = |side: usize| times[side].over(&times[0]).median();
        let [_, no_pool, ndarray, in_place] = times.each_ref().map(|times| time(times.median()));
        table.row([
            name.to_owned(),
            times[0].spread().show(time),
            no_pool,
            ndarray,
            in_place,
            format!("{}x, {}x", digits(over_pooled(1)), digits(over_pooled(2))),
        ]);
    }
    print!("{table}");
    println!(
        "no pool: each tensor has its own mapping\n\
         over pooled: the time of `no pool` and of `ndarray` over that of `pooled`\n"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pooled_turns_allocate_from_the_pool_and_all_memory_is_freed() -> Result<(), Box<dyn Error>> {
        let mut kept = Kept::new()?;
        kept.pool = Pool::host()?;
        // A sum is allocated from the pool of its first operand.
        for ((name, turns), pooled) in LOOPS.into_iter().zip([1, 2]) {
            let held = kept.unpooled.held_bytes();
            let asked = kept.pool.stats().allocations;
            for turn in turns {
                turn(&mut kept)?;
            }
            assert_eq!(kept.pool.stats().allocations, asked + pooled, "{name}");
            assert_eq!(
                (kept.pool.stats().requested.current, kept.unpooled.held_bytes()),
                (0, held)
            );
        }
        let ones = vec![1.0; SIDE * SIDE];
        assert_eq!(kept.result.as_slice::<f32>()?, ones);
        Ok(())
    }
}
