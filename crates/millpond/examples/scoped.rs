//! Work that leaves no memory in use: a scope with its own pools, and a workspace whose buffers are allocated before the
//! first pass. At the end the program proves that the default pool is in use again and that the scope's memory is
//! freed, even after a panic.
//!
//! ```text
//! cargo run -p millpond --example scoped
//! ```

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    match linux::run() {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(error) => {
            eprintln!("scoped: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use millpond::engine::display_size;
    use millpond::{Budget, Pool, Pools, Workspace, pools};
    use std::error::Error;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    const LEN: usize = 100_000;

    /// Returns pools whose bytes are all charged to a budget, which shows when all of them are freed.
    fn counted(name: &str) -> Result<(Budget, Pools), Box<dyn Error>> {
        let budget = Budget::builder(name).build()?;
        let template = Pool::builder().settings("").budget(&budget);
        Ok((budget, Pools::builder().name(name).template(template).build()))
    }

    /// Runs ten passes over the same buffers. Temporary memory of a pass is freed with it. Returns the last sum, and
    /// the number of allocations from the pool after the first pass.
    fn passes() -> Result<(f64, u64), Box<dyn Error>> {
        let pool = pools().host()?;
        let mut workspace = Workspace::builder(&pool)
            .buffer::<f64>("input", LEN)
            .buffer::<f64>("output", LEN)
            .build()?;
        let mut after_first = 0;
        for pass in 0..10 {
            workspace.get_mut::<f64>("input")?.fill(f64::from(pass));
            workspace.scope_with(|named, scratch| {
                let squares = scratch.alloc::<f64>(LEN)?;
                for (square, x) in squares.iter_mut().zip(named.get::<f64>("input")?) {
                    *square = x * x;
                }
                named.get_mut::<f64>("output")?.copy_from_slice(squares);
                Ok::<(), Box<dyn Error>>(())
            })?;
            if pass == 0 {
                after_first = pool.stats().allocations;
            }
        }
        let asked = pool.stats().allocations - after_first;
        Ok((workspace.get::<f64>("output")?.iter().sum(), asked))
    }

    /// Distributes work over threads. Each of them joins the scope.
    fn spread(set: &Pools) -> u64 {
        thread::scope(|threads| {
            let work = |from: u64| {
                let _scope = set.join();
                let part = millpond::alloc_from_fn(LEN, |at| from + at as u64);
                part.map_or(0, |part| part.iter().map(|x| x % 10).sum())
            };
            let threads: Vec<_> = (0..4).map(|from| threads.spawn(move || work(from))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
        })
    }

    fn check(what: &str, holds: bool) -> bool {
        println!("{} {what}", if holds { "yes " } else { "NO  " });
        holds
    }

    pub(crate) fn run() -> Result<bool, Box<dyn Error>> {
        let default = pools();
        let before = default.stats();

        let (budget, set) = counted("step")?;
        let ((sum, asked), spread) = set.scope(|| {
            let answer = passes()?;
            let spread = spread(&set);
            println!("in the scope\n{}", millpond::memory_stats());
            Ok::<_, Box<dyn Error>>((answer, spread))
        })?;
        println!(
            "at the end of the scope, {} of the budget are in use",
            display_size(budget.used())
        );
        let emptied = budget.used();

        let (lost, doomed) = counted("doomed")?;
        let mut at_worst = 0;
        println!("now a scope that panics:");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _scope = doomed.enter();
            let buffer = millpond::alloc_zeroed::<f64>(LEN);
            at_worst = lost.used();
            panic!(
                "panicked while {} bytes were allocated",
                buffer.map_or(0, |buffer| buffer.bytes())
            );
        }));
        let inside = pools();

        // The last pools of the sets are freed with the sets.
        drop((set, doomed));
        let proofs = [
            check("the result of the work is right", sum == 81.0 * LEN as f64),
            check("only the first pass allocated from the pool", asked == 0),
            check("every thread did its share", spread == 4 * 45 * LEN as u64 / 10),
            check("the scope's memory was freed with the scope", emptied == 0),
            check(
                "the panic was propagated",
                panicked.is_err() && at_worst >= 8 * LEN as u64,
            ),
            check("the memory of that scope was freed too", lost.used() == 0),
            check(
                "the default pool is in use again",
                inside.is_same(&default) && pools().is_same(&default),
            ),
            check(
                "the default pool was not used meanwhile",
                default.stats() == before,
            ),
            check("the budget is charged nothing more", budget.used() == 0),
        ];
        Ok(proofs.into_iter().all(|holds| holds))
    }
}
