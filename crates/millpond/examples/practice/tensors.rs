//! Practices with tensors.

use crate::linux::{Practice, Round};
use crate::time::{Outcome, each, practice, quiet};
use millpond::{DType, Pools, Tensor, TensorMut, TensorRef};
use std::error::Error;
use std::hint::black_box;

pub(crate) const PRACTICES: [Practice; 5] = [
    practice("a view of a part", "a deep copy of it", view),
    practice("update a tensor in place", "a new one for each step", in_place),
    practice("products into a tensor", "a new one for each", product),
    practice("batches of what is large", "all of it, step by step", batches),
    practice(
        "a field in an array of its own",
        "among others in structures",
        fields,
    ),
];

/// Runs `work` with a new pool, on the calling thread only.
fn drawing(work: impl FnOnce() -> Outcome) -> Outcome {
    millpond::set_threads(1);
    Pools::with(quiet()).scope(work)
}

fn view() -> Outcome {
    drawing(|| {
        let table = Tensor::ones([1000, 1000], DType::F32)?;
        let part = |at: usize| table.slice(0, at * 10..at * 10 + 100);
        let mut at = 0;
        let mut next = || {
            at = (at + 1) % 90;
            at
        };
        let good = each(64, || {
            black_box(part(next())?);
            Ok(())
        })?;
        let bad = each(64, || {
            black_box(part(next())?.deep_copy()?);
            Ok(())
        })?;
        Ok(Round { good, bad })
    })
}

fn in_place() -> Outcome {
    drawing(|| {
        let mut tensor = Tensor::ones([512, 512], DType::F32)?;
        let step = Tensor::full([512, 512], 0.5f32)?;
        let good = each(64, || {
            tensor.mul_assign(0.5)?;
            Ok(tensor.add_assign(&step)?)
        })?;
        let bad = each(64, || {
            tensor = tensor.mul(0.5)?.add(&step)?;
            Ok(())
        })?;
        black_box(tensor);
        Ok(Round { good, bad })
    })
}

fn product() -> Outcome {
    drawing(|| {
        let batch = Tensor::ones([512, 32], DType::F32)?;
        let weights = Tensor::full([32, 512], 0.5f32)?;
        let mut out = Tensor::zeros([512, 512], DType::F32)?;
        let good = each(16, || Ok(batch.matmul_into(&weights, &mut out)?))?;
        let bad = each(16, || {
            black_box(batch.matmul(&weights)?);
            Ok(())
        })?;
        Ok(Round { good, bad })
    })
}

/// Runs three steps on 64 MiB. A batch is still in the cache when the next step reads it.
fn batches() -> Outcome {
    fn steps(mut part: TensorMut<'_>) -> Result<(), Box<dyn Error>> {
        part.mul_assign(0.5)?;
        part.add_assign(1.0)?;
        part.mul_assign(2.0)?;
        Ok(())
    }
    drawing(|| {
        let mut large = Tensor::zeros([16 << 20], DType::F32)?;
        large.fill(1.0)?;
        let good = each(1, || large.view_mut()?.batches(0, 16 << 10)?.try_for_each(steps))?;
        let bad = each(1, || steps(large.view_mut()?))?;
        Ok(Round { good, bad })
    })
}

/// Sums one number of each of 200,000 elements of 64 bytes. [`millpond::Soa`] generates such arrays for a structure.
fn fields() -> Outcome {
    drawing(|| {
        let structures = Tensor::ones([200_000, 16], DType::F32)?;
        let masses = Tensor::ones([200_000], DType::F32)?;
        let sum = |masses: TensorRef<'_>| {
            let sum = black_box(masses).sum()?;
            black_box(sum);
            Ok(())
        };
        let good = each(8, || sum(masses.view()?))?;
        let bad = each(8, || sum(structures.view()?.select(1, 7)?))?;
        Ok(Round { good, bad })
    })
}
