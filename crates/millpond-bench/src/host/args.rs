//! Parses the command line.

use crate::host::contender::Contender;
use crate::host::recording::ReplayTask;
use crate::host::spec::{GROUPS, Spec, group};
use crate::host::work::Effort;
use clap::{Parser, error::ErrorKind};

/// The help text.
pub const USAGE: &str = "\
host [w1 w2 w3 w4 w5 w6 half seeds | WORKLOAD]... [--peer NAME]... [--rounds N]
host --once WORKLOAD [--peer NAME]

The groups of workloads:
  w1     pairs of an allocation and a free, by size, by alignment, and touched or not
  w2     10,000 blocks of mixed sizes, allocated and then freed, in one thread and in two (w2x2)
  w3     200 live blocks; a random one is replaced repeatedly
  w4     the same with 100 smaller blocks in each of two threads
  w5     one thread allocates, another frees
  w6     zeroed memory that is read and written
  half   1,000 blocks; a random half is freed, and a trim follows
  seeds  loops from the documents of five tensor libraries
Without a name, all workloads are measured.

A WORKLOAD is a member of a group: w1:64KiB:a16:touch, w2x2, w3:8000, w6:1MiB, tensorcore...
--once runs a workload once in this process, which is not pinned, for tools that count instructions.
A PEER is (loop), glibc, gl-tuned, mimalloc, jemalloc, je-tuned, snmalloc, mmap or millpond.
mmap creates a new mapping for each block, and is measured only if it is named. (loop) has
no allocator, and shows the cost of the loop itself.";

/// The requested task.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help,
    /// Measure all of these in several rounds.
    Measure {
        groups: Vec<(String, Vec<Spec>)>,
        peers: Vec<Contender>,
        rounds: usize,
    },
    /// Run one workload once in this process.
    Once(Spec, Contender),
    /// Run as a child.
    Cell(Spec, Contender, Effort),
    /// Run as a child that replays a recording.
    Tape(ReplayTask),
}

/// The arguments after the program's name.
#[derive(Debug, Parser)]
#[command(override_help = USAGE, no_binary_name = true)]
struct Arguments {
    #[arg(value_name = "WORKLOAD", value_parser = named_group)]
    groups: Vec<(String, Vec<Spec>)>,

    #[arg(long = "peer", value_name = "PEER", value_parser = Contender::named)]
    peers: Vec<Contender>,

    #[arg(long, value_name = "N", default_value = "5", value_parser = count)]
    rounds: usize,

    #[arg(long, value_name = "WORKLOAD", conflicts_with = "groups", value_parser = str::parse::<Spec>)]
    once: Option<Spec>,

    #[arg(long, num_args = 3)]
    cell: Option<Vec<String>>,

    #[arg(long, num_args = 4)]
    tape: Option<Vec<String>>,
}

/// Parses the arguments after the program's name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Task, String> {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => return Ok(Task::Help),
        Err(error) => {
            // The lines after the first one repeat the help.
            let text = error.render().to_string();
            let line = text.lines().next().unwrap_or_default();
            return Err(line.trim_start_matches("error: ").to_owned());
        }
    };
    let Arguments {
        mut groups,
        mut peers,
        rounds,
        ..
    } = arguments;
    if let Some([spec, peer, effort]) = arguments.cell.as_deref() {
        let (spec, peer) = (spec.parse()?, Contender::named(peer)?);
        return Ok(Task::Cell(spec, peer, Effort::named(effort)?));
    }
    if let Some([peer, touch, check, policy]) = arguments.tape.as_deref() {
        return ReplayTask::read(peer, touch, check, policy).map(Task::Tape);
    }
    if let Some(spec) = arguments.once {
        return match peers[..] {
            [] => Ok(Task::Once(spec, Contender::Millpond)),
            [peer] if peer.runs(spec) => Ok(Task::Once(spec, peer)),
            [peer] => Err(format!("{} does not run {spec}", peer.name())),
            _ => Err("--once takes at most one --peer".to_owned()),
        };
    }
    if groups.is_empty() {
        groups = GROUPS.map(|name| (name.to_owned(), group(name))).to_vec();
    }
    // The order is fixed, so that the tables of two runs can be compared.
    peers = match peers.is_empty() {
        true => Contender::usual().collect(),
        false => Contender::ALL.into_iter().filter(|c| peers.contains(c)).collect(),
    };
    Ok(Task::Measure {
        groups,
        peers,
        rounds,
    })
}

/// Parses the name of a group or of a workload.
fn named_group(name: &str) -> Result<(String, Vec<Spec>), String> {
    let name = name.to_ascii_lowercase();
    let specs = match group(&name) {
        specs if specs.is_empty() => vec![name.parse()?],
        specs => specs,
    };
    Ok((name, specs))
}

fn count(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| (1..=1_000).contains(n));
    number.ok_or_else(|| "the number of rounds must be from 1 to 1000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Task, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn everything_is_measured_unless_workloads_are_named() {
        let Ok(Task::Measure {
            groups,
            peers,
            rounds,
        }) = parsed("")
        else {
            panic!("nothing is no error");
        };
        assert_eq!(
            (groups.len(), peers.len(), rounds),
            (GROUPS.len(), Contender::usual().count(), 5)
        );
        let Ok(Task::Measure {
            groups,
            peers,
            rounds,
        }) = parsed("W2 w1:64 --peer millpond --peer glibc --rounds 3")
        else {
            panic!("all of this exists");
        };
        assert_eq!(groups.len(), 2);
        assert_eq!((peers, rounds), (vec![Contender::Glibc, Contender::Millpond], 3));
    }

    #[test]
    fn invalid_arguments_are_errors() {
        for line in [
            "w9",
            "--peer",
            "--peer tcmalloc",
            "--rounds 0",
            "--rounds x",
            "--round 3",
            "--once",
            "--once w1",
            "--once w1:64 w2",
            "--once w1:64 --peer glibc --peer mimalloc",
            "--once w3:8000 --peer loop",
            "--cell w2",
            "--cell w2 glibc",
            "--cell w2 glibc fast",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_usage_names_every_group_and_peer() {
        assert!(GROUPS.iter().all(|name| USAGE.contains(name)));
        assert!(Contender::ALL.iter().all(|peer| USAGE.contains(peer.name())));
    }
}
