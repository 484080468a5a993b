//! Plants a leak in a small model and finds it: by the growth of memory between steps, by tag, by size, and, with the
//! feature `stacks`, by the function that allocated it. Exits with code 1 if it is not found, or if anything else is
//! reported as a leak.
//!
//! ```text
//! cargo run -p millpond --example leak_hunt --features stacks
//! ```

use millpond::{AllocError, Buffer, Pool, Tracking, tag};
use std::error::Error;
use std::process::ExitCode;

const STEPS: usize = 20;
const LAYERS: usize = 6;
/// The elements of a layer.
const WIDTH: usize = 16 << 10;
/// The elements of a leaked buffer: 12 KiB, in the third layer only.
const SCORES: usize = 3 << 10;

struct Model {
    weights: Vec<Buffer<f32>>,
    /// These should be freed after each step and are not. This is the leak.
    scores: Vec<Buffer<f32>>,
}

#[inline(never)]
fn attention(pool: &Pool, model: &mut Model, layer: usize) -> Result<f32, AllocError> {
    let _scope = tag("attention");
    let scores = pool.alloc_zeroed::<f32>(SCORES)?;
    let sum = scores.iter().sum();
    if layer == 2 {
        model.scores.push(scores);
    }
    Ok(sum)
}

#[inline(never)]
fn feed_forward(pool: &Pool, model: &Model, layer: usize) -> Result<f32, AllocError> {
    let _scope = tag("feed forward");
    let hidden = pool.alloc_from(&model.weights[layer])?;
    Ok(hidden[0])
}

fn step(pool: &Pool, model: &mut Model) -> Result<f32, AllocError> {
    let mut loss = 0.0;
    for layer in 0..LAYERS {
        loss += attention(pool, model, layer)? + feed_forward(pool, model, layer)?;
    }
    Ok(loss)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let pool = Pool::builder()
        .name("model")
        .track(Some(Tracking::All))
        .leak_report(false)
        .host()?;
    let weights = {
        let _scope = tag("weights");
        let layers = (0..LAYERS).map(|_| pool.alloc_zeroed::<f32>(WIDTH));
        layers.collect::<Result<Vec<_>, _>>()?
    };
    let scores = Vec::new();
    let mut model = Model { weights, scores };
    step(&pool, &mut model)?;

    // After the first step, the held memory is that of one step. Any growth after it is a leak.
    let held = pool.stats().requested.current;
    let check = pool.leak_check();
    let mut loss = 0.0;
    for _ in 0..STEPS {
        loss += step(&pool, &mut model)?;
    }
    let grown = pool.stats().requested.current - held;
    println!("{STEPS} steps, loss {loss}: {grown} bytes more than before\n");

    let report = check.finish();
    println!("{report}\n");
    let bytes = (STEPS * SCORES * size_of::<f32>()) as u64;
    // A call site may occur more than once because the compiler may unroll a loop.
    let attention = report.groups.iter().all(|group| group.tag.name() == "attention");
    let sums = (report.blocks, report.bytes) == (STEPS as u64, bytes);
    let by_tag = attention && sums && grown == bytes;
    println!("found by tag and size: {}", if by_tag { "proven" } else { "NO" });

    let by_place = if cfg!(feature = "stacks") {
        let places = report.groups.iter().filter_map(|group| {
            let innermost = group.stack.as_ref()?.user_frames().into_iter().next()?;
            innermost.function
        });
        let places: Vec<String> = places.collect();
        let right = places.len() == report.groups.len()
            && places
                .iter()
                .all(|function| function == "attention" || function.ends_with("::attention"));
        println!(
            "found by place: {}, in {}",
            if right { "proven" } else { "NO" },
            places.first().map_or("none", String::as_str)
        );
        right
    } else {
        println!("found by place: build it with --features stacks");
        true
    };

    // After the fix, no leak is left.
    model.scores.clear();
    let check = pool.leak_check();
    step(&pool, &mut model)?;
    model.scores.clear();
    let mended = check.finish().is_empty();
    println!("fixed: {}", if mended { "nothing is left: proven" } else { "NO" });
    Ok(if by_tag && by_place && mended {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
