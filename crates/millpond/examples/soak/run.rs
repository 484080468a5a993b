//! The soak run: its threads, its samples, and its criterion for growth.

use super::work::{Post, child, worker};
use millpond::{Budget, Pool, budget::Measure};
use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The number of threads that work at a time.
const THREADS: u64 = 3;
/// The rows of the table.
const ROWS: usize = 12;
/// The share by which the last third may exceed the first. Each figure also has an allowed amount, for small values.
const SHARE: f64 = 0.10;

/// The sampled figures, each with an amount by which it may grow at any size.
const FIGURES: [(&str, f64); 5] = [
    ("resident MiB", 8.0),
    ("reserved MiB", 8.0),
    ("allocated MiB", 8.0),
    ("kept MiB", 8.0),
    ("maps", 64.0),
];

type Sample = [f64; FIGURES.len()];

/// The result of a soak run.
pub(crate) struct Report {
    samples: Vec<(Duration, Sample)>,
    operations: u64,
    lives: u64,
    children: u64,
    failures: Vec<String>,
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn sample(pool: &Pool) -> Sample {
    let stats = pool.stats();
    // The file begins with the number of pages and the number of resident pages.
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let resident = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    let resident = resident.unwrap_or(0) * 4096;
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    [
        mib(resident),
        mib(stats.reserved.current),
        mib(stats.allocated.current),
        mib(stats.kept),
        maps.lines().count() as f64,
    ]
}

/// Runs on a pool for a duration.
pub(crate) fn soak(time: Duration) -> Report {
    let pool = Pool::builder()
        .name("soak")
        .settings("decay:8")
        .trim_every(Some(Duration::from_millis(100)))
        .host()
        .expect("a pool");
    let budget = Budget::builder("tenant")
        .measure(Measure::Allocated)
        .limit(64 << 20)
        .build();
    let budget = budget.expect("a budget");
    let tenant = pool.tenant(&budget).expect("allocated bytes");
    let (post, over) = (Post::default(), AtomicBool::new(false));
    let [operations, lives] = [(); 2].map(|()| AtomicU64::new(0));
    let mut report = Report {
        samples: Vec::new(),
        operations: 0,
        lives: 0,
        children: 0,
        failures: Vec::new(),
    };
    let began = Instant::now();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (pool, tenant, post, over) = (&pool, &tenant, &post, &over);
            let (operations, lives) = (&operations, &lives);
            // This thread only starts workers, one after the other, so threads come and go.
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let life = lives.fetch_add(1, Ordering::Relaxed);
                    thread::scope(|scope| {
                        let one =
                            scope.spawn(move || worker(pool, tenant, post, over, life * THREADS + number));
                        operations.fetch_add(one.join().expect("no panic"), Ordering::Relaxed);
                    });
                }
            });
        }
        let pause = (time / 200).clamp(Duration::from_millis(20), Duration::from_secs(1));
        while began.elapsed() < time {
            thread::sleep(pause);
            report.samples.push((began.elapsed(), sample(&pool)));
            if report.samples.len().is_multiple_of(10) {
                report.children += 1;
                report.failures.extend(child(&pool).err());
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    post.empty();
    pool.trim();
    let stats = pool.stats();
    let left = [stats.requested, stats.allocated, stats.reserved].map(|gauge| gauge.current);
    if left != [0; 3] || budget.used() != 0 || stats.allocations != stats.frees {
        report
            .failures
            .push(format!("memory was not freed: {stats:?}, {budget:?}"));
    }
    report.operations = operations.into_inner();
    report.lives = lives.into_inner();
    report
}

impl Report {
    /// Returns the means of a third of the samples. The first tenth is the warm-up.
    fn third(&self, which: usize) -> Sample {
        let settled = &self.samples[self.samples.len() / 10..];
        let length = settled.len() / 3;
        let part = &settled[which * length..(which + 1) * length];
        std::array::from_fn(|figure| {
            part.iter().map(|(_, sample)| sample[figure]).sum::<f64>() / part.len().max(1) as f64
        })
    }

    /// Returns the figures that have grown, and other failures.
    pub(crate) fn growth(&self) -> Option<String> {
        let (first, last) = (self.third(0), self.third(2));
        let grown = FIGURES.iter().enumerate().filter_map(|(figure, (name, amount))| {
            let (first, last) = (first[figure], last[figure]);
            (last > first * (1.0 + SHARE) + amount)
                .then(|| format!("{name} went from {first:.1} to {last:.1}"))
        });
        let all: Vec<String> = grown.chain(self.failures.iter().cloned()).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = ["resident", "reserved", "allocated", "kept", "maps"];
        let row = |f: &mut fmt::Formatter<'_>, name: &str, sample: &Sample| {
            write!(f, "{name:>12}")?;
            sample.iter().try_for_each(|value| write!(f, " {value:>10.1}"))?;
            writeln!(f)
        };
        write!(f, "{:>12}", "")?;
        short.iter().try_for_each(|name| write!(f, " {name:>10}"))?;
        writeln!(f)?;
        let step = (self.samples.len() / ROWS).max(1);
        for (at, sample) in self.samples.iter().skip(step - 1).step_by(step) {
            row(f, &format!("{:.1} s", at.as_secs_f64()), sample)?;
        }
        row(f, "first third", &self.third(0))?;
        row(f, "last third", &self.third(2))?;
        write!(
            f,
            "bytes in MiB; {} samples, {} operations, {} threads, {} children; growth of {:.0} % and 8 MiB or 64 maps is allowed",
            self.samples.len(),
            self.operations,
            self.lives,
            self.children,
            SHARE * 100.0,
        )
    }
}
