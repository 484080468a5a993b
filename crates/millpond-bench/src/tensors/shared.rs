//! Measures the speed-up of an operation with several threads.

use super::cases::{Arrays, CASES};
use super::{SIZES, SMALL, Settings, spread};
use crate::Table;
use millpond::{pools, set_threads, threads};
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

/// Measures in wall-clock time and prints a table.
pub(super) fn measure(settings: &Settings) -> Result<(), Box<dyn Error>> {
    set_threads(0);
    let most = threads();
    if most < 2 {
        println!("several threads: there is but one processor\n");
        return Ok(());
    }
    let pool = pools().host()?;
    let (many, over) = (format!("{most} threads"), "one over several".to_owned());
    let mut table = Table::new(&[
        "by the clock, ns each",
        "one thread",
        &many,
        &over,
        "least to most",
    ]);
    for (label, len) in SIZES
        .into_iter()
        .chain([("256 k", 256 << 10), ("4 M", 4 << 20), ("16 M", 16 << 20)])
    {
        if len == SMALL || settings.quick && len > 4 << 20 {
            continue;
        }
        let mut arrays = Arrays::new(&pool, len)?;
        for name in [
            "axpy in place",
            "scal in place",
            "add into",
            "add new",
            "sum",
            "dot",
        ] {
            let case = CASES.iter().find(|case| case.name == name);
            let case = case.ok_or_else(|| format!("there is no {name}"))?;
            if settings.only.as_ref().is_some_and(|only| !name.contains(only)) {
                continue;
            }
            arrays.a.copy_from(&arrays.b)?;
            let passes = (20_000_000 / len).max(1);
            let mut times = [const { Vec::new() }; 2];
            for round in 0..=settings.rounds {
                for (limit, times) in [1, 0].into_iter().zip(&mut times) {
                    set_threads(limit);
                    let clock = Instant::now();
                    for _ in 0..passes {
                        black_box((case.tensor)(black_box(&mut arrays))?);
                    }
                    if round > 0 {
                        times.push(clock.elapsed().as_nanos() as f64 / (passes * len) as f64);
                    }
                }
            }
            let [one, several] = &times;
            let ratio = one.iter().zip(several).map(|(one, several)| one / several);
            let [least, middle, most] = spread(ratio.collect());
            table.row(vec![
                format!("{name} {label}"),
                format!("{:.3}", spread(one.clone())[1]),
                format!("{:.3}", spread(several.clone())[1]),
                format!("{middle:.2}x"),
                format!("{least:.2} to {most:.2}"),
            ]);
        }
    }
    println!("{table}");
    Ok(())
}
