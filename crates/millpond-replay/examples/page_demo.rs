//! Renders a page from a recording with toy policies, to work on the page without an engine.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::{BTreeMap, BTreeSet, HashMap};

use millpond_engine::{Settings, policies};
use millpond_replay::page::{Page, Run};
use millpond_replay::{Device, Placement, PlacementRecorder, Program, SegmentSpan, Selection};
use millpond_trace::{Action, NO_ALLOCATION, ReadOptions, Trace, read, read_bytes};

const EVIL: &str = "</script><img src=x onerror=alert(1)><!--<script>alert(2)//\" onload='alert(3)'";

fn parse(path: &str, hostile: bool) -> Trace {
    let options = ReadOptions::default();
    let recording = if hostile {
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<String> = text
            .lines()
            .map(|l| {
                if l.contains(",alloc,") {
                    format!("{l}{EVIL}")
                } else {
                    l.into()
                }
            })
            .collect();
        read_bytes(lines.join("\n").as_bytes(), "hostile", &options).unwrap()
    } else {
        read(std::path::Path::new(path), &options).unwrap()
    };
    recording.traces.into_iter().next().unwrap()
}

/// Best fit over segments taken when nothing fits; free ranges join within a segment.
struct Toy {
    round: fn(u64) -> u64,
    segment: fn(u64) -> u64,
    split: fn(u64, u64) -> bool,
    pools: fn(u64) -> u32,
    give_back: bool,
    first_fit: bool,
}

fn run(trace: &Trace, toy: &Toy, limit: u64) -> Placement {
    let mut free: BTreeSet<(u32, u64, u64)> = BTreeSet::new(); // pool, size, address
    let mut by_addr: BTreeMap<u64, (u64, bool, u32, u64)> = BTreeMap::new(); // address -> size, free, pool, segment
    let n = trace.allocations as usize;
    let mut p = Placement {
        address: vec![u64::MAX; n],
        block_bytes: vec![0; n],
        ..Placement::default()
    };
    let mut next = 0x7f00_0000_0000u64;
    let mut reserved = 0;
    let mut open: HashMap<u64, usize> = HashMap::new();
    let mut holes: BTreeMap<u64, u64> = BTreeMap::new();
    for (i, e) in trace.events.iter().enumerate() {
        let i = i as u32;
        if e.allocation == NO_ALLOCATION {
            continue;
        }
        let a = e.allocation as usize;
        match e.action {
            Action::Alloc => {
                let want = (toy.round)(e.bytes.max(1));
                let pool = (toy.pools)(want);
                let found = if toy.first_fit {
                    free.range((pool, want, 0)..=(pool, u64::MAX, u64::MAX))
                        .take(64)
                        .min_by_key(|f| f.2)
                        .copied()
                } else {
                    free.range((pool, want, 0)..=(pool, u64::MAX, u64::MAX))
                        .next()
                        .copied()
                };
                let (size, at) = match found {
                    Some(f) => {
                        free.remove(&f);
                        (f.1, f.2)
                    }
                    None => {
                        let size = (toy.segment)(want).max(want);
                        if reserved + size > limit {
                            p.stopped_at = Some(i);
                            break;
                        }
                        reserved += size;
                        let hole = holes.iter().find(|h| *h.1 >= size).map(|h| (*h.0, *h.1));
                        let at = if let Some((at, big)) = hole {
                            holes.remove(&at);
                            if big > size {
                                holes.insert(at + size, big - size);
                            }
                            at
                        } else {
                            next += size + (2 << 20);
                            next - size - (2 << 20)
                        };
                        p.reserved.push((i, reserved));
                        open.insert(at, p.segments.len());
                        p.segments.push(SegmentSpan {
                            address: at,
                            bytes: size,
                            from_event: i,
                            to_event: u32::MAX,
                        });
                        by_addr.insert(at, (size, true, pool, at));
                        (size, at)
                    }
                };
                let seg = by_addr[&at].3;
                let take = if (toy.split)(size, want) { want } else { size };
                by_addr.insert(at, (take, false, pool, seg));
                if take < size {
                    by_addr.insert(at + take, (size - take, true, pool, seg));
                    free.insert((pool, size - take, at + take));
                }
                p.address[a] = at;
                p.block_bytes[a] = take;
            }
            _ => {
                let mut at = p.address[a];
                if at == u64::MAX {
                    continue;
                }
                let (mut size, _, pool, seg) = by_addr[&at];
                if let Some((&na, &(ns, nf, _, nseg))) = by_addr.range(at + 1..).next()
                    && nf
                    && nseg == seg
                {
                    by_addr.remove(&na);
                    free.remove(&(pool, ns, na));
                    size += ns;
                }
                if let Some((&pa, &(ps, pf, _, pseg))) = by_addr.range(..at).next_back()
                    && pf
                    && pseg == seg
                {
                    by_addr.remove(&at);
                    free.remove(&(pool, ps, pa));
                    at = pa;
                    size += ps;
                }
                by_addr.insert(at, (size, true, pool, seg));
                let k = open[&seg];
                if toy.give_back && p.segments[k].bytes == size {
                    by_addr.remove(&at);
                    p.segments[k].to_event = i;
                    open.remove(&seg);
                    reserved -= size;
                    p.reserved.push((i, reserved));
                    holes.insert(at, size);
                } else {
                    free.insert((pool, size, at));
                }
            }
        }
    }
    p
}

fn peak_of(p: &Placement) -> u64 {
    p.reserved.iter().map(|r| r.1).max().unwrap_or(0)
}

const M: u64 = 1 << 20;

fn human(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap();
    let out = args.next().unwrap();
    let limit = args.next().map_or(u64::MAX, |s| s.parse::<u64>().unwrap() * M);
    let evil = std::env::args().any(|a| a == "--hostile");
    let trace = parse(&path, evil);
    let r512 = |b: u64| b.div_ceil(512) * 512;
    let torch_seg = |b: u64| {
        if b <= M {
            2 * M
        } else if b < 10 * M {
            20 * M
        } else {
            b.div_ceil(2 * M) * 2 * M
        }
    };
    let eighth = |b: u64| {
        let s = (b.next_power_of_two() / 16).max(512);
        b.div_ceil(s) * s
    };
    let small = |b: u64| u32::from(b > M);
    let always: fn(u64, u64) -> bool = |_, _| true;
    let torch_split: fn(u64, u64) -> bool = |s, w| if w <= M { s - w >= 512 } else { s - w > M };
    let huge = |b: u64| b.div_ceil(1 << 40) * (64 << 30);
    let _ = huge;
    let base = Toy {
        round: r512,
        segment: torch_seg,
        split: torch_split,
        pools: small,
        give_back: false,
        first_fit: false,
    };
    let toys: Vec<(&str, Toy)> = vec![
        (
            "millpond",
            Toy {
                segment: |b| b.div_ceil(32 * M) * 32 * M,
                split: always,
                give_back: false,
                first_fit: true,
                pools: |_| 0,
                ..base
            },
        ),
        ("torch-native", Toy { ..base }),
        (
            "torch-expandable",
            Toy {
                segment: |b| b.div_ceil(512 * M) * 512 * M,
                pools: small,
                split: always,
                ..base
            },
        ),
        (
            "planned",
            Toy {
                segment: |b| b.div_ceil(256 * M) * 256 * M,
                split: always,
                pools: |_| 0,
                ..base
            },
        ),
        (
            "bfc",
            Toy {
                round: |b| b.div_ceil(256) * 256,
                segment: |b| b.next_power_of_two().max(1024 * M),
                split: always,
                pools: |_| 0,
                ..base
            },
        ),
        (
            "rmm-pool",
            Toy {
                round: |b| b.div_ceil(256) * 256,
                segment: |b| b.div_ceil(1024 * M) * 1024 * M,
                split: always,
                pools: |_| 0,
                first_fit: true,
                ..base
            },
        ),
        (
            "cuda-async",
            Toy {
                segment: |b| b.div_ceil(32 * M) * 32 * M,
                split: always,
                pools: |_| 0,
                give_back: true,
                ..base
            },
        ),
        (
            "pow2",
            Toy {
                round: u64::next_power_of_two,
                segment: torch_seg,
                split: always,
                pools: |b| b.trailing_zeros(),
                ..base
            },
        ),
        (
            "buckets",
            Toy {
                round: eighth,
                segment: torch_seg,
                split: |_, _| false,
                pools: |b| (b / 512) as u32,
                ..base
            },
        ),
        (
            "none",
            Toy {
                round: |b| b.div_ceil(512) * 512,
                segment: |b| b,
                split: always,
                pools: small,
                give_back: true,
                ..base
            },
        ),
    ];
    let program = Program::new(&trace, Selection::default()).unwrap();
    let device = Device {
        bytes: (limit != u64::MAX).then_some(limit),
        paged: true,
    };
    let real = |name: &str| {
        let policy = policies::build(name, &Settings::default()).ok()?;
        let mut recorder = PlacementRecorder::new(&program);
        let run = millpond_replay::run(&program, policy, device.source().with_log(), &mut recorder);
        Some(recorder.finish(run.stop.and_then(|stop| program.ops[stop.op].event())))
    };
    let mut placements: Vec<(&str, Placement, &str)> = toys
        .iter()
        .map(|(name, toy)| match real(name) {
            Some(placement) => (*name, placement, "Follows the published rules of the real one."),
            None => (
                *name,
                run(&trace, toy, limit),
                "A toy for working on the page, not the real policy.",
            ),
        })
        .collect();
    if evil {
        placements[3].0 = EVIL;
    }
    let runs: Vec<Run<'_>> = placements
        .iter()
        .map(|(name, placement, fidelity)| Run {
            name,
            fidelity,
            placement,
        })
        .collect();
    let (mut now, mut peak) = (0u64, 0);
    for e in &trace.events {
        match e.action {
            Action::Alloc => now += e.bytes,
            Action::Free | Action::FreeRequested => now = now.saturating_sub(e.bytes),
            _ => {}
        }
        peak = peak.max(now);
    }
    let served = |p: &Placement| p.address.iter().filter(|a| **a != u64::MAX).count();
    let rows = placements
        .iter()
        .map(|(n, p, _)| {
            vec![
                (*n).to_owned(),
                human(peak_of(p)),
                format!("{:.4}", peak_of(p) as f64 / peak as f64),
                p.segments.len().to_string(),
                format!(
                    "{:.2} %",
                    100.0 * (1.0 - p.segments.len() as f64 / served(p).max(1) as f64)
                ),
                p.stopped_at
                    .map_or("finishes".to_owned(), |e| format!("out of memory at {e}")),
            ]
        })
        .collect();
    let title = if evil {
        format!("{} {EVIL}", trace.origin.name)
    } else {
        trace.origin.name.clone()
    };
    let page = Page {
        title,
        version: "millpond 0.1.0".into(),
        trace: &trace,
        runs: &runs,
        in_use: Some(1),
        best: Some(0),
        columns: ["policy", "peak reserved", "overhead", "segments taken", "hit rate", "outcome"].map(str::to_owned).to_vec(),
        rows,
        advice: vec![
            format!(
                "With millpond this program peaks at {} instead of {}: it would fit a device {} smaller.",
                human(peak_of(&placements[0].1)),
                human(peak_of(&placements[1].1)),
                human(peak_of(&placements[1].1).saturating_sub(peak_of(&placements[0].1)))
            ),
            "If you cannot change the allocator, set expandable_segments:True; it recovers most of the difference.".into(),
        ],
        cautions: vec![format!(
            "Scratch memory inside kernels was not recorded: the real peak is higher by what they take.{}",
            if evil { EVIL } else { "" }
        )],
        device_bytes: (limit != u64::MAX).then_some(limit),
        peak_requested: peak,
    };
    let started = std::time::Instant::now();
    let mut file = std::io::BufWriter::new(std::fs::File::create(&out).unwrap());
    millpond_replay::page::write(&page, &mut file).unwrap();
    drop(file);
    eprintln!(
        "{out}: {} bytes, written in {:?}",
        std::fs::metadata(&out).unwrap().len(),
        started.elapsed()
    );
}
