//! Measures the speed-up of an operation with several threads.

use super::cases::{Arrays, Case, Side};
use super::{SIZES, SMALL, Settings};
use crate::Table;
use crate::measure::{Clock, in_turn, repeat};
use millpond::{pools, set_threads, threads};
use std::error::Error;
use std::hint::black_box;

/// The measured operations.
const NAMES: [&str; 6] = [
    "axpy in place",
    "scal in place",
    "add into",
    "add new",
    "sum",
    "dot",
];

/// Measures in wall-clock time and prints a table.
pub(super) fn measure(settings: &Settings) -> Result<(), Box<dyn Error>> {
    set_threads(0);
    let most = threads();
    if most < 2 {
        println!("Several threads: not measured, because there is only one processor\n");
        return Ok(());
    }
    let pool = pools().host()?;
    let many = format!("{most} threads");
    let mut table = Table::new(&[
        "wall-clock ns/element",
        "one thread",
        &many,
        "speed-up",
        "min to max",
    ]);
    for (label, len) in SIZES
        .into_iter()
        .chain([("256 k", 256 << 10), ("4 M", 4 << 20), ("16 M", 16 << 20)])
    {
        if len == SMALL || settings.quick && len > 1_000_000 {
            continue;
        }
        let mut arrays = Arrays::new(&pool, len)?;
        for name in NAMES.into_iter().filter(|name| settings.includes(name)) {
            let case = Case::named(name)?;
            arrays.a.copy_from(&arrays.b)?;
            let elements = if settings.quick { 200_000 } else { 20_000_000 };
            let passes = (elements / len).max(1);
            let [one, several] = in_turn::<2, Box<dyn Error>>(settings.rounds, |side| {
                set_threads([1, 0][side]);
                let pass = repeat(Clock::Wall, passes, || {
                    black_box(case.call(Side::Tensor, black_box(&mut arrays))?);
                    Ok::<(), Box<dyn Error>>(())
                })?;
                Ok(pass / len as f64)
            })?;
            let ratio = one.over(&several).spread();
            table.row([
                format!("{name} {label}"),
                format!("{:.3}", one.median()),
                format!("{:.3}", several.median()),
                format!("{:.2}x", ratio.median),
                format!("{:.2} to {:.2}", ratio.least, ratio.most),
            ]);
        }
    }
    println!("{table}");
    Ok(())
}
