//! The device that was named: what of it is left for the program, and how to say so.

use crate::args::{DeviceArgs, Paged};
use crate::exit::{CliError, Exit};
use crate::table::{Align, Grid};
use crate::text::size;
use crate::{files, output};
use millpond_engine::Costs;
use millpond_replay::{Device, cards};

/// Bytes of a table of costs: the longest there is has a hundredth of it.
const LONGEST_COSTS: u64 = 1 << 20;

/// A device smaller than this is a number without its unit.
const LEAST: u64 = 1 << 20;

/// The device a replay runs on.
///
/// # Errors
/// When nothing of it is left for the program.
pub(crate) fn device(args: &DeviceArgs) -> Result<Device, CliError> {
    let paged = args.paged == Paged::On;
    let Some(named) = &args.device else {
        return Ok(Device { bytes: None, paged });
    };
    if named.total < LEAST {
        return Err(CliError::Usage(format!(
            "a device of {} holds nothing: --device takes bytes unless a unit follows, as in {}GiB",
            size(named.total),
            named.name
        )));
    }
    let bytes = named.available(args.reserve.unwrap_or(0));
    if bytes == 0 {
        return Err(CliError::Usage(format!(
            "nothing of {} is left for the program: {} in all, {} for the driver's context, {} by --reserve",
            named.name,
            size(named.total),
            size(named.context),
            size(args.reserve.unwrap_or(0))
        )));
    }
    Ok(Device {
        bytes: Some(bytes),
        paged,
    })
}

/// One line that says what the device is.
pub(crate) fn describe(args: &DeviceArgs, device: Device) -> String {
    let pages = if device.paged {
        ""
    } else {
        ", without page mapping"
    };
    let (Some(named), Some(bytes)) = (&args.device, device.bytes) else {
        return format!("device: unlimited{pages}");
    };
    let mut less = Vec::new();
    if named.context > 0 {
        less.push(format!(
            "{} for the driver's context, assumed",
            size(named.context)
        ));
    }
    if let Some(reserve) = args.reserve.filter(|reserve| *reserve > 0) {
        less.push(format!("{} reserved", size(reserve)));
    }
    if less.is_empty() {
        return format!("device: {}{pages}", size(bytes));
    }
    format!(
        "device: {}, {} less {} = {} for the program{pages}",
        named.name,
        size(named.total),
        less.join(" and "),
        size(bytes)
    )
}

/// What driver calls cost.
pub(crate) fn costs(args: &DeviceArgs) -> Result<Costs, CliError> {
    let Some(path) = &args.costs else {
        return Ok(Costs::default());
    };
    let text = files::small_text(path, LONGEST_COSTS).map_err(|source| CliError::Open {
        path: path.clone(),
        source,
    })?;
    Costs::from_toml(&text).map_err(|source| CliError::Costs {
        path: path.clone(),
        source,
    })
}

/// `millpond cards`.
pub(crate) fn cards_command() -> Result<Exit, CliError> {
    let mut grid = Grid::new();
    let column = |of: &dyn Fn(&millpond_replay::Card) -> String| cards().iter().map(of).collect();
    grid.column("card", Align::Left, column(&|card| card.name.to_owned()));
    grid.column("memory", Align::Right, column(&|card| size(card.total)));
    grid.column("context", Align::Right, column(&|card| size(card.context)));
    grid.column(
        "for programs",
        Align::Right,
        column(&|card| size(card.total - card.context)),
    );
    let note =
        "memory: what the driver reports; context: what a process takes before its first allocation, assumed";
    output::print(&format!("{}\n{note}\n", grid.render(&[])))?;
    Ok(Exit::Done)
}
