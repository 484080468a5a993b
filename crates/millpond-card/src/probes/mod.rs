//! What is asked of the driver, a step a file.

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

/// A step's name on the command line, and its code.
type Probe = (&'static str, fn(&Card) -> Result<(), Failed>);

/// All of them. The runner says which belong to which step.
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
