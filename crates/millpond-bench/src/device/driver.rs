//! Measures the host's cost of each driver call, as the table that `millpond replay --costs` reads.

use super::{EMULATED, Error, about};
use crate::console::{WIDTH, wrap_to};
use crate::measure::{Samples, Spread};
use millpond::cuda::{
    CudaDevice, CudaMemory, CudaSource, CudaStream, DriverCalls, driver_calls, watch_driver_calls,
};
use millpond::engine::{Source, display_size};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The sizes of handles and segments, in pages.
const PAGES: [u64; 5] = [1, 4, 16, 64, 256];

/// A section of the table.
struct Section {
    name: &'static str,
    /// The driver's function, as it is counted.
    function: &'static str,
    /// Whether it handles memory, so that its cost may depend on the size.
    sized: bool,
    about: &'static str,
}

const fn section(name: &'static str, function: &'static str, sized: bool, about: &'static str) -> Section {
    Section {
        name,
        function,
        sized,
        about,
    }
}

/// The calls in the model of a replay.
const MODEL: [Section; 11] = [
    section("malloc", "cuMemAlloc_v2", true, "a whole segment"),
    section(
        "free",
        "cuMemFree_v2",
        true,
        "on an idle device; on a busy one it first waits for the work",
    ),
    section("create", "cuMemCreate", true, "a handle of pages"),
    section("map", "cuMemMap", true, "a handle"),
    section("set_access", "cuMemSetAccess", true, "a range of one handle"),
    section("unmap", "cuMemUnmap", true, "a range of one handle"),
    section("release", "cuMemRelease", true, "a handle"),
    section("reserve", "cuMemAddressReserve", false, "a range of addresses"),
    section("event_record", "cuEventRecord", false, ""),
    section("event_wait", "cuStreamWaitEvent", false, ""),
    section(
        "stall",
        STALL,
        false,
        "a wait for each stream that has used memory, on an idle device; on a busy one it takes as long as the work",
    ),
];

/// Additional calls that the model does not use.
const BESIDE: [Section; 7] = [
    section(
        "set_access_of_pages",
        SET_ACCESS_OF_PAGES,
        true,
        "cuMemSetAccess of a range of handles of one page",
    ),
    section(
        "unmap_of_pages",
        UNMAP_OF_PAGES,
        true,
        "cuMemUnmap of a range of handles of one page",
    ),
    section("address_free", "cuMemAddressFree", false, ""),
    section(
        "malloc_async",
        "cuMemAllocFromPoolAsync",
        true,
        "from a pool that keeps no freed memory",
    ),
    section("free_async", "cuMemFreeAsync", true, ""),
    section("event_query", "cuEventQuery", false, "of a complete event"),
    section(
        "stream_synchronize",
        "cuStreamSynchronize",
        false,
        "on a stream without work",
    ),
];

const STALL: &str = "cuStreamSynchronize in a stall";
const SET_ACCESS_OF_PAGES: &str = "cuMemSetAccess of pages";
const UNMAP_OF_PAGES: &str = "cuMemUnmap of pages";

/// Samples by number of pages.
#[derive(Clone, Debug, Default)]
struct BySize(BTreeMap<u64, Samples>);

impl BySize {
    fn add(&mut self, pages: u64, time: f64) {
        self.0.entry(pages).or_default().add(time);
    }

    /// Returns the summary for each number of pages.
    fn spreads(&self) -> impl Iterator<Item = (u64, Spread)> {
        self.0.iter().map(|(pages, samples)| (*pages, samples.spread()))
    }

    /// Fits a straight line to the medians, and returns the cost of a call and of each page. Neither is negative.
    ///
    /// The slope is the median of the slopes between any two sizes, so that one outlier does not change it.
    fn line(&self) -> Option<(f64, f64)> {
        let points: Vec<(f64, f64)> = self
            .spreads()
            .map(|(pages, spread)| (pages as f64, spread.median))
            .collect();
        let slopes = points.iter().enumerate().flat_map(|(index, (x, y))| {
            let others = points[index + 1..].iter();
            others.map(move |(other_x, other_y)| (other_y - y) / (other_x - x))
        });
        // Without two sizes there is no slope. The maximum of NaN and 0 is 0.
        let slope = slopes.collect::<Samples>().median().max(0.0);
        let constants = points.iter().map(|(x, y)| y - slope * x);
        (!points.is_empty()).then(|| (constants.collect::<Samples>().median().max(0.0), slope))
    }
}

/// Microseconds of a call, by function and pages.
#[derive(Default)]
struct Measured(BTreeMap<String, BySize>);

impl Measured {
    fn add(&mut self, function: &str, pages: u64, time: f64) {
        self.0.entry(function.to_owned()).or_default().add(pages, time);
    }

    /// Adds the medians of these functions, or of all if `only` is empty.
    fn add_medians(&mut self, of: &Self, only: &[&str]) {
        for (name, costs) in &of.0 {
            if only.is_empty() || only.contains(&name.as_str()) {
                costs
                    .spreads()
                    .for_each(|(pages, spread)| self.add(name, pages, spread.median));
            }
        }
    }

    /// Records the time of each call within `what`. `named` replaces names of functions.
    fn during<T>(
        &mut self,
        pages: u64,
        named: &[(&str, &str)],
        what: impl FnOnce() -> T,
    ) -> Result<T, Error> {
        let before = driver_calls()?;
        let done = what();
        let then = |now: &DriverCalls| before.iter().find(|then| then.function == now.function);
        for now in driver_calls()? {
            let (calls, time) = then(&now).map_or((0, Default::default()), |then| (then.calls, then.time));
            if now.calls > calls {
                let each = (now.time - time).as_secs_f64() * 1e6 / (now.calls - calls) as f64;
                let name = named.iter().find(|(function, _)| *function == now.function);
                let name = name.map_or(now.function, |(_, name)| *name);
                self.add(name, pages, each);
            }
        }
        Ok(done)
    }

    /// Returns the cost that each handle of a range adds to setting access, or `None` for other functions. It is the slope of the
    /// line through ranges of handles of one page, minus the slope of the line through ranges of one handle.
    fn per_handle(&self, function: &str) -> Option<f64> {
        let slope = |of: &str| Some(self.0.get(of)?.line()?.1);
        if function != "cuMemSetAccess" {
            return None;
        }
        Some((slope(SET_ACCESS_OF_PAGES)? - slope(function)?).max(0.0))
    }
}

/// Calls a device's driver and returns the table of the costs of its calls, as medians of `rounds` rounds.
///
/// # Errors
/// Returns an error if there is no driver or device, or if the driver refuses a call.
pub fn driver(number: u32, rounds: usize) -> Result<String, Error> {
    watch_driver_calls(true);
    let device = CudaDevice::get(number)?;
    let free = device.memory()?.free;
    let mut measured = Measured::default();
    // The first round includes the driver's start-up, so it does not count.
    for round in 0..=rounds.max(1) {
        let mut of_round = Measured::default();
        memory(&device, free, &mut of_round)?;
        events(&device, &mut of_round)?;
        if round > 0 {
            measured.add_medians(&of_round, &[]);
        }
    }
    let page = CudaSource::new(&device, CudaMemory::Best)?.page_bytes();
    text(&device, page, rounds.max(1), &measured)
}

fn memory(device: &CudaDevice, free: u64, measured: &mut Measured) -> Result<(), Error> {
    let sizes = |page: u64| PAGES.into_iter().filter(move |pages| pages * page <= free / 4);
    if device.has_virtual_memory() {
        let mut source = CudaSource::new(device, CudaMemory::Virtual)?;
        let page = source.page_bytes();
        for pages in sizes(page) {
            let bytes = pages * page;
            let range = measured.during(0, &[], || source.reserve(bytes))??;
            measured.during(pages, &[], || source.commit(&range, 0, bytes, bytes))??;
            measured.during(pages, &[], || source.decommit(&range, 0, bytes))?;
            let named = [
                ("cuMemSetAccess", SET_ACCESS_OF_PAGES),
                ("cuMemUnmap", UNMAP_OF_PAGES),
            ];
            // The rest uses handles of one page again.
            let mut small = Measured::default();
            small.during(pages, &named, || source.commit(&range, 0, bytes, page))??;
            small.during(pages, &named, || source.decommit(&range, 0, bytes))?;
            measured.add_medians(&small, &[SET_ACCESS_OF_PAGES, UNMAP_OF_PAGES]);
            measured.during(0, &[], || source.release(range))?;
        }
    }
    let mut plain = CudaSource::new(device, CudaMemory::Plain)?;
    let page = plain.page_bytes();
    for pages in sizes(page) {
        let segment = measured.during(pages, &[], || plain.take(pages * page))??;
        measured.during(pages, &[], || plain.give(segment))?;
    }
    if device.has_pools() {
        let mut pooled = CudaSource::new(device, CudaMemory::Pooled)?;
        for pages in sizes(page) {
            let segment = measured.during(pages, &[], || pooled.take(pages * page))??;
            measured.during(pages, &[], || pooled.give(segment))?;
        }
    }
    Ok(())
}

fn events(device: &CudaDevice, measured: &mut Measured) -> Result<(), Error> {
    let mut source = CudaSource::new(device, CudaMemory::Plain)?;
    let (one, other) = (CudaStream::new(device)?, CudaStream::new(device)?);
    let (first, second) = (source.stream_number(&one)?, source.stream_number(&other)?);
    let event = measured.during(0, &[], || source.record_event(first))?;
    measured.during(0, &[], || source.wait_event(second, event))?;
    measured.during(0, &[], || one.synchronize())??;
    measured.during(0, &[], || source.is_complete(event))?;
    let stalled = [("cuStreamSynchronize", STALL)];
    measured.during(0, &stalled, || source.synchronize())?;
    Ok(())
}

fn text(device: &CudaDevice, page: u64, rounds: usize, measured: &Measured) -> Result<String, Error> {
    let mut out = String::new();
    let mut say = |text: &str| {
        for line in wrap_to(text, WIDTH - 2).lines() {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "# {line}");
        }
    };
    say(&format!(
        "Microseconds of host time in driver calls on {}; pages of {}. `millpond replay FILE --costs THIS` reads this file.",
        about(device)?,
        display_size(page)
    ));
    say(&format!(
        "Medians of {rounds} rounds. per_call and per_page describe a straight line through the medians by size. fastest and slowest \
         are those of the smallest size. The device was idle, so calls that wait for it took the least time that they can."
    ));
    if device.is_emulated() {
        say(&format!("EMULATED. {EMULATED}"));
    }
    let mut missing = Vec::new();
    for (index, section) in MODEL.iter().chain(&BESIDE).enumerate() {
        if index == MODEL.len() {
            out.push_str("\n# Calls that the model does not use:\n");
        }
        match measured.0.get(section.function) {
            Some(costs) => {
                one(&mut out, section, costs);
                if let Some(per_handle) = measured.per_handle(section.function) {
                    let _ = writeln!(out, "per_handle = {per_handle:.4}");
                }
            }
            // A replay makes no calls that the driver does not support.
            None if index < MODEL.len() => {
                missing.push(section.name);
                let _ = writeln!(
                    out,
                    "\n[{}]  # {}: not supported\nper_call = 0.0",
                    section.name, section.function
                );
            }
            None => {}
        }
    }
    if !missing.is_empty() {
        let _ = writeln!(
            out,
            "\n# Not supported, and so without cost: {}",
            missing.join(", ")
        );
    }
    Ok(out)
}

fn one(out: &mut String, section: &Section, costs: &BySize) {
    let function = section.function.split("_v").next().unwrap_or(section.function);
    let about = match (section.about, function.contains(' ')) {
        ("", _) => function.to_owned(),
        (about, true) => about.to_owned(),
        (about, false) => format!("{function}: {about}"),
    };
    let _ = writeln!(out, "\n[{}]", section.name);
    for line in wrap_to(&about, WIDTH - 2).lines() {
        let _ = writeln!(out, "# {line}");
    }
    // The calls for memory also use functions that do not handle memory, and give them more work. Only samples of 0 pages count.
    let smallest = if section.sized {
        let sizes = costs
            .spreads()
            .map(|(pages, spread)| format!("{pages}: {:.2}", spread.median));
        let _ = writeln!(out, "# medians by pages {}", sizes.collect::<Vec<_>>().join(", "));
        let (per_call, per_page) = costs.line().unwrap_or((0.0, 0.0));
        let _ = writeln!(out, "per_call = {per_call:.3}\nper_page = {per_page:.4}");
        costs.spreads().next().map(|(_, smallest)| smallest)
    } else {
        let spread = costs.0.get(&0).map(Samples::spread);
        let per_call = spread.map_or(0.0, |spread| spread.median);
        let _ = writeln!(out, "per_call = {per_call:.3}");
        spread
    };
    if let Some(Spread { least, most, .. }) = smallest {
        let _ = writeln!(out, "fastest = {least:.3}\nslowest = {most:.3}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond::engine::{Costs, Meter};

    /// Returns costs of 10 for each call and 0.5 for each page.
    fn measured() -> Measured {
        let mut measured = Measured::default();
        for section in MODEL.iter().chain(&BESIDE) {
            let costs = measured.0.entry(section.function.to_owned()).or_default();
            for pages in if section.sized { &PAGES[..] } else { &[0] } {
                costs.add(*pages, 10.0 + 0.5 * *pages as f64);
            }
            if !section.sized {
                // The calls for memory use it too.
                costs.add(64, 1000.0);
            }
        }
        measured
    }

    #[test]
    fn a_replay_reads_the_printed_table() {
        let measured = measured();
        let mut out = String::new();
        for section in MODEL.iter().chain(&BESIDE) {
            one(&mut out, section, &measured.0[section.function]);
        }
        assert!(out.lines().all(|line| line.chars().count() <= WIDTH), "{out}");
        let costs = Costs::from_toml(&out).expect("a table");
        let mut meter = Meter::default();
        (meter.calls.map, meter.calls.event_record) = (2, 1);
        meter.pages.map = 16;
        assert_eq!(costs.milliseconds(&meter, 1), 0.048);
    }

    #[test]
    fn the_cost_of_a_handle_is_the_difference_of_two_slopes() {
        let mut measured = measured();
        assert_eq!(measured.per_handle("cuMemSetAccess"), Some(0.0));
        let of_pages = measured.0.entry(SET_ACCESS_OF_PAGES.to_owned()).or_default();
        *of_pages = BySize::default();
        for pages in PAGES {
            of_pages.add(pages, 10.0 + 3.0 * pages as f64);
        }
        assert_eq!(measured.per_handle("cuMemSetAccess"), Some(2.5));
        assert_eq!(measured.per_handle("cuMemMap"), None);
    }

    #[test]
    fn the_fitted_line_ignores_outliers() {
        let mut costs = BySize::default();
        for pages in [1, 4, 16, 64, 256] {
            for noise in [-0.5, 0.0, 90.0] {
                costs.add(pages, 20.0 + 0.25 * pages as f64 + noise);
            }
        }
        assert_eq!(costs.line(), Some((20.0, 0.25)));
        let largest = costs.spreads().last().expect("sizes");
        assert_eq!((largest.0, largest.1.median, largest.1.least), (256, 84.0, 83.5));
        assert_eq!(largest.1.most, 174.0);
    }

    #[test]
    fn a_cost_that_falls_with_size_has_a_slope_of_zero() {
        let mut costs = BySize::default();
        for (pages, time) in [(1, 30.0), (4, 20.0), (16, 25.0)] {
            costs.add(pages, time);
        }
        assert_eq!(costs.line(), Some((25.0, 0.0)));
        assert_eq!(BySize::default().line(), None);
    }
}
