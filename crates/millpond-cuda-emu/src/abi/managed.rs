//! Managed memory.

use super::args::{In, Out};
use super::entries;
use super::structures::Location;
use crate::calls::Call;
use crate::error::{Answer, Code};
use crate::memory::managed::{Advice, CPU, NOWHERE, Page};
use crate::work::action::Action;

/// Returns the device or the host that a `Location` of the newer calls names.
fn place(location: Location) -> Answer<i32> {
    match location.kind {
        1 if location.id >= 0 => Ok(location.id),
        2..=4 => Ok(CPU),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn advise(call: &Call, at: u64, bytes: usize, advice: i32, place: i32) -> Answer {
    let advice = Advice::from_raw(advice)?;
    // Read-mostly advice and the removal of a preferred location ignore the location.
    let place = match advice {
        Advice::ReadMostly(_) | Advice::Preferred(false) => CPU,
        _ => place,
    };
    call.driver.state().memory.advise(at, bytes as u64, advice, place)
}

fn prefetch(call: &Call, at: u64, bytes: usize, place: i32, stream: u64) -> Answer {
    let stream = call.stream(stream)?;
    let len = bytes as u64;
    Code::INVALID_VALUE.when(!call.driver.state().memory.is_managed(at, len))?;
    if place != CPU {
        call.known_device(place)?;
    }
    call.driver
        .submit(stream, Action::Prefetch { at, len, place }, call.origin())?;
    // The attribute is the location of the last requested prefetch, whether or not the stream has begun it.
    call.driver.state().memory.note_prefetch(at, len, place)
}

fn attribute(call: &Call, data: Out<u8>, size: usize, number: i32, at: u64, len: u64) -> Answer {
    data.check()?;
    let mut state = call.driver.state();
    let memory = &mut state.memory;
    let mut agreed = |what: fn(&Page) -> i32, other| {
        Code::INVALID_VALUE.when(size != 4)?;
        memory.agreed(at, len, other, what)
    };
    let kind = |place: i32| match place {
        NOWHERE => 0,
        CPU => 2,
        _ => 1,
    };
    data.cast().set(match number {
        1 => agreed(|page| i32::from(page.read_mostly), 0)?,
        2 => agreed(|page| page.preferred, NOWHERE)?,
        4 => agreed(|page| page.prefetched, NOWHERE)?,
        5 => kind(agreed(|page| page.preferred, NOWHERE)?),
        6 => agreed(|page| page.preferred.max(CPU), 0)?,
        7 => kind(agreed(|page| page.prefetched, NOWHERE)?),
        8 => agreed(|page| page.prefetched.max(CPU), 0)?,
        3 if size > 0 && size.is_multiple_of(4) => {
            let mut places = memory.accessors(at, len)?;
            places.resize(size / 4, NOWHERE);
            return data.cast().fill(&places);
        }
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// Returns the ranges of a batch, which must all be managed.
fn ranges(call: &Call, at: In<u64>, sizes: In<usize>, count: usize) -> Answer<Vec<(u64, usize)>> {
    Code::INVALID_VALUE.when(count == 0)?;
    let ranges: Vec<_> = at.all(count)?.into_iter().zip(sizes.all(count)?).collect();
    let mut state = call.driver.state();
    let known = ranges
        .iter()
        .all(|(at, len)| state.memory.is_managed(*at, *len as u64));
    Code::INVALID_VALUE.when(!known)?;
    Ok(ranges)
}

/// Returns the place of each range of a batch. Each location holds from its index to that of the next one.
fn places(locations: In<Location>, indices: In<usize>, count: usize, ranges: usize) -> Answer<Vec<i32>> {
    Code::INVALID_VALUE.when(count == 0 || count > ranges)?;
    let (locations, indices) = (locations.all(count)?, indices.all(count)?);
    let rising = indices.first() == Some(&0) && indices.is_sorted_by(|one, next| one < next);
    Code::INVALID_VALUE.when(!rising)?;
    let locations = locations.into_iter().map(place).collect::<Answer<Vec<_>>>()?;
    let of = |range| indices.iter().rposition(|index| *index <= range).unwrap_or(0);
    Ok((0..ranges).map(|range| locations[of(range)]).collect())
}

entries! {
    cuMemAllocManaged none 6000 Driver (at: Out<u64>, bytes: usize, flags: u32) |call| {
        at.check()?;
        let device = call.device()?;
        Code::INVALID_VALUE.when(bytes == 0 || !matches!(flags, 1 | 2))?;
        let mut state = call.driver.state();
        state.refuse_unsafe(call.thread)?;
        at.set(state.memory.managed_allocate(device, bytes as u64, call.origin())?)
    }
    cuMemAdvise none 8000 Driver (at: u64, bytes: usize, advice: i32, device: i32) |call| {
        advise(call, at, bytes, advice, device)
    }
    cuMemAdvise_v2 none 12020 Driver (at: u64, bytes: usize, advice: i32, location: Location) |call| {
        let place = match advice {
            1 | 2 | 4 => CPU,
            _ => place(location)?,
        };
        advise(call, at, bytes, advice, place)
    }
    cuMemPrefetchAsync ptsz 8000 Driver (at: u64, bytes: usize, device: i32, stream: u64) |call| {
        prefetch(call, at, bytes, device, stream)
    }
    cuMemPrefetchAsync_v2 ptsz 12020 Driver (at: u64, bytes: usize, location: Location, flags: u32, stream: u64) |call| {
        Code::INVALID_VALUE.when(flags != 0)?;
        prefetch(call, at, bytes, place(location)?, stream)
    }
    cuMemPrefetchBatchAsync ptsz 13000 Driver (
        at: In<u64>,
        sizes: In<usize>,
        count: usize,
        locations: In<Location>,
        indices: In<usize>,
        location_count: usize,
        flags: u64,
        stream: u64,
    ) |call| {
        Code::INVALID_VALUE.when(flags != 0)?;
        let ranges = ranges(call, at, sizes, count)?;
        for ((at, len), place) in ranges.into_iter().zip(places(locations, indices, location_count, count)?) {
            prefetch(call, at, len, place, stream)?;
        }
        Ok(())
    }
    /// The contents are undefined afterwards. Here they stay as they are.
    cuMemDiscardBatchAsync ptsz 13000 Driver (at: In<u64>, sizes: In<usize>, count: usize, flags: u64, stream: u64) |call| {
        Code::INVALID_VALUE.when(flags != 0)?;
        ranges(call, at, sizes, count)?;
        call.driver.submit(call.stream(stream)?, Action::Nothing, call.origin())
    }
    cuMemDiscardAndPrefetchBatchAsync ptsz 13000 Driver (
        at: In<u64>,
        sizes: In<usize>,
        count: usize,
        locations: In<Location>,
        indices: In<usize>,
        location_count: usize,
        flags: u64,
        stream: u64,
    ) |call| {
        cuMemPrefetchBatchAsync(call, at, sizes, count, locations, indices, location_count, flags, stream)
    }
    cuMemRangeGetAttribute none 8000 Driver (data: Out<u8>, size: usize, number: i32, at: u64, bytes: usize) |call| {
        attribute(call, data, size, number, at, bytes as u64)
    }
    cuMemRangeGetAttributes none 8000 Driver (
        data: In<Out<u8>>,
        sizes: In<usize>,
        numbers: In<i32>,
        count: usize,
        at: u64,
        bytes: usize,
    ) |call| {
        let (places, sizes, numbers) = (data.all(count)?, sizes.all(count)?, numbers.all(count)?);
        Code::INVALID_VALUE.when(count == 0)?;
        for ((place, size), number) in places.into_iter().zip(sizes).zip(numbers) {
            attribute(call, place, size, number, at, bytes as u64)?;
        }
        Ok(())
    }
}
