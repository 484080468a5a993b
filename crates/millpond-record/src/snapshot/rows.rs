//! Converts the state to a recording of one moment: definitions, ranges, sums, one keyframe, and the failed request if
//! there was one.
//!
//! Blocks that are not listed individually are combined in one row for each pool and tag. The row's tag contains their
//! number. So the sums of every view equal the sums of the pools, and no view presents such a row as a single block.

use super::SnapshotReport;
use super::refused::Refusal;
use super::room::{Held, Sums};
use super::state::{Known, Seen, State};
use crate::modules;
use crate::own_code;
use crate::row_builder::{Measured, RowBuilder};
use millpond_account::tags::Tag;
use millpond_engine::display_size;
use millpond_trace::recording::{Kind, RecordingError, Row, STATES};
use std::collections::{BTreeSet, HashMap};
use std::io::Write;

/// The bytes of an uncompressed row.
pub(super) const ROW: u64 = 64;
/// The maximum number of frames of the stack of a refused request.
const FRAMES: usize = 64;
/// The bytes that are always available for stacks.
const STACKS: u64 = 1 << 20;

/// A row that stands for several blocks.
struct Together {
    pool: u32,
    tag: u32,
    sums: Sums,
}

/// Writes the recording with a time on the process's clock.
pub(super) fn write<W: Write>(
    rows: &mut RowBuilder<W>,
    state: &State,
    measured: &[Measured],
    now: u64,
    most_bytes: u64,
    refusal: Option<&Refusal<'_>>,
) -> Result<SnapshotReport, RecordingError> {
    for seen in &state.pools {
        rows.define_pool(&seen.label)?;
    }
    let task = millpond_os::task_name(millpond_os::task());
    rows.define_thread(millpond_os::thread::thread_number(), &task)?;
    let caller = match refusal {
        Some(_) => define_caller(rows)?,
        None => 0,
    };
    let (stacks, without) = define_stacks(rows, state, most_bytes, caller != 0)?;
    let newest_tag = define_tags(rows, state)?;
    let together = together(rows, state, newest_tag)?;
    write_ranges(rows, state, now)?;
    for measured in measured {
        rows.measured(measured, now)?;
    }
    let mut report = SnapshotReport::default();
    keyframe(rows, state, &together, &stacks, now, &mut report)?;
    if let Some(refusal) = refusal {
        write_refusal(rows, refusal, caller, now)?;
    }
    for line in statements(state, &report, without) {
        rows.say(&Row::new(Kind::Mark, now), &line)?;
    }
    Ok(report)
}

fn each_held(state: &State) -> impl Iterator<Item = Held> {
    (0..state.room.len()).filter_map(|at| state.room.get(at))
}

/// The numbers of stacks in the file, by pool and number in the pool's account.
type Stacks = HashMap<(u32, u32), u32>;

/// Defines the stack of this thread, which has made the refused request. Returns its number.
fn define_caller<W: Write>(rows: &mut RowBuilder<W>) -> Result<u32, RecordingError> {
    let own = own_code().unwrap_or_default();
    let mut addresses = Vec::new();
    millpond_os::walk_beyond(&own, FRAMES, |address| addresses.push(address));
    rows.stack(&addresses)
}

/// Defines the stacks of blocks while space remains, and the code modules if there are stacks. Returns the number of blocks whose stacks
/// did not fit.
fn define_stacks<W: Write>(
    rows: &mut RowBuilder<W>,
    state: &State,
    most_bytes: u64,
    mut any: bool,
) -> Result<(Stacks, u64), RecordingError> {
    let mut stacks = Stacks::new();
    let mut left = most_bytes
        .saturating_sub(state.room.len() as u64 * ROW)
        .max(STACKS);
    let mut without = 0;
    for held in each_held(state).filter(|held| held.stack != 0) {
        let key = (held.pool, held.stack);
        let number = match stacks.get(&key) {
            Some(number) => *number,
            None => {
                let ledger = pool_of(state, held.pool).and_then(|seen| seen.ledger.as_ref());
                let stack = ledger.and_then(|ledger| ledger.stack_of_number(held.stack));
                let addresses: Vec<u64> = stack.map_or_else(Vec::new, |stack| {
                    stack.addresses().iter().map(|at| *at as u64).collect()
                });
                let bytes = ROW + 8 * addresses.len() as u64;
                let number = if addresses.is_empty() || bytes > left {
                    0
                } else {
                    left -= bytes;
                    rows.stack(&addresses)?
                };
                stacks.insert(key, number);
                number
            }
        };
        any |= number != 0;
        without += u64::from(number == 0);
    }
    if any {
        for module in modules::all() {
            rows.define_module(&module)?;
        }
    }
    Ok((stacks, without))
}

fn pool_of(state: &State, at: u32) -> Option<&Seen> {
    state.pools.get(at as usize)
}

fn number_of(state: &State, at: u32) -> u32 {
    pool_of(state, at).map_or(0, |seen| seen.label.id as u32)
}

/// Defines all tags. Returns the largest number.
fn define_tags<W: Write>(rows: &mut RowBuilder<W>, state: &State) -> Result<u32, RecordingError> {
    let tags: BTreeSet<u32> = each_held(state)
        .map(|held| held.tag)
        .chain(state.room.rest().map(|((_, tag), _)| tag))
        .chain([Tag::current().number()])
        .collect();
    for tag in &tags {
        rows.define_tag(*tag)?;
    }
    Ok(tags.last().copied().unwrap_or(0))
}

/// Returns the rows that stand for several blocks, and defines their tags.
fn together<W: Write>(
    rows: &mut RowBuilder<W>,
    state: &State,
    newest_tag: u32,
) -> Result<Vec<Together>, RecordingError> {
    let mut all = Vec::new();
    let mut add = |pool: u32, name: &str, sums: Sums| {
        let tag = newest_tag + 1 + all.len() as u32;
        all.push(Together { pool, tag, sums });
        rows.say_tag(tag, name)
    };
    for ((pool, tag), sums) in state.room.rest() {
        let of = match Tag::of_number(tag).name() {
            "" => "no tag",
            name => name,
        };
        add(
            pool,
            &format!("{of} ({})", blocks(sums.blocks, "smaller block")),
            sums,
        )?;
    }
    for (at, seen) in state.pools.iter().enumerate() {
        let sums = seen.unlisted();
        // The counters of a program's malloc do not contain the requested bytes.
        if sums.bytes == 0 {
            continue;
        }
        let what = match seen.known {
            Known::Account => "outside the account",
            Known::Sampled(_) => "outside the sample",
            Known::Placement => "too small to be listed one by one",
            Known::Sums => "without an account",
        };
        add(
            at as u32,
            &format!("{} {what}", blocks(sums.blocks, "block")),
            sums,
        )?;
    }
    Ok(all)
}

/// Returns a number of blocks with the noun.
fn blocks(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

fn write_ranges<W: Write>(rows: &mut RowBuilder<W>, state: &State, now: u64) -> Result<(), RecordingError> {
    for seen in &state.pools {
        let rest = (seen.elsewhere > 0).then_some((0, seen.elsewhere));
        for (address, bytes) in seen.ranges.iter().copied().chain(rest) {
            rows.push(&Row {
                address,
                bytes,
                pool: seen.label.id as u32,
                ..Row::new(Kind::Reserve, now)
            })?;
        }
    }
    Ok(())
}

fn keyframe<W: Write>(
    rows: &mut RowBuilder<W>,
    state: &State,
    together: &[Together],
    stacks: &Stacks,
    now: u64,
    report: &mut SnapshotReport,
) -> Result<(), RecordingError> {
    let count = (state.room.len() + together.len()) as u64;
    rows.push(&Row {
        bytes: count,
        ..Row::new(Kind::Keyframe, now)
    })?;
    for (at, held) in each_held(state).enumerate() {
        report.blocks += 1;
        report.bytes = report.bytes.saturating_add(held.bytes);
        rows.push(&Row {
            id: at as u64 + 1,
            address: held.address,
            requested: held.requested,
            bytes: held.bytes,
            pool: number_of(state, held.pool),
            stream: held.stream,
            thread: held.thread,
            tag: held.tag,
            stack: stacks.get(&(held.pool, held.stack)).copied().unwrap_or(0),
            ..Row::new(Kind::Live, held.time.unwrap_or(now).min(now))
        })?;
    }
    for (at, of) in together.iter().enumerate() {
        report.summed_blocks = report.summed_blocks.saturating_add(of.sums.blocks);
        report.summed_bytes = report.summed_bytes.saturating_add(of.sums.bytes);
        rows.push(&Row {
            id: (state.room.len() + at) as u64 + 1,
            requested: of.sums.requested,
            bytes: of.sums.bytes,
            pool: number_of(state, of.pool),
            tag: of.tag,
            ..Row::new(Kind::Live, now)
        })?;
    }
    Ok(())
}

fn write_refusal<W: Write>(
    rows: &mut RowBuilder<W>,
    refusal: &Refusal<'_>,
    caller: u32,
    now: u64,
) -> Result<(), RecordingError> {
    rows.push(&Row {
        stack: caller,
        requested: refusal.requested,
        pool: refusal.pool.id as u32,
        stream: refusal.stream,
        thread: millpond_os::thread::thread_number(),
        tag: Tag::current().number(),
        ..Row::new(Kind::Refused, now)
    })?;
    let mark = Row {
        pool: refusal.pool.id as u32,
        ..Row::new(Kind::Mark, now)
    };
    rows.say(&mark, &refusal.error.to_string())
}

/// Returns the statements about the snapshot that the rows do not contain.
fn statements(state: &State, report: &SnapshotReport, without: u64) -> Vec<String> {
    let mut lines = Vec::new();
    let smaller = state.room.rest().fold(Sums::default(), |mut sums, (_, of)| {
        sums.add(of.requested, of.bytes, of.blocks);
        sums
    });
    if smaller.blocks > 0 {
        lines.push(format!(
            "{STATES}the {} largest blocks are listed; {} smaller ones of {} are combined in one sum for each pool and tag",
            report.blocks,
            smaller.blocks,
            display_size(smaller.bytes)
        ));
    }
    if without > 0 {
        lines.push(format!(
            "{STATES}there was no room for the stacks of {without} blocks"
        ));
    }
    for seen in &state.pools {
        let how = match seen.known {
            Known::Account => continue,
            Known::Sampled(weight) => {
                format!("keeps an account of one allocation in {weight}; the others are in one sum")
            }
            Known::Placement => {
                "keeps no account of its blocks: their addresses are known, but not their holders and ages, and small blocks are in one sum".to_owned()
            }
            Known::Sums => "keeps no account of its blocks: they are in one sum".to_owned(),
        };
        if seen.stats.allocated.current > 0 {
            let name = &seen.label.name;
            lines.push(format!("{STATES}pool {} '{name}' {how}", seen.label.id));
        }
    }
    lines
}
