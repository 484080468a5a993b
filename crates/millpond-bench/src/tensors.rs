//! Measures tensor operations and compares them with `ndarray` and with plain loops over slices: `axpy`, `scal`, add, sum and
//! dot, in place, into an output and as a new array. Also measures the memory bandwidth in the same run, allocations per call
//! by the pool's counter, temporary tensors with and without a pool, matrix products as new tensors and into existing ones, and
//! the cost of a step from view to view.
//!
//! All sides use the same memory of one pool and run in turn within each round. The output contains for each element the median
//! with the minimum and the maximum, the GB/s of data that must be moved, and their share of the best plain loop that only
//! copies or adds a multiple of one array to another at that size. A cache line that is written without being read counts twice,
//! because the processor reads it first. Ratios are medians over the rounds. If a ratio is above 1, the tensor is faster. Fails
//! if the sides disagree.

mod cases;
mod products;
mod shared;
mod temporaries;
mod views;

use crate::Table;
use crate::measure::{Clock, fixed, in_turn, repeat};
use cases::{Arrays, CASES, COPY, Case, Side, TRIAD};
use clap::Parser;
use millpond::{Pool, pools, set_threads};
use std::error::Error;
use std::hint::black_box;

/// Measures tensor operations and compares them with `ndarray` and plain loops.
#[derive(Debug, Parser)]
#[command(name = "tensors")]
struct Settings {
    /// Measure this many rounds and print medians
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = crate::at_least_one)]
    rounds: usize,

    /// Leave out data that is larger than every cache, and repeat each operation less often
    #[arg(long)]
    quick: bool,

    /// Measure only operations with this text in their names
    #[arg(long, value_name = "NAME")]
    only: Option<String>,

    /// Call the operation NAME on 1,000 elements COUNT times and print nothing, to count its instructions. NAME may end with
    /// "by ndarray" or "by plain"
    #[arg(long, num_args = 2, value_names = ["NAME", "COUNT"])]
    calls: Option<Vec<String>>,
}

impl Settings {
    /// Returns whether an operation is measured.
    fn includes(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only))
    }
}

const SMALL: usize = 1_000;
const SIZES: [(&str, usize); 3] = [("1 k", SMALL), ("1 M", 1_000_000), ("64 M", 64 << 20)];

/// Calls `work` and returns its result and the number of allocations from the pool that it made.
fn counted<T>(pool: &Pool, work: impl FnOnce() -> T) -> (T, u64) {
    let before = pool.stats().allocations;
    let result = work();
    (result, pool.stats().allocations - before)
}

fn operations(settings: &Settings) -> Result<(), Box<dyn Error>> {
    let pool = pools().host()?;
    set_threads(1);
    let mut table = Table::new(&[
        "",
        "ns/element (min to max)",
        "GB/s",
        "of best",
        "ndarray",
        "plain loop",
        "allocs",
    ]);
    for (label, len) in SIZES {
        if settings.quick && len > 1_000_000 {
            continue;
        }
        let mut arrays = Arrays::new(&pool, len)?;
        let rounds = settings.rounds.min(if len > 1_000_000 { 7 } else { usize::MAX });
        let elements = if settings.quick { 200_000 } else { 2_000_000 };
        let passes = (elements / len).max(1);
        let mut bandwidth = f64::NAN;
        for case in &CASES {
            let gauge = matches!(case.name, COPY | TRIAD);
            if !gauge && !settings.includes(case.name) {
                continue;
            }
            // Values grow over the rounds, and sums must stay exact, so each case starts with the same small values.
            arrays.a.copy_from(&arrays.b)?;
            let (mut results, mut allocations) = ([0.0; 3], 0);
            let times = in_turn::<3, Box<dyn Error>>(rounds, |turn| {
                let side = Side::ALL[turn];
                let (time, asked) = counted(&pool, || {
                    repeat(Clock::Thread, passes, || {
                        results[turn] = case.call(side, black_box(&mut arrays))?;
                        Ok::<(), Box<dyn Error>>(())
                    })
                });
                allocations += if side == Side::Tensor { asked } else { 0 };
                Ok(time? / len as f64)
            })?;
            // Sums in `f32` differ by rounding.
            let differs = |other: f64| (results[0] - other).abs() > 0.02 * results[0].abs();
            if len <= 1_000_000 && results.into_iter().any(differs) {
                return Err(format!(
                    "{}: tensor, ndarray and plain loop give different results: {results:?}",
                    case.name
                )
                .into());
            }
            if gauge {
                bandwidth = bandwidth.max(case.bytes as f64 / times[2].median());
            }
            let spread = times[0].spread();
            let rate = case.bytes as f64 / spread.median;
            table.row([
                format!("{} {label}", case.name),
                spread.show(fixed(3)),
                format!("{rate:.1}"),
                format!("{:.2}", rate / bandwidth),
                format!("{:.2}x", times[1].over(&times[0]).median()),
                format!("{:.2}x", times[2].over(&times[0]).median()),
                format!("{:.2}", allocations as f64 / ((rounds + 1) * passes) as f64),
            ]);
        }
    }
    print!("{table}");
    println!(
        "of best: the rate over that of the faster plain loop, copy or triad, at that size\n\
         ndarray, plain loop: their time over that of the tensor\n\
         allocs: allocations from the pool per call of the tensor's operation\n"
    );
    Ok(())
}

/// Calls an operation `count` times.
fn calls(name: &str, count: usize) -> Result<(), Box<dyn Error>> {
    set_threads(1);
    let (name, side) = name.split_once(" by ").unwrap_or((name, "tensor"));
    let mut arrays = Arrays::new(&pools().host()?, SMALL)?;
    if let Some((_, _, chain)) = views::CHAINS.iter().find(|(chain, ..)| *chain == name) {
        return Ok((0..count).try_for_each(|_| chain(black_box(&arrays.a)))?);
    }
    let case = Case::named(name)?;
    let side = match side {
        "tensor" => Side::Tensor,
        "ndarray" => Side::Ndarray,
        _ => Side::Plain,
    };
    for _ in 0..count {
        black_box(case.call(side, black_box(&mut arrays))?);
    }
    Ok(())
}

/// Runs the measurement and prints the tables. `arguments` are those of the program with this name.
///
/// # Errors
/// Returns an error if the arguments are invalid, memory or files are not available, or the sides disagree.
pub fn run(arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let settings: Settings = crate::parse("tensors", arguments);
    if let Some([name, count]) = settings.calls.as_deref() {
        return calls(name, count.parse()?);
    }
    println!(
        "f32; processor time of this thread; {} interleaved rounds, at most 7 for more than 1 M elements\n",
        settings.rounds
    );
    operations(&settings)?;
    temporaries::measure(&settings)?;
    products::measure(&settings)?;
    shared::measure(&settings)?;
    views::measure(&settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond::Tensor;

    #[test]
    fn all_sides_write_the_same() -> Result<(), Box<dyn Error>> {
        let pool = pools().host()?;
        for case in &CASES {
            let mut results = Vec::new();
            for side in Side::ALL {
                let mut arrays = Arrays::new(&pool, 100)?;
                let number = case.call(side, &mut arrays)?;
                let (a, b, out) = arrays.slices()?;
                results.push((number, a.to_vec(), b.to_vec(), out.to_vec()));
            }
            let [tensor, ndarray, plain] = &results[..] else {
                return Err("there are three sides".into());
            };
            // For two products, ndarray creates a new array each time.
            let wrote = case.name == "add of two products" || tensor == ndarray;
            assert!(tensor == plain && wrote, "{}", case.name);
            let before = Arrays::new(&pool, 100)?;
            let idle = number_of(tensor) == 0.0
                && tensor.1 == before.a.to_vec::<f32>()?
                && tensor.3.iter().all(|out| *out == 0.0);
            assert_eq!(idle, case.name.ends_with("new"), "{}", case.name);
        }
        Ok(())
    }

    fn number_of(result: &(f64, Vec<f32>, Vec<f32>, Vec<f32>)) -> f64 {
        result.0
    }

    #[test]
    fn dropped_views_hold_no_memory() -> Result<(), Box<dyn Error>> {
        let pool = pools().host()?;
        let whole = Tensor::zeros_in(&pool, [SMALL], millpond::DType::F32)?;
        for (name, _, chain) in views::CHAINS {
            let before = whole.holders();
            chain(&whole)?;
            assert_eq!(whole.holders(), before, "{name}");
        }
        Ok(())
    }
}
