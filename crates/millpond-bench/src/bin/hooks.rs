//! What watching costs: instructions of a pair of allocation and free, counted by callgrind, so that no other load on the
//! machine is in it.
//!
//! Runs itself under `valgrind --tool=callgrind` with so many pairs and with ten times as many; the difference is the
//! pairs' own. Prints a table, or says what is missing.

use millpond::{Budget, Event, Ledger, Measure, Pool, Tracking};
use std::alloc::Layout;
use std::hint::black_box;
use std::process::{Command, ExitCode};

const FEW: u64 = 2_000;
const MANY: u64 = 10 * FEW;
const SIZES: [usize; 3] = [64, 8 << 10, 1 << 20];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    /// Nobody ever watched.
    Off,
    /// Someone did, and left.
    Left,
    /// A subscriber that reads size and tag.
    Subscriber,
    /// An account of one block in a thousand.
    Sampled,
    /// An account of all blocks.
    Account,
    /// Blocks are charged to a budget.
    Budget,
    /// Nothing but the loop.
    Loop,
}

const CASES: [(&str, &str, Case); 7] = [
    ("loop", "the loop alone", Case::Loop),
    ("off", "nobody watches", Case::Off),
    ("left", "someone did, and has left", Case::Left),
    ("subscriber", "a subscriber reads size and tag", Case::Subscriber),
    ("sampled", "account of one block in 1,000", Case::Sampled),
    ("account", "account of every block", Case::Account),
    ("budget", "each block charged to a budget", Case::Budget),
];

fn pool(case: Case) -> Result<Pool, Box<dyn std::error::Error>> {
    let builder = Pool::builder().trim_every(None).track(None);
    if case == Case::Budget {
        let budget = Budget::builder("all").measure(Measure::Allocated).build()?;
        return Ok(builder.budget(&budget).host()?);
    }
    let pool = builder.host()?;
    let read = |event: &Event<'_>| {
        black_box((event.requested, event.tag));
    };
    match case {
        Case::Left => {
            let id = pool.subscribe(read);
            pool.unsubscribe(id);
        }
        Case::Subscriber => {
            pool.subscribe(read);
        }
        Case::Sampled => pool.track(Some(Ledger::builder(Tracking::Sampled { one_in: 1000 }))),
        Case::Account => pool.track(Some(Ledger::builder(Tracking::All))),
        Case::Off | Case::Budget | Case::Loop => {}
    }
    Ok(pool)
}

/// The child: so many pairs.
fn pairs(case: Case, bytes: usize, count: u64) -> Result<(), Box<dyn std::error::Error>> {
    let pool = pool(case)?;
    let layout = Layout::from_size_align(bytes, 64)?;
    for _ in 0..count {
        let layout = black_box(layout);
        if case == Case::Loop {
            continue;
        }
        let block = black_box(pool.allocate(layout)?);
        // SAFETY: handed out just now for this layout, and used no more.
        unsafe { pool.deallocate(block.cast(), layout) };
    }
    Ok(())
}

/// Instructions of a child, as callgrind says.
fn count(name: &str, bytes: usize, pairs: u64) -> Result<u64, String> {
    let here = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(here)
        .args([name, &bytes.to_string(), &pairs.to_string()])
        .output()
        .map_err(|error| format!("valgrind is needed to count instructions, and cannot be run: {error}"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    let collected = told.lines().find_map(|line| line.split("Collected :").nth(1));
    let number = collected.and_then(|number| number.trim().parse().ok());
    number.ok_or_else(|| format!("callgrind said nothing of {name}: {told}"))
}

fn table() -> Result<(), String> {
    let heads = SIZES.map(|bytes| format!("{:>10}", millpond::engine::display_size(bytes as u64)));
    println!("instructions of a pair, counted   {}", heads.join(" "));
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

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.as_slice() {
        [] => table(),
        [name, bytes, count] => match (
            CASES.iter().find(|case| case.0 == name),
            bytes.parse(),
            count.parse(),
        ) {
            (Some((_, _, case)), Ok(bytes), Ok(count)) => {
                pairs(*case, bytes, count).map_err(|error| error.to_string())
            }
            _ => Err(format!("no such case: {}", arguments.join(" "))),
        },
        _ => Err("hooks takes no arguments, or a case, bytes and a number of pairs".to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hooks: {error}");
            ExitCode::from(2)
        }
    }
}
