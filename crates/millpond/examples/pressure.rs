//! Prints the memory pressure of this process and its source.
//!
//! Run it with `cargo run -p millpond --example pressure`. In a container or under `ulimit -v` it reports their limits.

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() {
    use millpond::engine::display_size;

    let now = millpond::pressure();
    println!("level {:?}, by {:?}", now.level(), now.cause());
    for limit in now.limits() {
        let binds = if now.limit() == Some(limit) {
            "   <- binds"
        } else {
            ""
        };
        let folder = limit.folder.as_deref().unwrap_or("".as_ref());
        println!(
            "{:<14}{:>12} of {:>12} used, {:>12} available {}{binds}",
            format!("{:?}", limit.kind),
            display_size(limit.used),
            display_size(limit.bytes),
            display_size(limit.available()),
            folder.display(),
        );
    }
    for stall in now.stalls() {
        println!(
            "{:?} stalls, {:?}: {} of the last ten seconds",
            stall.scope, stall.kind, stall.avg10
        );
    }
    for missing in now.unread() {
        println!("not read: {} ({:?})", missing.path.display(), missing.why);
    }
}
