//! The steps, the most valuable first, because time may run out.

use super::report::Step;
use super::{Session, child::Program, programs, tests, training};

/// One program of a step.
pub(super) enum Part {
    /// A probe of this program, in its own process, and its time limit in seconds.
    Probe(&'static str, u64),
    /// A test program of the library, on the machine's driver, and the time limit of a run in seconds.
    Tests(&'static str, u64),
    /// A function that runs other programs, and the time limit of each in seconds.
    Other(fn(&Session, &mut Step, u64), u64),
}

/// A step.
pub(super) struct Plan {
    pub(super) number: u32,
    pub(super) name: &'static str,
    pub(super) parts: &'static [Part],
}

use Part::{Other, Probe, Tests};

const fn plan(number: u32, name: &'static str, parts: &'static [Part]) -> Plan {
    Plan { number, name, parts }
}

pub(super) const ALL: [Plan; 12] = [
    plan(1, "Four handles, one access, one unmap", &[Probe("mapping", 20)]),
    plan(
        2,
        "Contents through moves and double mappings",
        &[Probe("contents", 60)],
    ),
    plan(
        3,
        "Calls during the capture of another stream",
        &[Probe("captures", 45)],
    ),
    plan(
        4,
        "Waits during captures, and ends of captures",
        &[Probe("ending", 20)],
    ),
    plan(5, "Registered memory", &[Probe("registered", 20)]),
    plan(6, "Calls while a kernel runs", &[Probe("busy", 45)]),
    plan(7, "Costs against the number of handles", &[Probe("costs", 60)]),
    plan(8, "Address space and limits of pools", &[Probe("addresses", 20)]),
    plan(9, "Kernels", &[Probe("ptx", 60), Tests("cuda_tensor", 90)]),
    plan(
        10,
        "The tests of the library and of the emulated driver",
        &[
            Tests("cuda", 60),
            Tests("cuda_pool", 90),
            Tests("cuda_graph", 60),
            Tests("cuda_cudarc", 60),
            Tests("cuda_nvrtc", 60),
            Tests("cuda_transfer", 60),
            Tests("cuda_hostile", 60),
            Tests("captures", 30),
            Tests("found_by_clients", 30),
            Other(tests::churn, 60),
            Probe("fault", 30),
        ],
    ),
    plan(
        11,
        "Benches",
        &[
            Other(programs::bench_alloc, 60),
            Other(programs::bench_transfer, 60),
            Other(programs::bench_driver, 60),
            Other(programs::bench_kernels, 60),
        ],
    ),
    plan(
        12,
        "Recordings",
        &[
            Other(programs::replays, 120),
            Other(programs::torch, 90),
            Other(training::run, 40),
        ],
    ),
];

impl Plan {
    /// Returns the sum of the time limits of the parts, in seconds.
    pub(super) fn seconds(&self) -> u64 {
        let of = |part: &Part| match part {
            Probe(_, seconds) | Tests(_, seconds) | Other(_, seconds) => *seconds,
        };
        self.parts.iter().map(of).sum()
    }
}

impl Part {
    pub(super) fn run(&self, session: &Session, step: &mut Step) {
        match self {
            Probe(name, seconds) => probe(session, step, name, *seconds),
            Tests(name, seconds) => tests::run(session, step, name, *seconds),
            Other(run, seconds) => run(session, step, *seconds),
        }
    }
}

fn probe(session: &Session, step: &mut Step, name: &str, seconds: u64) {
    let mut program = Program::new(session, "millpond-card", name, seconds).args([
        "probe",
        name,
        "--driver",
        &session.driver,
    ]);
    if session.rehearse {
        program = program.args(["--rehearse"]);
    }
    if session.quick {
        program = program.args(["--quick"]);
    }
    match program.run(session) {
        Ok(ran) => {
            ran.out.lines().for_each(|line| step.take(line));
            if let Some(trouble) = ran.trouble() {
                step.trouble(format!("{name}: {trouble}"));
            }
        }
        Err(why) => step.trouble(why),
    }
}
