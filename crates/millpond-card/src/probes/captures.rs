//! Makes every kind of call during the capture of another client, and records the call's answer and whether the capture survives.

use super::calls::{Kind, Slots, kinds};
use crate::card::Card;
use crate::driver::{Code, Failed, SUCCESS, call, ok};
use crate::say;
use serde_json::json;
use std::sync::mpsc;

const TABLE: &str = "Calls during somebody else's capture";
const MODES: [(&str, u32); 3] = [("global", 0), ("thread-local", 1), ("relaxed", 2)];
const RELAXED: u32 = 2;
const ACTIVE: i32 = 1;

/// The thread that makes the call, and whether it relaxes its capture mode.
#[derive(Clone, Copy)]
struct Way {
    elsewhere: bool,
    relaxed: bool,
}

const WAYS: [(&str, Way); 4] = [
    (
        "same thread",
        Way {
            elsewhere: false,
            relaxed: false,
        },
    ),
    (
        "other thread",
        Way {
            elsewhere: true,
            relaxed: false,
        },
    ),
    (
        "same thread, made relaxed",
        Way {
            elsewhere: false,
            relaxed: true,
        },
    ),
    (
        "other thread, made relaxed",
        Way {
            elsewhere: true,
            relaxed: true,
        },
    ),
];

/// A call for the other thread: the index of its kind, and whether the thread relaxes its capture mode.
type Job = (usize, bool);

pub(super) fn run(card: &Card) -> Result<(), Failed> {
    // The emulated driver must know the kernels before a kind of call uses one.
    card.kernels()?;
    let kinds = kinds();
    let slots = Slots::default();
    let columns: Vec<String> = MODES
        .iter()
        .flat_map(|(mode, _)| WAYS.iter().map(move |(way, _)| format!("{mode}, {way}")))
        .collect();
    let columns: Vec<&str> = std::iter::once("call")
        .chain(columns.iter().map(String::as_str))
        .collect();
    say::note(
        "Each cell has the answer of the call and then the state of the capture: 'lives' or 'lost'. 'Made relaxed' means that the \
         calling thread changes its capture mode to relaxed around the call, as the library does.",
    );
    say::table(TABLE, &columns);
    let (jobs, work) = mpsc::channel::<Job>();
    let (done, answers) = mpsc::channel::<Code>();
    std::thread::scope(|scope| {
        let (kinds, slots) = (&kinds, &slots);
        scope.spawn(move || {
            let _ = call!(card.driver, cuCtxSetCurrent(card.context));
            for (kind, relaxed) in work {
                if done.send(one(card, &kinds[kind], slots, relaxed)).is_err() {
                    return;
                }
            }
        });
        let mut killers = Vec::new();
        for (index, kind) in kinds.iter().enumerate() {
            let mut cells = vec![json!(kind.name)];
            for (mode, number) in MODES {
                for (way, how) in WAYS {
                    let call = || match how.elsewhere {
                        false => one(card, kind, slots, how.relaxed),
                        true => {
                            let sent = jobs.send((index, how.relaxed));
                            sent.ok().and_then(|()| answers.recv().ok()).unwrap_or(-2)
                        }
                    };
                    // A call that cannot be tried does not stop the others.
                    let (code, lives) = match during(card, kind, slots, number, call) {
                        Ok(seen) => seen,
                        Err(failed) => {
                            cells.push(json!(failed.0));
                            continue;
                        }
                    };
                    let state = if lives { "lives" } else { "lost" };
                    cells.push(json!(format!("{} {state}", card.driver.name(code))));
                    if how.relaxed && !(lives && code == SUCCESS) {
                        killers.push(format!("{} ({mode}, {way})", kind.name));
                    }
                }
            }
            say::row(TABLE, &cells);
        }
        drop(jobs);
        let others: Vec<_> = killers
            .iter()
            .filter(|name| !name.starts_with("cuCtxSynchronize"))
            .cloned()
            .collect();
        say::check(
            "made relaxed, every call except a wait for the context succeeds and leaves the capture valid",
            others.is_empty(),
            &match others.len() {
                0 => format!(
                    "{} kinds of calls, in each mode, from each thread",
                    kinds.len() - 1
                ),
                _ => others.join("; "),
            },
        );
        Ok(())
    })
}

/// Makes the call. If `relaxed` is set, the thread's capture mode is relaxed during the call.
fn one(card: &Card, kind: &Kind, slots: &Slots, relaxed: bool) -> Code {
    if !relaxed {
        return (kind.call)(card, slots);
    }
    let mut mode = RELAXED;
    let _ = call!(card.driver, cuThreadExchangeStreamCaptureMode(&raw mut mode));
    let code = (kind.call)(card, slots);
    let _ = call!(card.driver, cuThreadExchangeStreamCaptureMode(&raw mut mode));
    code
}

/// Makes a call while a stream is captured. Returns the call's code and whether the capture stayed active and became a graph.
fn during(
    card: &Card,
    kind: &Kind,
    slots: &Slots,
    mode: u32,
    call: impl FnOnce() -> Code,
) -> Result<(Code, bool), Failed> {
    let driver = &card.driver;
    let before = (kind.before)(card, slots);
    driver.check(&format!("preparing {}", kind.name), before)?;
    let word = card.allocate(256)?;
    let stream = card.stream()?;
    ok!(driver, cuStreamBeginCapture_v2(stream, mode))?;
    ok!(driver, cuMemsetD8Async(word, 1, 256, stream))?;
    let code = call();
    let (mut status, mut graph) = (0, 0);
    let asked = call!(driver, cuStreamIsCapturing(stream, &raw mut status));
    let ended = call!(driver, cuStreamEndCapture(stream, &raw mut graph));
    let lives = asked == SUCCESS && status == ACTIVE && ended == SUCCESS;
    if graph != 0 {
        let _ = call!(driver, cuGraphDestroy(graph));
    }
    ok!(driver, cuStreamDestroy_v2(stream))?;
    // A call that failed left nothing to clean up. If it was to free something, that still exists, so the call is made once more.
    if code == SUCCESS {
        let _ = (kind.after)(card, slots);
    } else {
        let again = (kind.call)(card, slots);
        if again == SUCCESS {
            let _ = (kind.after)(card, slots);
        }
    }
    ok!(driver, cuMemFree_v2(word))?;
    Ok((code, lives))
}
