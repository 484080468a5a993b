//! Tests what a wait for the context does to an unrelated relaxed capture, and what the driver answers if a capture is ended twice.

use crate::card::Card;
use crate::driver::{Code, Failed, Handle, SUCCESS, call};
use crate::say::{self, row};

const TABLE: &str = "Ends of a capture";
const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

pub(super) fn run(card: &Card) -> Result<(), Failed> {
    say::table(
        TABLE,
        &[
            "during the capture",
            "its answer",
            "status",
            "first end",
            "status then",
            "second end",
        ],
    );
    let wait = |_: Handle| call!(card.driver, cuCtxSynchronize());
    let there = |what: &(dyn Fn() -> Code + Sync)| {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _ = call!(card.driver, cuCtxSetCurrent(card.context));
                what()
            });
            thread.join().unwrap_or(-2)
        })
    };
    let nothing = case(card, "nothing (relaxed)", RELAXED, |_| SUCCESS)?;
    let same = case(card, "wait for the context, same thread (relaxed)", RELAXED, wait)?;
    let other = case(
        card,
        "wait for the context, other thread (relaxed)",
        RELAXED,
        |_| there(&|| call!(card.driver, cuCtxSynchronize())),
    )?;
    let unsafe_call = case(card, "cuMemAlloc, same thread (global)", GLOBAL, |_| {
        let mut at = 0;
        let code = call!(card.driver, cuMemAlloc_v2(&raw mut at, 1 << 20));
        if code == SUCCESS {
            let _ = call!(card.driver, cuMemFree_v2(at));
        }
        code
    })?;
    case(
        card,
        "wait for the captured stream itself (relaxed)",
        RELAXED,
        |stream| call!(card.driver, cuStreamSynchronize(stream)),
    )?;
    case(card, "end by another thread (global)", GLOBAL, |stream| {
        there(&|| {
            let mut graph = 0;
            call!(card.driver, cuStreamEndCapture(stream, &raw mut graph))
        })
    })?;
    say::check(
        "a wait for the context ends a capture of it, also a relaxed one",
        !same.lives && !other.lives,
        &format!(
            "same thread: {}, other thread: {}",
            card.driver.name(same.first),
            card.driver.name(other.first)
        ),
    );
    say::check(
        "the first end ends a capture, whatever it returns",
        [&nothing, &same, &other, &unsafe_call]
            .iter()
            .all(|case| case.over),
        &format!(
            "second ends return {}, {}, {}, {}",
            card.driver.name(nothing.second),
            card.driver.name(same.second),
            card.driver.name(other.second),
            card.driver.name(unsafe_call.second)
        ),
    );
    Ok(())
}

struct Ended {
    first: Code,
    second: Code,
    lives: bool,
    /// Whether the stream was no longer captured after the first end.
    over: bool,
}

/// Begins the capture of a stream, calls `meanwhile`, and ends the capture twice.
fn case(card: &Card, name: &str, mode: u32, meanwhile: impl FnOnce(Handle) -> Code) -> Result<Ended, Failed> {
    let driver = &card.driver;
    card.during_capture(mode, |stream| {
        let code = meanwhile(stream);
        let before = card.capture_status(stream);
        let first = card.end_capture(stream);
        let after = card.capture_status(stream);
        let second = card.end_capture(stream);
        row!(
            TABLE,
            name,
            driver.name(code),
            before,
            driver.name(first),
            after,
            driver.name(second)
        );
        Ended {
            first,
            second,
            lives: before == "active" && first == SUCCESS,
            over: after == "none",
        }
    })
}
