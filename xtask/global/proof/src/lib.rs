//! Makes a pool the allocator of every program this is linked into, and has each program say at its end what the pool
//! has served: a line in the file that `MILLPOND_PROOF` names.

use millpond::GlobalPool;
use std::fs::OpenOptions;
use std::io::Write;

#[global_allocator]
static POOL: GlobalPool = GlobalPool::new();

/// The system calls what is listed here when a program has ended.
#[used]
// SAFETY: the section holds functions of this kind, and takes any number of them.
#[unsafe(link_section = ".fini_array")]
static AT_THE_END: extern "C" fn() = tell;

extern "C" fn tell() {
    let (Some(file), Some(pool)) = (std::env::var_os("MILLPOND_PROOF"), POOL.pool()) else {
        return;
    };
    let stats = pool.stats();
    let line = format!("{} {} {}\n", stats.allocations, stats.frees, stats.requested.peak);
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(file) {
        // One write: other programs may be at their ends too. A line that is missing is missed by the reader.
        let _ = file.write_all(line.as_bytes());
    }
}
