//! A training loop that manages its memory. Products are written to existing tensors, and updates are made in place.
//! Before each step a monitor compacts if more than 20 % of the reserved memory is idle, as it is after reading the
//! data. After the first step no allocation reaches the system, and nothing leaks. Exits with code 1 if this fails, or
//! if nothing was learnt.
//!
//! ```text
//! cargo run -p millpond --example training_loop
//! ```

use millpond::{DType, Pool, PoolStats, Pools, Tensor, TensorError};
use std::error::Error;
use std::process::ExitCode;

const FEATURES: usize = 64;
const OUTPUTS: usize = 32;
const BATCH: usize = 960;
const EPOCHS: usize = 3;
/// A compaction is worthwhile from this fragmentation on.
const FRAGMENTED: f64 = 0.2;

/// Returns a number between -1 and 1 that depends only on its position.
fn noise(place: usize) -> f32 {
    let mixed = (place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Compacts if too much memory is idle. Returns true if it did.
fn look_after(set: &Pools) -> bool {
    let stats = set.stats();
    if stats.fragmentation_ratio() <= FRAGMENTED {
        return false;
    }
    let idle = 100.0 * stats.fragmentation_ratio();
    println!(
        "{idle:.0} % of the reserved memory is unused, compacting: {}",
        set.compact()
    );
    true
}

/// Reads the data in parts of different lengths. Every fourth part is kept for validation, and the others are
/// concatenated.
fn read() -> Result<(Tensor, Vec<Tensor>), TensorError> {
    let mut parts = Vec::new();
    for part in 0..64 {
        let rows = 500 + 28 * (part * 3 % 8);
        parts.push(Tensor::from_fn([rows, FEATURES], |at| {
            noise((part * 1000 + at[0]) * FEATURES + at[1])
        })?);
    }
    let (kept, mixed): (Vec<_>, Vec<_>) = parts.into_iter().enumerate().partition(|(at, _)| at % 4 == 0);
    let rows = mixed.iter().map(|(_, part)| part.shape()[0]).sum::<usize>();
    let (mut inputs, mut row) = (Tensor::zeros([rows, FEATURES], DType::F32)?, 0);
    for (_, part) in &mixed {
        let end = row + part.shape()[0];
        inputs.view_mut()?.slice(0, row..end)?.copy_from(part)?;
        row = end;
    }
    Ok((inputs, kept.into_iter().map(|(_, part)| part).collect()))
}

/// The learnt weights, and the tensors that each step writes.
struct Model {
    weights: Tensor,
    velocity: Tensor,
    outputs: Tensor,
}

impl Model {
    fn new() -> Result<Self, TensorError> {
        let shape = [FEATURES, OUTPUTS];
        Ok(Self {
            weights: Tensor::zeros(shape, DType::F32)?,
            velocity: Tensor::zeros(shape, DType::F32)?,
            outputs: Tensor::zeros([BATCH, OUTPUTS], DType::F32)?,
        })
    }

    /// Runs one step on a batch. The last batch may be short.
    fn step(&mut self, batch: &Tensor, truth: &Tensor) -> Result<(), TensorError> {
        let rows = batch.size(0)?;
        let mut error = self.outputs.view_mut()?.slice(0, ..rows)?;
        batch.matmul_into(&self.weights, &mut error)?;
        error.sub_assign(truth)?;
        // This is the only new tensor of a step. It comes from the pool and returns to it.
        let gradient = batch.transpose(0, 1)?.matmul(error.as_ref())?;
        self.velocity.mul_assign(0.5)?;
        self.velocity.axpy(-0.5 / rows as f32, &gradient)?;
        self.weights.add_assign(&self.velocity)
    }

    /// Returns the squared error on parts that were not used for training.
    fn loss(&self, kept: &[Tensor], teacher: &Tensor) -> Result<f64, TensorError> {
        kept.iter().try_fold(0.0, |sum, part| {
            let mut error = part.matmul(&self.weights)?;
            error.sub_assign(&part.matmul(teacher)?)?;
            let error = error.reshape([error.len()])?;
            Ok(sum + error.dot(&error)?.to_f64().unwrap_or(f64::NAN))
        })
    }
}

/// Returns the number of allocations that called the source, which are those without a hit.
fn calls(stats: &PoolStats) -> u64 {
    stats.allocations - stats.hits
}

fn train(set: &Pools) -> Result<bool, Box<dyn Error>> {
    let (inputs, kept) = read()?;
    let teacher = Tensor::from_fn([FEATURES, OUTPUTS], |at| noise(at[0] * 7919 + at[1]))?;
    let truths = inputs.matmul(&teacher)?;
    let mut model = Model::new()?;
    let before = model.loss(&kept, &teacher)?;

    let held = set.stats().total.requested.current;
    let (mut first, mut steps, mut compactions) = (None, 0, [0, 0]);
    for _ in 0..EPOCHS {
        for (batch, truth) in inputs.batches(0, BATCH)?.zip(truths.batches(0, BATCH)?) {
            compactions[steps.min(1)] += usize::from(look_after(set));
            model.step(&batch, &truth)?;
            first.get_or_insert_with(|| set.stats().total);
            steps += 1;
        }
    }
    let last = set.stats().total;
    let first = first.ok_or("there are no batches")?;
    let after = model.loss(&kept, &teacher)?;

    let later = calls(&last) - calls(&first);
    println!(
        "{steps} steps, {} allocations: {} called the system up to the first step, {later} in all others",
        last.allocations,
        calls(&first)
    );
    println!(
        "reserved {} bytes after the first step and {} after the last; requested {held} before and {} after",
        first.reserved.current, last.reserved.current, last.requested.current
    );
    println!(
        "compactions: {} before the first step, {} later; loss {before:.0}, then {after:.6}",
        compactions[0], compactions[1]
    );
    let steady = later == 0 && last.allocations > first.allocations && last.reserved == first.reserved;
    let tended = compactions == [1, 0] && last.fragmentation_ratio() <= FRAGMENTED;
    Ok(steady && tended && last.requested.current == held && calls(&first) > 0 && after < before / 1000.0)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    // Idle memory stays until the monitor releases it. With a limit of 128 MiB or less, a pool uses pages that are
    // small enough to be released one by one.
    let set = Pools::with(Pool::builder().settings("").limit(64 << 20).trim_every(None));
    let trained = set.scope(|| train(&set))?;
    let end = set.stats().total;
    println!(
        "after all tensors were dropped: requested {} bytes, {} frees",
        end.requested.current, end.frees
    );
    let proven = trained && end.requested.current == 0 && end.frees == end.allocations;
    println!(
        "it learnt, is steady and free of leaks: {}",
        if proven { "proven" } else { "NO" }
    );
    Ok(if proven {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
