//! Returns holes to the system: allocates buffers of many sizes, frees most of them, then calls `Pool::compact`.
//! Resident memory falls, and live buffers keep their addresses and contents. Exits with code 1 otherwise.

use millpond::{Buffer, Pool};
use std::error::Error;
use std::process::ExitCode;

const BUFFERS: usize = 2_000;

/// Returns the resident bytes of this process.
fn resident() -> Result<u64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.ok_or("the system does not say")?.parse::<u64>()? << 10)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let pool = Pool::host()?;
    let start = resident()?;
    let mut held: Vec<(usize, Buffer<u64>)> = Vec::with_capacity(BUFFERS);
    let mut chance = 1u64;
    let mut next = move || {
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        chance
    };
    for number in 0..BUFFERS {
        // The sizes are 1 KiB to 512 KiB.
        let len = 128 << (next() % 10);
        held.push((number, pool.alloc_from(&vec![number as u64; len])?));
    }
    held.retain(|_| next() % 5 < 2);
    let places: Vec<*const u64> = held.iter().map(|(_, buffer)| buffer.as_ptr()).collect();
    let live: u64 = held.iter().map(|(_, buffer)| buffer.bytes() as u64).sum();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);

    let (before, stats) = (resident()?, pool.stats());
    let compaction = pool.compact();
    let after = resident()?;
    println!(
        "{} of {BUFFERS} buffers live, {:.1} MiB; fragmentation {:.2} before, {:.2} after",
        held.len(),
        mib(live),
        stats.fragmentation_ratio(),
        pool.stats().fragmentation_ratio()
    );
    println!(
        "resident {:.1} MiB before, {:.1} after; the pool gave back {:.1} MiB of {:.1}",
        mib(before),
        mib(after),
        mib(compaction.returned()),
        mib(compaction.reserved_before)
    );
    let moved = held
        .iter()
        .zip(&places)
        .filter(|((_, buffer), place)| buffer.as_ptr() != **place)
        .count();
    let changed = held
        .iter()
        .filter(|(number, buffer)| buffer.iter().any(|v| *v != *number as u64))
        .count();
    println!("{moved} buffers at another address, {changed} with other contents");
    // Holes that share a page with a live buffer stay, so not every byte is returned.
    let holes = before.saturating_sub(start + live);
    let fell = before.saturating_sub(after);
    println!(
        "{:.1} of {:.1} MiB of holes went back to the system",
        mib(fell),
        mib(holes)
    );
    let proven = holes > 0 && fell >= holes / 4 * 3 && (moved, changed) == (0, 0);
    println!(
        "memory went back and nothing that lives was touched: {}",
        if proven { "proven" } else { "NO" }
    );
    Ok(if proven {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
