//! Measures the cost of the order of bytes in memory: an array of structures compared with a structure of arrays, and a matrix
//! by rows compared with the same matrix by columns, in memory that fits the processor's caches and in memory that does not.
//!
//! Both sides of a pair compute the same in the same order of additions, in memory of one pool, and run in turn. The output
//! contains medians of the thread's processor time for an element, and the ratio of each round with its quartiles. It also
//! contains the prediction from the layout alone: the number of cache lines that each side reads and writes, counted from the
//! offsets of the fields. Fails if the two sides disagree.

use crate::say::wrap;
use crate::{CpuClock, Table};
use millpond::{Buffer, Pool, Soa, SoaLayout, TensorError, TensorMut, TensorRef, set_threads};
use std::error::Error;
use std::hint::black_box;

const HELP: &str = "layout [--rounds N] [--quick]
--quick leaves out what is larger than every cache";

/// A particle as simulations have it. A loop that moves it needs only a third of its bytes.
#[derive(Clone, Copy, Soa)]
#[soa(name = Particles)]
#[repr(C)]
struct Particle {
    position: [f32; 3],
    velocity: [f32; 3],
    mass: f32,
    kind: u8,
    force: [f32; 3],
    charge: f32,
    id: u64,
    group: u16,
}

impl Particle {
    fn numbered(number: usize) -> Self {
        let x = (number % 1000) as f32;
        Self {
            position: [x, -x, 1.0],
            velocity: [1.0, 0.5, -x],
            mass: 1.0 + (number % 7) as f32,
            kind: number as u8,
            force: [0.0; 3],
            charge: -1.0,
            id: number as u64,
            group: 0,
        }
    }
}

/// GUDA's particle: seven numbers, and an eighth one that pads it to 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Soa)]
#[soa(name = Bodies)]
#[repr(C)]
struct Body {
    x: f32,
    y: f32,
    z: f32,
    vx: f32,
    vy: f32,
    vz: f32,
    mass: f32,
    rest: f32,
}

impl Body {
    fn numbered(number: usize) -> Self {
        let x = (number % 1000) as f32;
        Self {
            x,
            y: -x,
            z: 1.0,
            vx: 1.0,
            vy: 0.5,
            vz: -x,
            mass: 1.0,
            rest: 0.0,
        }
    }
}

/// The document's loop over structures.
fn update_bodies(bodies: &mut [Body]) {
    for body in bodies {
        body.x += body.vx * DT;
        body.y += body.vy * DT;
        body.z += body.vz * DT;
    }
}

/// The document's loop over arrays, which consists of three calls of `Saxpy`.
fn update_arrays(bodies: BodySlicesMut<'_>) -> Result<(), TensorError> {
    for (x, v) in [
        (bodies.x, &*bodies.vx),
        (bodies.y, &*bodies.vy),
        (bodies.z, &*bodies.vz),
    ] {
        TensorMut::from(x).axpy(DT, TensorRef::from(v))?;
    }
    Ok(())
}

/// An array of structures in memory of the same pool as the arrays of the other side.
type Structures<'p> = allocator_api2::vec::Vec<Particle, &'p Pool>;

const DT: f32 = 1e-6;
/// The number of parallel sums, so that no side waits for one addition before the next.
const LANES: usize = 16;

fn move_structures(particles: &mut [Particle]) {
    for particle in particles {
        for (x, v) in particle.position.iter_mut().zip(particle.velocity) {
            *x += v * DT;
        }
    }
}

fn move_arrays(particles: ParticleSlicesMut<'_>) {
    let velocities = particles.velocity.as_flattened();
    for (x, v) in particles.position.as_flattened_mut().iter_mut().zip(velocities) {
        *x += v * DT;
    }
}

fn sum_structures(particles: &[Particle]) -> f32 {
    let mut sums = [0.0; LANES];
    for some in particles.as_chunks::<LANES>().0 {
        for (sum, particle) in sums.iter_mut().zip(some) {
            *sum += particle.mass;
        }
    }
    sums.iter().sum()
}

fn sum_arrays(mass: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for some in mass.as_chunks::<LANES>().0 {
        for (sum, mass) in sums.iter_mut().zip(some) {
            *sum += mass;
        }
    }
    sums.iter().sum()
}

/// A square matrix stored by rows. Its side is a multiple of `LANES`.
struct Matrix {
    cells: Buffer<f32>,
    side: usize,
}

impl Matrix {
    fn sum_by_rows(&self) -> f32 {
        sum_arrays(&self.cells)
    }

    /// Sums one column after the other. Each lane sums one row.
    fn sum_by_columns(&self) -> f32 {
        let mut sums = [0.0; LANES];
        for column in 0..self.side {
            for rows in self.cells.chunks_exact(LANES * self.side) {
                for (sum, row) in sums.iter_mut().zip(rows.chunks_exact(self.side)) {
                    *sum += row[column];
                }
            }
        }
        sums.iter().sum()
    }
}

/// The caches of the processor, as the system reports them.
#[derive(Clone, Copy, Debug)]
struct Caches {
    line: usize,
    /// The sizes of the first, the second and the last level in bytes.
    levels: [usize; 3],
}

impl Caches {
    fn read() -> Self {
        let mut caches = Self {
            line: 64,
            levels: [32 << 10, 1 << 20, 32 << 20],
        };
        for index in 0..8 {
            let folder = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
            let fact = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).ok();
            let level = fact("level").and_then(|text| text.trim().parse::<usize>().ok());
            let bytes = fact("size").and_then(|text| text.trim().strip_suffix('K')?.parse::<usize>().ok());
            let is_code = fact("type").is_some_and(|text| text.trim() == "Instruction");
            if let (Some(level @ 1..=3), Some(kib), false) = (level, bytes, is_code) {
                caches.levels[level - 1] = kib << 10;
                let line = fact("coherency_line_size").and_then(|text| text.trim().parse().ok());
                caches.line = line.unwrap_or(caches.line);
            }
        }
        caches
    }

    /// Returns the name of the first cache that holds this many bytes.
    fn holds(&self, bytes: usize) -> &'static str {
        let at = self.levels.iter().position(|level| bytes <= *level);
        ["L1", "L2", "L3", "no cache"][at.unwrap_or(3)]
    }
}

/// Returns the cache lines for an element. `parts` are the accessed parts of an element by offset and bytes, and elements are
/// `stride` bytes apart. Counts over enough elements that lines and elements begin together again.
fn lines_of(parts: &[(usize, usize)], stride: usize, line: usize) -> f64 {
    let mut touched: Vec<usize> = (0..line)
        .flat_map(|element| parts.iter().map(move |part| (element * stride + part.0, part.1)))
        .flat_map(|(begin, bytes)| begin / line..=(begin + bytes.max(1) - 1) / line)
        .collect();
    touched.sort_unstable();
    touched.dedup();
    touched.len() as f64 / line as f64
}

/// Cache lines for an element, read and written back, with either layout.
#[derive(Clone, Copy, Debug)]
struct Lines {
    structures: f64,
    arrays: f64,
}

impl Lines {
    /// Counts the lines for these fields that are read, and those that are also written.
    fn of(layout: &SoaLayout, read: &[&str], written: &[&str], line: usize) -> Self {
        let parts = |names: &[&str]| -> Vec<(usize, usize)> {
            let fields = names.iter().filter_map(|name| layout.field(name));
            fields.map(|field| (field.offset, field.bytes)).collect()
        };
        let structures = [read, written].map(|names| lines_of(&parts(names), layout.bytes, line));
        let arrays = [read, written].map(|names| {
            let each = parts(names)
                .into_iter()
                .map(|part| lines_of(&[(0, part.1)], part.1, line));
            each.sum::<f64>()
        });
        Self {
            structures: structures.iter().sum(),
            arrays: arrays.iter().sum(),
        }
    }

    fn ratio(&self) -> f64 {
        self.structures / self.arrays
    }
}

/// Returns the median and both quartiles.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| {
        let at = (values.len().saturating_sub(1)) * quarter;
        values.get((at + 2) / 4).copied().unwrap_or(f64::NAN)
    })
}

/// Nanoseconds for an element on either side in each round.
struct Pair {
    first: Vec<f64>,
    second: Vec<f64>,
}

impl Pair {
    /// Runs both sides in turn, each often enough that the clock does not matter.
    fn measure(rounds: usize, elements: usize, mut first: impl FnMut(), mut second: impl FnMut()) -> Self {
        let passes = (4_000_000 / elements.max(1)).clamp(1, 100_000);
        let time = |work: &mut dyn FnMut()| {
            let clock = CpuClock::start();
            for _ in 0..passes {
                work();
            }
            clock.nanoseconds() / (passes * elements) as f64
        };
        let mut pair = Self {
            first: Vec::new(),
            second: Vec::new(),
        };
        for round in 0..=rounds {
            let (one, other) = (time(&mut first), time(&mut second));
            // The first round brings memory into its final state.
            if round > 0 {
                pair.first.push(one);
                pair.second.push(other);
            }
        }
        pair
    }

    fn ratio(&self) -> [f64; 3] {
        quartiles(
            self.first
                .iter()
                .zip(&self.second)
                .map(|(first, second)| first / second)
                .collect(),
        )
    }

    fn cells(&self) -> Vec<String> {
        let [low, mid, high] = self.ratio();
        let time = |times: &[f64]| {
            let [low, mid, high] = quartiles(times.to_vec());
            format!("{mid:.2} ({low:.2} to {high:.2})")
        };
        vec![
            time(&self.first),
            time(&self.second),
            format!("{mid:.2}x"),
            format!("{low:.2} to {high:.2}"),
        ]
    }
}

struct Settings {
    rounds: usize,
    quick: bool,
}

impl Settings {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut settings = Self {
            rounds: 15,
            quick: false,
        };
        while let Some(name) = arguments.next() {
            match name.as_str() {
                "--quick" => settings.quick = true,
                "--rounds" => {
                    let rounds = arguments
                        .next()
                        .ok_or_else(|| format!("{name} has no value\n{HELP}"))?;
                    settings.rounds = rounds.parse::<usize>()?.max(1);
                }
                _ => return Err(format!("there is no {name}\n{HELP}").into()),
            }
        }
        Ok(settings)
    }
}

/// Returns the measured sizes: bytes of the array of structures, or of the matrix.
fn sizes(settings: &Settings, caches: &Caches) -> Vec<(&'static str, usize)> {
    let [first, second, last] = caches.levels;
    let mut sizes = vec![("half of L1", first / 2), ("half of L2", second / 2)];
    if !settings.quick {
        sizes.push(("4 times L3", 4 * last));
    }
    sizes
}

/// Prints a sentence below a table.
fn say(text: &str) {
    println!("{}", wrap(text, 100));
}

/// Prints a line that belongs to the previous sentence.
fn aside(text: &str) {
    println!("  {}", wrap(text, 98).replace('\n', "\n  "));
}

fn particles(settings: &Settings, caches: &Caches, pool: &Pool) -> Result<(), Box<dyn Error>> {
    let (size, layout) = (millpond::engine::display_size, Particle::LAYOUT);
    println!("{layout}");
    let moved = Lines::of(&layout, &["position", "velocity"], &["position"], caches.line);
    let summed = Lines::of(&layout, &["mass"], &[], caches.line);
    let head = [
        "",
        "structures, ns",
        "arrays, ns",
        "ratio",
        "quartiles",
        "by lines",
    ];
    let mut table = Table::new(&head);
    let mut places = Vec::new();
    for (name, bytes) in sizes(settings, caches) {
        let count = bytes / layout.bytes / LANES * LANES;
        let mut structures = Structures::new_in(pool);
        structures
            .try_reserve_exact(count)
            .map_err(|error| format!("{name}: {error:?}"))?;
        structures.extend((0..count).map(Particle::numbered));
        let mut arrays = Particles::try_from_slice_in(&structures, pool)?;

        let moves = Pair::measure(
            settings.rounds,
            count,
            || move_structures(black_box(&mut structures)),
            || move_arrays(black_box(arrays.slices_mut())),
        );
        let positions = structures.iter().map(|particle| particle.position);
        if !positions.eq(arrays.position().iter().copied()) {
            return Err(format!("{name}: particles moved to different places").into());
        }
        let mut sums = [0.0; 2];
        let [by_structures, by_arrays] = &mut sums;
        let sum = Pair::measure(
            settings.rounds,
            count,
            || *by_structures = sum_structures(black_box(&structures)),
            || *by_arrays = sum_arrays(black_box(arrays.mass())),
        );
        if sums[0] != sums[1] {
            return Err(format!("{name}: the masses add up to {sums:?}").into());
        }
        for (what, pair, lines) in [("move", moves, moved), ("sum mass", sum, summed)] {
            let mut row = vec![format!("{what}, {name}")];
            row.extend(pair.cells());
            row.push(format!("{:.2}x", lines.ratio()));
            table.row(row);
        }
        let fields = |names: &[&str]| -> usize {
            let found = names.iter().filter_map(|name| layout.field(name));
            found.map(|field| field.bytes).sum::<usize>() * count
        };
        let (to_move, to_sum) = (fields(&["position", "velocity"]), fields(&["mass"]));
        places.push(format!(
            "{name}: {count} structures are {} ({}); the arrays to move {} ({}), to sum {} ({})",
            size(bytes as u64),
            caches.holds(bytes),
            size(to_move as u64),
            caches.holds(to_move),
            size(to_sum as u64),
            caches.holds(to_sum),
        ));
    }
    print!("{table}");
    for (what, lines) in [("to move", moved), ("to sum", summed)] {
        say(&format!(
            "{what} one particle: {:.3} cache lines read and written back as a structure, {:.3} as arrays: {:.2}x",
            lines.structures,
            lines.arrays,
            lines.ratio()
        ));
    }
    say(
        "what is in L1 already costs no lines: there the ratio is that of instructions, as neighbours fill a vector register \
         and parts of a structure do not",
    );
    places.iter().for_each(|place| aside(place));
    println!();
    Ok(())
}

/// Measures the document's own particles with its own loops.
fn guda(settings: &Settings, caches: &Caches, pool: &Pool) -> Result<(), Box<dyn Error>> {
    let size = millpond::engine::display_size;
    let mut table = Table::new(&[
        "GUDA's particles",
        "structures, ns",
        "arrays, ns",
        "ratio",
        "quartiles",
        "by lines",
    ]);
    let lines = Lines::of(
        &Body::LAYOUT,
        &["x", "y", "z", "vx", "vy", "vz"],
        &["x", "y", "z"],
        caches.line,
    );
    let mut sizes = sizes(settings, caches);
    if !settings.quick {
        sizes.push(("its million", 1_000_000 * Body::LAYOUT.bytes));
    }
    let mut places = Vec::new();
    for (name, bytes) in sizes {
        let count = bytes / Body::LAYOUT.bytes;
        let mut structures = allocator_api2::vec::Vec::new_in(pool);
        structures
            .try_reserve_exact(count)
            .map_err(|error| format!("{name}: {error:?}"))?;
        structures.extend((0..count).map(Body::numbered));
        let mut arrays = Bodies::try_from_slice_in(&structures, pool)?;
        let mut outcome = Ok(());
        let pair = Pair::measure(
            settings.rounds,
            count,
            || update_bodies(black_box(&mut structures)),
            || outcome = update_arrays(black_box(arrays.slices_mut())),
        );
        outcome?;
        if arrays.to_vec() != *structures {
            return Err(format!("{name}: GUDA's particles moved to different places").into());
        }
        let mut row = vec![format!("update, {name}")];
        row.extend(pair.cells());
        row.push(format!("{:.2}x", lines.ratio()));
        table.row(row);
        places.push(format!(
            "{name}: {count} structures are {} ({})",
            size(bytes as u64),
            caches.holds(bytes)
        ));
    }
    print!("{table}");
    say(&format!(
        "of a structure's 32 bytes 24 are read and 12 written, and all of them pass: {:.3} lines against {:.3}. The document's \
         program prints its figure, and the document has none; arrays are walked three times, by `axpy`",
        lines.structures, lines.arrays
    ));
    places.iter().for_each(|place| aside(place));
    println!();
    Ok(())
}

fn matrix(settings: &Settings, caches: &Caches, pool: &Pool) -> Result<(), Box<dyn Error>> {
    let size = |bytes: usize| millpond::engine::display_size(bytes as u64);
    let mut table = Table::new(&["", "columns, ns each", "rows, ns each", "ratio", "quartiles"]);
    let mut reasons = Vec::new();
    let cell = size_of::<f32>();
    let cells_of_line = caches.line / cell;
    for (name, bytes) in sizes(settings, caches) {
        // A row has an odd number of lines, so that the lines of a column are spread over the whole cache.
        let side = (((bytes / cell).isqrt() / LANES) | 1) * LANES;
        let matrix = Matrix {
            cells: pool.alloc_from_fn(side * side, |at| (at % 5) as f32)?,
            side,
        };
        let mut sums = [0.0; 2];
        let [by_columns, by_rows] = &mut sums;
        let pair = Pair::measure(
            settings.rounds,
            side * side,
            || *by_columns = black_box(&matrix).sum_by_columns(),
            || *by_rows = black_box(&matrix).sum_by_rows(),
        );
        // Sums in another order differ by rounding.
        if (sums[0] - sums[1]).abs() > sums[1].abs() / 100.0 {
            return Err(format!("{name}: rows and columns add up to {sums:?}").into());
        }
        let mut row = vec![format!("sum, {name}")];
        row.extend(pair.cells());
        table.row(row);
        // A column accesses one line of each row. If these stay in the cache until the next column, each line is loaded once,
        // as with rows.
        let (all, column) = (side * side * cell, side * caches.line);
        let times = caches.levels.map(|level| match (all <= level, column <= level) {
            (true, _) => "none".to_owned(),
            (false, true) => "1x".to_owned(),
            (false, false) => format!("{cells_of_line}x"),
        });
        let pages = all.div_ceil(4096).min(side);
        reasons.push(format!(
            "{name}: {side} x {side} cells, {}; a column touches {side} lines ({}) on {pages} pages; lines by columns over \
             lines by rows: into L1 {}, L2 {}, L3 {}",
            size(all),
            size(column),
            times[0],
            times[1],
            times[2]
        ));
    }
    print!("{table}");
    say(&format!(
        "down a column each cell is on another line, {} bytes for {cell}; those that stay in a cache serve the {} columns after it",
        caches.line,
        cells_of_line - 1
    ));
    reasons.iter().for_each(|reason| aside(reason));
    say(
        "where no lines come the ratio is that of instructions again; what pages cost beyond lines is not counted here",
    );
    Ok(())
}

/// Runs the measurement and prints the tables. `arguments` are those of the program with this name.
///
/// # Errors
/// Returns an error if the arguments are invalid, memory or files are not available, or the sides disagree.
pub fn run(arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let settings = Settings::read(arguments)?;
    let caches = Caches::read();
    let size = millpond::engine::display_size;
    let [first, second, last] = caches.levels.map(|bytes| size(bytes as u64));
    println!(
        "L1 {first}, L2 {second}, L3 {last}, lines of {} bytes; {} rounds in turn, medians and quartiles\n",
        caches.line, settings.rounds
    );
    let pool = Pool::host()?;
    // The measurement covers only this thread's time.
    set_threads(1);
    particles(&settings, &caches, &pool)?;
    guda(&settings, &caches, &pool)?;
    matrix(&settings, &caches, &pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_over_elements_that_begin_anywhere_in_one() {
        // Four bytes once in each line, twice in each line, and contiguous.
        assert_eq!(lines_of(&[(60, 4)], 64, 64), 1.0);
        assert_eq!(lines_of(&[(0, 4)], 32, 64), 0.5);
        assert_eq!(lines_of(&[(0, 4)], 4, 64), 1.0 / 16.0);
        // Twelve bytes at the end of a line lie on two lines. They share the first one with the bytes before them.
        assert_eq!(lines_of(&[(60, 12)], 128, 64), 2.0);
        assert_eq!(lines_of(&[(0, 64), (60, 12)], 128, 64), 2.0);
        // Elements of 48 bytes. Four of them lie on three lines.
        assert_eq!(lines_of(&[(0, 48)], 48, 64), 0.75);
        assert_eq!(lines_of(&[], 48, 64), 0.0);
    }

    #[test]
    fn a_written_field_is_a_line_more() {
        let lines = Lines::of(&Particle::LAYOUT, &["position", "velocity"], &["position"], 64);
        assert_eq!((lines.structures, lines.arrays), (2.0, 36.0 / 64.0));
        let sum = Lines::of(&Particle::LAYOUT, &["mass"], &[], 64);
        assert_eq!(sum.ratio(), 16.0);
    }

    #[test]
    fn both_sides_come_to_the_same() -> Result<(), Box<dyn Error>> {
        let settings = Settings {
            rounds: 1,
            quick: true,
        };
        let pool = Pool::host()?;
        let caches = Caches::read();
        particles(&settings, &caches, &pool)?;
        guda(&settings, &caches, &pool)?;
        matrix(&settings, &caches, &pool)
    }

    #[test]
    fn the_documents_particles_move_alike() -> Result<(), Box<dyn Error>> {
        let pool = Pool::host()?;
        let mut structures: Vec<Body> = (0..100).map(Body::numbered).collect();
        let mut arrays = Bodies::try_from_slice_in(&structures, &pool)?;
        update_bodies(&mut structures);
        assert_ne!(arrays.to_vec(), structures, "they move");
        update_arrays(arrays.slices_mut())?;
        assert_eq!(arrays.to_vec(), structures);
        let lines = Lines::of(&Body::LAYOUT, &["x", "vx"], &["x"], 64);
        assert_eq!(
            (Body::LAYOUT.bytes, lines.structures, lines.arrays),
            (32, 1.0, 0.1875)
        );
        Ok(())
    }

    #[test]
    fn a_matrix_adds_up_either_way() -> Result<(), Box<dyn Error>> {
        let cells = Pool::host()?.alloc_from_fn(48 * 48, |at| (at % 9) as f32)?;
        let expected: f32 = cells.iter().sum();
        let matrix = Matrix { cells, side: 48 };
        assert_eq!([matrix.sum_by_rows(), matrix.sum_by_columns()], [expected; 2]);
        Ok(())
    }

    #[test]
    fn the_quartiles_are_values_of_the_sample() {
        assert_eq!(quartiles(vec![5.0, 1.0, 3.0, 2.0, 4.0]), [2.0, 3.0, 4.0]);
        assert_eq!(quartiles(vec![7.0]), [7.0; 3]);
    }
}
