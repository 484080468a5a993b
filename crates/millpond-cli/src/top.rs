//! `millpond top`: shows live statistics of programs that use the library.
//!
//! ```text
//!   find      lists processes, and selects one
//!   fetch     reads the statistics of a process once: requests them from its socket, parses the JSON with stats
//!   source    reads statistics on its own thread, so that keys never wait
//!   app       what is shown and selected, independent of the terminal
//!   view/     draws it at any size, independent of processes
//!   live      the terminal, and the loop through all of these
//! ```
//!
//! This program only reads from a process. The process does not know who reads, and nothing in it waits for a reader.

mod app;
mod fetch;
mod find;
mod live;
mod source;
mod stats;
mod view;
mod warnings;

use crate::args::TopArgs;
use crate::exit::{CliError, Exit};
use crate::{output, terminal};
use app::App;
use find::Target;
use std::io::IsTerminal;

pub(crate) fn command(args: &TopArgs) -> Result<Exit, CliError> {
    let target = args.process.as_deref().map(Target::parse).transpose()?;
    if args.json {
        return json(target.as_ref());
    }
    if args.once || !std::io::stdout().is_terminal() {
        return once(target.as_ref());
    }
    live::run(target)?;
    Ok(Exit::Done)
}

fn json(target: Option<&Target>) -> Result<Exit, CliError> {
    let Some(target) = target else {
        output::print_json(&find::processes())?;
        return Ok(Exit::Done);
    };
    let body = fetch::json(target).map_err(|why| gone(target, &why))?;
    output::print_line(&body)?;
    Ok(Exit::Done)
}

/// Prints one frame as plain text, as high as necessary.
fn once(target: Option<&Target>) -> Result<Exit, CliError> {
    let mut app = App::new(target.cloned());
    match target {
        Some(target) => {
            let stats = fetch::stats(target).map_err(|why| gone(target, &why))?;
            app.take_stats(Ok(stats));
        }
        None => app.take_processes(find::processes()),
    }
    output::print(&view::plain(&app, terminal::width()))?;
    Ok(Exit::Done)
}

fn gone(target: &Target, why: &fetch::FetchError) -> CliError {
    CliError::Usage(format!("{target}: {why}; {}", find::HOW_TO_BE_SEEN))
}
