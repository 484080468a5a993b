//! Measures the cost of observers: the instructions of a pair of allocation and free, counted by callgrind, so that other load
//! on the machine does not matter.
//!
//! Runs itself under `valgrind --tool=callgrind` with a number of pairs and with ten times as many. The difference contains
//! only the pairs. Prints a table, or an error if valgrind is missing. Before that, it prints the time of an event: observed and
//! unobserved pairs run in turn, and an event takes half the difference of each round.

use clap::Parser;
use millpond::{
    Budget, Event, Ledger, Pool, PoolBuilder, Tracking,
    budget::Measure,
    event::{Subscriber, Time},
};
use millpond_bench::measure::{Clock, in_turn, repeat};
use std::alloc::Layout;
use std::error::Error;
use std::hint::black_box;
use std::ops::Range;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};

const FEW: u64 = 2_000;
const MANY: u64 = 10 * FEW;
const SIZES: [usize; 3] = [64, 8 << 10, 1 << 20];

/// Adds sizes by tag, as a monitor would.
#[derive(Default)]
struct Sums {
    stamped: bool,
    bytes: [AtomicU64; 16],
    last: AtomicU64,
}

impl Subscriber for Sums {
    fn event(&self, event: &Event<'_>) {
        let sum = &self.bytes[event.tag.number() as usize % self.bytes.len()];
        sum.fetch_add(event.requested as u64, Ordering::Relaxed);
        if let Some(time) = event.time {
            self.last.store(time.nanos(), Ordering::Relaxed);
        }
    }

    fn wants_time(&self) -> bool {
        self.stamped
    }
}

/// Creates the pool of a case.
type Setup = fn(PoolBuilder) -> Result<Pool, Box<dyn Error>>;

/// The cases by name, with a description.
const CASES: [(&str, &str, Setup); 9] = [
    (LOOP, "the loop alone", |builder| Ok(builder.host()?)),
    ("off", "no observer", |builder| Ok(builder.host()?)),
    ("left", "an observer was removed", |builder| {
        let pool = builder.host()?;
        let id = pool.subscribe(read);
        pool.unsubscribe(id);
        Ok(pool)
    }),
    ("subscriber", "a subscriber reads size and tag", |builder| {
        let pool = builder.host()?;
        pool.subscribe(read);
        Ok(pool)
    }),
    ("sums", "a subscriber adds sizes by tag", |builder| {
        sums(builder, false)
    }),
    ("stamped", "the same, with time stamps", |builder| {
        sums(builder, true)
    }),
    ("sampled", "account of one block in 1,000", |builder| {
        tracked(builder, Tracking::Sampled { one_in: 1000 })
    }),
    ("account", "account of every block", |builder| {
        tracked(builder, Tracking::All)
    }),
    ("budget", "each block charged to a budget", |builder| {
        let budget = Budget::builder("all").measure(Measure::Allocated).build()?;
        Ok(builder.budget(&budget).host()?)
    }),
];
const LOOP: &str = "loop";
/// The cases with an event for each call.
const WITH_EVENTS: Range<usize> = 3..8;

fn read(event: &Event<'_>) {
    black_box((event.requested, event.tag));
}

fn sums(builder: PoolBuilder, stamped: bool) -> Result<Pool, Box<dyn Error>> {
    let pool = builder.host()?;
    let sums = Sums::default();
    pool.subscribe(Sums { stamped, ..sums });
    Ok(pool)
}

fn tracked(builder: PoolBuilder, tracking: Tracking) -> Result<Pool, Box<dyn Error>> {
    let pool = builder.host()?;
    pool.track(Some(Ledger::builder(tracking)));
    Ok(pool)
}

fn pool(setup: Setup) -> Result<Pool, Box<dyn Error>> {
    setup(Pool::builder().trim_every(None).track(None))
}

/// Runs `count` pairs. Without a pool, runs only the loop.
#[inline(never)]
fn run(pool: Option<&Pool>, bytes: usize, count: u64) -> Result<(), Box<dyn Error>> {
    let layout = Layout::from_size_align(bytes, 64)?;
    for _ in 0..count {
        let layout = black_box(layout);
        let Some(pool) = pool else {
            continue;
        };
        let block = black_box(pool.allocate(layout)?);
        // SAFETY: the block was just allocated for this layout, and is not used any more.
        unsafe { pool.deallocate(block.cast(), layout) };
    }
    Ok(())
}

/// Prints the nanoseconds of an event: the median of the rounds' differences, and the difference of the best passes.
fn times() -> Result<(), Box<dyn Error>> {
    const ROUNDS: usize = 21;
    const PAIRS: usize = 100_000;
    let plain = pool(|builder| Ok(builder.host()?))?;
    println!("nanoseconds per event, 64 B             median      least");
    for (_, about, setup) in &CASES[WITH_EVENTS] {
        let watched = pool(*setup)?;
        let [without, with] = in_turn::<2, Box<dyn Error>>(ROUNDS, |side| {
            let pool = [&plain, &watched][side];
            Ok(repeat(Clock::Wall, 1, || run(Some(pool), SIZES[0], PAIRS as u64))? / PAIRS as f64)
        })?;
        let least = with.spread().least - without.spread().least;
        let median = with.minus(&without).median();
        println!("{about:<33}  {:>10.1} {:>10.1}", median / 2.0, least / 2.0);
    }
    println!();
    Ok(())
}

/// Returns the instructions of a child by callgrind's count.
fn count(name: &str, bytes: usize, pairs: u64) -> Result<u64, Box<dyn Error>> {
    let here = std::env::current_exe()?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        // Counts only the pairs, because the instructions of the clock's setup vary.
        .arg("--toggle-collect=hooks::run")
        .arg(here)
        .args([name, &bytes.to_string(), &pairs.to_string()])
        .output()
        .map_err(|error| {
            format!("cannot run valgrind to count instructions: {error}; install it, or print only `times`")
        })?;
    let told = String::from_utf8_lossy(&output.stderr);
    let collected = told.lines().find_map(|line| line.split("Collected :").nth(1));
    let number = collected.and_then(|number| number.trim().parse().ok());
    Ok(number.ok_or_else(|| format!("callgrind printed no count for {name}: {told}"))?)
}

fn table() -> Result<(), Box<dyn Error>> {
    let heads = SIZES.map(|bytes| format!("{:>10}", millpond::engine::display_size(bytes as u64)));
    println!("instructions per pair             {}", heads.join(" "));
    for (name, about, _) in CASES {
        let mut row = format!("{about:<33} ");
        for bytes in SIZES {
            let own = count(name, bytes, MANY)?.saturating_sub(count(name, bytes, FEW)?);
            row += &format!(" {:>10.1}", own as f64 / (MANY - FEW) as f64);
        }
        println!("{row}");
    }
    Ok(())
}

/// Measures the cost of observers. Without arguments, prints the times of events and the instructions of pairs.
#[derive(Parser)]
struct Arguments {
    /// `times` to print only the times, or the case that a child process runs
    case: Option<String>,

    /// Size of the child's blocks in bytes
    #[arg(requires = "count")]
    bytes: Option<usize>,

    /// Number of the child's pairs
    count: Option<u64>,
}

fn run_arguments(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let Some(name) = &arguments.case else {
        times()?;
        return table();
    };
    match (arguments.bytes, arguments.count) {
        (Some(bytes), Some(count)) => {
            let case = CASES.iter().find(|case| case.0 == name);
            let (_, _, setup) = case.ok_or_else(|| format!("there is no case '{name}'"))?;
            let pool = pool(*setup)?;
            black_box(Time::now());
            run((name != LOOP).then_some(&pool), bytes, count)
        }
        _ if name == "times" => times(),
        _ => Err("a case needs a size in bytes and a number of pairs after its name".into()),
    }
}

fn main() -> ExitCode {
    millpond_bench::exit("hooks", run_arguments(&Arguments::parse()))
}
