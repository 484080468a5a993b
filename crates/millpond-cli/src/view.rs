//! `millpond view`: shows a recording as a timeline in the browser. The page is served on this machine only, or written as one
//! file.
//!
//! ```text
//!   site.rs      the recordings and their data, each computed when it is first requested
//!   request.rs   the valid requests, and the checks of their senders
//!   server.rs    connections: limits of number, time and size
//!   redirect.rs  the file that redirects a browser to the page
//! ```

mod redirect;
mod request;
mod server;
mod site;

use crate::args::ViewArgs;
use crate::exit::{CliError, Exit};
use crate::progress::Work;
use crate::symbols::ModuleSymbols;
use crate::text::{counted, number, size};
use crate::{files, output, settings};
use millpond_replay::Verdict;
use millpond_replay::analysis::{Overview, TableError};
use millpond_replay::view::{self, Embedded, MOST_SERVED, embed, open as open_recording};
use millpond_trace::history::History;
use redirect::Redirect;
use serde_json::Value;
use site::Site;
use std::path::Path;
use std::process::{Command, Stdio};

/// The program version that the page shows.
const VERSION: &str = concat!("millpond ", env!("CARGO_PKG_VERSION"));

/// A recording with its overview.
type Opened = (History, Overview);

/// The most recordings of one page.
const MOST_FILES: usize = 8;

/// Runs the command.
pub(crate) fn command(args: &ViewArgs) -> Result<Exit, CliError> {
    if args.files.len() > MOST_FILES {
        return Err(CliError::Usage(format!(
            "{} recordings are too many for one page, which has room for {MOST_FILES}",
            args.files.len()
        )));
    }
    if let Some(path) = &args.html {
        output::check_writable(path)?;
    }
    let policies = settings::once(&args.policy)?;
    let histories = args
        .files
        .iter()
        .map(|path| files::opened(path, &Work::new(args.quiet), open_recording));
    let opened = histories.collect::<Result<Vec<Opened>, CliError>>()?;
    let names: Vec<String> = args.files.iter().map(|path| name(path)).collect();
    match &args.html {
        Some(path) => write(args, &names, &opened, &policies, path),
        None => serve(args, names, opened, &policies),
    }
}

fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

fn write(
    args: &ViewArgs,
    names: &[String],
    opened: &[Opened],
    policies: &[String],
    path: &Path,
) -> Result<Exit, CliError> {
    let symbols: Vec<ModuleSymbols<'_>> = opened
        .iter()
        .map(|(history, _)| ModuleSymbols::new(&history.definitions))
        .collect();
    let answers = args
        .files
        .iter()
        .zip(opened)
        .map(|(path, (_, overview))| answer(path, overview, args.quiet))
        .collect::<Result<Vec<Value>, CliError>>()?;
    let recordings: Vec<Embedded<'_>> = names
        .iter()
        .zip(opened)
        .zip(&symbols)
        .zip(&answers)
        .map(|(((name, (history, overview)), symbols), answer)| Embedded {
            name,
            history,
            overview,
            symbols,
            policies,
            answer,
        })
        .collect();
    let mut outcome = None;
    let written = output::write_file(path, |out| match embed(&recordings, VERSION, args.blocks, out) {
        Ok(sizes) => {
            outcome = Some(Ok(sizes));
            Ok(())
        }
        Err(TableError::Taker(error)) => Err(error),
        Err(TableError::History(error)) => {
            outcome = Some(Err(error));
            Err(std::io::Error::other("nothing was written"))
        }
        Err(error) => Err(std::io::Error::other(error)),
    });
    match outcome {
        Some(Err(source)) => Err(CliError::Analysis {
            path: args.files[0].clone(),
            source: source.into(),
        }),
        Some(Ok(sizes)) => {
            written?;
            let bytes = std::fs::metadata(path).map_or(0, |file| file.len());
            output::note(args.quiet, &format!("wrote {}: {}", path.display(), size(bytes)));
            for (name, told) in names.iter().zip(&sizes).filter(|(_, told)| told.others > 0) {
                output::note(
                    args.quiet,
                    &format!(
                        "{name}: {} are listed one by one, the {} smallest as one sum; --blocks changes that",
                        counted(told.blocks, "block"),
                        number(told.others)
                    ),
                );
            }
            for caution in symbols.iter().flat_map(ModuleSymbols::cautions) {
                output::note(args.quiet, &caution);
            }
            Ok(Exit::Done)
        }
        None => written.map(|()| Exit::Done),
    }
}

/// Replays a recording. Returns the sentences at the top of the page.
fn answer(path: &Path, overview: &Overview, quiet: bool) -> Result<Value, CliError> {
    if overview.allocations > Verdict::MOST_ALLOCATIONS {
        return Ok(view::too_long());
    }
    Ok(view::answer(&files::load(path, &Work::new(quiet))?.traces))
}

fn serve(
    args: &ViewArgs,
    names: Vec<String>,
    opened: Vec<Opened>,
    policies: &[String],
) -> Result<Exit, CliError> {
    let failed = |source| CliError::Serve { source };
    let listener = server::listen(args.port.unwrap_or(0)).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let most = args.blocks.unwrap_or(MOST_SERVED);
    let site = Site::new(&args.files, &names, opened, policies, most).map_err(failed)?;
    let address = format!("http://127.0.0.1:{port}/{}/", site.token());
    output::print_line(&address)?;
    output::note(args.quiet, "serving on this machine alone; ctrl-c ends it");
    if !args.no_open {
        open(&address, &site);
    }
    server::run(&listener, port, site)
}

/// Shows the page in the browser of the desktop, if there is one.
fn open(address: &str, site: &Site) {
    let program = if cfg!(target_os = "macos") {
        "open"
    } else {
        let is_desktop = ["DISPLAY", "WAYLAND_DISPLAY"]
            .iter()
            .any(|name| std::env::var_os(name).is_some());
        if !is_desktop {
            return;
        }
        "xdg-open"
    };
    // The address is printed on the screen, so it is not lost if no browser opens.
    let Ok(redirect) = Redirect::new(address) else {
        return;
    };
    let started = Command::new(program)
        .arg(redirect.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if started.is_ok() {
        site.set_redirect(redirect);
    }
}
