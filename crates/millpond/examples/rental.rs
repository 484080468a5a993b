//! Rents buffers: two tenants whose threads rent lines of any length, each tenant from a set of its own. At the end the
//! program proves that nearly all rents reused an existing buffer, that no tenant read data of another, and that all
//! memory was returned.
//!
//! ```text
//! cargo run -p millpond --example rental
//! ```

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    match linux::run() {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rental: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use millpond::engine::display_size;
    use millpond::{AllocError, Pool, Rental};
    use std::error::Error;
    use std::thread;

    const TENANTS: [u8; 2] = [1, 2];
    const THREADS: usize = 2;
    const RENTS: usize = 1000;

    /// Rents lines of different lengths, checks their contents, and fills them with the tenant's mark. Returns the
    /// number of lines with a foreign mark and the number of lines that were too short.
    fn work(rental: &Rental, mark: u8) -> Result<(usize, usize), AllocError> {
        let (mut foreign, mut short) = (0, 0);
        for round in 0..RENTS {
            let length = 1 + round * 7919 % 60_000;
            let mut line = rental.rent::<u8>(length)?;
            short += usize::from(line.len() < length);
            foreign += usize::from(line.iter().any(|byte| *byte != 0 && *byte != mark));
            line.fill(mark);
            // The line is dropped here and stays in its tenant's set for the next rent.
        }
        Ok((foreign, short))
    }

    fn check(what: &str, holds: bool) -> bool {
        println!("{} {what}", if holds { "yes " } else { "NO  " });
        holds
    }

    pub(crate) fn run() -> Result<bool, Box<dyn Error>> {
        let pool = Pool::builder().settings("").trim_every(None).host()?;
        // Each tenant has a set. Within a set, the contents are those that the last renter wrote.
        let sets = TENANTS.map(|mark| (mark, pool.rental()));
        let (mut foreign, mut short) = (0, 0);
        thread::scope(|scope| {
            let threads: Vec<_> = sets
                .iter()
                .flat_map(|(mark, rental)| (0..THREADS).map(move |_| (*mark, rental)))
                .map(|(mark, rental)| scope.spawn(move || work(rental, mark)))
                .collect();
            for thread in threads {
                let (theirs, less) = thread.join().map_err(|_| "a thread panicked")??;
                foreign += theirs;
                short += less;
            }
            Ok::<(), Box<dyn Error>>(())
        })?;

        let (mut rents, mut fresh, mut kept) = (0, 0, 0);
        for (mark, rental) in &sets {
            let stats = rental.stats();
            println!(
                "tenant {mark}: {} rents, {} of a cached buffer, {} buffers are cached",
                stats.rents,
                stats.reuses,
                display_size(stats.kept_bytes)
            );
            rents += stats.rents;
            fresh += stats.rents - stats.reuses;
            kept += stats.kept_bytes;
        }
        let asked = pool.stats().allocations;
        println!("{asked} allocations from the pool; {}", pool.stats());

        // A line that the pool itself rents belongs to no set. It is zeroed, whichever tenant had the memory before.
        for (_, rental) in &sets {
            rental.clear();
        }
        let cleared = pool.rent::<u8>(30_000)?.iter().all(|byte| *byte == 0);
        let still_held = pool.stats().requested.current;
        drop(sets);
        pool.trim();

        // There are seven size classes, from 1 to 64 KiB, and at most one line per thread is rented at a time.
        let few = (7 * THREADS * TENANTS.len()) as u64;
        let all = (TENANTS.len() * THREADS * RENTS) as u64;
        let proofs = [
            check(
                &format!("all but the first few of {rents} rents reused a buffer"),
                rents == all && fresh <= few && asked == fresh,
            ),
            check("no line was shorter than requested", short == 0),
            check("no tenant read the data of another", foreign == 0),
            check("buffers that the pool rents by itself are zeroed", cleared),
            check("returned buffers were cached in the sets", kept > 0),
            check(
                "no buffer was cached after the sets were cleared",
                still_held == 0,
            ),
            check("all memory was freed", pool.stats().reserved.current == 0),
        ];
        Ok(proofs.into_iter().all(|holds| holds))
    }
}
