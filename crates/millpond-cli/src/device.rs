//! The device that the user named: the memory left for the program, and a description.

use crate::args::{DeviceArgs, Paged};
use crate::exit::{CliError, Exit};
use crate::table::{Align, Grid};
use crate::terminal::width;
use crate::text::{number, size, wrap};
use crate::{files, output};
use millpond_engine::{Costs, display_size_exact};
use millpond_replay::{Device, DeviceSize, cards, cards_like};

/// The most bytes of a table of costs. The longest existing table has a hundredth of this.
const LONGEST_COSTS: u64 = 1 << 20;

/// A device smaller than this is probably a number without its unit.
const LEAST: u64 = 1 << 20;

/// Returns the device of a replay.
///
/// # Errors
/// Returns an error if no memory is left for the program.
pub(crate) fn device(args: &DeviceArgs) -> Result<Device, CliError> {
    let paged = args.paged == Paged::On;
    let Some(named) = &args.device else {
        return Ok(Device {
            paged,
            ..Device::UNLIMITED
        });
    };
    if named.total < LEAST {
        let cards = cards_like(&named.name);
        let card = match cards.as_slice() {
            [card] => format!(", or the card {}", card.name),
            _ => String::new(),
        };
        let unit = match named.name.ends_with(|last: char| last.is_ascii_digit()) {
            true => format!(
                ": --device takes bytes unless a unit follows, as in {}GiB{card}",
                named.name
            ),
            false => format!(": it needs at least {}", size(LEAST)),
        };
        return Err(CliError::Usage(format!(
            "a device of {} holds nothing{unit}",
            size(named.total)
        )));
    }
    let bytes = named.available(args.reserve.unwrap_or(0));
    if bytes == 0 {
        return Err(CliError::Usage(format!(
            "{} has no memory left for the program: {} in total, {} for the driver's context, {} by --reserve",
            named.name,
            size(named.total),
            size(named.context),
            size(args.reserve.unwrap_or(0))
        )));
    }
    Ok(Device {
        bytes: Some(bytes),
        // A size without the name of a card may be a limit on a larger card.
        total: (named.context > 0).then_some(named.total),
        paged,
    })
}

/// Returns one line that describes the device.
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
        return format!("device: {}{}{pages}", display_size_exact(bytes), decimal(named));
    }
    format!(
        "device: {}, {}{} less {} = {} for the program{pages}",
        named.name,
        size(named.total),
        decimal(named),
        less.join(" and "),
        display_size_exact(bytes)
    )
}

/// Returns a note on a size in powers of ten, which is smaller than the same number in powers of two.
fn decimal(named: &DeviceSize) -> String {
    let unit = named.name.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
    let is_decimal = ["kb", "mb", "gb", "tb"]
        .iter()
        .any(|of| unit.eq_ignore_ascii_case(of));
    match unit.get(..1).filter(|_| is_decimal) {
        None => String::new(),
        Some(letter) => {
            let digits = named.name.trim_end_matches(|c: char| !c.is_ascii_digit());
            format!(
                " ({} read as {} bytes; write {digits}{}iB for powers of two)",
                named.name,
                number(named.total),
                letter.to_uppercase()
            )
        }
    }
}

/// Returns the costs of driver calls.
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

/// Runs `millpond cards`.
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
    let source = |card: &millpond_replay::Card| match card.source {
        "" => "-".to_owned(),
        source => source.to_owned(),
    };
    grid.column("reported in", Align::Left, column(&source));
    let note = "memory: the size that the driver reports to a program, from the issue on GitHub in the same row (- if \
                none was found; the size is then an assumption); it differs by up to 2 % between drivers and settings such \
                as ECC, and --device takes a size instead of a card; context: the memory that a process takes before its \
                first allocation, assumed";
    output::print(&format!("{}\n{}\n", grid.render(&[]), wrap(note, width(), 0)))?;
    Ok(Exit::Done)
}
