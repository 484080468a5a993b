//! Compares growth by moving pages with growth by copying: `cargo run --release -p millpond --example growth`.

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use millpond::engine::Source;
    use millpond::{
        Host,
        source::{HugePages, MemorySource},
    };
    use std::ptr::without_provenance_mut;
    use std::time::Instant;

    const PAGE: u64 = 4 << 10;
    let mappings = || std::fs::read_to_string("/proc/self/maps").map(|text| text.lines().count());
    println!(
        "{:>8}  {:>10}  {:>10}  {:>10}  {:>6}",
        "KiB", "transfer", "copy", "warm copy", "maps"
    );
    println!(
        "{:>8}  {:>32}  {:>6}",
        "", "ns for each 4 KiB, medians of 15", "more"
    );
    let small = [64, 256, 1 << 10, 4 << 10].map(|kib| (kib, 0, HugePages::System));
    let large = [
        (64 << 10, 0, HugePages::System),
        (64 << 10, PAGE, HugePages::System),
        (64 << 10, 0, HugePages::Transparent),
        (64 << 10, PAGE, HugePages::Transparent),
    ];
    for (kib, shift, huge) in small.into_iter().chain(large) {
        let bytes: u64 = kib << 10;
        let mut host = Host::builder().huge_pages(huge).build()?;
        let range = host.reserve((4 * bytes).next_multiple_of(2 << 20) + (8 << 20))?;
        host.commit(&range, 0, range.bytes(), 2 << 20)?;
        let from = range.address();
        let to = from + bytes.next_multiple_of(2 << 20) + shift;
        let (origin, target) = [from, to]
            .map(|at| without_provenance_mut::<u8>(at as usize))
            .into();
        let before = mappings()?;
        let (mut moves, mut colds, mut warms) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..15u8 {
            // SAFETY: the memory is committed, and no other code uses it.
            unsafe { origin.write_bytes(round, bytes as usize) };
            let start = Instant::now();
            let moved = host.transfer(from, to, bytes);
            moves.push(start.elapsed());
            // SAFETY: as above.
            let last = unsafe { target.add(bytes as usize - 1) };
            // SAFETY: as above.
            assert!(moved && unsafe { last.read() } == round);
            // SAFETY: as above.
            unsafe { origin.write_bytes(round, bytes as usize) };
            let fresh = host.take(bytes)?;
            let cold = without_provenance_mut::<u8>(fresh.address() as usize);
            for into in [&mut colds, &mut warms] {
                let start = Instant::now();
                // SAFETY: both ranges are memory of the source and do not overlap.
                unsafe { origin.copy_to_nonoverlapping(cold, bytes as usize) };
                into.push(start.elapsed());
            }
            host.give(fresh);
        }
        let median = |times: &mut Vec<std::time::Duration>| {
            times.sort_unstable();
            times[times.len() / 2].as_nanos() as f64 / (bytes / PAGE) as f64
        };
        let [one, two, three] = [&mut moves, &mut colds, &mut warms].map(median);
        let more = mappings()? - before;
        let aside = if shift > 0 { ", a page aside" } else { "" };
        println!("{kib:>8}  {one:>10.1}  {two:>10.1}  {three:>10.1}  {more:>6}  {huge:?}{aside}");
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {}
