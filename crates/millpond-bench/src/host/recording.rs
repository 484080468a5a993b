//! Replays a recording on real memory: with our pools, with glibc, and with all other heaps that were built in.
//!
//! Each of them runs the program in its own process, which gets only the calls. So the resident memory and the page faults
//! belong to the allocator.

use crate::Program;
pub use crate::host::allocator::Touch;
use crate::host::child::{self, Again};
use crate::host::contender::{self, Contender};
use crate::host::figures::Figures;
use crate::host::rounds::{in_turn, summary};
use millpond::PoolBuilder;
use millpond_engine::policies;
use millpond_replay::Program as Calls;
use std::borrow::Cow;
use thiserror::Error;

/// The first argument of a child: `--tape PEER TOUCH CHECK POLICY`. The child reads the program from its standard input.
pub(crate) const FLAG: &str = "--tape";

/// The program to replay, and the options.
#[derive(Clone, Copy, Debug)]
pub struct Replay<'a> {
    /// The program.
    pub program: &'a Calls,
    /// The divisor of every size. `None` means the result of [`divisor`].
    pub scale: Option<u64>,
    /// The part of each block that is written.
    pub touch: Touch,
    /// Whether both ends of each block are marked, and checked when it is freed.
    pub check: bool,
    /// The number of runs with each allocator.
    pub rounds: usize,
    /// The policies under which our pools run it.
    pub policies: &'a [String],
    /// Settings of these pools and policies, if any. Each gets only the settings that it has.
    pub conf: Option<&'a str>,
}

/// The reason why a program was not replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// The program needs more memory than is available.
    #[error(
        "the program holds {peak} bytes at its peak, and {available} are available: divide sizes by {scale}"
    )]
    TooLarge {
        /// Bytes that it would hold at its peak.
        peak: u64,
        /// Available bytes.
        available: u64,
        /// A divisor with which it would fit.
        scale: u64,
    },
}

/// The rounds of one allocator.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The allocator.
    pub allocator: &'static str,
    /// The policy, for our pools.
    pub policy: Option<String>,
    /// Processor time of an allocation, the writes to it and its free, in nanoseconds, in the median round.
    pub nanoseconds: f64,
    /// The same time in the fastest round.
    pub least: f64,
    /// The same time in the slowest round.
    pub most: f64,
    /// Minor page faults of an allocation, the writes to it and its free.
    pub faults: f64,
    /// The peak of resident bytes minus those at the start.
    pub peak: u64,
    /// The same figure after all frees.
    pub freed: u64,
    /// The same figure after a trim.
    pub trimmed: u64,
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The divisor of every size.
    pub divisor: u64,
    /// Whether the divisor was chosen automatically.
    pub chosen: bool,
    /// The number of allocations in the program.
    pub allocations: u64,
    /// Blocks that the program never frees. They are freed at the end.
    pub left: u64,
    /// Frees of unknown blocks. They are ignored.
    pub unknown_frees: u64,
    /// The most bytes held at once.
    pub peak: u64,
    /// The number of 4 KiB pages in its blocks, for each allocation.
    pub pages: f64,
    /// One row for each allocator.
    pub rows: Vec<Row>,
    /// One line for each run that failed.
    pub failed: Vec<String>,
    /// The allocators that were not built in, if any.
    pub missing: Option<String>,
}

/// Returns the memory that this process may still use under all its limits, or a guess if the system does not report it.
#[must_use]
pub fn available() -> u64 {
    millpond::pressure().available().unwrap_or(4 << 30)
}

/// Returns the smallest power of two by which sizes must be divided so that the program holds at most `most` bytes. With a
/// power of two, the divisor changes only if free memory changes a lot.
#[must_use]
pub fn divisor(program: &Calls, most: u64) -> u64 {
    let mut divisor = 1;
    while divisor < 1 << 62 && Program::on_host(program, divisor).peak > most {
        divisor *= 2;
    }
    divisor
}

/// Runs the program with every allocator in turn. Calls `progress` with the finished and the total number of runs.
///
/// # Errors
/// Returns an error if the program does not fit into memory.
pub fn replay(
    what: &Replay<'_>,
    again: &Again,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Replayed, Refused> {
    let available = available();
    let fitting = || divisor(what.program, available / 4);
    let divisor = what.scale.unwrap_or_else(fitting);
    let program = Program::on_host(what.program, divisor);
    if what.touch != Touch::None && program.peak > available {
        return Err(Refused::TooLarge {
            peak: program.peak,
            available,
            scale: fitting(),
        });
    }
    let who = contenders(what.policies);
    let input = program.encode();
    let (mut failed, mut done) = (Vec::new(), 0);
    let check = if what.check { "check" } else { "no" };
    let runs = in_turn(&who, what.rounds, |one| {
        progress(done, who.len() * what.rounds);
        done += 1;
        let policy = one.policy.as_deref().unwrap_or("-");
        let arguments = [FLAG, one.contender.name(), what.touch.name(), check, policy];
        let conf = what.conf.map(|conf| for_policy(conf, policy));
        let conf = conf.as_deref().map(|conf| (child::POOLS, conf));
        let answer = again.start(&arguments, one.contender, conf.as_slice(), &input);
        answer
            .map_err(|why| failed.push(format!("{}: {why}", one.name())))
            .ok()
    });
    let rows = who.iter().zip(&runs).filter(|(_, all)| !all.is_empty());
    let rows = rows.filter_map(|(one, all)| row(one, all)).collect();
    Ok(Replayed {
        divisor,
        chosen: what.scale.is_none(),
        allocations: program.allocations,
        left: program.left,
        unknown_frees: program.unknown_frees,
        peak: program.peak,
        pages: program.pages() as f64 / program.allocations.max(1) as f64,
        rows,
        failed,
        missing: contender::missing(),
    })
}

/// An allocator, with the policy if it is our pool.
struct Candidate {
    contender: Contender,
    policy: Option<String>,
}

impl Candidate {
    fn name(&self) -> String {
        match &self.policy {
            Some(policy) => format!("{} ({policy})", self.contender.name()),
            None => self.contender.name().to_owned(),
        }
    }
}

/// Returns the settings for a pool with this policy, without those that only other policies have. A text that cannot be parsed
/// is returned unchanged, so that the child refuses it.
fn for_policy<'a>(conf: &'a str, policy: &str) -> Cow<'a, str> {
    if policies::retaining().any(|name| name == policy) {
        return conf.into();
    }
    let read = PoolBuilder::read_settings(conf);
    read.map_or(conf.into(), |read| read.any_pool_text.into())
}

/// Returns glibc first, then the other heaps in their usual order, then our pools.
fn contenders(policies: &[String]) -> Vec<Candidate> {
    let heaps = [Contender::Glibc, Contender::Mimalloc, Contender::Jemalloc];
    let heaps = heaps
        .into_iter()
        .filter(|one| one.is_built())
        .map(|contender| Candidate {
            contender,
            policy: None,
        });
    let ours = policies.iter().map(|policy| Candidate {
        contender: Contender::Millpond,
        policy: Some(policy.clone()),
    });
    heaps.chain(ours).collect()
}

fn row(one: &Candidate, rounds: &[Figures]) -> Option<Row> {
    let summed = summary(one.contender, rounds);
    let (pair, memory) = (summed.part("pair")?, summed.memory?);
    let over = |resident: u64| resident.saturating_sub(memory.start);
    Some(Row {
        allocator: one.contender.name(),
        policy: one.policy.clone(),
        nanoseconds: pair.time.median,
        least: pair.time.least,
        most: pair.time.most,
        faults: pair.faults,
        peak: over(memory.peak),
        freed: over(memory.freed),
        trimmed: over(memory.trimmed),
    })
}

/// The task of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplayTask {
    contender: Contender,
    touch: Touch,
    check: bool,
    policy: String,
}

impl ReplayTask {
    /// Parses the arguments after the flag.
    pub(crate) fn read(peer: &str, touch: &str, check: &str, policy: &str) -> Result<Self, String> {
        Ok(Self {
            contender: Contender::named(peer)?,
            touch: Touch::named(touch)?,
            check: check == "check",
            policy: policy.to_owned(),
        })
    }

    /// Reads the program and runs it.
    pub(crate) fn run(&self) -> Result<Figures, String> {
        let program = Program::decode(&mut std::io::stdin().lock())
            .ok_or("the program on standard input is invalid or truncated")?;
        child::pin(1)?;
        let ran = self
            .contender
            .run_program(&program, self.touch, self.check, &self.policy);
        ran.map_err(|error| error.to_string())
    }
}
