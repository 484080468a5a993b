//! Runs a pool for minutes and fails if anything grows.

use crate::shell::{Result, shell};
use xshell::cmd;

pub(crate) fn run(args: &[String]) -> Result {
    let minutes = match args {
        [] => "10",
        [name, minutes] if name == "--minutes" => minutes,
        _ => return Err("usage: cargo xtask soak [--minutes N]".into()),
    };
    if !minutes.parse::<f64>().is_ok_and(|minutes| minutes >= 0.05) {
        return Err(format!("'{minutes}' is not a number of minutes of at least 0.05").into());
    }
    let sh = shell()?;
    cmd!(
        sh,
        "cargo run --release --quiet -p millpond --example soak -- --minutes {minutes}"
    )
    .run()?;
    Ok(())
}
