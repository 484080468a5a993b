//! Runs when the library is loaded. Prints the reports that `MILLPOND_MALLOC` names to standard error: `refusals` explains the first
//! refused request, and `stats` prints the statistics of a process when it ends.

use crate::POOL;
use crate::ends::watch_quick_exit;
use millpond_os::{at_exit, look_for_last_thread, reentrancy, say};
use millpond_pool::global::malloc::explain_first_refusal;

/// Called by the loader before the program's own constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // Create the pool and register its fork handlers before the program registers its own, which may allocate.
    let _ = POOL.pool();
    watch_quick_exit();
    look_for_last_thread();
    let Some(value) = std::env::var_os("MILLPOND_MALLOC") else {
        return;
    };
    let value = value.to_string_lossy();
    for report in value.split(',').filter(|report| !report.is_empty()) {
        match report {
            "refusals" => explain_first_refusal(),
            "stats" => drop(at_exit(print_statistics)),
            _ => say(&format!(
                "millpond: MILLPOND_MALLOC: there is no report '{report}': write refusals, stats or both\n"
            )),
        }
    }
}

extern "C" fn print_statistics() {
    if let Some(pool) = POOL.pool() {
        // The pool may be full, so the text is allocated from the arena for tables.
        let _inside = reentrancy::inside();
        let name = std::env::args_os().next().unwrap_or_default();
        let (name, process) = (name.display().to_string(), std::process::id());
        say(&format!("millpond: {name} ({process}): {}\n", pool.stats()));
    }
}
