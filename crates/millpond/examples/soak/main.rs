//! Simulates hours of a pool's life in minutes with short-lived threads, mixed sizes, trims, compactions and forks.
//! Reports unexpected growth.
//!
//! ```sh
//! cargo xtask soak --minutes 10
//! ```

#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod work;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use std::process::ExitCode;
    use std::time::Duration;

    let args: Vec<String> = std::env::args().skip(1).collect();
    let time = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Some(600.0),
        ["--minutes", minutes] => minutes.parse().ok().map(|minutes: f64| minutes * 60.0),
        ["--seconds", seconds] => seconds.parse().ok(),
        _ => None,
    };
    let time = time.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let Some(time) = time.filter(|time| *time >= Duration::from_secs(3)) else {
        eprintln!("usage: soak [--minutes N | --seconds N], 3 seconds at least");
        return ExitCode::FAILURE;
    };
    let report = run::soak(time);
    println!("{report}");
    match report.growth() {
        None => ExitCode::SUCCESS,
        Some(growth) => {
            eprintln!("soak: {growth}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {}
