//! A program that manages its memory while it runs. It prints the statistics, is warned when more than 80 % of its
//! limit are in use, and compacts when more than 30 % of the reserved memory is idle between live blocks. At the end it
//! proves that it was warned, that the memory was released, and that no live block moved or changed.
//!
//! ```text
//! cargo run -p millpond --example monitor
//! ```

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    match linux::run() {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(error) => {
            eprintln!("monitor: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use millpond::engine::display_size;
    use millpond::{Budget, Buffer, Pool, Pools, budget::Measure, pools::PoolsStats};
    use std::error::Error;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A compaction is worthwhile from this fragmentation on.
    const FRAGMENTED: f64 = 0.3;
    const LIMIT: u64 = 100 << 20;
    /// The program is warned from this number of bytes on.
    const NEARLY_FULL: u64 = LIMIT / 100 * 80;

    /// Prints the statistics and compacts if necessary. Returns true if it compacted.
    fn look_after(set: &Pools, moment: &str) -> bool {
        let stats = set.stats();
        println!("{moment}\n{stats}");
        println!(
            "in use: {:.1} % of the reserved memory, fragmentation: {:.1} %\n",
            100.0 * stats.utilisation(),
            100.0 * stats.fragmentation_ratio()
        );
        if stats.fragmentation_ratio() <= FRAGMENTED {
            return false;
        }
        println!("compacting: {}\n", set.compact());
        true
    }

    /// Returns the resident memory of the process as counted by the system.
    fn resident() -> Result<u64, Box<dyn Error>> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next());
        Ok(kib
            .ok_or("the system does not report the memory")?
            .parse::<u64>()?
            << 10)
    }

    fn fill(pool: &Pool) -> Result<Vec<Buffer<u64>>, Box<dyn Error>> {
        (0..300u64)
            .map(|at| {
                // The sizes are 68 to 516 KiB, and none of them ends at a page boundary of the pool.
                let len = 512 + 8192 * (1 + at as usize * 3 % 8);
                Ok(pool.alloc_from_fn(len, |n| at << 32 | n as u64)?)
            })
            .collect()
    }

    fn is_whole(at: usize, buffer: &Buffer<u64>) -> bool {
        let mut words = buffer.iter().enumerate();
        words.all(|(n, word)| *word == (at as u64) << 32 | n as u64)
    }

    fn check(what: &str, holds: bool) -> bool {
        println!("{} {what}", if holds { "yes " } else { "NO  " });
        holds
    }

    pub(crate) fn run() -> Result<bool, Box<dyn Error>> {
        // The soft limit is the warning. It is reported once, by the thread that allocates past it, and again only
        // after use has fallen to seven eighths of it and risen again.
        let warnings = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&warnings);
        let budget = Budget::builder("monitor")
            .measure(Measure::Allocated)
            .limit(LIMIT)
            .soft_limit(NEARLY_FULL, move |crossing| {
                let used = display_size(crossing.used);
                println!("warning: {used} of {} are in use\n", display_size(LIMIT));
                count.fetch_add(1, Ordering::Relaxed);
            })
            .build()?;
        // Idle memory stays until it is released explicitly.
        let template = Pool::builder().settings("").limit(LIMIT).budget(&budget);
        let set = Pools::with(template.trim_every(None));
        look_after(&set, "before the first request");

        let buffers = fill(&set.host()?)?;
        let full = look_after(&set, "300 buffers");
        let warned = warnings.load(Ordering::Relaxed);

        // Two of three buffers are freed, so the remaining ones lie between free ranges.
        let mut buffers: Vec<_> = buffers.into_iter().enumerate().collect();
        buffers.retain(|(at, _)| at % 3 == 0);
        let places: Vec<_> = buffers.iter().map(|(_, buffer)| buffer.as_ptr()).collect();
        let (before, resident_before): (PoolsStats, u64) = (set.stats(), resident()?);
        let compacted = look_after(&set, "a third of the buffers");
        let (after, resident_after) = (set.stats(), resident()?);
        look_after(&set, "after that");

        let returned = before
            .total
            .reserved
            .current
            .saturating_sub(after.total.reserved.current);
        let fell = resident_before.saturating_sub(resident_after);
        println!(
            "{} less reserved, {} less in memory",
            display_size(returned),
            display_size(fell)
        );
        let moved = buffers
            .iter()
            .zip(&places)
            .any(|((_, buffer), place)| buffer.as_ptr() != *place);
        let proofs = [
            check(
                "there was one warning, when 80 % were in use",
                warned == 1 && warnings.load(Ordering::Relaxed) == 1,
            ),
            check("nothing was compacted while the blocks were contiguous", !full),
            check("the holes were noticed", compacted),
            check(
                "the fragmentation is below 30 %",
                after.fragmentation_ratio() < FRAGMENTED,
            ),
            check(
                "half of the reserved memory was freed",
                returned >= before.total.reserved.current / 2,
            ),
            check("the system has this memory again", fell >= returned / 2),
            check(
                "what is in use is in use",
                after.total.allocated.current == before.total.allocated.current,
            ),
            check("no live block moved", !moved),
            check(
                "no live block was changed",
                buffers.iter().all(|(at, buffer)| is_whole(*at, buffer)),
            ),
        ];
        Ok(proofs.into_iter().all(|holds| holds))
    }
}
