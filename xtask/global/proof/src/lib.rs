//! Makes a pool the allocator of every program that links this crate. At its end, each program appends a line with the pool's
//! figures to the file that `MILLPOND_PROOF` names.

use millpond::GlobalPool;
use std::fs::OpenOptions;
use std::io::Write;

#[global_allocator]
static POOL: GlobalPool = GlobalPool::new();

/// The system calls this function at the end of the program.
#[used]
// SAFETY: the section contains pointers to functions of this type, and any number of them.
#[unsafe(link_section = ".fini_array")]
static AT_THE_END: extern "C" fn() = tell;

extern "C" fn tell() {
    let (Some(file), Some(pool)) = (std::env::var_os("MILLPOND_PROOF"), POOL.pool()) else {
        return;
    };
    let stats = pool.stats();
    let line = format!("{} {} {}\n", stats.allocations, stats.frees, stats.requested.peak);
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(file) {
        // One write, because other programs may write at the same time. The reader notices a missing line.
        let _ = file.write_all(line.as_bytes());
    }
}
