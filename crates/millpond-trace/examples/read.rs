//! Reads recordings and prints the elapsed time: `cargo run --release -p millpond-trace --example read -- FILE...`

use std::path::PathBuf;
use std::time::Instant;

fn main() {
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        let start = Instant::now();
        let read = millpond_trace::read(&path, &millpond_trace::ReadOptions::default());
        let elapsed = start.elapsed();
        print!("{}: {elapsed:.1?}", path.display());
        let recording = match read {
            Ok(recording) => recording,
            Err(error) => {
                println!(", {error}");
                continue;
            }
        };
        println!();
        for state in &recording.states {
            println!("  device {} holds {:?}", state.device, state.total());
        }
        for trace in &recording.traces {
            println!(
                "  device {}: {} events, {} allocations, {} tags, {} streams, {} pools, {} + {} before the first",
                trace.origin.device,
                trace.events.len(),
                trace.allocations,
                trace.tags.len(),
                trace.streams.len(),
                trace.pools.len(),
                trace.initial_segments.len(),
                trace.initial_blocks.len(),
            );
            for caution in &trace.cautions {
                println!("  caution: {caution}");
            }
        }
    }
}
