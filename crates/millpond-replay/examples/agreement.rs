//! Prints the share of recorded addresses that a replay of each snapshot reproduces.
//!
//! `cargo run --release -p millpond-replay --example agreement -- SNAPSHOT…`

use millpond_replay::verify;
use millpond_trace::{ReadOptions, read};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for file in std::env::args().skip(1) {
        let recording = match read(file.as_ref(), &ReadOptions::default()) {
            Ok(recording) => recording,
            Err(error) => {
                println!("{file}: {error}");
                continue;
            }
        };
        if recording.traces.is_empty() {
            println!("{}: a state without a history", recording.name);
        }
        for trace in &recording.traces {
            match verify(trace) {
                Ok(found) => println!(
                    "{} device {}: {:.6} ({} of {}), {found:?}",
                    trace.origin.name,
                    trace.origin.device,
                    found.agreement(),
                    found.agreeing,
                    found.allocations
                ),
                Err(error) => println!("{error}"),
            }
        }
    }
    Ok(())
}
