//! What a real CUDA driver and card answer, in one command: `cargo xtask card` builds this program and what it runs.
//!
//! ```text
//!  driver   the driver's symbols, with declarations of our own
//!  card     the device that is probed, and the kernels for it
//!  probes/  what is asked, a step a file; each runs in a process of its own and prints a JSON object a line
//!  run/     the runner: steps with time limits, and what they came to as JSON and as tables
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
                      runs the steps and writes card.json and card.md; see --list
millpond-card probe NAME [--quick] [--rehearse] [--driver PATH]
                      one probe, a JSON object a line
millpond-card device  whether there is a driver with a device, and which
millpond-card list    the steps";

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

/// What probes are told.
struct Options {
    driver: String,
    quick: bool,
    rehearse: bool,
}

/// Takes the options that every command knows out of the arguments, and leaves the others.
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
                let path = all.next().ok_or("--driver takes the path of a driver")?;
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
            "{} is emulated ({}), and says nothing of a card: add --rehearse to see whether the steps work",
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
