//! Processes data that is larger than the memory for it: a file of 96 MiB in batches, and in a pass with a budget of 8
//! MiB. The chunks are prepared on the reader's threads and scaled in place, and the progress is reported. At the end
//! the program proves that the sums are correct and that the process stayed within the budget.
//!
//! ```text
//! cargo run -p millpond --example data_set
//! ```

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    match linux::run() {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(error) => {
            eprintln!("data_set: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use millpond::engine::display_size;
    use millpond::{DataSet, Pool};
    use std::error::Error;
    use std::fs::{self, File};
    use std::io::Write;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    const ROW: usize = 256;
    const ROWS: usize = 96 << 10;
    const BUDGET: u64 = 8 << 20;
    /// The additional memory that the process needs: stacks of the readers, and tables of the pool.
    const ALLOWANCE: u64 = 4 << 20;

    /// A file that is removed on drop.
    struct Written(PathBuf);

    impl Drop for Written {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    /// Writes rows. Each number in a row is the number of the row modulo 1000. Returns the sum of all numbers.
    fn write(path: &Path) -> Result<f64, Box<dyn Error>> {
        let (mut file, mut sum) = (File::create(path)?, 0);
        for row in 0..ROWS {
            let numbers = [(row % 1000) as f32; ROW];
            sum += row % 1000 * ROW;
            file.write_all(millpond::bytemuck::cast_slice(&numbers))?;
        }
        Ok(sum as f64)
    }

    /// Returns the process's memory that does not belong to a file.
    fn anonymous() -> Result<u64, Box<dyn Error>> {
        let status = fs::read_to_string("/proc/self/status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next());
        Ok(kib
            .ok_or("the system does not report the memory")?
            .parse::<u64>()?
            << 10)
    }

    fn total(numbers: &[f32]) -> f64 {
        numbers.iter().map(|number| f64::from(*number)).sum()
    }

    fn check(what: &str, holds: bool) -> bool {
        println!("{} {what}", if holds { "yes " } else { "NO  " });
        holds
    }

    pub(crate) fn run() -> Result<bool, Box<dyn Error>> {
        let name = format!("millpond-data-set-{}.f32", std::process::id());
        let written = Written(std::env::temp_dir().join(name));
        let expected = write(&written.0)?;
        let data = DataSet::<f32>::builder().file(&written.0).row(ROW).open()?;
        println!("{data:?}, {}", display_size(data.bytes()));

        // A batch is selected by start and count, and ends at the end of the data.
        let last = data.batch(data.rows() - 10, 64)?;
        let short = last.len() == 10 * ROW && last[0] == ((ROWS - 10) % 1000) as f32;
        drop(last);

        let pool = Pool::host()?;
        let before = anonymous()?;
        let (mut sum, mut most, mut quarters) = (0.0, before, 0.0);
        let (mut next, mut in_order) = (0, true);
        // Chunks have 2 MiB. Without the budget, the pass would use nine.
        let pass = data
            .pass()
            .rows(2048)
            .ahead(8)
            .budget(BUDGET)
            .readers(2)
            .pool(&pool);
        // This step runs first for each chunk, on the threads that read.
        let pass = pass.prepare(|chunk| chunk.iter_mut().for_each(|number| *number += 1.0));
        // Progress is normally reported at time intervals. Here it is reported after each chunk, and printed for each
        // quarter.
        let pass = pass.progress(Duration::ZERO, |progress| {
            if progress.part() >= (quarters + 1.0) / 4.0 {
                quarters += 1.0;
                println!("{progress}");
            }
        });
        let passed = pass.try_for_each(|chunk| {
            in_order &= chunk.row_number(0) == Some(next);
            next += chunk.rows().len() as u64;
            // This runs in place on this thread, while the next chunks are read.
            chunk.view_mut()?.scal(0.5)?;
            sum += total(chunk);
            most = most.max(anonymous()?);
            Ok::<_, Box<dyn Error>>(())
        })?;

        // A computation that does not need the rest ends the pass with its own error.
        let mut chunks = 0;
        let ended = data.pass().budget(BUDGET).pool(&pool).try_for_each(|_| {
            chunks += 1;
            if chunks == 3 {
                Err(Box::<dyn Error>::from("enough"))
            } else {
                Ok(())
            }
        });
        let grown = most - before;
        println!(
            "with a budget of {}, the process grew by {}, and the pool held at most {}",
            display_size(BUDGET),
            display_size(grown),
            display_size(pool.stats().requested.peak)
        );
        let numbers = (ROWS * ROW) as f64;
        let proofs = [
            check("the last batch is short", short),
            check(
                "every row was read, in order",
                passed.rows == ROWS as u64 && in_order,
            ),
            check(
                "the sum matches the written data",
                sum == (expected + numbers) / 2.0,
            ),
            check("the file is larger than the budget", data.bytes() > 10 * BUDGET),
            check(
                "the process stayed within the budget",
                grown <= BUDGET + ALLOWANCE,
            ),
            check(
                "the pool stayed within the budget",
                pool.stats().requested.peak <= BUDGET,
            ),
            check("a pass can be ended", ended.is_err() && chunks == 3),
            check("all memory was freed", pool.stats().requested.current == 0),
        ];
        Ok(proofs.into_iter().all(|holds| holds))
    }
}
