//! Measures the cost of a step from view to view.

use super::{SMALL, Settings, counted};
use crate::Table;
use crate::host::text::digits;
use crate::measure::{Clock, in_turn, repeat};
use millpond::{Tensor, TensorError, pools};
use std::error::Error;
use std::hint::black_box;

/// A chain of steps from view to view: its name, the number of steps, and the function.
pub(super) type Chain = (&'static str, usize, fn(&Tensor) -> Result<(), TensorError>);

pub(super) const CHAINS: [Chain; 4] = [
    ("tensor: reshape, slice, transpose, select", 4, |whole| {
        let view = whole.reshape([20, 5, 10])?.slice(0, 2..9)?.transpose(0, 2)?;
        drop(black_box(view.select(1, 3)?));
        Ok(())
    }),
    ("borrowed: reshape, slice, transpose, select", 5, |whole| {
        let view = whole
            .view()?
            .reshape([20, 5, 10])?
            .slice(0, 2..9)?
            .transpose(0, 2)?;
        black_box(view.select(1, 3)?);
        Ok(())
    }),
    ("tensor: batches", 100, |whole| {
        for batch in whole.batches(0, 10)? {
            drop(black_box(batch));
        }
        Ok(())
    }),
    ("tensor: clone", 1, |whole| {
        drop(black_box(whole.clone()));
        Ok(())
    }),
];

pub(super) fn measure(settings: &Settings) -> Result<(), Box<dyn Error>> {
    let pool = pools().host()?;
    let whole = Tensor::zeros_in(&pool, [SMALL], millpond::DType::F32)?;
    let mut table = Table::new(&["views", "ns/step (min to max)", "allocations"]);
    for (name, steps, chain) in CHAINS {
        let passes = 200_000 / steps;
        let (times, allocations) = counted(&pool, || {
            in_turn::<1, TensorError>(settings.rounds, |_| {
                let pass = repeat(Clock::Thread, passes, || chain(black_box(&whole)))?;
                Ok(pass / steps as f64)
            })
        });
        let [times] = times?;
        table.row([
            name.to_owned(),
            times.spread().show(digits),
            allocations.to_string(),
        ]);
    }
    println!("{table}");
    Ok(())
}
