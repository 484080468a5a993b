//! A small network trained on this machine's processor: digits that it draws, written to `.npy` files and read back in shuffled
//! batches; a multilayer perceptron, its gradients and its optimiser, on tensors of one pool. Each product, sum and update is
//! written where there is memory already, so a step asks its pool for nothing once the first has been taken. In the end it
//! proves that, and that the network has learnt.
//!
//! The program's own allocator is a pool too, so that what is asked for beside the tensors is counted as well.
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
