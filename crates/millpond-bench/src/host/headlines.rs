//! Compares claims in the documents of five tensor libraries with the same loops here, for `millpond bench seeds`.

use crate::Table;
use crate::console::{indented, wrap};
use crate::host::Error;
use crate::host::child::{self, Again};
use crate::host::contender::{self, Contender};
use crate::host::report::memories;
use crate::host::rounds::{self, WorkloadResult};
use crate::host::spec::{Spec, describe};
use crate::host::text::{digits, faults, ratio, time};
use crate::host::work::Effort;
use std::io::Write;

/// A passage of a document, and the loop that it describes.
pub(crate) struct Headline {
    /// The name of the workload.
    pub(crate) workload: &'static str,
    /// The library, and the heading of the passage.
    pub(crate) from: &'static str,
    /// A quotation of the passage.
    pub(crate) says: &'static str,
    /// The time with its pool over the time without, if the document contains both.
    pub(crate) claim: Option<f64>,
    /// A remark that the figures do not show.
    pub(crate) note: &'static str,
}

const fn headline(workload: &'static str, from: &'static str, says: &'static str) -> Headline {
    Headline {
        workload,
        from,
        says,
        claim: None,
        note: "",
    }
}

impl Headline {
    const fn claims(self, claim: f64) -> Self {
        let claim = Some(claim);
        Self { claim, ..self }
    }

    const fn note(self, note: &'static str) -> Self {
        Self { note, ..self }
    }
}

/// 125 ms with the pool, and 2,450 ms without.
const DOTCOMPUTE: f64 = 125.0 / 2450.0;

/// All passages, by document.
pub(crate) const HEADLINES: [Headline; 20] = [
    headline(
        "w2",
        "TensorCore, Allocation Speed",
        "\"Memory Pool: ~8.5ms for 10,000 allocations\", \"Standard Malloc: ~2.6ms for 10,000 allocations\"",
    )
    .claims(8.5 / 2.6)
    .note("The document states no sizes. The sizes here are spread over the classes of its pool, 64 B to 64 KiB."),
    headline(
        "tensorcore",
        "TensorCore, Performance Monitoring",
        "for (int i = 0; i < 1000; ++i) { Tensor temp({100, 100}); } (no figure given)",
    ),
    headline(
        "tensorcore-fill",
        "TensorCore, Performance Monitoring",
        "\"Use temp tensor...\" (no figure given)",
    )
    .note("Nearly all of the time is for writing 80,000 bytes, with every allocator: see (loop)."),
    headline(
        "tensorcore-large",
        "TensorCore, Allocation Speed",
        "\"Slightly slower for small allocations, much faster for large tensors\" (no figure given)",
    ),
    headline(
        "tendo",
        "tendo, Reuse Tensors",
        "\"Bad: allocates each iteration\": tendo.Zeros(100, 100) and a result, 1,000 times (no figure given)",
    )
    .note("A pair is one block here, and each turn has two blocks."),
    headline(
        "tendo-reuse",
        "tendo, Reuse Tensors",
        "\"Good: reuse buffer\" (no figure given)",
    ),
    headline(
        "tendo-storage",
        "tendo, Pool-Backed Storage",
        "\"When freed, returns to pool instead of cudaFree\": 1,000 floats (no figure given)",
    )
    .note("A new mapping (mmap) stands for the driver's call."),
    headline(
        "genesis-pool",
        "Genesis, Advanced Pooling Strategy",
        "block_sizes = [1024, 4096, 16384, 65536, 262144, 1048576], in equal shares (no figure given)",
    ),
    headline(
        "genesis-small",
        "Genesis, Pre-allocate Large Tensors",
        "\"Avoid: Frequent small allocations\": 1,000 tensors of one number (no figure given)",
    ),
    headline(
        "half",
        "Genesis, Advanced Memory Control",
        "\"30% fragmentation threshold\", \"High fragmentation detected, compacting...\" (no figure given)",
    )
    .note("Half of the blocks are freed. The column `over left` shows resident memory after a trim over the bytes still in use."),
    headline(
        "guda-batch",
        "GUDA, Memory Pool Management",
        "\"Very fast - reused from pool\" (no figure given)",
    )
    .note("The time includes clearing the buffers: see (loop)."),
    headline(
        "guda-hot",
        "GUDA, Best Practices",
        "\"Efficient repeated allocations\": 1,000 times 512 bytes (no figure given)",
    ),
    headline(
        "guda-defer",
        "GUDA, Common Memory Mistakes",
        "\"SLOW: allocation per iteration\": 256 bytes each, freed by defer (no figure given)",
    ),
    headline(
        "guda-copy",
        "GUDA, Zero-Copy Operations",
        "\"Expect very high numbers since it's just pointer operations!\": 64 MB to the device and back",
    )
    .note("A copy moves bytes: (loop) shows the bandwidth of the memory, which limits every allocator. The rest of the time is \
         for new pages of the two buffers of each loop. The document copies 1,000 times."),
    headline(
        "dotcompute-1m",
        "DotCompute, Performance Impact",
        "100 iterations, 1MB buffers: \"Total time: 2,450 ms\" without pooling, \"125 ms (19.6x faster)\" with",
    )
    .claims(DOTCOMPUTE),
    headline(
        "dotcompute-1m-fill",
        "DotCompute, Performance Impact",
        "the same, every byte written",
    )
    .claims(DOTCOMPUTE)
    .note("Memory bandwidth limits the writing of a whole buffer. On a CPU, a pool saves only the cost of new pages."),
    headline(
        "dotcompute-64m",
        "DotCompute, Performance Impact",
        "as above with buffers of 64 MiB, which malloc does not keep (the figures are those for 1 MiB)",
    )
    .claims(DOTCOMPUTE),
    headline(
        "dotcompute-64m-fill",
        "DotCompute, Performance Impact",
        "as above with buffers of 64 MiB, every byte written (the figures are those for 1 MiB)",
    )
    .claims(DOTCOMPUTE),
    headline(
        "dotcompute-malloc",
        "DotCompute, Memory Allocation Overhead",
        "\"malloc (CPU)\": \"50-200 ns\"",
    ),
    headline(
        "dotcompute-buffer",
        "DotCompute, Memory Allocation Overhead",
        "\"GPU buffer allocation\": \"1-10 ms\"; \"GPU buffer deallocation\": \"0.5-5 ms\"",
    )
    .note("No GPU is used here: a new mapping of 1 MiB with touched pages stands for its driver, and is faster."),
];

/// The claims that no loop above shows, and the reasons.
const REST: &str = "\
Not shown: DotCompute's \"1.5-3x faster transfers\" from pinned memory need a device. GUDA's structures of arrays and \
row-major access, TensorCore's and GUDA's SIMD loops, and Genesis's products into an existing tensor allocate nothing: \
the tables below show them.";

/// The heading of the summary table.
const SHORT: &str = "\
Summary: the time of Millpond's pool over that of glibc and of mmap, and the page faults of each of them per pair. \
claims: the time with the document's pool over the time without it, if the document states both.";

/// Returns the allocators that run the loops. glibc stands for malloc, and a new mapping for each block stands for a program
/// without a pool.
fn who() -> Vec<Contender> {
    let all = [
        Contender::Loop,
        Contender::Glibc,
        Contender::Mimalloc,
        Contender::Jemalloc,
        Contender::Unpooled,
        Contender::Millpond,
    ];
    all.into_iter().filter(|one| one.is_built()).collect()
}

/// Measures every claim and the same loop here in one run. Returns one line for each run that failed. `quick` only checks that
/// everything runs, and its figures have no meaning.
///
/// # Errors
/// Returns an error if the result cannot be written.
pub fn seeds(quick: bool, rounds: usize, again: &Again, out: &mut dyn Write) -> Result<Vec<String>, Error> {
    let effort = if quick { Effort::Quick } else { Effort::Full };
    let head = format!(
        "Claims in the documents of five tensor libraries, and the same loops measured here: {rounds} {}, interleaved, with \
         a process for each run. The tables show the median time of a loop, the fastest and the slowest round, and the first \
         loop of a process (`first`). glibc is malloc. mmap uses no pool, and creates a new mapping for each block. (loop) is \
         the loop alone, with memory that exists before it starts.",
        if rounds == 1 { "round" } else { "rounds" }
    );
    writeln!(out, "{}", wrap(&head))?;
    if quick {
        writeln!(
            out,
            "Quick: one pass of each loop, and only 10 turns with buffers of 64 MiB."
        )?;
    }
    if let Some(missing) = contender::missing() {
        writeln!(out, "{missing}")?;
    }
    if let Some(line) = child::kept_from_children() {
        writeln!(out, "{line}")?;
    }
    let (mut failed, mut short) = (Vec::new(), short_head());
    for headline in &HEADLINES {
        let spec: Spec = headline.workload.parse().map_err(Error::Failed)?;
        let results = rounds::measure(&[spec], &who(), rounds, again, effort, &mut failed);
        for rows in &results {
            writeln!(out, "\n{}", shown(headline, rows))?;
            short.row(in_short(headline, rows));
        }
        out.flush()?;
    }
    writeln!(out, "\n{}\n\n{short}", wrap(SHORT))?;
    writeln!(out, "{}", wrap(REST))?;
    Ok(failed)
}

fn shown(headline: &Headline, rows: &WorkloadResult) -> String {
    let mut lines = vec![
        headline.from.to_owned(),
        indented(&format!("says: {}", headline.says)),
    ];
    if let Some(claim) = headline.claim {
        let times = match claim {
            slower if slower > 1.0 => format!("takes {slower:.1} times as long as malloc"),
            faster => format!("is {:.1} times faster than no pool", 1.0 / faster),
        };
        lines.push(indented(&format!("so its pool {times}")));
    }
    lines.push(indented(&format!("loop: {}", describe(rows.spec))));
    if !headline.note.is_empty() {
        lines.push(indented(headline.note));
    }
    let mut text = format!("{}\n\n{}", lines.join("\n"), times(rows));
    let held: Vec<_> = rows
        .rows
        .iter()
        .filter_map(|row| Some((row, row.memory?)))
        .collect();
    // Batches report memory too, but only `half` is about memory.
    if rows.spec == Spec::Half {
        text.push_str(&format!("\n{}", memories(&held)));
    }
    text.trim_end().to_owned()
}

/// Returns the parts that are shown, and their titles: the whole loop, and its halves if they are timed separately.
fn parts(rows: &WorkloadResult) -> Vec<(&'static str, &'static str)> {
    let known = [
        ("hot", "pair"),
        ("hot-alloc", "alloc"),
        ("hot-free", "free"),
        ("free", "free"),
    ];
    let there = |name: &str| rows.rows.iter().any(|row| row.part(name).is_some());
    known.into_iter().filter(|(name, _)| there(name)).collect()
}

fn times(rows: &WorkloadResult) -> Table {
    let bytes = |part: &str| {
        rows.rows
            .iter()
            .find_map(|row| row.part(part))
            .map_or(0, |part| part.bytes)
    };
    let rate = bytes("hot") > 0;
    let mut head = vec![
        "allocator",
        "of",
        "loop",
        "min",
        "max",
        "first",
        "per pair",
        "of glibc",
        "of mmap",
        "faults",
    ];
    if rate {
        head.push("GB/s");
    }
    let mut table = Table::new(&head);
    let pairs = rows.spec.pairs() as f64;
    for (name, called) in parts(rows) {
        for row in &rows.rows {
            let Some(part) = row.part(name) else { continue };
            let first = row.part(&name.replace("hot", "cold")).filter(|_| name != "free");
            let of = |peer| ratio(Some(part.time.median), rows.median(peer, name));
            let mut cells = vec![row.contender.name().to_owned(), called.to_owned()];
            cells.extend([part.time.median, part.time.least, part.time.most].map(|each| time(each * pairs)));
            cells.push(first.map_or_else(|| "-".to_owned(), |first| time(first.time.median * pairs)));
            cells.extend([
                time(part.time.median),
                of(Contender::Glibc),
                of(Contender::Unpooled),
                faults(part.faults),
            ]);
            if rate {
                cells.push(digits(part.bytes as f64 / part.time.median));
            }
            table.row(cells);
        }
    }
    table
}

fn short_head() -> Table {
    Table::new(&[
        "loop",
        "document",
        "claims",
        "of glibc",
        "of mmap",
        "faults",
        "glibc faults",
        "mmap faults",
    ])
}

fn in_short(headline: &Headline, rows: &WorkloadResult) -> Vec<String> {
    let name = parts(rows).first().map_or("hot", |(name, _)| name);
    let of = |peer| ratio(rows.median(Contender::Millpond, name), rows.median(peer, name));
    let faults_of = |peer| {
        let row = rows.rows.iter().find(|row| row.contender == peer);
        row.and_then(|row| row.part(name))
            .map_or_else(|| "-".to_owned(), |part| faults(part.faults))
    };
    let (document, _) = headline.from.split_once(',').unwrap_or((headline.from, ""));
    vec![
        rows.spec.to_string(),
        document.to_owned(),
        ratio(headline.claim, Some(1.0)),
        of(Contender::Glibc),
        of(Contender::Unpooled),
        faults_of(Contender::Millpond),
        faults_of(Contender::Glibc),
        faults_of(Contender::Unpooled),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::spec::group;

    #[test]
    fn every_loop_and_every_library_has_a_headline() {
        for spec in group("seeds") {
            assert!(
                HEADLINES
                    .iter()
                    .any(|headline| headline.workload == spec.to_string()),
                "{spec}"
            );
        }
        for headline in &HEADLINES {
            assert!(headline.workload.parse::<Spec>().is_ok(), "{}", headline.workload);
        }
        for library in ["TensorCore", "tendo", "Genesis", "GUDA", "DotCompute"] {
            assert!(
                HEADLINES
                    .iter()
                    .any(|headline| headline.from.starts_with(library)),
                "{library}"
            );
        }
    }

    #[test]
    fn claims_are_the_ratios_of_the_documents() {
        let claims: Vec<String> = HEADLINES
            .iter()
            .filter_map(|h| h.claim)
            .map(|c| format!("{:.1}", 1.0 / c))
            .collect();
        assert_eq!(claims, ["0.3", "19.6", "19.6", "19.6", "19.6"]);
    }
}
