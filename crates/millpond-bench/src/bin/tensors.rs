//! What operations on tensors cost beside `ndarray` and beside plain loops over slices: `axpy`, `scal`, add, sum and dot, in
//! place, into an output and as a new array; the bandwidth of the memory in the same run; allocations for each call by the
//! pool's counter; and what a step from view to view takes.
//!
//! All sides work on the same memory of one pool and take turns within each round. Printed are medians with the least and
//! the most, for each element; GB/s of what has to be moved, a line that is written without having been read counted twice
//! (it is read first); and how that stands to the best of the plain loops that only copy, or add one array to a multiple of
//! another, at that size. Ratios are medians of those of the rounds: above 1 the tensor is faster. Ends with an error where
//! the sides disagree.

use millpond::{Pool, Tensor, TensorError, pools, set_threads, threads};
use millpond_bench::{CpuClock, Table};
use ndarray::{ArrayView1, ArrayViewMut1, Zip};
use std::error::Error;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

const HELP: &str = "tensors [--rounds N] [--quick] [--only NAME] [--calls NAME COUNT]
--quick leaves out what is larger than every cache; --only measures what has NAME in its name
--calls calls one operation on 1,000 elements so often and prints nothing, for who counts its instructions";

const SMALL: usize = 1_000;
const SIZES: [(&str, usize); 3] = [("1 k", SMALL), ("1 M", 1_000_000), ("64 M", 64 << 20)];
const FACTOR: f32 = 0.5;
/// Sums side by side, so that a plain loop does not wait for one addition to end before the next.
const LANES: usize = 16;

/// The first input, which is written in place, the second, and the output.
type Slices<'a> = (&'a mut [f32], &'a [f32], &'a mut [f32]);

/// Two inputs and an output, of one length.
struct Arrays {
    a: Tensor,
    b: Tensor,
    out: Tensor,
}

impl Arrays {
    fn new(pool: &Pool, len: usize) -> Result<Self, TensorError> {
        // Small whole numbers, so that sums are the same in any order as long as they are exact.
        let ramp = |step: usize| Tensor::from_fn_in(pool, [len], |at| (at[0] * step % 8) as f32);
        Ok(Self {
            a: ramp(3)?,
            b: ramp(5)?,
            out: Tensor::zeros_in(pool, [len], millpond::DType::F32)?,
        })
    }

    fn slices(&mut self) -> Result<Slices<'_>, TensorError> {
        Ok((
            self.a.as_mut_slice()?,
            self.b.as_slice()?,
            self.out.as_mut_slice()?,
        ))
    }
}

/// One side of a comparison: what came of it, where that is a number.
type Side = fn(&mut Arrays) -> Result<f64, TensorError>;

/// An operation by all sides.
struct Case {
    name: &'static str,
    /// Bytes that have to be moved for each element.
    bytes: usize,
    tensor: Side,
    ndarray: Side,
    plain: Side,
}

fn sum_plain(a: &[f32], of: impl Fn(usize, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (whole, rest) = a.as_chunks::<LANES>();
    for (chunk, some) in whole.iter().enumerate() {
        for (lane, (sum, a)) in lanes.iter_mut().zip(some).enumerate() {
            *sum += of(chunk * LANES + lane, *a);
        }
    }
    let first = a.len() - rest.len();
    let rest: f32 = rest.iter().enumerate().map(|(at, a)| of(first + at, *a)).sum();
    lanes.iter().sum::<f32>() + rest
}

fn dot_plain(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

fn number(scalar: millpond::Scalar) -> f64 {
    scalar.to_f64().unwrap_or(f64::NAN)
}

const COPY: &str = "copy";
const TRIAD: &str = "triad";

const CASES: [Case; 13] = [
    Case {
        name: COPY,
        bytes: 12,
        tensor: |x| x.out.copy_from(&x.a).map(|()| 0.0),
        ndarray: |x| {
            let (a, _, out) = x.slices()?;
            ArrayViewMut1::from(out).assign(&ArrayView1::from(&*a));
            Ok(0.0)
        },
        plain: |x| {
            let (a, _, out) = x.slices()?;
            // Not `copy_from_slice`, which may go past the caches.
            for (out, a) in out.iter_mut().zip(&*a) {
                *out = *a + 0.0;
            }
            Ok(0.0)
        },
    },
    Case {
        name: TRIAD,
        bytes: 16,
        tensor: |x| x.a.add_scaled_into(FACTOR, &x.b, &mut x.out).map(|()| 0.0),
        ndarray: |x| {
            let (a, b, out) = x.slices()?;
            let zip = Zip::from(ArrayViewMut1::from(out)).and(ArrayView1::from(&*a));
            zip.and(ArrayView1::from(b))
                .for_each(|out, a, b| *out = a + FACTOR * b);
            Ok(0.0)
        },
        plain: |x| {
            let (a, b, out) = x.slices()?;
            for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
                *out = a + FACTOR * b;
            }
            Ok(0.0)
        },
    },
    Case {
        name: "axpy in place",
        bytes: 12,
        tensor: |x| x.a.axpy(FACTOR, &x.b).map(|()| 0.0),
        ndarray: |x| {
            let (a, b, _) = x.slices()?;
            ArrayViewMut1::from(a).scaled_add(FACTOR, &ArrayView1::from(b));
            Ok(0.0)
        },
        plain: |x| {
            let (a, b, _) = x.slices()?;
            for (a, b) in a.iter_mut().zip(b) {
                *a += FACTOR * b;
            }
            Ok(0.0)
        },
    },
    Case {
        name: "axpy new",
        bytes: 16,
        tensor: |x| {
            x.a.add_scaled(FACTOR, &x.b)
                .map(|new| drop(black_box(new)))
                .map(|()| 0.0)
        },
        ndarray: |x| {
            let (a, b, _) = x.slices()?;
            let (a, b) = (ArrayView1::from(&*a), ArrayView1::from(b));
            drop(black_box(&a + FACTOR * &b));
            Ok(0.0)
        },
        plain: |x| {
            let (a, b, _) = x.slices()?;
            let new: Vec<f32> = a.iter().zip(b).map(|(a, b)| a + FACTOR * b).collect();
            drop(black_box(new));
            Ok(0.0)
        },
    },
    Case {
        name: "scal in place",
        bytes: 8,
        tensor: |x| x.a.scal(FACTOR).map(|()| 0.0),
        ndarray: |x| {
            let (a, _, _) = x.slices()?;
            let mut a = ArrayViewMut1::from(a);
            a *= FACTOR;
            Ok(0.0)
        },
        plain: |x| {
            let (a, _, _) = x.slices()?;
            a.iter_mut().for_each(|a| *a *= FACTOR);
            Ok(0.0)
        },
    },
    Case {
        name: "scal into",
        bytes: 12,
        tensor: |x| x.a.mul_into(FACTOR, &mut x.out).map(|()| 0.0),
        ndarray: |x| {
            let (a, _, out) = x.slices()?;
            let zip = Zip::from(ArrayViewMut1::from(out)).and(ArrayView1::from(&*a));
            zip.for_each(|out, a| *out = FACTOR * a);
            Ok(0.0)
        },
        plain: |x| {
            let (a, _, out) = x.slices()?;
            for (out, a) in out.iter_mut().zip(&*a) {
                *out = FACTOR * a;
            }
            Ok(0.0)
        },
    },
    Case {
        name: "scal new",
        bytes: 12,
        tensor: |x| x.a.mul(FACTOR).map(|new| drop(black_box(new))).map(|()| 0.0),
        ndarray: |x| {
            let (a, _, _) = x.slices()?;
            drop(black_box(&ArrayView1::from(&*a) * FACTOR));
            Ok(0.0)
        },
        plain: |x| {
            let (a, _, _) = x.slices()?;
            drop(black_box(a.iter().map(|a| FACTOR * a).collect::<Vec<f32>>()));
            Ok(0.0)
        },
    },
    Case {
        name: "add in place",
        bytes: 12,
        tensor: |x| x.a.add_assign(&x.b).map(|()| 0.0),
        ndarray: |x| {
            let (a, b, _) = x.slices()?;
            ArrayViewMut1::from(a).zip_mut_with(&ArrayView1::from(b), |a, b| *a += b);
            Ok(0.0)
        },
        plain: |x| {
            let (a, b, _) = x.slices()?;
            for (a, b) in a.iter_mut().zip(b) {
                *a += b;
            }
            Ok(0.0)
        },
    },
    Case {
        name: "add into",
        bytes: 16,
        tensor: |x| x.a.add_into(&x.b, &mut x.out).map(|()| 0.0),
        ndarray: |x| {
            let (a, b, out) = x.slices()?;
            let zip = Zip::from(ArrayViewMut1::from(out)).and(ArrayView1::from(&*a));
            zip.and(ArrayView1::from(b)).for_each(|out, a, b| *out = a + b);
            Ok(0.0)
        },
        plain: |x| {
            let (a, b, out) = x.slices()?;
            for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
                *out = a + b;
            }
            Ok(0.0)
        },
    },
    Case {
        name: "add new",
        bytes: 16,
        tensor: |x| x.a.add(&x.b).map(|new| drop(black_box(new))).map(|()| 0.0),
        ndarray: |x| {
            let (a, b, _) = x.slices()?;
            drop(black_box(&ArrayView1::from(&*a) + &ArrayView1::from(b)));
            Ok(0.0)
        },
        plain: |x| {
            let (a, b, _) = x.slices()?;
            let new: Vec<f32> = a.iter().zip(b).map(|(a, b)| a + b).collect();
            drop(black_box(new));
            Ok(0.0)
        },
    },
    Case {
        name: "add of two products",
        bytes: 16,
        // What temporaries save: both products at once, in two passes and in three.
        tensor: |x| {
            x.a.mul_into(FACTOR, &mut x.out)?;
            x.out.axpy(FACTOR, &x.b).map(|()| 0.0)
        },
        ndarray: |x| {
            let (a, b, _) = x.slices()?;
            let (a, b) = (ArrayView1::from(&*a), ArrayView1::from(b));
            drop(black_box(&a * FACTOR + &b * FACTOR));
            Ok(0.0)
        },
        plain: |x| {
            let (a, b, out) = x.slices()?;
            for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
                *out = a * FACTOR + b * FACTOR;
            }
            Ok(0.0)
        },
    },
    Case {
        name: "sum",
        bytes: 4,
        tensor: |x| x.b.sum().map(number),
        ndarray: |x| Ok(f64::from(ArrayView1::from(x.b.as_slice::<f32>()?).sum())),
        plain: |x| Ok(f64::from(sum_plain(x.b.as_slice()?, |_, b| b))),
    },
    Case {
        name: "dot",
        bytes: 8,
        tensor: |x| x.a.dot(&x.b).map(number),
        ndarray: |x| {
            let (a, b, _) = x.slices()?;
            Ok(f64::from(ArrayView1::from(&*a).dot(&ArrayView1::from(b))))
        },
        plain: |x| {
            let (a, b, _) = x.slices()?;
            Ok(f64::from(dot_plain(a, b)))
        },
    },
];

/// The least, the middle and the most.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [0, values.len() / 2, values.len().saturating_sub(1)]
        .map(|at| values.get(at).copied().unwrap_or(f64::NAN))
}

/// Nanoseconds for an element by each side, in each round.
struct Times {
    sides: [Vec<f64>; 3],
    /// What the pool was asked for, for each call of the tensor's side.
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
                // Each side goes first as often as the others.
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
                // The first round brings memory to where it will be.
                if round > 0 {
                    times.sides[side].push(time);
                }
            }
            // What is added up in `f32` is off by rounding.
            let [ours, ndarray, plain] = found;
            let off = |other: f64| (ours - other).abs() > 0.02 * ours.abs();
            if len <= 1_000_000 && (off(ndarray) || off(plain)) {
                return Err(format!("{}: the sides come to {found:?}", case.name).into());
            }
        }
        times.allocations = asked as f64 / ((rounds + 1) * passes) as f64;
        Ok(times)
    }

    /// How many times as long another side takes.
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
        "of bandwidth",
        "ndarray takes",
        "a plain loop",
        "allocations",
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
            // Factors and sums add up over the rounds, and may not grow beyond what is exact.
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
    println!("bandwidth: the better of the plain loops that copy and add, at that size\n");
    Ok(())
}

/// What several threads make of an operation, by the clock on the wall.
fn shared(settings: &Settings) -> Result<(), Box<dyn Error>> {
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

/// Steps from view to view, and how many they are.
type Chain = (&'static str, usize, fn(&Tensor) -> Result<(), TensorError>);

const CHAINS: [Chain; 4] = [
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

fn views(settings: &Settings) -> Result<(), Box<dyn Error>> {
    let pool = pools().host()?;
    let whole = Tensor::zeros_in(&pool, [SMALL], millpond::DType::F32)?;
    let mut table = Table::new(&["views", "ns for a step (least to most)", "allocations"]);
    let before = pool.stats().allocations;
    for (name, steps, chain) in CHAINS {
        let passes = 200_000 / steps;
        let mut times = Vec::new();
        for _ in 0..settings.rounds {
            let clock = CpuClock::start();
            for _ in 0..passes {
                chain(black_box(&whole))?;
            }
            times.push(clock.nanoseconds() / (passes * steps) as f64);
        }
        let [least, middle, most] = spread(times);
        table.row(vec![
            name.to_owned(),
            format!("{middle:.1} ({least:.1} to {most:.1})"),
            (pool.stats().allocations - before).to_string(),
        ]);
    }
    println!("{table}");
    Ok(())
}

/// Calls something so often.
fn calls(name: &str, count: usize) -> Result<(), Box<dyn Error>> {
    set_threads(1);
    let (name, side) = name.split_once(" by ").unwrap_or((name, "tensor"));
    let pool = pools().host()?;
    let mut arrays = Arrays::new(&pool, SMALL)?;
    if let Some((_, _, chain)) = CHAINS.iter().find(|(chain, ..)| *chain == name) {
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

fn run() -> Result<(), Box<dyn Error>> {
    let settings = Settings::read(std::env::args().skip(1))?;
    if let Some((name, count)) = &settings.calls {
        return calls(name, *count);
    }
    println!(
        "f32; {} rounds in turn (7 at most of what no cache holds), time of this thread\n",
        settings.rounds
    );
    operations(&settings)?;
    shared(&settings)?;
    views(&settings)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tensors: {error}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            // Of two products ndarray makes a new array each time.
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
        for (name, _, chain) in CHAINS {
            let before = whole.holders();
            chain(&whole)?;
            assert_eq!(whole.holders(), before, "{name}");
        }
        Ok(())
    }
}
