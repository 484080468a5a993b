//! Probes a real CUDA driver and card in one command. `cargo xtask card` builds this program and the programs that it runs.
//!
//! ```text
//!  driver   the driver's symbols, with our own declarations
//!  card     the device that is probed, and the kernels for it
//!  probes/  the probes, one file each; each probe runs in its own process and prints one JSON object per line
//!  run/     the runner: runs the steps with time limits, and writes the results as JSON and as tables
//! ```

mod card;
mod driver;
mod pages;
mod probes;
mod run;
mod say;

use std::process::ExitCode;

const USAGE: &str = "\
millpond-card run [--rehearse] [--quick] [--steps 1,3,6] [--minutes N] [--driver PATH] [--out FOLDER]
                      runs the steps and writes card.json and card.md
millpond-card probe NAME [--quick] [--rehearse] [--driver PATH]
                      runs one probe, which prints one JSON object per line
millpond-card device  prints the facts about the first device, or fails if there is none
millpond-card list    lists the steps";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("run") => run::run(&arguments[1..]),
        Some("probe") => probe(&arguments[1..]),
        Some("device") => device(&arguments[1..]),
        Some("list") => {
            print!("{}", run::list());
            Ok(true)
        }
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("millpond-card: {message}");
            ExitCode::from(2)
        }
    }
}

/// The options that every command takes.
struct Options {
    driver: String,
    quick: bool,
    rehearse: bool,
}

/// Parses the options that every command takes, and returns the other arguments as well.
fn options(arguments: &[String]) -> Result<(Options, Vec<&str>), String> {
    let mut options = Options {
        driver: driver::LIBRARY.to_owned(),
        quick: false,
        rehearse: false,
    };
    let mut others = Vec::new();
    let mut all = arguments.iter().map(String::as_str);
    while let Some(argument) = all.next() {
        match argument {
            "--quick" => options.quick = true,
            "--rehearse" => options.rehearse = true,
            "--driver" => {
                let path = all.next().ok_or("--driver needs the path of a driver")?;
                options.driver = path.to_owned();
            }
            other => others.push(other),
        }
    }
    Ok((options, others))
}

/// Opens the device, and refuses an emulated one unless this is a rehearsal.
fn open(options: &Options) -> Result<card::Card, String> {
    let card = card::Card::open(&options.driver, options.quick).map_err(|failed| failed.to_string())?;
    if card.emulated && !options.rehearse {
        return Err(format!(
            "{} is emulated ({}), so its answers say nothing about a card: add --rehearse to test the steps themselves",
            options.driver, card.name
        ));
    }
    Ok(card)
}

fn probe(arguments: &[String]) -> Result<bool, String> {
    let (options, others) = options(arguments)?;
    let [name] = others[..] else {
        return Err(USAGE.to_owned());
    };
    let card = open(&options)?;
    say::device(&card.facts());
    probes::run(name, &card).map_err(|failed| failed.to_string())?;
    Ok(true)
}

fn device(arguments: &[String]) -> Result<bool, String> {
    let (options, _) = options(arguments)?;
    println!("{}", open(&options)?.facts());
    Ok(true)
}
