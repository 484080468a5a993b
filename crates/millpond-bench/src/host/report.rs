//! Formats the tables of a workload, with a row for each allocator.

use crate::Table;
use crate::host::contender::Contender;
use crate::host::figures::Memory;
use crate::host::rounds::{Row, WorkloadResult};
use crate::host::spec::describe;
use crate::host::text::{digits, faults, mib, ratio, time};
use std::fmt::Write;

/// Returns the tables of some workloads.
pub(crate) fn long(results: &[WorkloadResult]) -> String {
    let mut text = String::new();
    for rows in results {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}: {}\n\n{}", rows.spec, describe(rows.spec), times(rows));
        let memory: Vec<(&Row, Memory)> = rows.rows.iter().filter_map(|r| Some((r, r.memory?))).collect();
        if !memory.is_empty() {
            let _ = writeln!(text, "{}", memories(&memory));
        }
    }
    text
}

fn times(rows: &WorkloadResult) -> Table {
    let rates = rows
        .rows
        .iter()
        .flat_map(|row| &row.parts)
        .any(|part| part.bytes > 0);
    let mut head = vec![
        "part",
        "allocator",
        "ns",
        "min",
        "max",
        "of glibc",
        "of mimalloc",
        "faults",
    ];
    if rates {
        head.push("GB/s");
    }
    let mut table = Table::new(&head);
    let parts = rows.rows.first().map_or(&[][..], |row| &row.parts);
    for name in parts.iter().map(|part| &part.part) {
        for row in &rows.rows {
            let Some(part) = row.part(name) else { continue };
            let of = |peer| ratio(Some(part.time.median), rows.median(peer, name));
            let mut cells = vec![name.clone(), row.contender.name().to_owned()];
            cells.extend([part.time.median, part.time.least, part.time.most].map(time));
            cells.extend([of(Contender::Glibc), of(Contender::Mimalloc), faults(part.faults)]);
            if rates {
                cells.push(digits(part.bytes as f64 / part.time.median));
            }
            table.row(cells);
        }
    }
    table
}

/// Returns a table of resident memory in MiB. Ratios to the live bytes subtract the memory at the start, so that the program
/// itself does not count.
pub(crate) fn memories(rows: &[(&Row, Memory)]) -> Table {
    let mut table = Table::new(&[
        "MiB",
        "live",
        "start",
        "peak",
        "over live",
        "freed",
        "trimmed",
        "left live",
        "over left",
    ]);
    for (row, m) in rows {
        let over = |resident: u64, live: u64| {
            let own = resident.saturating_sub(m.start) as f64;
            ratio(Some(own), (live > 0).then_some(live as f64))
        };
        let mut cells = vec![row.contender.name().to_owned()];
        cells.extend([m.live, m.start, m.peak].map(mib));
        cells.push(over(m.peak, m.live));
        cells.extend([m.freed, m.trimmed, m.left].map(mib));
        cells.push(over(m.trimmed, m.left));
        table.row(cells);
    }
    table
}
