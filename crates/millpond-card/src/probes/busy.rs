//! Measures how long each call takes while a kernel runs, and whether the call waits for the kernel.

use super::calls::{KINDS, Kind, Slots};
use crate::card::{Card, Kernels};
use crate::driver::{Code, Failed, Handle, NOT_READY, SUCCESS, call, ok};
use crate::say::{self, row};
use std::time::{Duration, Instant};

/// The calls that wait for all work of the device although their documentation does not say so.
const WAITING: [&str; 5] = [
    "cuMemFree",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
];
const TABLE: &str = "Calls while a kernel runs";
const KERNEL: Duration = Duration::from_millis(100);
const QUICK: Duration = Duration::from_millis(20);

pub(super) fn run(card: &Card) -> Result<(), Failed> {
    let kernels = card.kernels()?;
    let stream = card.stream()?;
    let time = if card.quick { QUICK } else { KERNEL };
    // The first launch loads the kernel.
    card.spin(&kernels, Duration::from_micros(1), stream)?;
    card.synchronize(stream)?;
    let begun = Instant::now();
    card.spin(&kernels, time, stream)?;
    card.synchronize(stream)?;
    say::note(&format!(
        "A kernel of {} ms on its own stream took {:.1} ms. Each call uses memory and streams that the kernel does not use.",
        time.as_millis(),
        begun.elapsed().as_secs_f64() * 1e3
    ));
    say::table(
        TABLE,
        &[
            "call",
            "answer",
            "idle, microseconds",
            "busy, microseconds",
            "the kernel afterwards",
        ],
    );
    let mut waiting = Vec::new();
    let slots = Slots::default();
    for kind in KINDS {
        // The first call of a kind may take longer than the others, so its time is not used.
        let first = idle(card, kind, &slots);
        let seen = first.and_then(|_| {
            let quiet = idle(card, kind, &slots)?;
            Ok((quiet, busy(card, kind, &slots, &kernels, stream, time)?))
        });
        let (quiet, (code, taken, running)) = match seen {
            Ok(seen) => seen,
            // A call that cannot be tried does not stop the others.
            Err(failed) => {
                row!(TABLE, kind.name, failed.0);
                continue;
            }
        };
        let state = if running { "runs" } else { "is over" };
        row!(
            TABLE,
            kind.name,
            card.driver.name(code),
            say::us(quiet),
            say::us(taken),
            state
        );
        if !running && !kind.waits() {
            waiting.push(kind.name);
        }
    }
    say::check(
        "the calls that wait for other work of the device are those that free plain or pinned memory, end a registration, or load or unload a module",
        waiting == WAITING,
        &format!("the calls that waited: {}", waiting.join(", ")),
    );
    ok!(card.driver, cuStreamDestroy_v2(stream))
}

fn idle(card: &Card, kind: &Kind, slots: &Slots) -> Result<f64, Failed> {
    kind.prepare(card, slots)?;
    let (_, taken) = say::timed(|| kind.call(card, slots));
    kind.clean_up(card, slots);
    Ok(taken)
}

/// Makes a call while a kernel runs. Returns the call's code, its time in seconds, and whether the kernel still ran afterwards.
fn busy(
    card: &Card,
    kind: &Kind,
    slots: &Slots,
    kernels: &Kernels,
    stream: Handle,
    time: Duration,
) -> Result<(Code, f64, bool), Failed> {
    kind.prepare(card, slots)?;
    card.spin(kernels, time, stream)?;
    // Gives the kernel time to begin.
    std::thread::sleep(Duration::from_millis(2));
    let (code, taken) = say::timed(|| kind.call(card, slots));
    let running = call!(card.driver, cuStreamQuery(stream)) == NOT_READY;
    card.synchronize(stream)?;
    if code == SUCCESS {
        kind.clean_up(card, slots);
    }
    Ok((code, taken, running))
}
