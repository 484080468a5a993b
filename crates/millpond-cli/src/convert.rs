//! `millpond convert`: writes a recording in another tool's format.

#[cfg(feature = "parquet")]
pub(crate) mod table;

use crate::args::{ConvertArgs, Counted};
use crate::exit::{CliError, Exit};
use crate::progress::{Progress, Work};
use crate::symbols::ModuleSymbols;
use crate::text::{counted, nearest, size};
use crate::{files, output};
use millpond_trace::export::{At, Dialect, ExportError, ExportOptions, Exported, Packing, Target, export};
use std::path::Path;

/// The only format that this crate writes itself.
const PARQUET: &str = "parquet";

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Dialect(Target),
    #[cfg(feature = "parquet")]
    Parquet,
}

/// Runs the command.
pub(crate) fn command(args: &ConvertArgs) -> Result<Exit, CliError> {
    let format = format(args)?;
    if is_same(&args.input, &args.output) {
        return Err(CliError::Usage(format!(
            "{} is the recording itself; name another file to write",
            args.output.display()
        )));
    }
    files::check_regular(&args.input)?;
    output::check_writable(&args.output)?;
    let work = Work::new(args.quiet);
    let history = files::open_history(&args.input, &work)?;
    let symbols = ModuleSymbols::new(&history.definitions);
    let bar = Progress::share(
        &work,
        &format!(
            "writing {}",
            args.output.file_name().unwrap_or_default().to_string_lossy()
        ),
    );
    let report = |done: u64, all: u64| bar.set(done * 100 / all.max(1), Some(100));
    let options = ExportOptions {
        at: match args.at {
            Counted::Peak => At::Peak,
            Counted::Total => At::Total,
            Counted::End => At::End,
        },
        device: args.device,
        from: args.time_window.map(|(from, _)| from),
        to: args.time_window.map(|(_, to)| to),
        last: args.last,
        every_frame: args.every_frame,
        progress: Some(&report),
    };
    let mut outcome = None;
    output::write_file(&args.output, |out| {
        let written = match format {
            Format::Dialect(target) => export(&history, &symbols, target, &options, out),
            #[cfg(feature = "parquet")]
            Format::Parquet => table::write(&history, &symbols, &options, out),
        };
        match written {
            Ok(exported) => {
                outcome = Some(Ok(exported));
                Ok(())
            }
            // The system's own error describes the problem with the file.
            Err(ExportError::Io(error)) => Err(error),
            Err(error) => {
                outcome = Some(Err(error));
                Err(std::io::Error::other("nothing was written"))
            }
        }
    })
    .or_else(|error| match outcome {
        Some(Err(_)) => Ok(()),
        _ => Err(error),
    })?;
    drop(bar);
    match outcome {
        Some(Ok(exported)) => tell(args, &exported, &symbols),
        Some(Err(source)) => {
            return Err(CliError::Export {
                path: args.input.clone(),
                source,
            });
        }
        None => {}
    }
    Ok(Exit::Done)
}

fn tell(args: &ConvertArgs, exported: &Exported, symbols: &ModuleSymbols<'_>) {
    let bytes = std::fs::metadata(&args.output).map_or(0, |file| file.len());
    output::note(
        args.quiet,
        &format!(
            "wrote {}: {}, {}",
            args.output.display(),
            counted(exported.events, "event"),
            size(bytes)
        ),
    );
    if !exported.lost.is_empty() {
        output::note(
            args.quiet,
            &format!("lost in this format: {}", exported.lost.join("; ")),
        );
    }
    for caution in symbols.cautions() {
        output::note(args.quiet, &caution);
    }
}

fn format(args: &ConvertArgs) -> Result<Format, CliError> {
    let file = args.output.file_name().unwrap_or_default().to_string_lossy();
    let said = args.to.as_deref().unwrap_or(&file);
    let format = match Target::of_name(said) {
        Some(target) => Some(Format::Dialect(target)),
        None if ends(said, PARQUET) => Some(parquet()?),
        None => None,
    };
    match (format, args.to.as_deref()) {
        (Some(Format::Dialect(target)), Some(_)) if target.packing == Packing::Plain => {
            // The file name still determines the compression.
            Ok(Format::Dialect(Target {
                packing: packing(&file, target.dialect),
                ..target
            }))
        }
        (Some(format), _) => Ok(format),
        (None, to) => {
            let problem = match to {
                Some(_) => format!("--to: unknown format '{said}'"),
                None => format!("the ending of '{said}' is not a known format"),
            };
            let known: Vec<&str> = Dialect::ALL.iter().map(|dialect| dialect.ending()).collect();
            let ending = said
                .trim_start_matches('.')
                .split_once('.')
                .map_or(said, |(_, ending)| ending);
            let hint = nearest(ending, known.iter().copied().chain([PARQUET]))
                .map_or_else(String::new, |name| format!(" did you mean .{name}?"));
            Err(CliError::Usage(format!(
                "{problem}:{hint} choose one of .{} .{PARQUET}, most of them also with .gz or .zst",
                known.join(" .")
            )))
        }
    }
}

fn packing(name: &str, dialect: Dialect) -> Packing {
    match (dialect, name.to_ascii_lowercase()) {
        (Dialect::Recording, _) => Packing::Plain,
        (_, name) if name.ends_with(".gz") => Packing::Gzip,
        (_, name) if name.ends_with(".zst") => Packing::Zstd,
        _ => Packing::Plain,
    }
}

fn ends(name: &str, ending: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.strip_suffix(ending)
        .is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Returns whether two paths lead to the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

#[cfg(feature = "parquet")]
fn parquet() -> Result<Format, CliError> {
    Ok(Format::Parquet)
}

#[cfg(not(feature = "parquet"))]
fn parquet() -> Result<Format, CliError> {
    Err(CliError::not_built("the writer of .parquet files", "parquet"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn said(arguments: &[&str]) -> Result<Format, String> {
        let line = ["millpond", "convert", "in.mpr"].iter().chain(arguments);
        let cli = crate::args::Cli::try_parse_from(line).map_err(|error| error.to_string())?;
        match cli.command {
            crate::args::Command::Convert(args) => format(&args).map_err(|error| error.to_string()),
            _ => Err("another command".to_owned()),
        }
    }

    #[test]
    fn the_file_extension_selects_the_format() {
        let target = |dialect, packing| Ok(Format::Dialect(Target { dialect, packing }));
        assert_eq!(said(&["a.pb.gz"]), target(Dialect::Pprof, Packing::Gzip));
        assert_eq!(
            said(&["a.heaptrack.zst"]),
            target(Dialect::Heaptrack, Packing::Zstd)
        );
        assert_eq!(said(&["A.MPR"]), target(Dialect::Recording, Packing::Plain));
        #[cfg(feature = "parquet")]
        assert_eq!(said(&["a.parquet"]), Ok(Format::Parquet));
        assert_eq!(
            said(&["a", "--to", "folded"]),
            target(Dialect::Folded, Packing::Plain)
        );
        assert_eq!(
            said(&["a.gz", "--to", "trace.json"]),
            target(Dialect::Chrome, Packing::Gzip)
        );
        for (name, hint) in [
            ("a.foldd", "did you mean .folded?"),
            ("a.mpr.gz", "choose one of .perfetto-trace"),
        ] {
            let refused = said(&[name]).expect_err("unknown");
            assert!(
                refused.contains(hint) && refused.contains(".parquet"),
                "{refused}"
            );
        }
    }
}
