//! Temporary tensors, as the documents' loops make them: from the pool, without one, and not at all.

use super::{Settings, spread};
use crate::{CpuClock, Table};
use millpond::{DType, Pool, Tensor, TensorError, pools};
use ndarray::Array2;
use std::error::Error;
use std::hint::black_box;

const SIDE: usize = 100;
/// Turns of a document's loop.
const TURNS: usize = 1_000;

/// What a turn works with: a result that is there, and operands.
struct Kept {
    pool: Pool,
    one: Tensor,
    result: Tensor,
    array: Array2<f32>,
}

type Turn = fn(&mut Kept) -> Result<(), TensorError>;

/// A document's loop, by a pooled tensor, by an array from the program's heap, and in memory that is there.
type Loop = (&'static str, [Turn; 3]);

const LOOPS: [Loop; 2] = [
    (
        "TensorCore: temp({100, 100}), cleared",
        [
            |kept| {
                drop(black_box(Tensor::zeros_in(&kept.pool, [SIDE, SIDE], DType::F32)?));
                Ok(())
            },
            |_| {
                drop(black_box(Array2::<f32>::zeros((SIDE, SIDE))));
                Ok(())
            },
            |kept| kept.result.view_mut()?.fill(0.0f32),
        ],
    ),
    (
        "tendo: Zeros(100, 100), and a sum",
        [
            |kept| {
                let zeros = Tensor::zeros_in(&kept.pool, [SIDE, SIDE], DType::F32)?;
                drop(black_box(zeros.add(&kept.one)?));
                Ok(())
            },
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

/// Prints a table of them.
pub(super) fn measure(settings: &Settings) -> Result<(), Box<dyn Error>> {
    let pool = pools().host()?;
    let mut kept = Kept {
        one: Tensor::ones_in(&pool, [SIDE, SIDE], DType::F32)?,
        result: Tensor::zeros_in(&pool, [SIDE, SIDE], DType::F32)?,
        array: Array2::ones((SIDE, SIDE)),
        pool,
    };
    let mut table = Table::new(&[
        "temporaries, ns for one",
        "pooled (least to most)",
        "ndarray",
        "in place",
        "ndarray/pooled",
    ]);
    for (name, turns) in LOOPS {
        let mut times = [const { Vec::new() }; 3];
        for round in 0..=settings.rounds {
            for (turn, times) in turns.into_iter().zip(&mut times) {
                let clock = CpuClock::start();
                for _ in 0..TURNS {
                    turn(black_box(&mut kept))?;
                }
                if round > 0 {
                    times.push(clock.nanoseconds() / TURNS as f64);
                }
            }
        }
        let ratio = |one: usize, other: usize| {
            let both = times[one].iter().zip(&times[other]);
            spread(both.map(|(one, other)| one / other).collect())[1]
        };
        let [least, middle, most] = spread(times[0].clone());
        table.row(vec![
            name.to_owned(),
            format!("{middle:.0} ({least:.0} to {most:.0})"),
            format!("{:.0}", spread(times[1].clone())[1]),
            format!("{:.0}", spread(times[2].clone())[1]),
            format!("{:.2}x", ratio(1, 0)),
        ]);
    }
    println!("{table}");
    Ok(())
}
