//! Formats the tables of W1, with a row for each size and a column for each allocator.

use crate::Table;
use crate::host::allocator::Touch;
use crate::host::contender::Contender;
use crate::host::rounds::{Summary, WorkloadResult};
use crate::host::spec::Spec;
use crate::host::text::{digits, faults, ratio, time};
use millpond_engine::display_size;
use std::fmt::Write;

/// Returns whether a table contains the blocks with this alignment and touch.
type Chooses = fn(usize, Touch) -> bool;

/// The tables: a title, and the blocks of each.
const TABLES: [(&str, Chooses); 3] = [
    ("aligned to 64, not touched", |align, touch| {
        align == 64 && touch == Touch::None
    }),
    ("aligned to 16, not touched", |align, touch| {
        align == 16 && touch == Touch::None
    }),
    (
        "aligned to 64; written: one byte of each page (t), all bytes (f)",
        |_, touch| touch != Touch::None,
    ),
];

/// Returns medians, spreads and faults of the hot pair.
pub(crate) fn hot(results: &[WorkloadResult], peers: &[Contender]) -> String {
    let mut text = String::new();
    for (which, chosen) in TABLES {
        let is_chosen = |rows: &&WorkloadResult| matches!(rows.spec, Spec::Hot { align, touch, .. } if chosen(align, touch));
        let rows: Vec<&WorkloadResult> = results.iter().filter(is_chosen).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "w1: ns per pair, {which}\nof gl, of mi: the time of millpond over that of glibc, of mimalloc\n"
        );
        let _ = writeln!(
            text,
            "{}",
            table(&rows, peers, |part| time(part.time.median), true)
        );
        let seen = |of: fn(&Summary) -> bool| {
            let any = |r: &&&WorkloadResult| r.rows.iter().flat_map(|row| &row.parts).any(of);
            rows.iter().filter(any).copied().collect::<Vec<&WorkloadResult>>()
        };
        // A single round has no spread, and most rows have no faults.
        let spread = seen(|part| part.time.most > part.time.least);
        if !spread.is_empty() {
            let _ = writeln!(
                text,
                "w1: the slowest round over the fastest, for the same blocks\n"
            );
            let ratio = |part: &Summary| digits(part.time.most / part.time.least);
            let _ = writeln!(text, "{}", table(&spread, peers, ratio, false));
        }
        let faulty = seen(|part| part.faults >= 0.005);
        if !faulty.is_empty() {
            let _ = writeln!(
                text,
                "w1: minor faults per pair, for those of the same blocks that have any\n"
            );
            let _ = writeln!(
                text,
                "{}",
                table(&faulty, peers, |part| faults(part.faults), false)
            );
        }
    }
    text
}

fn table(
    results: &[&WorkloadResult],
    peers: &[Contender],
    cell: impl Fn(&Summary) -> String,
    ratios: bool,
) -> Table {
    let mut head = vec!["size"];
    head.extend(peers.iter().map(|peer| peer.name()));
    if ratios {
        head.extend(["of gl", "of mi"]);
    }
    let mut table = Table::new(&head);
    for rows in results {
        let Spec::Hot { size, touch, .. } = rows.spec else {
            continue;
        };
        let mark = match touch {
            Touch::None | Touch::First => "",
            Touch::Page => " t",
            Touch::Full => " f",
        };
        let part = |peer| rows.rows.iter().find(|row| row.contender == peer)?.part("pair");
        let mut cells = vec![format!("{}{mark}", display_size(size as u64))];
        cells.extend(
            peers
                .iter()
                .map(|&peer| part(peer).map_or_else(|| "-".to_owned(), &cell)),
        );
        if ratios {
            let median = |peer| rows.median(peer, "pair");
            let of = |peer| ratio(median(Contender::Millpond), median(peer));
            cells.extend([of(Contender::Glibc), of(Contender::Mimalloc)]);
        }
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::rounds::Row;
    use crate::host::spec::group;
    use crate::measure::Samples;

    /// Returns all allocators that such a table can have a column for.
    fn peers() -> Vec<Contender> {
        let all = Contender::ALL.into_iter();
        all.filter(|one| *one != Contender::Unpooled).collect()
    }

    #[test]
    fn tables_with_the_widest_figures_fit_100_columns() {
        let row = |contender| Row {
            contender,
            parts: vec![Summary {
                part: "pair".to_owned(),
                time: Samples::from_iter([1.0e6, 29.4e6, 120.0e6]).spread(),
                faults: 16_384.0,
                bytes: 0,
            }],
            memory: None,
        };
        let rows = |spec| WorkloadResult {
            spec,
            rows: peers().into_iter().map(row).collect(),
        };
        let peers = peers();
        let results: Vec<WorkloadResult> = group("w1").into_iter().map(rows).collect();
        let text = hot(&results, &peers);
        assert_eq!(text.matches("16384").count(), 48 * peers.len());
        assert_eq!(
            text.lines().filter(|line| line.starts_with("64.0 KiB")).count(),
            3 * (2 + 2)
        );
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{widest:?} columns\n{text}");
    }
}
