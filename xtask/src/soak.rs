//! Runs a pool for minutes and fails if anything grows.

use crate::shell::step;

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let minutes = match args {
        [] => "10",
        [name, minutes] if name == "--minutes" => minutes,
        _ => return Err("usage: cargo xtask soak [--minutes N]".to_owned()),
    };
    if !minutes.parse::<f64>().is_ok_and(|minutes| minutes >= 0.05) {
        return Err(format!("'{minutes}' is no number of minutes from 0.05 on"));
    }
    let soak = "run --release --quiet -p millpond --example soak -- --minutes";
    let mut command: Vec<&str> = soak.split(' ').collect();
    command.push(minutes);
    step("cargo", &command)
}
