//! A loop as training has it: weights that stay, activations and gradients that come and go. After the first step no
//! allocation reaches the system, and nothing leaks. Ends with exit code 1 if either is not so.

use millpond::{AllocError, Buffer, Pool};
use std::error::Error;
use std::process::ExitCode;

const LAYERS: usize = 12;
const STEPS: usize = 50;
/// Elements of a layer's weights: 1 MiB each. A batch's activations are four times as large.
const WEIGHTS: usize = 256 << 10;

/// One step: forward keeps an activation for each layer, backward frees them and updates in place.
fn step(pool: &Pool, weights: &mut [Buffer<f32>]) -> Result<(), AllocError> {
    let mut activations = Vec::with_capacity(LAYERS);
    for layer in weights.iter() {
        let scratch = pool.alloc_from(layer)?;
        let mut activation = pool.alloc_zeroed::<f32>(4 * WEIGHTS)?;
        activation[0] = scratch[0];
        activations.push(activation);
    }
    for layer in weights.iter_mut().rev() {
        let mut gradient = pool.alloc_zeroed::<f32>(WEIGHTS)?;
        gradient[0] = activations.pop().map_or(0.0, |activation| activation[0]);
        layer[0] += 0.1 * gradient[0];
    }
    Ok(())
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let pool = Pool::host()?;
    let layers = (0..LAYERS).map(|_| pool.alloc_from(&vec![1.0f32; WEIGHTS]));
    let mut weights = layers.collect::<Result<Vec<_>, _>>()?;
    let held = pool.stats().requested.current;
    step(&pool, &mut weights)?;
    let first = pool.stats();
    for _ in 1..STEPS {
        step(&pool, &mut weights)?;
    }
    let last = pool.stats();
    // An allocation that is no hit has called the source.
    let calls = |stats: millpond::PoolStats| stats.allocations - stats.hits;
    let later = calls(last) - calls(first);
    println!(
        "{STEPS} steps, {} allocations: {} called the system in the first step, {later} in all others",
        last.allocations,
        calls(first)
    );
    println!(
        "reserved {} bytes after the first step and {} after the last; requested {held} before and {} after",
        first.reserved.current, last.reserved.current, last.requested.current
    );
    drop(weights);
    let end = pool.stats();
    println!(
        "with the weights gone: requested {} bytes, {} frees",
        end.requested.current, end.frees
    );
    let steady = later == 0 && last.reserved.peak == first.reserved.peak;
    let leaks = last.requested.current != held || end.requested.current != 0 || end.frees != end.allocations;
    let proven = steady && !leaks && calls(first) > 0;
    println!(
        "steady and free of leaks: {}",
        if proven { "proven" } else { "NO" }
    );
    Ok(if proven {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
