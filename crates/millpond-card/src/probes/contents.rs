//! Tests whether contents move with their handle, and whether two mappings of one handle show the same contents.

use crate::card::{Card, Kernels};
use crate::driver::{Failed, Handle, ok};
use crate::say::{self, row};
use std::time::Instant;

const TABLE: &str = "Contents";
/// The number of rounds. A quick run makes [`QUICK`] rounds.
const ROUNDS: u32 = 10_000;
const QUICK: u32 = 20;
/// The number of rounds after which the host waits, so that queues stay short.
const AT_ONCE: u32 = 64;

/// Two address ranges of one page each, a handle, a counter of wrong words on the device, and two streams.
struct Places<'a> {
    card: &'a Card,
    kernels: Kernels,
    places: [u64; 2],
    handle: u64,
    wrong: u64,
    streams: [Handle; 2],
}

pub(super) fn run(card: &Card) -> Result<(), Failed> {
    let driver = &card.driver;
    let at = card.reserve(2 * card.page)?;
    let places = Places {
        card,
        kernels: card.kernels()?,
        places: [at, at + card.page],
        handle: card.create(card.page)?,
        wrong: card.allocate(256)?,
        streams: [card.stream()?, card.stream()?],
    };
    let rounds = card.rounds(ROUNDS, QUICK);
    say::table(
        TABLE,
        &["how", "rounds", "words that differ", "microseconds a round"],
    );
    let mut counted = 0;
    let mut one =
        |how: &str, what: &str, run: fn(&Places<'_>, u32) -> Result<(), Failed>| -> Result<(), Failed> {
            // The counter also has the wrong words of the cases before.
            let before = if counted == 0 {
                places.zero()?
            } else {
                places.sum()?
            };
            counted += 1;
            let begun = Instant::now();
            run(&places, rounds)?;
            let wrong = places.sum()?.wrapping_sub(before);
            let each = begun.elapsed().as_secs_f64() / f64::from(rounds);
            row!(TABLE, how, rounds, wrong, say::us(each));
            say::check(
                what,
                wrong == 0,
                &format!("{wrong} words differ in {rounds} rounds"),
            );
            Ok(())
        };
    // The comparison is tested first: with another seed it must find differences.
    places.card.map(at, card.page, places.handle)?;
    driver.check("cuMemSetAccess", card.access(at, card.page))?;
    places.zero()?;
    places.fill(0, 1, 0)?;
    places.compare(0, 2, 0)?;
    let planted = places.sum()?;
    say::check(
        "the comparison finds every difference",
        u64::from(planted) > places.words() / 2,
        &format!("{planted} of {} words", places.words()),
    );
    one(
        "filled, mapped elsewhere, unmapped, compared",
        "contents move with their handle",
        moved,
    )?;
    let second = places.places[1];
    let first_is_mapped = rounds.is_multiple_of(2);
    card.map(
        if first_is_mapped { second } else { at },
        card.page,
        places.handle,
    )?;
    driver.check("cuMemSetAccess", card.access(at, 2 * card.page))?;
    one(
        "written through one mapping, read through the other, in stream order",
        "two mappings of a handle are one memory in stream order",
        both,
    )?;
    one(
        "written by one stream, read by another through the other mapping, ordered by events",
        "two mappings of a handle are one memory across ordered streams",
        across,
    )?;
    card.unmap(at, card.page)?;
    card.unmap(second, card.page)?;
    ok!(driver, cuMemRelease(places.handle))?;
    ok!(driver, cuMemAddressFree(at, 2 * card.page as usize))?;
    ok!(driver, cuMemFree_v2(places.wrong))?;
    for stream in places.streams {
        ok!(driver, cuStreamDestroy_v2(stream))?;
    }
    Ok(())
}

impl Places<'_> {
    fn words(&self) -> u64 {
        self.card.page / 4
    }

    fn fill(&self, place: usize, seed: u32, stream: usize) -> Result<(), Failed> {
        let (at, on) = (self.places[place], self.streams[stream]);
        self.card.fill(&self.kernels, at, self.words(), seed, on)
    }

    fn compare(&self, place: usize, seed: u32, stream: usize) -> Result<(), Failed> {
        let (at, on) = (self.places[place], self.streams[stream]);
        self.card
            .compare(&self.kernels, at, self.words(), seed, self.wrong, on)
    }

    fn zero(&self) -> Result<u32, Failed> {
        let on = self.streams[0];
        ok!(self.card.driver, cuMemsetD8Async(self.wrong, 0, 256, on))?;
        self.sum()
    }

    /// Waits for both streams and returns the number of words that differed so far.
    fn sum(&self) -> Result<u32, Failed> {
        self.card.synchronize(self.streams[1])?;
        self.card.word(self.wrong, self.streams[0])
    }
}

/// Moves the handle in the library's order: waits for the stream, maps the handle at the new address, and unmaps it at the old one.
fn moved(places: &Places<'_>, rounds: u32) -> Result<(), Failed> {
    let card = places.card;
    for round in 0..rounds {
        let from = (round % 2) as usize;
        let (old, new) = (places.places[from], places.places[1 - from]);
        places.fill(from, round, 0)?;
        card.synchronize(places.streams[0])?;
        card.map(new, card.page, places.handle)?;
        card.driver.check("cuMemSetAccess", card.access(new, card.page))?;
        card.unmap(old, card.page)?;
        places.compare(1 - from, round, 0)?;
    }
    Ok(())
}

fn both(places: &Places<'_>, rounds: u32) -> Result<(), Failed> {
    for round in 0..rounds {
        let through = (round % 2) as usize;
        places.fill(through, round, 0)?;
        places.compare(1 - through, round, 0)?;
        if round % AT_ONCE == 0 {
            places.card.synchronize(places.streams[0])?;
        }
    }
    Ok(())
}

fn across(places: &Places<'_>, rounds: u32) -> Result<(), Failed> {
    let driver = &places.card.driver;
    let mut events = [0; 2];
    for event in &mut events {
        let without_timing = 2;
        ok!(driver, cuEventCreate(&raw mut *event, without_timing))?;
    }
    let [one, other] = places.streams;
    for round in 0..rounds {
        let through = (round % 2) as usize;
        places.fill(through, round, 0)?;
        ok!(driver, cuEventRecord(events[0], one))?;
        ok!(driver, cuStreamWaitEvent(other, events[0], 0))?;
        places.compare(1 - through, round, 1)?;
        ok!(driver, cuEventRecord(events[1], other))?;
        ok!(driver, cuStreamWaitEvent(one, events[1], 0))?;
        if round % AT_ONCE == 0 {
            places.card.synchronize(one)?;
        }
    }
    places.card.synchronize(one)?;
    for event in events {
        ok!(driver, cuEventDestroy_v2(event))?;
    }
    Ok(())
}
