//! Formats the state of an allocator at one moment: its segments, its holes, and the requests that still fit.

use crate::table::{Align, Grid, Row};
use crate::terminal::{bold, width};
use crate::text::{Unit, counted, number, percent, short, size};
use millpond_replay::{DeviceSize, Occupancy, PoolOccupancy, SegmentOccupancy, largest_fresh_request};
use millpond_trace::Trace;
use serde::Serialize;

/// The most segments that are listed.
const SEGMENTS: usize = 5;

/// The segments of a device, and the requests that fit.
#[derive(Debug, Serialize)]
pub(crate) struct State {
    #[serde(flatten)]
    occupancy: Occupancy,
    /// The requests that fit on the card that the user named.
    on_device: Option<OnDevice>,
}

/// The requests that fit on a card.
#[derive(Debug, Serialize)]
struct OnDevice {
    name: String,
    /// Bytes that the card has for the program.
    available_bytes: u64,
    /// The largest request that gets a new segment.
    largest_request_bytes: u64,
    /// The largest request that gets a new segment after `torch.cuda.empty_cache()`.
    largest_request_after_empty_cache_bytes: u64,
}

impl State {
    /// Measures the state that a trace begins with, on the card that the user named.
    pub(crate) fn new(trace: &Trace, device: Option<&DeviceSize>) -> Self {
        let occupancy = Occupancy::of_initial(trace);
        let on_device = device.map(|device| {
            let available = device.available(0);
            let room = available.saturating_sub(occupancy.total.reserved_bytes);
            let after =
                available.saturating_sub(occupancy.total.reserved_bytes - occupancy.total.returnable_bytes);
            OnDevice {
                name: device.name.clone(),
                available_bytes: available,
                largest_request_bytes: largest_fresh_request(room),
                largest_request_after_empty_cache_bytes: largest_fresh_request(after),
            }
        });
        Self { occupancy, on_device }
    }

    /// Returns `device 0` or `host`.
    pub(crate) fn device_name(&self) -> String {
        match self.occupancy.device {
            -1 => "host".to_owned(),
            device => format!("device {device}"),
        }
    }

    /// Returns names and values of the figures of all pools.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("holes", self.holes()),
            ("give back", self.returnable()),
            ("would fit", self.fits()),
        ]
    }

    fn holes(&self) -> String {
        let of = &self.occupancy;
        let sum = &of.total;
        let places = format!(
            "{} in {}",
            counted(sum.blocks, "block"),
            counted(sum.segments, "segment")
        );
        match sum.holes {
            0 => format!("none: {places} leave nothing free"),
            1 => format!("one of {} between {places}", size(sum.free_bytes)),
            many => format!(
                "{} free in {} between {places}; the largest is {}, and {} of the free bytes are outside it",
                size(sum.free_bytes),
                counted(many, "hole"),
                size(sum.largest_hole_bytes),
                percent(of.external_fragmentation)
            ),
        }
    }

    fn returnable(&self) -> String {
        let sum = &self.occupancy.total;
        let mut text = match sum.returnable_bytes {
            0 => "nothing: every segment outside private pools holds a block".to_owned(),
            bytes => format!(
                "{} of {}, by torch.cuda.empty_cache()",
                size(bytes),
                size(sum.reserved_bytes)
            ),
        };
        let private = |segment: &&SegmentOccupancy| {
            segment.sums.idle_segments > 0 && segment.sums.returnable_bytes == 0
        };
        let idle = self.occupancy.segments.iter().filter(private);
        let (count, bytes) = idle.fold((0, 0u64), |(count, bytes), segment| {
            (count + 1, bytes.saturating_add(segment.sums.reserved_bytes))
        });
        if count > 0 {
            text.push_str(&format!(
                "; {} without a block, {}, stay in private pools",
                counted(count, "segment"),
                size(bytes)
            ));
        }
        text
    }

    fn fits(&self) -> String {
        let cached = match self.occupancy.largest_cached_request_bytes {
            0 => "no request without a call of the driver".to_owned(),
            bytes => format!("a request of {} without a call of the driver", size(bytes)),
        };
        match &self.on_device {
            None if self.occupancy.device < 0 => cached,
            None => format!("{cached}; --device says what a new segment could hold"),
            Some(on) if on.available_bytes < self.occupancy.total.reserved_bytes => format!(
                "{cached}; {} has only {} for the program, less than these segments",
                on.name,
                size(on.available_bytes)
            ),
            Some(on) => {
                let (now, after) = (
                    on.largest_request_bytes,
                    on.largest_request_after_empty_cache_bytes,
                );
                let after = match after == now {
                    true => String::new(),
                    false => format!(", {} after torch.cuda.empty_cache()", size(after)),
                };
                format!(
                    "{cached}; {} in a new segment on {} with {} for the program{after}",
                    size(now),
                    on.name,
                    size(on.available_bytes)
                )
            }
        }
    }

    /// Returns a table of the pools, and one of the segments with the most free bytes.
    pub(crate) fn tables(&self) -> String {
        let mut out = String::new();
        let of = &self.occupancy;
        if of.pools.len() > 1 {
            out.push_str(&format!("\n{}\n{}\n", bold("Pools"), pools(of)));
        }
        let mut holed: Vec<&SegmentOccupancy> =
            of.segments.iter().filter(|one| one.sums.free_bytes > 0).collect();
        holed.sort_by_key(|one| std::cmp::Reverse(one.sums.free_bytes));
        holed.truncate(SEGMENTS);
        if !holed.is_empty() {
            let title = bold("Segments with the most free bytes");
            out.push_str(&format!("\n{title}\n{}\n", segments(&holed)));
        }
        out
    }
}

/// Returns the share of the segments that blocks take.
fn used(sums: &PoolOccupancy) -> String {
    let bytes = sums.block_bytes.saturating_add(sums.waiting_bytes);
    percent(bytes as f64 / sums.reserved_bytes.max(1) as f64)
}

fn pools(of: &Occupancy) -> String {
    let total = PoolOccupancy {
        pool: "together".to_owned(),
        ..of.total.clone()
    };
    let rows: Vec<&PoolOccupancy> = of.pools.iter().chain([&total]).collect();
    let unit = Unit::for_largest(of.total.reserved_bytes);
    let mut grid = Grid::new();
    let column = |of: &dyn Fn(&PoolOccupancy) -> String| rows.iter().map(|row| of(row)).collect::<Vec<_>>();
    grid.column("  pool", Align::Left, column(&|row| format!("  {}", row.pool)));
    grid.column("segments", Align::Right, column(&|row| number(row.segments)));
    grid.column(
        "reserved",
        Align::Right,
        column(&|row| unit.show(row.reserved_bytes)),
    );
    grid.column("in use", Align::Right, column(&used));
    grid.column("free", Align::Right, column(&|row| unit.show(row.free_bytes)));
    grid.column(
        "largest",
        Align::Right,
        column(&|row| unit.show(row.largest_hole_bytes)),
    );
    let mut looks = vec![Row::Plain; of.pools.len()];
    looks.push(Row::Bound);
    grid.render(&looks)
}

fn segments(rows: &[&SegmentOccupancy]) -> String {
    let mut grid = Grid::new();
    let column =
        |of: &dyn Fn(&SegmentOccupancy) -> String| rows.iter().map(|row| of(row)).collect::<Vec<_>>();
    grid.column(
        "  address",
        Align::Left,
        column(&|row| format!("  {:#x}", row.address)),
    );
    grid.column("size", Align::Right, column(&|row| size(row.sums.reserved_bytes)));
    grid.column("in use", Align::Right, column(&|row| used(&row.sums)));
    grid.column("holes", Align::Right, column(&|row| number(row.sums.holes)));
    grid.column(
        "largest",
        Align::Right,
        column(&|row| size(row.sums.largest_hole_bytes)),
    );
    let room = width().saturating_sub(grid.width() + 2).max(20);
    let holder = |row: &SegmentOccupancy| match (row.holder.as_str(), row.sums.waiting_bytes) {
        ("", 0) => "(no block)".to_owned(),
        ("", _) => "(waits for a stream)".to_owned(),
        (name, _) => name.split_whitespace().collect::<Vec<_>>().join(" "),
    };
    grid.column("held by", Align::Left, column(&|row| short(&holder(row), room)));
    grid.render(&[])
}
