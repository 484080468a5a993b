//! Runs a kernel that writes to an illegal address, and records what every kind of call answers afterwards. If a call hangs, the time
//! limit ends the probe.

use super::calls::{Kind, Slots, kinds};
use crate::card::Card;
use crate::driver::{Failed, SUCCESS, call};
use crate::say;
use serde_json::json;
use std::time::Instant;

const TABLE: &str = "After an illegal address";
/// An address near the beginning of the address space, which no driver hands out.
const NOWHERE: u64 = 0x1000;

pub(super) fn run(card: &Card) -> Result<(), Failed> {
    let (driver, kernels) = (&card.driver, card.kernels()?);
    let stream = card.stream()?;
    let mut kinds: Vec<(Kind, Slots)> = kinds().into_iter().map(|kind| (kind, Slots::default())).collect();
    // A kind whose preparation fails is left out.
    kinds.retain(|(kind, slots)| (kind.before)(card, slots) == SUCCESS);
    say::table(TABLE, &["call", "answer", "microseconds"]);
    let timed = |what: &str, call: &mut dyn FnMut() -> i32| {
        let begun = Instant::now();
        let code = call();
        let taken = begun.elapsed().as_secs_f64();
        say::row(TABLE, &[json!(what), json!(driver.name(code)), say::us(taken)]);
        code
    };
    timed("cuLaunchKernel of the fault", &mut || {
        card.poke(&kernels, NOWHERE, stream)
    });
    let first = timed("cuStreamSynchronize of the kernel's stream", &mut || {
        call!(driver, cuStreamSynchronize(stream))
    });
    timed("cuStreamSynchronize of that stream again", &mut || {
        call!(driver, cuStreamSynchronize(stream))
    });
    let mut unharmed = Vec::new();
    for (kind, slots) in &kinds {
        if timed(kind.name, &mut || (kind.call)(card, slots)) == SUCCESS {
            unharmed.push(kind.name);
        }
    }
    timed("cuStreamDestroy of the kernel's stream", &mut || {
        call!(driver, cuStreamDestroy_v2(stream))
    });
    timed("cuDevicePrimaryCtxReset", &mut || {
        call!(driver, cuDevicePrimaryCtxReset_v2(card.device))
    });
    let mut context = 0;
    timed("cuDevicePrimaryCtxRetain after the reset", &mut || {
        call!(driver, cuDevicePrimaryCtxRetain(&raw mut context, card.device))
    });
    timed("cuCtxSetCurrent of the new context", &mut || {
        call!(driver, cuCtxSetCurrent(context))
    });
    let mut at = 0;
    timed("cuMemAlloc in the new context", &mut || {
        call!(driver, cuMemAlloc_v2(&raw mut at, 1 << 20))
    });
    say::check(
        "an illegal address answers 700 at the next wait",
        first == 700,
        &driver.name(first),
    );
    say::note(&format!(
        "calls that still succeed after the fault: {}",
        unharmed.join(", ")
    ));
    Ok(())
}
