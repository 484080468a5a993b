//! Failures of each call in turn.

use super::super::program::{Op, program};
use super::of_pages;
use super::programs::{Eyes, PAGES, Pair, blind, seeing};
use millpond::engine::{CallKind, Failure, Faulty, Source, When};
use millpond::source::MemorySource;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// Returns a pseudo-random program that is the same in every run.
fn fixed() -> Vec<Op> {
    let mut runner = TestRunner::deterministic();
    let programs = std::iter::repeat_with(|| program(200).new_tree(&mut runner).expect("a program"));
    programs
        .map(|tree| tree.current())
        .find(|ops| ops.len() > 100)
        .expect("a long one")
}

/// Runs the program with failures, and checks that nothing was lost. Returns the number of calls of a kind.
fn survives<S: Source>(
    source: S,
    page: u64,
    ops: &[Op],
    kind: CallKind,
    when: When,
    eyes: Eyes<Faulty<S>>,
) -> u64 {
    let faulty = Faulty::new(source).failing(kind, when, Failure::OutOfMemory);
    let mut pair = Pair::new(faulty, page, eyes);
    pair.may_fail = true;
    ops.iter().for_each(|op| pair.step(op));
    let (calls, struck) = (pair.source.calls(kind), pair.source.struck());
    assert!(pair.failures >= struck.min(1), "a failure was told as a success");
    pair.end();
    calls
}

fn in_turn<S: Source>(make: impl Fn(Option<u64>) -> Option<S>, eyes: fn() -> Eyes<Faulty<S>>) {
    let ops = fixed();
    let run = |kind, when| {
        let (source, page) = of_pages(&make, PAGES)?;
        Some(survives(source, page, &ops, kind, when, eyes()))
    };
    for kind in CallKind::ALL.into_iter().filter(|kind| kind.can_fail()) {
        let Some(calls) = run(kind, When::Nth(u64::MAX)) else {
            return;
        };
        for n in 0..calls {
            run(kind, When::Nth(n));
        }
        run(kind, When::Every(2));
        run(
            kind,
            When::Chance {
                probability: 0.3,
                seed: 1,
            },
        );
    }
}

pub(crate) fn each_call_fails_in_turn<S: Source>(make: impl Fn(Option<u64>) -> Option<S>) {
    in_turn(make, blind);
}

pub(crate) fn failures_keep_contents<S: MemorySource>(make: impl Fn(Option<u64>) -> Option<S>) {
    in_turn(make, seeing);
}
