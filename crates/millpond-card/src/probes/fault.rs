//! Runs a kernel that writes to an illegal address, and records what every kind of call answers afterwards. If a call hangs, the time
//! limit ends the probe.

use super::calls::{KINDS, Kind, Slots};
use crate::card::Card;
use crate::driver::{Failed, SUCCESS, call};
use crate::say;

const TABLE: &str = "After an illegal address";
/// An address near the beginning of the address space, which no driver hands out.
const NOWHERE: u64 = 0x1000;

pub(super) fn run(card: &Card) -> Result<(), Failed> {
    let (driver, kernels) = (&card.driver, card.kernels()?);
    let stream = card.stream()?;
    let mut kinds: Vec<(&Kind, Slots)> = KINDS.iter().map(|kind| (kind, Slots::default())).collect();
    // A kind whose preparation fails is left out.
    kinds.retain(|(kind, slots)| kind.prepare(card, slots).is_ok());
    say::table(TABLE, &["call", "answer", "microseconds"]);
    card.tell(TABLE, "cuLaunchKernel of the fault", || {
        card.poke(&kernels, NOWHERE, stream)
    });
    let first = card.tell(TABLE, "cuStreamSynchronize of the kernel's stream", || {
        call!(driver, cuStreamSynchronize(stream))
    });
    card.tell(TABLE, "cuStreamSynchronize of that stream again", || {
        call!(driver, cuStreamSynchronize(stream))
    });
    let mut unharmed = Vec::new();
    for (kind, slots) in &kinds {
        if card.tell(TABLE, kind.name, || kind.call(card, slots)) == SUCCESS {
            unharmed.push(kind.name);
        }
    }
    card.tell(TABLE, "cuStreamDestroy of the kernel's stream", || {
        call!(driver, cuStreamDestroy_v2(stream))
    });
    card.tell(TABLE, "cuDevicePrimaryCtxReset", || {
        call!(driver, cuDevicePrimaryCtxReset_v2(card.device))
    });
    let mut context = 0;
    card.tell(TABLE, "cuDevicePrimaryCtxRetain after the reset", || {
        call!(driver, cuDevicePrimaryCtxRetain(&raw mut context, card.device))
    });
    card.tell(TABLE, "cuCtxSetCurrent of the new context", || {
        call!(driver, cuCtxSetCurrent(context))
    });
    let mut at = 0;
    card.tell(TABLE, "cuMemAlloc in the new context", || {
        call!(driver, cuMemAlloc_v2(&raw mut at, 1 << 20))
    });
    say::check(
        "an illegal address returns 700 at the next wait",
        first == 700,
        &driver.name(first),
    );
    say::note(&format!(
        "calls that still succeed after the fault: {}",
        unharmed.join(", ")
    ));
    Ok(())
}
