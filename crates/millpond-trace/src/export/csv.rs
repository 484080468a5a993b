//! Writes Millpond CSV with all devices in one file.

use super::events::{Event, Source};
use super::stacks::clean;
use super::{ExportError, Exported};
use crate::csv::word;
use crate::hash::Map;
use crate::history::Pool;
use crate::recording::Kind;
use crate::{Action, header};
use std::io::Write;

/// Returns the policy of all pools if they have the same.
fn policy(source: &Source<'_>) -> Option<String> {
    let pools = source.history.definitions.pools();
    let (_, first) = pools.first()?;
    let same = pools.iter().all(|(_, pool)| pool.policy == first.policy);
    (same && !first.policy.is_empty()).then(|| clean(&first.policy).into_owned())
}

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let policy = policy(source);
    header::write_facts(source.program(), &source.history.facts, policy.as_deref(), out)?;
    writeln!(out, "time_us,action,id,bytes,stream,address,pool,device,tag")?;
    let pools = pools(source);
    let mut tags: Map<u32, String> = Map::default();
    let mut events = 0;
    source.walk(|event| {
        let row = &event.row;
        let Some(action) = action(event) else {
            return Ok(());
        };
        events += 1;
        let tag = tags
            .entry(row.tag)
            .or_insert_with(|| clean(source.history.definitions.tag(row.tag)).replace(',', ";"));
        let bytes = match row.kind {
            Kind::Reserve | Kind::Release => row.bytes,
            _ => row.requested,
        };
        let (first, second) = pools.get(&row.pool).copied().unwrap_or_default();
        writeln!(
            out,
            "{},{},{},{bytes},{},{:#x},{first}:{second},{},{tag}",
            row.time / 1_000,
            word(action),
            row.id,
            row.stream,
            row.address,
            source.device(row.pool),
        )?;
        Ok(())
    })?;
    Ok(Exported::new(
        events,
        "times below a microsecond, bytes of blocks beyond the requested bytes, threads, stacks, gauges, marks, names of \
             pools",
    ))
}

pub(super) fn action(event: &Event<'_>) -> Option<Action> {
    Some(match event.row.kind {
        Kind::Alloc => Action::Alloc,
        Kind::Free => Action::Free,
        Kind::FreeRequested => Action::FreeRequested,
        Kind::FreeCompleted => Action::FreeCompleted,
        Kind::Reserve => Action::SegmentAlloc,
        Kind::Release => Action::SegmentFree,
        Kind::Refused => Action::OutOfMemory,
        _ => return None,
    })
}

/// Returns numbers for pools: the numbers in the names of private pools, and otherwise the index on the device.
pub(super) fn pools(source: &Source<'_>) -> Map<u32, (u64, u64)> {
    let mut of_device: Map<i32, u64> = Map::default();
    let mut numbers = Map::default();
    for (number, pool) in source.history.definitions.pools() {
        let next = of_device.entry(pool.device).or_insert(0);
        numbers.insert(number, numbered(pool).unwrap_or((0, *next)));
        *next += 1;
    }
    numbers
}

fn numbered(pool: &Pool) -> Option<(u64, u64)> {
    let (first, second) = pool.name.split_once('.')?;
    Some((first.parse().ok()?, second.parse().ok()?))
}
