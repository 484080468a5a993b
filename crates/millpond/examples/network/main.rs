//! Trains a small network on this machine's processor. The program draws digits, writes them to `.npy` files and reads
//! them back in shuffled batches. The multilayer perceptron, its gradients and its optimiser use tensors of one pool.
//! All products, sums and updates are written to existing memory, so after the first step no step allocates from the
//! pool. At the end the program proves that, and that the network has learnt.
//!
//! The program's own allocator is a pool too, so allocations other than tensors are counted as well.
//!
//! ```text
//! cargo run --release -p millpond --example network
//! ```

#[cfg(target_os = "linux")]
mod data;
#[cfg(target_os = "linux")]
mod gradients;
#[cfg(target_os = "linux")]
mod model;
#[cfg(target_os = "linux")]
mod train;

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use std::process::ExitCode;

    let args: Vec<String> = std::env::args().skip(1).collect();
    let plan = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => train::FULL,
        ["--quick"] => train::QUICK,
        _ => {
            eprintln!("usage: network [--quick]");
            return ExitCode::FAILURE;
        }
    };
    match train::run(plan) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("network: {error}");
            ExitCode::FAILURE
        }
    }
}
