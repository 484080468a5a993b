//! Makes every kind of call during the capture of another client, and records the call's answer and whether the capture survives.

use super::calls::{KINDS, Kind, Slots};
use crate::card::Card;
use crate::driver::{Code, Failed, SUCCESS, call};
use crate::say;
use serde_json::json;
use std::sync::mpsc;

const TABLE: &str = "Calls during the capture of another stream";
const MODES: [(&str, u32); 3] = [("global", 0), ("thread-local", 1), ("relaxed", 2)];
const RELAXED: u32 = 2;

/// The name of a way to make the call, whether another thread makes it, and whether that thread relaxes its capture mode.
const WAYS: [(&str, bool, bool); 4] = [
    ("same thread", false, false),
    ("other thread", true, false),
    ("same thread, made relaxed", false, true),
    ("other thread, made relaxed", true, true),
];

/// A call for the other thread: the index of its kind, and whether the thread relaxes its capture mode.
type Job = (usize, bool);

pub(super) fn run(card: &Card) -> Result<(), Failed> {
    // The emulated driver must know the kernels before a kind of call uses one.
    card.kernels()?;
    let slots = Slots::default();
    let columns: Vec<String> = MODES
        .iter()
        .flat_map(|(mode, _)| WAYS.iter().map(move |(way, ..)| format!("{mode}, {way}")))
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
        let slots = &slots;
        scope.spawn(move || {
            let _ = call!(card.driver, cuCtxSetCurrent(card.context));
            for (kind, relaxed) in work {
                if done.send(one(card, &KINDS[kind], slots, relaxed)).is_err() {
                    return;
                }
            }
        });
        let mut killers = Vec::new();
        for (index, kind) in KINDS.iter().enumerate() {
            let mut cells = vec![json!(kind.name)];
            for (mode, number) in MODES {
                for (way, elsewhere, relaxed) in WAYS {
                    let call = || match elsewhere {
                        false => one(card, kind, slots, relaxed),
                        true => {
                            let sent = jobs.send((index, relaxed));
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
                    if relaxed && !(lives && code == SUCCESS) {
                        killers.push(format!("{} ({mode}, {way})", kind.name));
                    }
                }
            }
            say::cells(TABLE, &cells);
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
                    KINDS.len() - 1
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
        return kind.call(card, slots);
    }
    let mut mode = RELAXED;
    let _ = call!(card.driver, cuThreadExchangeStreamCaptureMode(&raw mut mode));
    let code = kind.call(card, slots);
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
    kind.prepare(card, slots)?;
    let (code, lives) = card.during_capture(mode, |stream| {
        let code = call();
        let active = card.capture_status(stream) == "active";
        (code, card.end_capture(stream) == SUCCESS && active)
    })?;
    // A call that failed left nothing to clean up. If the call should have freed something, that still exists, so the call is
    // made again.
    if code == SUCCESS || kind.call(card, slots) == SUCCESS {
        kind.clean_up(card, slots);
    }
    Ok((code, lives))
}
