//! A recording replayed on real memory: our pools beside glibc and whatever other heaps were built in.
//!
//! Each of them runs the program in a process of its own, which is given the calls and nothing else, so that what is
//! resident and what faults is its own.

use crate::host::child::{self, Again};
use crate::host::contender::{self, Contender};
use crate::host::figures::Figures;
use crate::host::rounds::{in_turn, summary};
use crate::host::tape::Tape;
use millpond::PoolBuilder;
use millpond_engine::policies;
use millpond_replay::Program;
use std::borrow::Cow;
use thiserror::Error;

/// `--tape PEER TOUCH CHECK POLICY` is what a child is started with; the program comes on its standard input.
pub(crate) const FLAG: &str = "--tape";

/// What is written to a block when it has been allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Nothing.
    None,
    /// One byte of each 4 KiB.
    Page,
    /// Every byte.
    Full,
}

impl Touch {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Page => "page",
            Self::Full => "full",
        }
    }

    fn named(name: &str) -> Result<Self, String> {
        let all = [Self::None, Self::Page, Self::Full];
        let found = all.into_iter().find(|touch| touch.name() == name);
        found.ok_or_else(|| format!("nothing is touched so: '{name}'"))
    }
}

/// What is to be replayed, and how.
#[derive(Clone, Copy, Debug)]
pub struct Replay<'a> {
    /// The program.
    pub program: &'a Program,
    /// Every size is divided by this; chosen by [`divisor`] where nothing is said.
    pub scale: Option<u64>,
    /// What is written to each block.
    pub touch: Touch,
    /// Whether both ends of each block are marked, and looked at when it is freed.
    pub check: bool,
    /// How often each allocator runs it.
    pub rounds: usize,
    /// The policies under which a pool of ours runs it.
    pub policies: &'a [String],
    /// Settings of those pools and policies, if any; each gets those it has.
    pub conf: Option<&'a str>,
}

/// Why a program was not replayed at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// It would take more memory than there is.
    #[error("the program holds {peak} bytes at its peak")]
    TooLarge {
        /// Bytes it would hold at its peak.
        peak: u64,
        /// Bytes there are.
        available: u64,
        /// A divisor with which it would fit.
        scale: u64,
    },
}

/// One allocator's rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The allocator.
    pub allocator: &'static str,
    /// The policy of the pool, where it is ours.
    pub policy: Option<String>,
    /// Processor time of an allocation, its touching and its free, in nanoseconds: the median round.
    pub nanoseconds: f64,
    /// The fastest round.
    pub least: f64,
    /// The slowest.
    pub most: f64,
    /// Minor page faults of an allocation, its touching and its free.
    pub faults: f64,
    /// Resident bytes over those at the start, at most.
    pub peak: u64,
    /// The same when everything has been freed.
    pub freed: u64,
    /// And after a trim.
    pub trimmed: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// What every size was divided by.
    pub divisor: u64,
    /// Whether that was chosen here.
    pub chosen: bool,
    /// Allocations of the program.
    pub allocations: u64,
    /// Blocks it never frees; they are freed at the end.
    pub left: u64,
    /// Frees of blocks it does not have; they are passed over.
    pub unknown_frees: u64,
    /// Most bytes held at once.
    pub peak: u64,
    /// Pages of 4 KiB that its blocks have, for each allocation.
    pub pages: f64,
    /// An allocator each.
    pub rows: Vec<Row>,
    /// Runs that failed, a line for each.
    pub failed: Vec<String>,
    /// Which allocators could not run because they were not built in, if any.
    pub missing: Option<String>,
}

/// Memory this process may still use, by every limit it is under; a guess where the system does not say.
#[must_use]
pub fn available() -> u64 {
    millpond::pressure().available().unwrap_or(4 << 30)
}

/// The least power of two by which sizes have to be divided so that the program holds no more than a share of what is
/// available. A power, so that free memory has to change a lot before two runs differ.
#[must_use]
pub fn divisor(program: &Program, most: u64) -> u64 {
    let mut divisor = 1;
    while divisor < 1 << 62 && Tape::new(program, divisor).peak > most {
        divisor *= 2;
    }
    divisor
}

/// Runs the program in every allocator, in turn, and tells how many runs of how many are done.
///
/// # Errors
/// When the program would not fit into memory.
pub fn replay(
    what: &Replay<'_>,
    again: &Again,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Replayed, Refused> {
    let available = available();
    let fitting = || divisor(what.program, available / 4);
    let divisor = what.scale.unwrap_or_else(fitting);
    let tape = Tape::new(what.program, divisor);
    if what.touch != Touch::None && tape.peak > available {
        return Err(Refused::TooLarge {
            peak: tape.peak,
            available,
            scale: fitting(),
        });
    }
    let who = contenders(what.policies);
    let input = tape.encode();
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
        allocations: tape.allocations,
        left: tape.left,
        unknown_frees: tape.unknown_frees,
        peak: tape.peak,
        pages: tape.pages() as f64 / tape.allocations.max(1) as f64,
        rows,
        failed,
        missing: contender::missing(),
    })
}

/// An allocator, and the policy if it is a pool of ours.
struct One {
    contender: Contender,
    policy: Option<String>,
}

impl One {
    fn name(&self) -> String {
        match &self.policy {
            Some(policy) => format!("{} ({policy})", self.contender.name()),
            None => self.contender.name().to_owned(),
        }
    }
}

/// What a pool of this policy is told. Settings that only other policies have are not for it; a text that cannot be read
/// is told as it is, for the child to refuse.
fn for_policy<'a>(conf: &'a str, policy: &str) -> Cow<'a, str> {
    if policies::retaining().any(|name| name == policy) {
        return conf.into();
    }
    let read = PoolBuilder::read_settings(conf);
    read.map_or(conf.into(), |read| read.any_pool_text.into())
}

/// glibc first, then the other heaps as they come, then our pools.
fn contenders(policies: &[String]) -> Vec<One> {
    let heaps = [Contender::Glibc, Contender::Mimalloc, Contender::Jemalloc];
    let heaps = heaps
        .into_iter()
        .filter(|one| one.is_built())
        .map(|contender| One {
            contender,
            policy: None,
        });
    let ours = policies.iter().map(|policy| One {
        contender: Contender::Millpond,
        policy: Some(policy.clone()),
    });
    heaps.chain(ours).collect()
}

fn row(one: &One, rounds: &[Figures]) -> Option<Row> {
    let summed = summary(one.contender, rounds);
    let (time, memory) = (summed.part("pair")?, summed.memory?);
    let over = |resident: u64| resident.saturating_sub(memory.start);
    Some(Row {
        allocator: one.contender.name(),
        policy: one.policy.clone(),
        nanoseconds: time.median,
        least: time.least,
        most: time.most,
        faults: time.faults,
        peak: over(memory.peak),
        freed: over(memory.freed),
        trimmed: over(memory.trimmed),
    })
}

/// The child's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    contender: Contender,
    touch: Touch,
    check: bool,
    policy: String,
}

impl Part {
    /// What follows the flag.
    pub(crate) fn read(mut next: impl FnMut() -> Result<String, String>) -> Result<Self, String> {
        Ok(Self {
            contender: Contender::named(&next()?)?,
            touch: Touch::named(&next()?)?,
            check: next()? == "check",
            policy: next()?,
        })
    }

    /// Reads the program, runs it.
    pub(crate) fn run(&self) -> Result<Figures, String> {
        let tape = Tape::decode(&mut std::io::stdin().lock()).ok_or("the program cannot be read")?;
        child::pin(1)?;
        let ran = self
            .contender
            .run_tape(&tape, self.touch, self.check, &self.policy);
        ran.map_err(|error| error.to_string())
    }
}
