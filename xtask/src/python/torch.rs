//! Programs of PyTorch that run out of memory on the emulated driver, and the cost of the recording.
//!
//! Each program runs again with the setting or the change that its answer advises, and must finish. It also runs on devices of the size
//! that the answer says is needed, where the refused request must be served, and of 2 MiB less, where it must not. A later request may be
//! refused on such a device, because the recording ends with the refused request.

use crate::shell::{Result, emulated_driver, root};
use std::path::{Path, PathBuf};
use std::time::Instant;
use xshell::{Shell, cmd};

/// The variable that takes the settings of PyTorch's allocator.
const VARIABLE: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// The granularity of the figures that answers state.
const PAGE_MIB: u64 = 2;

/// Prints the number of requests in a recording.
const COUNT: &str = "import pickle, sys; [events] = pickle.load(open(sys.argv[1], 'rb'))['device_traces']; \
                     print(sum(event['action'] == 'alloc' for event in events))";

/// A program in `xtask/python/torch`.
struct Program {
    name: &'static str,
    /// The memory of the device.
    mib: u64,
    /// The settings under which it fails.
    conf: &'static str,
    /// Words of the answer that name a change of the program, and the arguments that make this change.
    change: Option<(&'static str, &'static [&'static str])>,
    /// The arguments of the runs on devices of the size that the answer states.
    sized: &'static [&'static str],
}

/// Returns a program without a change, on a device of 600 MiB.
const fn program(name: &'static str) -> Program {
    Program {
        name,
        mib: 600,
        conf: "",
        change: None,
        sized: &[],
    }
}

const PROGRAMS: [Program; 12] = [
    program("segments"),
    program("lengths"),
    program("rounding"),
    program("streams"),
    program("pool"),
    program("graphs"),
    Program {
        conf: "expandable_segments:True",
        ..program("pages")
    },
    program("workers"),
    Program {
        mib: 500,
        ..program("retries")
    },
    Program {
        change: Some(("losses.py:forward:", &["number"])),
        ..program("losses")
    },
    Program {
        mib: 620,
        change: Some(("With the batch times 0.5,", &["3"])),
        ..program("layers")
    },
    Program {
        change: Some(("a memory fraction", &["1.0"])),
        sized: &["1.0"],
        ..program("fraction")
    },
];

/// The end of a program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Finished,
    /// The number of requests that were served before the last refusal. `None` if the program ended in another way.
    Failed(Option<u64>),
}

/// The parsed answer.
struct Answer {
    why: String,
    /// The settings that would have served the request.
    setting: Option<String>,
    is_estimate: bool,
    /// The memory in which all refused requests are served, in MiB.
    needs: Option<u64>,
    /// Whether the program handled a refusal. It can then also finish with less.
    has_retried: bool,
    /// The settings that lower it, and what the program then needs.
    better: Option<(String, u64)>,
    text: String,
}

impl Answer {
    /// Reads the last answer of a program. Each of its sentences is a line.
    fn of(printed: &str) -> Option<Self> {
        let (_, text) = printed.rsplit_once("millpond: out of memory\n")?;
        let sentences: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("→ ")).collect();
        let conf = |sentence: &str| {
            let word = sentence.split(' ').find_map(|word| word.strip_prefix(VARIABLE));
            word.map(|conf| conf.trim_start_matches('=').trim_end_matches(':').to_owned())
        };
        let find = |part: &str| sentences.iter().copied().find(|sentence| sentence.contains(part));
        let served = find("would have served it.");
        let needs = find("the program holds at most ").and_then(|sentence| mib(sentence, " needs "));
        let better = find("it then needs ").filter(|sentence| sentence.starts_with("Set "));
        Some(Self {
            why: (*sentences.get(1)?).to_owned(),
            setting: served.and_then(conf),
            is_estimate: served.is_some_and(|sentence| sentence.starts_with("By an estimate, ")),
            needs,
            has_retried: find("Up to the refused request,").is_none(),
            better: better.and_then(|sentence| Some((conf(sentence)?, mib(sentence, " then needs ")?))),
            text: text.to_owned(),
        })
    }
}

/// Returns the size behind some words of a sentence.
fn mib(sentence: &str, words: &str) -> Option<u64> {
    let (_, rest) = sentence.split_once(words)?;
    let (number, rest) = rest.split_once(' ')?;
    rest.starts_with("MiB")
        .then(|| number.parse::<f64>().ok().map(|mib| mib.ceil() as u64))?
}

/// Runs the programs, prints a table of them, and measures the cost of the recording.
///
/// # Errors
/// Returns an error if a program does not end as expected, or if advice does not help.
pub(super) fn run(sh: &Shell, folder: &Path, python: &Path) -> Result {
    let driver = emulated_driver(sh)?;
    let runner = Runner {
        sh,
        python,
        folder: folder.join("torch"),
        programs: root().join("xtask/python/torch"),
    };
    sh.create_dir(&runner.folder)?;
    let _driver = sh.push_env("LD_LIBRARY_PATH", &driver);
    // Each sentence of an answer is then a line.
    let _width = sh.push_env("COLUMNS", "10000");
    let _in = sh.push_dir(&runner.folder);
    let version =
        "import sys, torch; print('PyTorch', torch.__version__, 'on Python', sys.version.split()[0])";
    println!("{}", cmd!(sh, "{python} -W ignore -c {version}").read()?);
    println!(
        "{:<10} {:>5}  {:<72} {:<48} {:<10} {:>6}  {:<9} {:<8} {:>5}",
        "program", "MiB", "cause", "advised", "with it", "needs", "with that", "2 less", "s"
    );
    let mut wrong = Vec::new();
    for program in &PROGRAMS {
        let begin = Instant::now();
        let row = runner.row(program, &mut wrong)?;
        println!("{row} {:>5.0}", begin.elapsed().as_secs_f64());
    }
    let cost = root().join("xtask/python/torch_cost.py");
    let _emulator = sh.push_env("MILLPOND_CUDA_EMU", "memory:8G,version:13020");
    // The folder of the tests has a module in place of PyTorch, so it must not be on the path.
    let exchange = root().join("crates/millpond-python/tests/test_devices.py");
    cmd!(sh, "{python} -P -W ignore {exchange} WithTorch").run()?;
    cmd!(sh, "{python} -W ignore {cost}").run()?;
    match wrong.as_slice() {
        [] => Ok(()),
        wrong => Err(wrong.join("\n").into()),
    }
}

struct Runner<'a> {
    sh: &'a Shell,
    python: &'a Path,
    folder: PathBuf,
    programs: PathBuf,
}

impl Runner<'_> {
    /// Runs a program on a device. Returns its end and what it printed to standard error.
    fn end(&self, program: &Program, mib: u64, conf: &str, arguments: &[&str]) -> Result<(End, String)> {
        let Self { sh, python, .. } = self;
        let (name, file) = (program.name, self.programs.join(format!("{}.py", program.name)));
        let (page, recording) = (format!("{name}.html"), self.folder.join(format!("{name}.pickle")));
        sh.remove_path(&page)?;
        sh.remove_path(&recording)?;
        let run = ["-W", "ignore", "-m", "millpond", "run", "--page"];
        let output = cmd!(sh, "{python} {run...} {page} {file} {arguments...}")
            .quiet()
            .ignore_status()
            .env(VARIABLE, conf)
            // The programs need CUDA 13.2.
            .env("MILLPOND_CUDA_EMU", format!("memory:{mib}M,version:13020"))
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let end = match output.status.code() {
            Some(0) if output.stdout == b"finished\n" => End::Finished,
            Some(1) if Path::new(&recording).exists() => End::Failed(
                cmd!(sh, "{python} -c {COUNT} {recording}")
                    .quiet()
                    .read()?
                    .parse()
                    .ok(),
            ),
            _ => End::Failed(None),
        };
        Ok((end, said))
    }

    /// Runs a program and all that its answer advises. Returns a row of the table.
    fn row(&self, program: &Program, wrong: &mut Vec<String>) -> Result<String> {
        let name = program.name;
        let mut check = |holds: bool, what: &str, said: &str| {
            if !holds {
                wrong.push(format!("{name}: {what}\n{said}"));
            }
        };
        let (end, said) = self.end(program, program.mib, program.conf, &[])?;
        let Some(answer) = Answer::of(&said) else {
            check(false, "it printed no answer", &said);
            return Ok(format!("{name:<10} no answer"));
        };
        check(
            matches!(end, End::Failed(Some(_))),
            "its exit code is not 1",
            &said,
        );
        let traceback = said.contains("Traceback (most recent call last)");
        check(
            traceback && said.contains("\ntorch.OutOfMemoryError: "),
            "it has no traceback",
            &said,
        );
        for ending in ["html", "pickle"] {
            let file = self.folder.join(format!("{name}.{ending}"));
            check(
                file.exists(),
                "it wrote no page or no recording",
                &file.display().to_string(),
            );
        }
        let text = &answer.text;
        let change = program.change.filter(|(words, _)| text.contains(words));
        check(
            change.is_some() == program.change.is_some(),
            "the answer does not name the change",
            text,
        );
        let (advised, with_it) = match (&answer.setting, change) {
            (_, Some((words, arguments))) => {
                let (changed, _) = self.end(program, program.mib, program.conf, arguments)?;
                check(changed == End::Finished, "it fails with the change", text);
                (words, changed.tell(end))
            }
            (Some(conf), None) => {
                let (set, said) = self.end(program, program.mib, conf, &[])?;
                // The emulated driver does not place blocks as the real one does.
                check(
                    set == End::Finished || answer.is_estimate,
                    "it fails with the setting",
                    &format!("{text}\n{said}"),
                );
                (conf.as_str(), set.tell(end))
            }
            (None, None) => ("none", "-"),
        };
        let own = answer.needs.map(|needs| (program.conf.to_owned(), needs));
        let mut sized = Vec::new();
        for (conf, needs) in own.into_iter().chain(answer.better.clone()) {
            let (enough, said) = self.end(program, needs, &conf, program.sized)?;
            check(
                enough.is_later(end),
                &format!("the request is refused in {needs} MiB with '{conf}'"),
                &format!("{text}\n{said}"),
            );
            let (less, _) = self.end(program, needs - PAGE_MIB, &conf, program.sized)?;
            check(
                !less.is_later(end) || answer.has_retried,
                &format!("the request is served in less than {needs} MiB with '{conf}'"),
                text,
            );
            sized.push(format!(
                "{needs:>6}  {:<9} {:<8}",
                enough.tell(end),
                less.tell(end)
            ));
        }
        let why: String = answer.why.chars().take(70).collect();
        let advised = match answer.is_estimate {
            true => format!("{advised} (estimate)"),
            false => advised.to_owned(),
        };
        let first = sized
            .first()
            .map_or_else(|| format!("{:>6}  {:<9} {:<8}", "-", "-", "-"), Clone::clone);
        let mut row = format!(
            "{name:<10} {:>5}  {why:<72} {advised:<48} {with_it:<10} {first}",
            program.mib
        );
        if let (Some(second), Some((conf, _))) = (sized.get(1), &answer.better) {
            row = format!(
                "{row}\n{:<10} {:>5}  {:<72} {conf:<48} {:<10} {second}",
                "", "", "", ""
            );
        }
        Ok(row)
    }
}

impl End {
    /// Returns whether a program got further than in an earlier run that was refused a request.
    fn is_later(self, before: Self) -> bool {
        match (self, before) {
            (Self::Finished, _) => true,
            (Self::Failed(Some(served)), Self::Failed(Some(before))) => served > before,
            (Self::Failed(_), _) => false,
        }
    }

    /// Describes how a program ended, compared with an earlier run that was refused a request.
    fn tell(self, before: Self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Failed(None) => "stopped",
            Self::Failed(_) if self.is_later(before) => "later",
            Self::Failed(_) => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_parsed() {
        let printed = "Traceback\n\nmillpond: out of memory\n\
            → The program ran out of memory at event 30, 0.00 s in: 150 MiB were requested for a.py:f:5.\n\
            → 100 MiB free on the device and 300 MiB free in 10 holes are too little.\n\
            → By an estimate, PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync would have served it.\n\
            → Up to the refused request, the program holds at most 420 MiB at once and needs 650 MiB under it.\n\
            → Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: it then needs 419.5 MiB, 230 MiB less.\n";
        let answer = Answer::of(printed).expect("it has an answer");
        assert_eq!((answer.needs, answer.is_estimate), (Some(650), true));
        assert_eq!(answer.setting.as_deref(), Some("backend:cudaMallocAsync"));
        assert_eq!(answer.better, Some(("expandable_segments:True".to_owned(), 420)));
        assert!(Answer::of("Traceback\n").is_none());
    }
}
