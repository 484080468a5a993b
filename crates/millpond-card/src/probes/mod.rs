//! The probes of the driver, one file each.

mod addresses;
mod busy;
mod calls;
mod captures;
mod contents;
mod costs;
mod ending;
mod fault;
mod mapping;
mod ptx;
mod registered;

use crate::card::Card;
use crate::driver::Failed;

/// A probe's name on the command line, and its function.
type Probe = (&'static str, fn(&Card) -> Result<(), Failed>);

/// All probes. The runner assigns them to steps.
const PROBES: [Probe; 10] = [
    ("mapping", mapping::run),
    ("contents", contents::run),
    ("captures", captures::run),
    ("ending", ending::run),
    ("registered", registered::run),
    ("busy", busy::run),
    ("costs", costs::run),
    ("addresses", addresses::run),
    ("ptx", ptx::run),
    ("fault", fault::run),
];

/// Runs a probe on a device.
pub(crate) fn run(name: &str, card: &Card) -> Result<(), Failed> {
    let found = PROBES.iter().find(|(known, _)| *known == name);
    let (_, probe) = found.ok_or_else(|| Failed(format!("there is no probe '{name}'")))?;
    probe(card)
}
