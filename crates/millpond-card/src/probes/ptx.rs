//! Loads the library's PTX. Measures how long the driver compiles it, and records whether every kernel is found and how many registers
//! and local bytes the kernels need.

use crate::card::{Card, PTX};
use crate::driver::{Failed, SUCCESS, call, ok};
use crate::say::{self, row};
use std::time::Instant;

const TABLE: &str = "Loading the PTX";
const MODULES: [(&str, &str); 3] = [
    (
        "tensor",
        include_str!("../../../millpond-cuda/src/kernels/tensor.ptx"),
    ),
    (
        "motion",
        include_str!("../../../millpond-bench/src/device/kernels/motion.ptx"),
    ),
    ("card", PTX),
];

/// Values of `CUfunction_attribute`: the bytes of local memory and the number of registers of a thread.
const LOCAL: i32 = 3;
const REGISTERS: i32 = 4;

pub(super) fn run(card: &Card) -> Result<(), Failed> {
    // The emulated driver must know the kernels of the probes before they are looked up.
    card.kernels()?;
    say::table(
        TABLE,
        &[
            "module",
            "bytes",
            "kernels",
            "found",
            "first load, microseconds",
            "second load, microseconds",
            "most registers",
            "most local bytes",
        ],
    );
    let mut missing = Vec::new();
    for (name, ptx) in MODULES {
        let load = || -> Result<_, Failed> {
            let begun = Instant::now();
            let module = card.module(ptx)?;
            Ok((module, begun.elapsed().as_secs_f64()))
        };
        let (module, first) = load()?;
        let kernels = entries(ptx);
        let (mut found, mut registers, mut local) = (0, 0, 0);
        for kernel in &kernels {
            let Ok(function) = card.function(module, kernel) else {
                missing.push(format!("{name}: {kernel}"));
                continue;
            };
            found += 1;
            let most = |number: i32, so_far: &mut i32| {
                let mut value = 0;
                if call!(card.driver, cuFuncGetAttribute(&raw mut value, number, function)) == SUCCESS {
                    *so_far = value.max(*so_far);
                }
            };
            most(REGISTERS, &mut registers);
            most(LOCAL, &mut local);
        }
        ok!(card.driver, cuModuleUnload(module))?;
        let (again, second) = load()?;
        ok!(card.driver, cuModuleUnload(again))?;
        row!(
            TABLE,
            name,
            ptx.len(),
            kernels.len(),
            found,
            say::us(first),
            say::us(second),
            registers,
            local
        );
    }
    say::check(
        "the driver loads the PTX and finds every kernel",
        missing.is_empty(),
        &match missing.len() {
            0 => "all of them".to_owned(),
            _ => missing.join(", "),
        },
    );
    Ok(())
}

/// Returns the names of the kernels in a PTX text.
fn entries(ptx: &str) -> Vec<&str> {
    let lines = ptx.lines().filter_map(|line| line.split_once(".entry "));
    lines
        .map(|(_, name)| name.trim_end_matches(['(', ')', ' ']))
        .map(|name| name.split(['(', ' ']).next().unwrap_or(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_in_the_text() {
        assert_eq!(
            entries(PTX),
            ["fill", "compare", "spin", "poke"].map(|name| format!("millpond_card_{name}"))
        );
    }
}
