//! Runs real programs under the malloc library and under other allocators, and prints their times and peaks of memory.

mod measure;
mod programs;
mod servers;
mod table;
mod torch;

use crate::shell::{Result, root, shell, target};
use measure::{Allocator, Outcome, Sample};
use std::path::{Path, PathBuf};
use std::process::Command;
use xshell::{Shell, cmd};

const USAGE: &str =
    "usage: cargo xtask malloc [--torch] [--only NAME,...] [--runs N] [--python PATH] [--redis FOLDER]";

/// The name of our library's allocator in the tables.
const OURS: &str = "millpond";

/// The allocators that are compared with the C library's and with ours.
const OTHERS: [(&str, &str); 3] = [
    ("jemalloc", "libjemalloc.so.2"),
    ("tcmalloc", "libtcmalloc_minimal.so.4"),
    ("mimalloc", "libmimalloc.so.2"),
];

/// The folders in which libraries are searched if `ldconfig` does not know them.
const LIBRARIES: [&str; 5] = [
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
];

/// The parsed arguments.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    torch: bool,
    /// The names of the programs. Empty for all programs.
    only: Vec<String>,
    runs: usize,
    python: PathBuf,
    redis: Option<PathBuf>,
}

fn wanted(args: &[String]) -> Result<Wanted> {
    let mut wanted = Wanted {
        torch: false,
        only: Vec::new(),
        runs: 5,
        python: std::env::var_os("PYTHON").map_or_else(|| "python3".into(), PathBuf::from),
        redis: None,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--torch" {
            wanted.torch = true;
            continue;
        }
        let value = args.next().ok_or(USAGE)?;
        match arg.as_str() {
            "--only" => wanted.only = value.split(',').map(str::to_owned).collect(),
            "--runs" => wanted.runs = value.parse().ok().filter(|runs| *runs > 0).ok_or(USAGE)?,
            "--python" => wanted.python = value.into(),
            "--redis" => wanted.redis = Some(value.into()),
            _ => return Err(USAGE.into()),
        }
    }
    let all = [&programs::PROGRAMS[..], &servers::SERVERS, &torch::TORCH].concat();
    for name in &wanted.only {
        if !all.iter().any(|program| program.name == name) {
            let names = all
                .iter()
                .map(|program| program.name)
                .collect::<Vec<_>>()
                .join(", ");
            return Err(format!("no program is called '{name}'. The programs are {names}").into());
        }
        wanted.torch |= torch::TORCH.iter().any(|program| program.name == name);
    }
    Ok(wanted)
}

/// A program that is run under each allocator.
#[derive(Clone, Copy)]
struct Program {
    name: &'static str,
    about: &'static str,
    /// Prepares the program. Fails if it cannot run on this machine.
    prepare: fn(&Setup<'_>) -> Result<Run>,
}

/// Runs a program.
enum Run {
    /// Runs it once under an allocator.
    Alone(Box<Alone>),
    /// Runs it once under each of several allocators. The processes take turns, so that a change of the machine's speed affects all.
    Together(Box<Together>),
}

type Alone = dyn Fn(&Allocator) -> Result<Sample>;
type Together = dyn Fn(&[&Allocator]) -> Vec<Result<Sample>>;

impl Run {
    fn alone(run: impl Fn(&Allocator) -> Result<Sample> + 'static) -> Self {
        Self::Alone(Box::new(run))
    }
}

/// The data that programs need for their preparation.
struct Setup<'a> {
    sh: &'a Shell,
    wanted: &'a Wanted,
    /// The folder of the sources of our programs.
    sources: PathBuf,
    /// A folder for files that programs work on.
    folder: PathBuf,
    /// A folder that other users can read, with a short path, as sockets need it.
    temporary: PathBuf,
}

pub(crate) fn run(args: &[String]) -> Result {
    let wanted = &wanted(args)?;
    let sh = &shell()?;
    let temporary = Temporary::new(sh)?;
    let allocators = allocators(sh, &temporary.0)?;
    let setup = Setup {
        sh,
        wanted,
        sources: root().join("xtask/malloc"),
        folder: target().join("malloc"),
        temporary: temporary.0.clone(),
    };
    sh.create_dir(&setup.folder)?;

    println!("# Real programs under allocators\n");
    print!("{}", table::machine(&allocators, wanted.runs));
    println!("\n{}", table::ABOUT);
    let mut failed = section(&setup, &allocators, "Programs", "s", &programs::PROGRAMS);
    failed += &section(&setup, &allocators, "Servers", "s", &servers::SERVERS);
    if wanted.torch {
        failed += &section(&setup, &allocators, "PyTorch", "ms per step", &torch::TORCH);
    }
    if !failed.is_empty() {
        return Err(format!("programs failed under {OURS}:{failed}").into());
    }
    Ok(())
}

/// Runs programs and prints their table. `unit` is the unit of the first time. Returns the names of the programs that failed under
/// our library.
fn section(
    setup: &Setup<'_>,
    allocators: &[Allocator],
    title: &str,
    unit: &str,
    programs: &[Program],
) -> String {
    let only = &setup.wanted.only;
    let (mut about, mut rows, mut failed) = (String::new(), String::new(), String::new());
    for program in programs {
        let name = program.name;
        if !only.is_empty() && !only.iter().any(|wanted| wanted == name) {
            continue;
        }
        match (program.prepare)(setup) {
            Ok(run) => {
                let outcomes = measure(name, &run, allocators, setup.wanted.runs);
                about += &format!("- *{name}*: {}\n", program.about);
                rows += &table::rows(name, allocators, &outcomes);
                let mut outcomes = allocators.iter().zip(&outcomes);
                if outcomes.any(|(allocator, outcome)| allocator.name == OURS && outcome.failed.is_some()) {
                    failed += &format!(" {name}");
                }
            }
            Err(error) => about += &format!("- *{name}* is left out: {error}\n"),
        }
    }
    if !about.is_empty() {
        println!("\n## {title}\n\n{about}");
    }
    if !rows.is_empty() {
        print!("{}{rows}", table::head(unit));
    }
    failed
}

/// Runs a program under all allocators in turn. Each round begins with another allocator.
fn measure(name: &str, run: &Run, allocators: &[Allocator], runs: usize) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::default(); allocators.len()];
    for round in 0..runs {
        let mut order: Vec<_> = allocators.iter().zip(&mut outcomes).collect();
        order.rotate_left(round % allocators.len());
        order.retain(|(_, outcome)| outcome.failed.is_none());
        match run {
            Run::Alone(run) => {
                for (allocator, outcome) in order {
                    keep(name, allocator, outcome, run(allocator));
                }
            }
            Run::Together(run) => {
                let together: Vec<_> = order.iter().map(|(allocator, _)| *allocator).collect();
                for ((allocator, outcome), result) in order.into_iter().zip(run(&together)) {
                    keep(name, allocator, outcome, result);
                }
            }
        }
    }
    measure::compare(&mut outcomes);
    outcomes
}

/// Keeps the result of a run and reports it on standard error.
fn keep(name: &str, allocator: &Allocator, outcome: &mut Outcome, result: Result<Sample>) {
    match result {
        Ok(sample) => {
            let Sample { time, cpu, peak, .. } = sample;
            let (allocator, peak) = (allocator.name, table::mib(peak));
            eprintln!("{name}, {allocator}: {time:.2}, {cpu:.2} s, {peak:.1} MiB");
            outcome.samples.push(sample);
        }
        Err(error) => {
            eprintln!("{name}, {}: {error}", allocator.name);
            outcome.failed = Some(error.to_string());
        }
    }
}

/// Builds our library and finds the others. The first allocator is the C library's.
fn allocators(sh: &Shell, folder: &Path) -> Result<Vec<Allocator>> {
    cmd!(sh, "cargo build -p millpond-malloc --release").run()?;
    // Servers that run as another user may be unable to read the target folder.
    sh.copy_file(target().join("release/libmillpond_malloc.so"), folder)?;
    let mut allocators = vec![
        Allocator {
            name: "glibc",
            library: None,
        },
        Allocator {
            name: OURS,
            library: Some(folder.join("libmillpond_malloc.so")),
        },
    ];
    let cache = Command::new("/sbin/ldconfig").arg("-p").output();
    let cache = cache.map_or_else(
        |_| String::new(),
        |found| String::from_utf8_lossy(&found.stdout).into_owned(),
    );
    for (name, file) in OTHERS {
        let found = in_cache(&cache, file);
        let found = found.or_else(|| {
            LIBRARIES
                .map(|folder| Path::new(folder).join(file))
                .into_iter()
                .find(|path| path.is_file())
        });
        match found {
            Some(path) => allocators.push(Allocator {
                name,
                library: Some(path.canonicalize()?),
            }),
            None => println!("{name} is left out: {file} is not installed\n"),
        }
    }
    Ok(allocators)
}

/// Returns the path of a library in the output of `ldconfig -p`.
fn in_cache(cache: &str, file: &str) -> Option<PathBuf> {
    let mut lines = cache.lines().filter_map(|line| line.trim().split_once(" => "));
    let (_, path) =
        lines.find(|(about, _)| about.split_whitespace().next() == Some(file) && about.contains("64"))?;
    Some(path.into())
}

/// A temporary folder, which is removed when the value is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(sh: &Shell) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("millpond-malloc-{}", std::process::id()));
        sh.create_dir(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the path of a program in `PATH`.
fn find(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    places
        .find(|place| place.is_file())
        .ok_or_else(|| format!("{name} is not in PATH").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &str) -> Result<Wanted> {
        wanted(&args.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_parsed() {
        let some =
            parsed("--torch --only git,redis --runs 3 --python /opt/python --redis /opt/redis").unwrap();
        assert_eq!(
            some,
            Wanted {
                torch: true,
                only: vec!["git".into(), "redis".into()],
                runs: 3,
                python: "/opt/python".into(),
                redis: Some("/opt/redis".into()),
            }
        );
        for bad in ["--runs 0", "--runs", "--only nothing", "--other 1"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn libraries_are_found_in_the_output_of_ldconfig() {
        let cache = "2 libs found in cache `/etc/ld.so.cache'\n\
                     \tlibjemalloc.so.2 (libc6) => /lib/i386-linux-gnu/libjemalloc.so.2\n\
                     \tlibjemalloc.so.2 (libc6,x86-64) => /lib/x86_64-linux-gnu/libjemalloc.so.2\n";
        assert_eq!(
            in_cache(cache, "libjemalloc.so.2"),
            Some("/lib/x86_64-linux-gnu/libjemalloc.so.2".into())
        );
        assert_eq!(in_cache(cache, "libjemalloc.so"), None);
    }
}
