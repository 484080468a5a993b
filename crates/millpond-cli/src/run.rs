//! `millpond run`: runs a program with a pool as its `malloc`.

use crate::args::RunArgs;
use crate::exit::{CliError, Exit, complain};
use crate::output::check_recording_writable;
use crate::program::{library, not_started, preload, why_not_preloaded};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The file name of the library, as cargo builds it.
const LIBRARY: &str = "libmillpond_malloc.so";
/// The variable that contains the path of the library.
const LIBRARY_VARIABLE: &str = "MILLPOND_MALLOC_LIB";

/// The variable with the settings of the pool.
const CONF: &str = "MILLPOND_CONF";

pub(crate) fn command(args: &RunArgs) -> Result<Exit, CliError> {
    let library = library(LIBRARY, "millpond-malloc", LIBRARY_VARIABLE)?;
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or_else(|| CliError::Usage("run takes a program, after --".to_owned()))?;
    if let Some(reason) = why_not_preloaded(program) {
        complain(&format!("the program keeps its own malloc: {reason}"));
    }
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", preload(&library)?);
    let limit = args.limit.map(|bytes| format!("limit:{bytes}"));
    let inherited = std::env::var(CONF).ok();
    let conf = args.conf.as_deref().or(inherited.as_deref());
    let conf = conf.filter(|conf| !conf.is_empty());
    let settings: Vec<&str> = conf.into_iter().chain(limit.as_deref()).collect();
    let settings = settings.join(",");
    // The library would replace invalid settings by its defaults, so they are refused here.
    let checked = millpond::Pool::builder().settings(&settings).host();
    checked.map_err(|error| CliError::Usage(format!("the settings of the pool: {error}")))?;
    command.env(CONF, settings);
    if let Some(path) = &args.record {
        if path.as_os_str().as_bytes().contains(&b',') {
            let problem =
                "--record takes a path without a comma, which separates the settings of a recording";
            return Err(CliError::Usage(problem.to_owned()));
        }
        // The processes of the program may have other working directories.
        let path =
            std::path::absolute(path).map_err(|error| CliError::Usage(format!("--record: {error}")))?;
        let is_one_file = !path.as_os_str().as_bytes().windows(2).any(|pair| pair == b"%p");
        // The library would only report a path that cannot be written, and the program would run without a recording.
        let process = std::process::id().to_string();
        let of_program: Option<PathBuf> = path.to_str().map(|text| text.replace("%p", &process).into());
        check_recording_writable(of_program.as_ref().unwrap_or(&path))?;
        let mut value = path.into_os_string();
        value.push(format!(",stacks={}", args.stacks));
        if let Some(bytes) = args.ring {
            value.push(format!(",ring={bytes}"));
        }
        if is_one_file {
            // The program replaces this one and keeps its process ID. The programs that it starts have no file of their own.
            value.push(format!(",pid={}", std::process::id()));
        }
        command.env("MILLPOND_RECORD", value);
    }
    let reports: Vec<&str> = [(true, "refusals"), (args.stats, "stats")]
        .iter()
        .filter_map(|(on, report)| on.then_some(*report))
        .collect();
    command.env("MILLPOND_MALLOC", OsString::from(reports.join(",")));
    // The program takes the place of this one, and with it the terminal, the signals and the exit status.
    Err(not_started(program, command.exec()))
}
