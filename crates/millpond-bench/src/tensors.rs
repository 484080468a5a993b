//! Measures tensor operations and compares them with `ndarray` and with plain loops over slices: `axpy`, `scal`, add, sum and
//! dot, in place, into an output and as a new array. Also measures the memory bandwidth in the same run, allocations per call
//! by the pool's counter, temporary tensors with and without a pool, matrix products as new tensors and into existing ones, and
//! the cost of a step from view to view.
//!
//! All sides use the same memory of one pool and run in turn within each round. The output contains for each element the median
//! with the minimum and the maximum, the GB/s of data that must be moved, and their share of the best plain loop that only
//! copies or adds a multiple of one array to another at that size. A line that is written without being read counts twice,
//! because the processor reads it first. Ratios are medians over the rounds. Above 1 the tensor is faster. Fails if the sides
//! disagree.

mod cases;
mod products;
mod shared;
mod temporaries;
mod views;

use crate::{CpuClock, Table};
use cases::{Arrays, CASES, COPY, Case, TRIAD};
use millpond::{pools, set_threads};
use std::error::Error;
use std::hint::black_box;

const HELP: &str = "tensors [--rounds N] [--quick] [--only NAME] [--calls NAME COUNT]
--quick leaves out what is larger than every cache; --only measures what has NAME in its name
--calls calls one operation on 1,000 elements so often and prints nothing, for who counts its instructions";

const SMALL: usize = 1_000;
const SIZES: [(&str, usize); 3] = [("1 k", SMALL), ("1 M", 1_000_000), ("64 M", 64 << 20)];

/// Returns the minimum, the median and the maximum.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [0, values.len() / 2, values.len().saturating_sub(1)]
        .map(|at| values.get(at).copied().unwrap_or(f64::NAN))
}

/// Nanoseconds for an element by each side, in each round.
struct Times {
    sides: [Vec<f64>; 3],
    /// The pool's allocations for each call of the tensor's side.
    allocations: f64,
}

impl Times {
    fn measure(case: &Case, arrays: &mut Arrays, len: usize, rounds: usize) -> Result<Self, Box<dyn Error>> {
        let passes = (2_000_000 / len.max(1)).clamp(1, 2_000);
        let counted = || Ok::<u64, Box<dyn Error>>(pools().host()?.stats().allocations);
        let mut times = Self {
            sides: [const { Vec::new() }; 3],
            allocations: 0.0,
        };
        let mut asked = 0;
        for round in 0..=rounds {
            let mut found = [0.0; 3];
            for turn in 0..3 {
                // Each side goes first equally often.
                let side = (turn + round) % 3;
                let work = [case.tensor, case.ndarray, case.plain][side];
                let before = if side == 0 { counted()? } else { 0 };
                let clock = CpuClock::start();
                for _ in 0..passes {
                    found[side] = work(black_box(arrays))?;
                }
                let time = clock.nanoseconds() / (passes * len) as f64;
                if side == 0 {
                    asked += counted()? - before;
                }
                // The first round brings memory into its final state.
                if round > 0 {
                    times.sides[side].push(time);
                }
            }
            // Sums in `f32` differ by rounding.
            let [ours, ndarray, plain] = found;
            let off = |other: f64| (ours - other).abs() > 0.02 * ours.abs();
            if len <= 1_000_000 && (off(ndarray) || off(plain)) {
                return Err(format!("{}: the sides come to {found:?}", case.name).into());
            }
        }
        times.allocations = asked as f64 / ((rounds + 1) * passes) as f64;
        Ok(times)
    }

    /// Returns how many times as long another side takes.
    fn ratio(&self, side: usize) -> f64 {
        let both = self.sides[side].iter().zip(&self.sides[0]);
        spread(both.map(|(other, ours)| other / ours).collect())[1]
    }
}

fn operations(settings: &Settings) -> Result<(), Box<dyn Error>> {
    let pool = pools().host()?;
    set_threads(1);
    let mut table = Table::new(&[
        "",
        "ns each (least to most)",
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
        let rounds = if len > 1_000_000 {
            settings.rounds.min(7)
        } else {
            settings.rounds
        };
        let mut bandwidth = f64::NAN;
        for case in &CASES {
            let gauge = matches!(case.name, COPY | TRIAD);
            if !(gauge || settings.only.as_ref().is_none_or(|only| case.name.contains(only))) {
                continue;
            }
            // Factors and sums grow over the rounds, and must stay exact.
            arrays.a.copy_from(&arrays.b)?;
            let times = Times::measure(case, &mut arrays, len, rounds)?;
            if gauge {
                let best = case.bytes as f64 / spread(times.sides[2].clone())[1];
                bandwidth = bandwidth.max(best);
            }
            let [least, middle, most] = spread(times.sides[0].clone());
            let rate = case.bytes as f64 / middle;
            table.row(vec![
                format!("{} {label}", case.name),
                format!("{middle:.3} ({least:.3} to {most:.3})"),
                format!("{rate:.1}"),
                format!("{:.2}", rate / bandwidth),
                format!("{:.2}x", times.ratio(1)),
                format!("{:.2}x", times.ratio(2)),
                format!("{:.2}", times.allocations),
            ]);
        }
    }
    print!("{table}");
    println!(
        "of best: of the better of the plain loops that copy and add, at that size; ndarray, plain loop: how\n\
         many times as long they take; allocs: what the pool was asked for by a call\n"
    );
    Ok(())
}

/// Calls an operation `count` times.
fn calls(name: &str, count: usize) -> Result<(), Box<dyn Error>> {
    set_threads(1);
    let (name, side) = name.split_once(" by ").unwrap_or((name, "tensor"));
    let pool = pools().host()?;
    let mut arrays = Arrays::new(&pool, SMALL)?;
    if let Some((_, _, chain)) = views::CHAINS.iter().find(|(chain, ..)| *chain == name) {
        for _ in 0..count {
            chain(black_box(&arrays.a))?;
        }
        return Ok(());
    }
    let case = CASES.iter().find(|case| case.name == name);
    let case = case.ok_or_else(|| format!("there is no {name}"))?;
    let side = match side {
        "tensor" => case.tensor,
        "ndarray" => case.ndarray,
        _ => case.plain,
    };
    for _ in 0..count {
        black_box(side(black_box(&mut arrays))?);
    }
    Ok(())
}

struct Settings {
    rounds: usize,
    quick: bool,
    only: Option<String>,
    calls: Option<(String, usize)>,
}

impl Settings {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut settings = Self {
            rounds: 15,
            quick: false,
            only: None,
            calls: None,
        };
        while let Some(name) = arguments.next() {
            let mut value = || {
                let value = arguments.next();
                value.ok_or_else(|| format!("{name} has no value\n{HELP}"))
            };
            match name.as_str() {
                "--quick" => settings.quick = true,
                "--rounds" => settings.rounds = value()?.parse::<usize>()?.max(1),
                "--only" => settings.only = Some(value()?),
                "--calls" => settings.calls = Some((value()?, value()?.parse()?)),
                _ => return Err(format!("there is no {name}\n{HELP}").into()),
            }
        }
        Ok(settings)
    }
}

/// Runs the measurement and prints the tables. `arguments` are those of the program with this name.
///
/// # Errors
/// Returns an error if the arguments are invalid, memory or files are not available, or the sides disagree.
pub fn run(arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let settings = Settings::read(arguments)?;
    if let Some((name, count)) = &settings.calls {
        return calls(name, *count);
    }
    println!(
        "f32; {} rounds in turn (7 at most of what no cache holds), time of this thread\n",
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
            for side in [case.tensor, case.ndarray, case.plain] {
                let mut arrays = Arrays::new(&pool, 100)?;
                let number = side(&mut arrays)?;
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
    fn a_spread_is_of_values_of_the_sample() {
        assert_eq!(spread(vec![5.0, 1.0, 3.0, 2.0, 4.0]), [1.0, 3.0, 5.0]);
        assert_eq!(spread(vec![7.0]), [7.0; 3]);
    }

    #[test]
    fn views_ask_the_pool_for_nothing() -> Result<(), Box<dyn Error>> {
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
