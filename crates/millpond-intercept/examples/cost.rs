//! Measures what a recorded call costs: `cargo run -p millpond-intercept --example cost`. It needs a C compiler.
//!
//! A client calls an empty driver in pairs of an allocation and a free. Each round runs the client without the library, with it, and with it but without
//! stacks.

use millpond_intercept::{LIBRARY, unpack, variable};
use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

const ROUNDS: usize = 9;

fn compile(arguments: &[&str], source: &str, to: &Path) -> Result<(), Box<dyn Error>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let mut compiler = Command::new("cc");
    compiler.arg("-O2").args(arguments).arg(source).arg("-o").arg(to);
    if !compiler.args(["-ldl", "-lpthread"]).status()?.success() {
        return Err("the C compiler failed".into());
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::temp_dir().join(format!("millpond-cost-{}", std::process::id()));
    let logs = folder.join("logs");
    fs::create_dir(&folder)?;
    compile(
        &["-shared", "-fPIC"],
        "empty_driver.c",
        &folder.join("libcuda.so.1"),
    )?;
    compile(&[], "client.c", &folder.join("client"))?;
    unpack(&folder)?;
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for (frames, times) in [None, Some("32"), Some("0")].into_iter().zip(&mut times) {
            let mut client = Command::new(folder.join("client"));
            client.args(["dlsym", "time"]).env("LD_LIBRARY_PATH", &folder);
            if let Some(frames) = frames {
                fs::create_dir(&logs)?;
                client.env("LD_PRELOAD", folder.join(LIBRARY));
                client.env(variable::FOLDER, &logs).env(variable::FRAMES, frames);
            }
            let output = client.output()?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into());
            }
            times.push(String::from_utf8(output.stdout)?.trim().parse::<f64>()?);
            if frames.is_some() {
                fs::remove_dir_all(&logs)?;
            }
        }
    }
    fs::remove_dir_all(&folder)?;
    println!("nanoseconds a call: median, least and most of {ROUNDS} rounds");
    for (name, mut times) in ["not recorded", "recorded", "recorded without stacks"]
        .into_iter()
        .zip(times)
    {
        times.sort_by(f64::total_cmp);
        println!(
            "{name:<24} {:>6.0} {:>6.0} {:>6.0}",
            times[ROUNDS / 2],
            times[0],
            times[ROUNDS - 1]
        );
    }
    Ok(())
}
