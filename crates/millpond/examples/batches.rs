//! Processes a large tensor in batches. Batches are views, and each is processed in existing buffers. Temporary memory
//! of a step is freed with a scope. At the end the program proves that nothing was copied or allocated on the way.
//!
//! ```text
//! cargo run -p millpond --example batches
//! ```

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    match linux::run() {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(error) => {
            eprintln!("batches: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use millpond::{DType, Pool, Pools, Tensor, Workspace, pools};
    use std::error::Error;

    const ROWS: usize = 10_000;
    const COLUMNS: usize = 64;
    const BATCH: usize = 768;

    /// Subtracts the mean of each row and doubles the result. This is the obvious way to write it, with new tensors for each
    /// step.
    fn by_new_tensors(batch: &Tensor) -> Result<Tensor, Box<dyn Error>> {
        let means = batch.sum_dim(1)?.mul(1.0 / COLUMNS as f32)?;
        let centred = batch.sub(&means.unsqueeze(1)?)?;
        Ok(centred.mul(2.0)?)
    }

    /// Computes the same into a part of an existing tensor, with existing buffers.
    fn in_place(
        workspace: &mut Workspace,
        batch: &Tensor,
        mut out: millpond::TensorMut<'_>,
    ) -> Result<(), Box<dyn Error>> {
        workspace.scope_with(|_, scratch| {
            let mut means = scratch.tensor::<f32>([batch.size(0)?])?;
            batch.sum_dim_into(1, &mut means)?;
            means.scal(1.0 / COLUMNS as f32)?;
            batch.sub_into(means.as_ref().unsqueeze(1)?, &mut out)?;
            out.scal(2.0)?;
            Ok(())
        })
    }

    fn check(what: &str, holds: bool) -> bool {
        println!("{} {what}", if holds { "yes " } else { "NO  " });
        holds
    }

    pub(crate) fn run() -> Result<bool, Box<dyn Error>> {
        let data = Tensor::from_fn([ROWS, COLUMNS], |at| (at[0] % 17 + at[1]) as f32)?;
        println!("{data}\n");

        // The batches share the data's storage. The results are in order.
        let pool = pools().host()?;
        let before = pool.stats().requested.current;
        let batches: Vec<Tensor> = data.batches(0, BATCH)?.collect();
        let copied = pool.stats().requested.current - before;
        let last = batches.last().map_or(0, |batch| batch.shape()[0]);
        println!("{} batches, the last with {last} rows", batches.len());

        // The new tensors are made in a scope of their own, which frees its memory at the end.
        let set = Pools::new();
        let expected = set.scope(|| {
            let results = batches.iter().map(by_new_tensors);
            let results = results.collect::<Result<Vec<_>, _>>()?;
            println!("with new tensors: {} allocations", set.stats().total.allocations);
            // Results that outlive the scope are copied out of it.
            let kept = results.iter().map(|result| result.deep_copy_in(&pool));
            Ok::<_, Box<dyn Error>>(kept.collect::<Result<Vec<_>, _>>()?)
        })?;
        let left_in_scope = set.stats().total.reserved.current;
        drop(set);

        // This variant writes to one output, with a workspace that owns its pool.
        let own = Pool::host()?;
        let mut workspace = Workspace::builder(&own).scratch_bytes(4 * BATCH + 64).build()?;
        let mut out = Tensor::zeros_in(&own, [ROWS, COLUMNS], DType::F32)?;
        let before = (own.stats().allocations, pool.stats().allocations);
        for _ in 0..3 {
            let parts = out.view_mut()?.batches(0, BATCH)?;
            for (batch, part) in data.batches(0, BATCH)?.zip(parts) {
                in_place(&mut workspace, &batch, part)?;
            }
        }
        let asked = (
            own.stats().allocations - before.0,
            pool.stats().allocations - before.1,
        );
        println!("in place, three times: {} allocations", asked.0 + asked.1);

        let mut same = true;
        for (expected, found) in expected.iter().zip(out.batches(0, BATCH)?) {
            same &= expected.as_slice::<f32>()? == found.as_slice::<f32>()?;
        }
        let refused = data.free().err();
        let counted = refused.as_ref().map(|refused| refused.others);
        let many = batches.len();
        drop(batches);
        let freed = refused.is_some_and(|refused| refused.tensor.free().is_ok());
        let proofs = [
            check("the batches are views: no memory was requested", copied == 0),
            check("the last batch is short", last == ROWS % BATCH),
            check("the scope's memory was freed with the scope", left_in_scope == 0),
            check("nothing was allocated in place", asked == (0, 0)),
            check("both ways have the same result", same),
            check(
                "the data was not freed while batches existed",
                counted == Some(many),
            ),
            check("the data was freed after the last batch", freed),
        ];
        Ok(proofs.into_iter().all(|holds| holds))
    }
}
