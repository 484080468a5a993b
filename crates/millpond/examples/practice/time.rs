//! Practices that cost time.

use crate::linux::{Practice, Round, Unit};
use millpond::{
    Budget, Buffer, Ledger, Pool, PoolBuilder, Tracking, Unpooled, Workspace, budget::Measure,
    bytemuck::AnyBitPattern,
};
use std::error::Error;
use std::hint::black_box;
use std::sync::mpsc;
use std::time::Instant;

pub(crate) type Outcome = Result<Round, Box<dyn Error>>;

const MIB: usize = 1 << 20;

pub(crate) const PRACTICES: [Practice; 15] = [
    practice(
        "reuse one buffer in all steps",
        "a map of its own in each step",
        reuse,
    ),
    practice("take buffers from a pool", "a map of its own for each", pooled),
    practice("keep one pool", "a new pool for each step", one_pool),
    practice("one buffer for a batch of rows", "a buffer for each row", batch),
    practice("say the length first", "growing by what comes", pre_size),
    practice(
        "reserve before the first step",
        "faults in the first step",
        reserve,
    ),
    practice("trim when the work changes", "a trim after each step", trim),
    practice(
        "uninitialised where all is written",
        "zeroed, then written",
        uninit,
    ),
    practice("touch what is needed of a huge one", "touch all of it", touch),
    practice("temporaries in a workspace", "a buffer for each", workspace),
    practice("the tag! macro in a loop", "a name made at each call", tags),
    practice(
        "no account where none is read",
        "an account of all blocks",
        account,
    ),
    practice("a limit for the whole pool", "a budget for each block", limit),
    practice("clear on reuse for tenants only", "clear every block", clear),
    practice("guards while hunting", "guards always", guard),
];

/// Practices that are often said to matter, but have little effect in this library.
pub(crate) const MYTHS: [Practice; 3] = [
    practice("free in any thread", "send back to be used again", free_anywhere),
    practice("ordinary memory", "pinned memory", pinned),
    practice("an account of one in 1000", "an account of all blocks", sampled),
];

pub(crate) const fn practice(name: &'static str, instead: &'static str, run: fn() -> Outcome) -> Practice {
    Practice {
        name,
        instead,
        unit: Unit::Nanoseconds,
        run,
    }
}

/// Returns a builder without tracking, also in debug builds, and without background work.
pub(crate) fn quiet() -> PoolBuilder {
    Pool::builder().settings("").track(None).trim_every(None)
}

/// Returns the mean time of a call in nanoseconds, over `times` calls.
pub(crate) fn each(
    times: usize,
    mut work: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    for _ in 0..times {
        work()?;
    }
    Ok(start.elapsed().as_nanos() as f64 / times as f64)
}

fn stamp<T: AnyBitPattern + Copy>(buffer: &mut Buffer<T>, value: T) {
    buffer.fill(value);
    black_box(buffer);
}

fn reuse() -> Outcome {
    let pool = quiet().host()?;
    let mut buffer = pool.alloc_zeroed::<u8>(MIB)?;
    let good = each(64, || {
        stamp(&mut buffer, 1);
        Ok(())
    })?;
    let maps = Unpooled::host()?;
    let bad = each(64, || {
        stamp(&mut maps.alloc_zeroed::<u8>(MIB)?, 1);
        Ok(())
    })?;
    Ok(Round { good, bad })
}

fn pooled() -> Outcome {
    let pool = quiet().host()?;
    let maps = Unpooled::host()?;
    let sizes = [3 << 10, 20 << 10, 100 << 10, 600 << 10];
    let good = each(64, || {
        for bytes in sizes {
            black_box(pool.alloc::<u8>(bytes)?.fill(1));
        }
        Ok(())
    })?;
    let bad = each(64, || {
        for bytes in sizes {
            black_box(maps.alloc::<u8>(bytes)?.fill(1));
        }
        Ok(())
    })?;
    Ok(Round { good, bad })
}

fn one_pool() -> Outcome {
    let step = |pool: &Pool| {
        for bytes in [1000, 50_000, 700_000] {
            black_box(pool.alloc::<u8>(bytes)?.fill(1));
        }
        Ok(())
    };
    let pool = quiet().host()?;
    let good = each(32, || step(&pool))?;
    let bad = each(32, || step(&quiet().host()?))?;
    Ok(Round { good, bad })
}

fn batch() -> Outcome {
    const ROWS: usize = 1000;
    let pool = quiet().host()?;
    let good = each(16, || {
        let mut rows = pool.alloc_zeroed::<f32>(ROWS * 64)?;
        rows.chunks_exact_mut(64).for_each(|row| row[0] = 1.0);
        black_box(rows);
        Ok(())
    })?;
    let bad = each(16, || {
        let mut rows = Vec::with_capacity(ROWS);
        for _ in 0..ROWS {
            let mut row = pool.alloc_zeroed::<f32>(64)?;
            row[0] = 1.0;
            rows.push(row);
        }
        black_box(rows);
        Ok(())
    })?;
    Ok(Round { good, bad })
}

fn pre_size() -> Outcome {
    const PARTS: usize = 256;
    let part = [1.0f32; 4096];
    let pool = quiet().host()?;
    let fill = |reserve: bool| {
        let mut all = pool.alloc_zeroed::<f32>(0)?;
        if reserve {
            all.try_reserve_exact(PARTS * part.len())?;
        }
        for _ in 0..PARTS {
            all.try_extend_from_slice(&part)?;
        }
        black_box(all);
        Ok(())
    };
    let good = each(8, || fill(true))?;
    let bad = each(8, || fill(false))?;
    Ok(Round { good, bad })
}

fn reserve() -> Outcome {
    let step = |pool: &Pool| {
        let mut held = Vec::new();
        for _ in 0..32 {
            held.push(pool.alloc::<u8>(MIB)?.fill(1));
        }
        black_box(held);
        Ok(())
    };
    let ready = quiet().host()?;
    ready.reserve(40 << 20)?;
    let good = each(1, || step(&ready))?;
    let bare = quiet().host()?;
    let bad = each(1, || step(&bare))?;
    Ok(Round { good, bad })
}

fn trim() -> Outcome {
    let pool = quiet().host()?;
    let step = |trims: bool| {
        for _ in 0..8 {
            black_box(pool.alloc::<u8>(MIB)?.fill(1));
        }
        if trims {
            pool.trim();
        }
        Ok(())
    };
    let good = each(16, || step(false))?;
    let bad = each(16, || step(true))?;
    Ok(Round { good, bad })
}

fn uninit() -> Outcome {
    let pool = quiet().host()?;
    drop(pool.alloc::<u8>(4 * MIB)?.fill(1));
    let good = each(16, || {
        black_box(pool.alloc::<u8>(4 * MIB)?.fill(1));
        Ok(())
    })?;
    let bad = each(16, || {
        stamp(&mut pool.alloc_zeroed::<u8>(4 * MIB)?, 1);
        Ok(())
    })?;
    Ok(Round { good, bad })
}

fn touch() -> Outcome {
    let take = |part: usize| {
        let pool = quiet().host()?;
        let start = Instant::now();
        let mut huge = pool.alloc_zeroed::<u8>(64 * MIB)?;
        huge[..part].fill(1);
        black_box(&huge);
        Ok::<_, Box<dyn Error>>(start.elapsed().as_nanos() as f64)
    };
    Ok(Round {
        good: take(2 * MIB)?,
        bad: take(64 * MIB)?,
    })
}

fn workspace() -> Outcome {
    let pool = quiet().host()?;
    let mut workspace = Workspace::builder(&pool).scratch_bytes(MIB).build()?;
    let good = each(2000, || {
        workspace.scope(|scratch| {
            for len in [100, 700, 3000, 200, 5000, 40, 900, 64] {
                black_box(scratch.alloc::<f32>(len)?);
            }
            Ok(())
        })
    })?;
    let bad = each(2000, || {
        for len in [100, 700, 3000, 200, 5000, 40, 900, 64] {
            black_box(pool.alloc::<f32>(len)?);
        }
        Ok(())
    })?;
    Ok(Round { good, bad })
}

/// Sends buffers to a thread that either frees them or sends them back for reuse.
fn free_anywhere() -> Outcome {
    const BLOCKS: usize = 2000;
    let pool = quiet().host()?;
    let (to, from) = mpsc::sync_channel::<Buffer<u8>>(64);
    let (back, again) = mpsc::sync_channel::<Buffer<u8>>(64);
    let start = Instant::now();
    let returned = std::thread::scope(|scope| {
        scope.spawn(move || {
            for buffer in from {
                black_box(&buffer[0]);
                if back.send(buffer).is_err() {
                    return;
                }
            }
        });
        let mut ready = (0..32)
            .map(|_| pool.alloc_zeroed(8192))
            .collect::<Result<Vec<_>, _>>()?;
        for _ in 0..BLOCKS {
            let mut buffer = match ready.pop() {
                Some(buffer) => buffer,
                None => again.recv()?,
            };
            buffer[0] = 1;
            to.send(buffer)?;
        }
        drop(to);
        Ok::<_, Box<dyn Error>>(start.elapsed().as_nanos() as f64 / BLOCKS as f64)
    })?;
    let (to, from) = mpsc::sync_channel::<Buffer<u8>>(64);
    let start = Instant::now();
    let freed = std::thread::scope(|scope| {
        scope.spawn(move || {
            for buffer in from {
                black_box(&buffer[0]);
            }
        });
        for _ in 0..BLOCKS {
            let mut buffer = pool.alloc_zeroed::<u8>(8192)?;
            buffer[0] = 1;
            to.send(buffer)?;
        }
        drop(to);
        Ok::<_, Box<dyn Error>>(start.elapsed().as_nanos() as f64 / BLOCKS as f64)
    })?;
    Ok(Round {
        good: freed,
        bad: returned,
    })
}

/// Creates a pool and a buffer. A process pays this cost only one time.
fn pinned() -> Outcome {
    const BYTES: usize = 2 * MIB;
    let plain = each(4, || {
        black_box(quiet().host()?.alloc::<u8>(BYTES)?.fill(1));
        Ok(())
    })?;
    let locked = each(4, || {
        black_box(quiet().pinned()?.alloc::<u8>(BYTES)?.fill(1));
        Ok(())
    })?;
    Ok(Round {
        good: plain,
        bad: locked,
    })
}

fn tags() -> Outcome {
    let good = each(10_000, || {
        let _scope = millpond::tag!("layer 7");
        black_box(&_scope);
        Ok(())
    })?;
    let bad = each(10_000, || {
        let _scope = millpond::tag(&format!("layer {}", black_box(7)));
        black_box(&_scope);
        Ok(())
    })?;
    Ok(Round { good, bad })
}

/// Allocates and frees a block of 1,000 bytes.
fn pair(pool: &Pool) -> Result<f64, Box<dyn Error>> {
    black_box(pool.alloc::<u8>(1000)?);
    each(5000, || {
        black_box(pool.alloc::<u8>(1000)?);
        Ok(())
    })
}

fn tracked(tracking: Tracking) -> Result<f64, Box<dyn Error>> {
    let pool = quiet().host()?;
    pool.track(Some(Ledger::builder(tracking).times(true)));
    pair(&pool)
}

fn account() -> Outcome {
    let good = pair(&quiet().host()?)?;
    let bad = tracked(Tracking::All)?;
    Ok(Round { good, bad })
}

fn sampled() -> Outcome {
    let good = tracked(Tracking::Sampled { one_in: 1000 })?;
    let bad = tracked(Tracking::All)?;
    Ok(Round { good, bad })
}

fn limit() -> Outcome {
    let good = pair(&quiet().limit(1 << 30).host()?)?;
    let budget = Budget::builder("blocks")
        .measure(Measure::Allocated)
        .limit(1 << 30)
        .build()?;
    let bad = pair(&quiet().budget(&budget).host()?)?;
    Ok(Round { good, bad })
}

fn clear() -> Outcome {
    let good = pair(&quiet().host()?)?;
    let bad = pair(&quiet().zero_on_reuse(true).host()?)?;
    Ok(Round { good, bad })
}

fn guard() -> Outcome {
    let good = pair(&quiet().host()?)?;
    let bad = pair(&quiet().guard(true).host()?)?;
    Ok(Round { good, bad })
}
