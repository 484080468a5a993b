//! Finds the smallest device on which a policy finishes a program.

use crate::parallel::Threads;
use crate::program::Program;
use crate::run::{Device, Run, run};
use crate::ticks::Ticks;
use millpond_engine::{Policy, Simulated, display_size_up, parse_size};

/// The smallest device, and the run on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Smallest {
    /// Bytes of the device.
    pub bytes: u64,
    /// The run on this device.
    pub run: Run,
}

/// Bisects, to one page, between the peak of the program and the bytes that the policy reserves on a device
/// without a limit. Returns `None` if the policy does not finish on a device of twice that size.
///
/// `ticks` says when time passes in each replay. `to_come` is called before each replay with the approximate
/// number of replays that remain. Returns `None` if `threads` are interrupted.
///
/// A policy need not finish on every larger device. The answer is a device on which the policy finishes, while it does
/// not finish on a device that is one page smaller. If possible, the policy also finishes on a device of the size that
/// [`display_size_up`] prints.
pub fn smallest_device(
    program: &Program,
    unlimited: &Run,
    paged: bool,
    ticks: Ticks<'_>,
    threads: &Threads,
    build: &dyn Fn() -> Box<dyn Policy>,
    to_come: &dyn Fn(u32),
) -> Option<Smallest> {
    let page = Simulated::PAGE;
    let try_with = |bytes: u64, low: u64| {
        threads.check().ok()?;
        to_come(
            (bytes.saturating_sub(low) / page)
                .checked_ilog2()
                .map_or(1, |log| log + 1),
        );
        let outcome = run(
            program,
            build(),
            Device {
                bytes: Some(bytes),
                total: None,
                paged,
            }
            .source(),
            &mut ticks.clock(),
        );
        outcome.stop.is_none().then_some(Smallest { bytes, run: outcome })
    };
    if unlimited.stop.is_some() {
        return None;
    }
    // No device smaller than the peak can hold the program.
    let mut low = (program.peak_requested / page * page).saturating_sub(page);
    let reserved = unlimited.stats.reserved.peak;
    // Some policies reserve ahead in proportion to the device, and need more room on a small device.
    let large = |mut high: u64, low: u64| loop {
        if let Some(found) = try_with(high, low) {
            break Some(found);
        }
        if high > reserved.saturating_mul(2) {
            break None;
        }
        high = high.checked_add((high / 8).next_multiple_of(page))?;
    };
    let most = reserved.checked_next_multiple_of(page)?;
    let mut best = large(most, low)?;
    loop {
        while best.bytes - low > page {
            let middle = (low + (best.bytes - low) / 2).next_multiple_of(page);
            match try_with(middle, low) {
                Some(found) => best = found,
                None => low = middle,
            }
        }
        // The printed size is rounded up. The policy must finish on a device of that size too.
        let printed = parse_size(&display_size_up(best.bytes).to_string()).unwrap_or(best.bytes);
        if printed <= best.bytes || try_with(printed, low).is_some() {
            return Some(best);
        }
        low = printed / page * page;
        match large(most.max(low + page), low) {
            Some(found) => best = found,
            None => return Some(best),
        }
    }
}
