//! A program to observe: steps of a training loop with different batches, two pools, budgets and tags. A monitor serves
//! the figures of all of them. At the end it prints the monitor's observations.
//!
//! ```text
//! cargo run -p millpond --example live -- 60        for a minute
//! millpond top                                      in another terminal
//! ```

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use millpond::monitor::Threshold;
    use millpond::pressure::Share;
    use millpond::{Budget, Buffer, Ledger, Monitor, Pool, Tracking, budget::Measure, tag};
    use std::time::{Duration, Instant};

    let seconds = std::env::args()
        .nth(1)
        .map_or(Ok(2.0), |text| text.parse::<f64>())?;
    let job = Budget::builder("job").limit(4 << 30).build()?;
    let step = job
        .child_builder("step")
        .measure(Measure::Allocated)
        .limit(72 << 20)
        .build()?;
    let weights = Pool::builder()
        .name("weights")
        .settings("")
        .limit(256 << 20)
        .host()?;
    let scratch = Pool::builder()
        .name("activations")
        .settings("")
        .budget(&step)
        .host()?;
    for pool in [&weights, &scratch] {
        pool.track(Some(Ledger::builder(Tracking::All)));
    }
    let monitor = Monitor::builder()
        .interval(Duration::from_millis(100))
        .socket()
        .on(Threshold::budget(Share::percent(80)), |crossing| {
            eprintln!("warning: {crossing}");
        })
        .start()?;
    if let Some(socket) = monitor.socket() {
        eprintln!("look with: millpond top {}", socket.display());
    }

    let layers: Vec<Buffer<f32>> = {
        let _scope = tag("weights");
        (0..12)
            .map(|_| weights.alloc_zeroed(1 << 20))
            .collect::<Result<_, _>>()?
    };
    let (began, end) = (Instant::now(), Duration::from_secs_f64(seconds));
    let mut number = 0usize;
    while began.elapsed() < end {
        number += 1;
        // The lengths of the batches rise and fall within a few seconds.
        let long = 1 + (number / 8 % 24).min(24 - number / 8 % 24);
        let mut kept: Vec<Buffer<f32>> = Vec::new();
        for layer in &layers {
            let _scope = tag("activations");
            kept.push(scratch.alloc_from(&layer[..(long << 14) + number % 7 * 4096])?);
            let _scope = tag("workspace");
            let mut work = scratch.alloc_zeroed::<f32>(1 << 16)?;
            work[number % 100] = 1.0;
            std::thread::sleep(Duration::from_millis(1));
        }
        let _scope = tag("gradients");
        let gradients = scratch.alloc_zeroed::<f32>(long << 20)?;
        std::thread::sleep(Duration::from_millis(20));
        drop((gradients, kept));
    }
    println!("{}", monitor.stop());
    Ok(())
}
