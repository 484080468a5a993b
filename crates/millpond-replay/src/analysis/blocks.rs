//! Builds the table of all blocks of a recording, in parts that are produced while the recording is walked. A
//! reader that collects them, such as the page of `view`, can answer any question about any window from them.
//!
//! ```text
//!   events    births and ends, in order      block and time; a birth refers to the next block
//!   blocks    in order of birth              bytes, slack, address, origin
//!   origins   properties of many blocks      pool, stream, thread, tag, stack, and the group of each property
//!   samples   reserved, unexplained, parked  the values after each change
//! ```
//!
//! A part consists of sections, each a column of varints. The first section is text, as JSON. The memory
//! needed does not grow with the recording, only with the number of live blocks and of origins. Blocks that
//! are not listed one by one are represented by one sum, given at each event. Numbers beyond 2^52 are
//! replaced by that limit, so that a script can hold their differences of either sign.

use super::groups::{By, COUNT, Groups, Lines};
use super::ledger::{Block, LastAllocations, Ledger, Parked, Watch, walk};
use super::overview::Keeping;
use super::{Map, Window, shown};
use crate::web::encode::{Column, difference};
use millpond_trace::history::{History, HistoryError, Symbols};
use millpond_trace::recording::{Gauge, Kind, Row};
use serde_json::{Value, json};
use std::io;

/// The properties whose groups are in the table. `Stack` is not one of them, because the page has the stacks themselves.
const WAYS: [By; 6] = [By::Tag, By::Site, By::Pool, By::Stream, By::Thread, By::Kind];

/// The most events in a part.
const PART: u64 = 1 << 16;
/// The most samples in a part.
const SAMPLES: u64 = 1 << 16;
/// The most marks, refusals and losses that are listed one by one.
const MOST_NOTES: u64 = 20_000;
/// The largest number that is written. A script can also hold twice a difference of such numbers.
const MOST_NUMBER: u64 = (1 << 52) - 1;
/// The most text of one part, in bytes. Names beyond it are cut.
const MOST_TEXT: usize = 32 << 20;

/// The size of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSize {
    /// The number of blocks that are listed one by one.
    pub blocks: u64,
    /// The number of their births and ends.
    pub events: u64,
    /// The number of blocks that are only in the sum.
    pub others: u64,
}

/// The reason why a table was not completed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The recording can no longer be read.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The receiver of the parts returned an error.
    #[error("the table of blocks is incomplete: {0}")]
    Taker(#[from] io::Error),
}

/// The sections of one part of a table.
pub type Part = Vec<Vec<u8>>;

/// Builds the table of a recording's blocks, and passes each part to `take`.
///
/// # Errors
/// Returns an error if the recording can no longer be read, or if `take` fails.
pub fn blocks(
    history: &History,
    symbols: &dyn Symbols,
    keeping: Keeping,
    take: &mut dyn FnMut(Part) -> io::Result<()>,
) -> Result<TableSize, TableError> {
    let groups = Groups::new(&history.definitions, symbols, Lines::Told);
    let mut table = Table {
        keeping,
        take,
        failed: None,
        size: TableSize::default(),
        part: Making::default(),
        places: Map::default(),
        last: LastAllocations::default(),
        origins: Map::default(),
        told_names: [0; COUNT],
        told_tags: Map::default(),
        rest: 0,
        notes: 0,
        samples: Samples::default(),
    };
    let ledger = walk(history, groups, Window::ALL, &mut table)?;
    if table.failed.is_none() {
        table.flush(&ledger, true);
    }
    match table.failed {
        Some(error) => Err(error.into()),
        None => Ok(table.size),
    }
}

/// Properties that many blocks share.
type Origin = [u32; 5];

struct Table<'t> {
    keeping: Keeping,
    take: &'t mut dyn FnMut(Part) -> io::Result<()>,
    failed: Option<io::Error>,
    size: TableSize,
    part: Making,
    /// The position of a live block in the table, by its number. Empty if all blocks are listed, because then
    /// the position is the number.
    places: Map<u64, u64>,
    last: LastAllocations,
    origins: Map<Origin, u64>,
    /// The number of group names that were already written.
    told_names: [usize; COUNT],
    told_tags: Map<u32, ()>,
    /// Bytes of blocks that are not listed one by one.
    rest: u128,
    notes: u64,
    samples: Samples,
}

/// The last written value of each figure.
#[derive(Default)]
struct Samples {
    reserved: Option<u64>,
    unexplained: Option<u64>,
    parked: u64,
}

/// A part that is being built.
#[derive(Default)]
struct Making {
    events: u64,
    blocks: u64,
    first_event: u64,
    who: Column,
    times: Column,
    bytes: Column,
    slack: Column,
    addresses: Column,
    origins: Column,
    new_origins: Column,
    /// Blocks that are older than their birth in the table, or that were never allocated in the recording.
    older: Column,
    /// The change of the sum of other blocks, and the number of them that were born.
    rest: Column,
    samples: [Column; 3],
    sampled: u64,
    notes: Vec<Value>,
    tags: Vec<Value>,
    now: Now,
}

/// The values from which differences are computed. They continue from part to part.
#[derive(Clone, Copy, Default)]
struct Now {
    time: u64,
    address: u64,
    rest: u64,
    births: u64,
}

/// The reason for the end of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Freed = 0,
    /// Freed by the next memory event of the thread that allocated it.
    AtOnce = 1,
    /// A keyframe no longer names the block.
    Vanished = 2,
}

fn capped(number: u64) -> u64 {
    number.min(MOST_NUMBER)
}

impl Table<'_> {
    /// Writes an event of a listed block. `who` is 0 for a birth. Otherwise it encodes the fate and the
    /// block, counted back from the newest.
    fn event(&mut self, ledger: &Ledger<'_>, who: u64) {
        let time = capped(ledger.time);
        let part = &mut self.part;
        part.who.put(who);
        part.times.put(time - part.now.time);
        part.now.time = time;
        if self.keeping != Keeping::ALL {
            let rest = capped(shown(self.rest));
            part.rest.put_signed(difference(rest, part.now.rest));
            part.rest.put(part.now.births);
            part.now.rest = rest;
            part.now.births = 0;
        }
        part.events += 1;
        self.size.events += 1;
    }

    fn birth(&mut self, ledger: &Ledger<'_>, block: &Block) {
        self.event(ledger, 0);
        let origin = self.origin(ledger, block);
        let part = &mut self.part;
        part.origins.put(origin);
        let (bytes, requested) = (capped(block.bytes), capped(block.requested));
        part.bytes.put(bytes);
        part.slack.put_signed(difference(bytes, requested));
        let address = capped(block.address);
        part.addresses.put_signed(difference(address, part.now.address));
        part.now.address = address;
        let age = part.now.time.saturating_sub(capped(block.time));
        if age > 0 || !block.is_event {
            part.older.put(part.blocks);
            part.older.put(age * 2 + u64::from(!block.is_event));
        }
        part.blocks += 1;
        if self.keeping != Keeping::ALL {
            self.places.insert(block.number, self.size.blocks);
        }
        self.size.blocks += 1;
    }

    fn origin(&mut self, ledger: &Ledger<'_>, block: &Block) -> u64 {
        let next = self.origins.len() as u64;
        let key = [block.pool, block.stream, block.thread, block.tag, block.stack];
        let origin = *self.origins.entry(key).or_insert(next);
        if origin == next {
            for number in key.into_iter().chain(WAYS.map(|by| block.groups[by as usize])) {
                self.part.new_origins.put(u64::from(number));
            }
            if self.told_tags.insert(block.tag, ()).is_none() {
                let text = ledger.groups.definitions().tag(block.tag);
                self.part.tags.push(json!([block.tag, text]));
            }
        }
        origin
    }

    fn end(&mut self, ledger: &Ledger<'_>, place: u64, fate: Fate) {
        let back = self.size.blocks - 1 - place;
        self.event(ledger, 1 + back * 3 + fate as u64);
    }

    /// Returns the position of a block in the table and forgets it. Returns `None` if the block is not
    /// listed.
    fn place(&mut self, block: &Block) -> Option<u64> {
        if self.keeping == Keeping::ALL {
            return Some(block.number);
        }
        self.places.remove(&block.number)
    }

    fn fate(&mut self, block: &Block, by: Option<&Row>) -> Fate {
        match by {
            None => Fate::Vanished,
            Some(row) if self.last.is_freed_next(block, row) => Fate::AtOnce,
            Some(_) => Fate::Freed,
        }
    }

    /// Writes the new value of a figure, with its time and the number of earlier events in this part.
    fn sample(&mut self, which: usize, time: u64, value: u64) {
        let column = &mut self.part.samples[which];
        column.put(self.part.events);
        column.put(capped(time));
        column.put(capped(value));
        self.part.sampled += 1;
    }

    fn sample_parked(&mut self, ledger: &Ledger<'_>) {
        let parked = shown(ledger.parked_bytes);
        if parked != self.samples.parked {
            self.samples.parked = parked;
            self.sample(2, ledger.time, parked);
        }
    }

    fn sample_reserved(&mut self, ledger: &Ledger<'_>) {
        let reserved = ledger.reserved.map(shown);
        if let Some(bytes) = reserved.filter(|_| reserved != self.samples.reserved) {
            self.samples.reserved = reserved;
            self.sample(0, ledger.time, bytes);
        }
    }

    fn note(&mut self, ledger: &Ledger<'_>, what: &str, value: u64, text: &str) {
        self.notes += 1;
        if self.notes <= MOST_NOTES {
            let event = self.part.first_event + self.part.events;
            let text: String = text.chars().take(200).collect();
            let note = json!([what, event, capped(ledger.time), capped(value), text]);
            self.part.notes.push(note);
        }
    }

    fn flush_when_full(&mut self, ledger: &Ledger<'_>) {
        if self.part.events >= PART || self.part.sampled >= SAMPLES {
            self.flush(ledger, false);
        }
    }

    fn flush(&mut self, ledger: &Ledger<'_>, is_last: bool) {
        let next = Making {
            now: self.part.now,
            first_event: self.part.first_event + self.part.events,
            ..Making::default()
        };
        let part = std::mem::replace(&mut self.part, next);
        let mut text = 0;
        let mut names = serde_json::Map::new();
        for by in WAYS {
            let all = ledger.groups.names(by);
            let new = all.get(self.told_names[by as usize]..).unwrap_or_default();
            self.told_names[by as usize] = all.len();
            let told = new.iter().map(|name| {
                text += name.len();
                Value::from(if text > MOST_TEXT { "" } else { name.as_str() })
            });
            names.insert(by.name().to_owned(), told.collect());
        }
        let mut head = json!({
            "events": part.events,
            "blocks": part.blocks,
            "names": names,
            "tags": part.tags,
            "notes": part.notes,
        });
        if is_last {
            head["end"] = json!({
                "blocks": self.size.blocks,
                "events": self.size.events,
                "others": self.size.others,
                "othersBytes": capped(shown(self.rest)),
                "othersUnder": (self.keeping != Keeping::ALL).then_some(capped(self.keeping.all_from)),
                "moreNotes": self.notes.saturating_sub(MOST_NOTES),
                "unknownFrees": ledger.unknown_frees,
                "end": capped(ledger.time),
            });
        }
        let [reserved, unexplained, parked] = part.samples;
        let columns = [
            part.who,
            part.times,
            part.bytes,
            part.slack,
            part.addresses,
            part.origins,
            part.new_origins,
            part.older,
            part.rest,
            reserved,
            unexplained,
            parked,
        ];
        let head = std::iter::once(head.to_string().into_bytes());
        let sections = head
            .chain(columns.iter().map(|column| column.bytes().to_vec()))
            .collect();
        if let Err(error) = (self.take)(sections) {
            self.failed = Some(error);
        }
    }
}

impl Watch for Table<'_> {
    fn opened(&mut self, ledger: &Ledger<'_>, block: &Block) {
        if block.is_event {
            self.last.allocated(block);
        }
        if self.keeping.keeps(block.id, block.bytes) {
            self.birth(ledger, block);
        } else {
            self.rest += u128::from(block.bytes);
            self.part.now.births += 1;
            self.size.others += 1;
        }
        self.flush_when_full(ledger);
    }

    fn closed(&mut self, ledger: &Ledger<'_>, block: &Block, by: Option<&Row>) {
        let fate = self.fate(block, by);
        match self.place(block) {
            Some(place) => self.end(ledger, place, fate),
            None => self.rest = self.rest.saturating_sub(u128::from(block.bytes)),
        }
        self.sample_parked(ledger);
        self.flush_when_full(ledger);
    }

    fn passed(&mut self, ledger: &Ledger<'_>, _: &Parked, _: &Row) {
        self.sample_parked(ledger);
    }

    fn row(&mut self, ledger: &Ledger<'_>, row: &Row, text: Option<&str>) {
        match row.kind {
            Kind::Reserve | Kind::Release => self.sample_reserved(ledger),
            Kind::Gauge => {
                self.sample_reserved(ledger);
                if row.tag == Gauge::DeviceUsed as u32 && row.pool == 0 {
                    let beyond = shown(ledger.unexplained());
                    if self.samples.unexplained.replace(beyond) != Some(beyond) {
                        self.sample(1, ledger.time, beyond);
                    }
                }
            }
            Kind::Mark => self.note(ledger, "mark", 0, text.unwrap_or_default()),
            Kind::Step => self.note(ledger, "step", row.bytes, ""),
            Kind::Lost => self.note(ledger, "lost", row.id, ""),
            Kind::Refused => self.note(ledger, "refused", row.requested, ""),
            _ => {}
        }
        self.flush_when_full(ledger);
    }

    fn goes_on(&self) -> bool {
        self.failed.is_none()
    }
}
