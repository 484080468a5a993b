//! Practices that cost memory, or that give a wrong measurement of it.

use crate::linux::{Practice, Round, Unit};
use millpond::{Pool, PoolBuilder};
use std::error::Error;
use std::hint::black_box;

type Outcome = Result<Round, Box<dyn Error>>;

const MIB: usize = 1 << 20;

pub(crate) const PRACTICES: [Practice; 5] = [
    practice("free a temporary after its use", "at the end of the step", early),
    practice("the alignment that is needed", "a page for each block", align),
    practice("rent where lengths vary", "a buffer of the most for each", rent),
    practice("clear before measuring", "a peak from before", measure),
    practice("a limit on what may be taken", "none", limit),
];

const fn practice(name: &'static str, instead: &'static str, run: fn() -> Outcome) -> Practice {
    Practice {
        name,
        instead,
        unit: Unit::Bytes,
        run,
    }
}

fn quiet() -> PoolBuilder {
    Pool::builder().settings("").track(None).trim_every(None)
}

/// Returns the peak of reserved bytes while `work` ran on a new pool.
fn reserved(work: impl FnOnce(&Pool) -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let pool = quiet().host()?;
    work(&pool)?;
    Ok(pool.stats().reserved.peak as f64)
}

fn early() -> Outcome {
    let good = reserved(|pool| {
        for _ in 0..16 {
            black_box(pool.alloc_zeroed::<u8>(MIB)?);
        }
        Ok(())
    })?;
    let bad = reserved(|pool| {
        let step = (0..16).map(|_| pool.alloc_zeroed::<u8>(MIB));
        black_box(step.collect::<Result<Vec<_>, _>>()?);
        Ok(())
    })?;
    Ok(Round { good, bad })
}

fn align() -> Outcome {
    let of = |align: usize| {
        reserved(|pool| {
            let rows = (0..1000).map(|_| pool.alloc_zeroed_aligned::<u8>(100, align));
            black_box(rows.collect::<Result<Vec<_>, _>>()?);
            Ok(())
        })
    };
    Ok(Round {
        good: of(64)?,
        bad: of(4096)?,
    })
}

fn lengths() -> impl Iterator<Item = usize> {
    (0..64).map(|at| at * 7919 % 250_000 + 1000)
}

/// Holds four buffers at a time.
fn rent() -> Outcome {
    let good = reserved(|pool| {
        let rental = pool.rental();
        let lengths: Vec<usize> = lengths().collect();
        for four in lengths.chunks(4) {
            let held = four.iter().map(|len| rental.rent::<u8>(*len));
            black_box(held.collect::<Result<Vec<_>, _>>()?);
        }
        Ok(())
    })?;
    let bad = reserved(|pool| {
        let most = lengths().max().unwrap_or(0);
        let held = lengths().map(|_| pool.alloc_zeroed::<u8>(most));
        black_box(held.collect::<Result<Vec<_>, _>>()?);
        Ok(())
    })?;
    Ok(Round { good, bad })
}

/// Measures the reported peak of work that needs 2 MiB.
fn measure() -> Outcome {
    let said = |clears: bool| {
        let pool = quiet().host()?;
        drop(pool.alloc_zeroed::<u8>(48 * MIB)?);
        if clears {
            pool.clear();
        }
        black_box(pool.alloc_zeroed::<u8>(2 * MIB)?);
        Ok::<_, Box<dyn Error>>(pool.stats().requested.peak as f64)
    };
    Ok(Round {
        good: said(true)?,
        bad: said(false)?,
    })
}

/// Measures the memory of a program that never stops allocating, up to 256 MiB.
fn limit() -> Outcome {
    let takes = |pool: Pool| {
        let mut held = Vec::new();
        while held.len() < 256 {
            match pool.alloc_zeroed::<u8>(MIB) {
                Ok(more) => held.push(more),
                Err(_) => break,
            }
        }
        pool.stats().reserved.peak as f64
    };
    Ok(Round {
        good: takes(quiet().limit(32 << 20).host()?),
        bad: takes(quiet().host()?),
    })
}
