//! Measures the cost of the order of bytes in memory: an array of structures compared with a structure of arrays, and a matrix
//! by rows compared with the same matrix by columns, in memory that fits the processor's caches and in memory that does not.
//!
//! Both sides of a pair compute the same in the same order of additions, in memory of one pool, and run in turn. The output
//! contains medians of the thread's processor time for an element, and the ratio of each round with its quartiles. It also
//! contains the prediction from the layout alone: the number of cache lines that each side reads and writes, counted from the
//! offsets of the fields. Fails if the two sides disagree.

use crate::Table;
use crate::console::{indented, wrap};
use crate::host::text::digits;
use crate::measure::{Clock, Samples, in_turn, repeat};
use clap::Parser;
use millpond::engine::display_size;
use millpond::{Buffer, Pool, Soa, TensorError, TensorMut, TensorRef, set_threads, soa::SoaLayout};
use std::convert::Infallible;
use std::error::Error;
use std::hint::black_box;

/// Measures the order of bytes in memory: arrays of structures and structures of arrays, rows and columns.
#[derive(Debug, Parser)]
#[command(name = "layout")]
struct Settings {
    /// Measure this many rounds and print medians and quartiles
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = crate::at_least_one)]
    rounds: usize,

    /// Leave out data that is larger than every cache
    #[arg(long)]
    quick: bool,
}

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

/// The loop over structures in GUDA's document.
fn update_bodies(bodies: &mut [Body]) {
    for body in bodies {
        body.x += body.vx * DT;
        body.y += body.vy * DT;
        body.z += body.vz * DT;
    }
}

/// The loop over arrays in GUDA's document, which consists of three calls of `Saxpy`.
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
type Structures<'p, T> = allocator_api2::vec::Vec<T, &'p Pool>;

fn structures<T>(
    pool: &Pool,
    count: usize,
    numbered: fn(usize) -> T,
) -> Result<Structures<'_, T>, Box<dyn Error>> {
    let mut structures = Structures::new_in(pool);
    structures
        .try_reserve_exact(count)
        .map_err(|error| format!("cannot allocate {count} structures: {error:?}"))?;
    structures.extend((0..count).map(numbered));
    Ok(structures)
}

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

/// Returns the number of cache lines for an element. `parts` are the accessed parts of an element by offset and bytes, and
/// elements are `stride` bytes apart. Counts over `line` elements, because the next element begins at the start of a line again.
pub(crate) fn lines_of(parts: &[(usize, usize)], stride: usize, line: usize) -> f64 {
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

/// The measurement of several pairs of layouts.
struct Bench<'a> {
    settings: &'a Settings,
    caches: Caches,
    pool: &'a Pool,
}

impl Bench<'_> {
    /// Returns the measured sizes: bytes of the array of structures, or of the matrix.
    fn sizes(&self) -> Vec<(&'static str, usize)> {
        let [first, second, last] = self.caches.levels;
        let mut sizes = vec![("half of L1", first / 2), ("half of L2", second / 2)];
        if !self.settings.quick {
            sizes.push(("4 times L3", 4 * last));
        }
        sizes
    }

    /// Returns a size with the name of the cache that holds it.
    fn held(&self, bytes: usize) -> String {
        format!("{} ({})", display_size(bytes as u64), self.caches.holds(bytes))
    }

    /// Runs both sides in turn, each often enough that the cost of the clock does not matter. Returns the cells of a row:
    /// nanoseconds for an element on either side, and their ratio.
    fn row<E>(
        &self,
        name: String,
        elements: usize,
        mut side: impl FnMut(Side) -> Result<(), E>,
    ) -> Result<Vec<String>, E> {
        let passes = (4_000_000 / elements.max(1)).clamp(1, 100_000);
        let times: [Samples; 2] = in_turn(self.settings.rounds, |turn| {
            let which = [Side::First, Side::Second][turn];
            let pass = repeat(Clock::Thread, passes, || side(which))?;
            Ok(pass / elements as f64)
        })?;
        let ratio = times[0].over(&times[1]).spread();
        let [first, second] = times.map(|times| times.spread().show_quartiles(digits));
        Ok(vec![
            name,
            first,
            second,
            format!("{:.2}x", ratio.median),
            format!("{:.2} to {:.2}", ratio.lower, ratio.upper),
        ])
    }

    fn particles(&self) -> Result<(), Box<dyn Error>> {
        let layout = Particle::LAYOUT;
        println!("{layout}");
        let moved = Lines::of(
            &layout,
            &["position", "velocity"],
            &["position"],
            self.caches.line,
        );
        let summed = Lines::of(&layout, &["mass"], &[], self.caches.line);
        let mut table = Table::new(&STRUCTURES);
        let mut notes = Vec::new();
        for (name, bytes) in self.sizes() {
            let count = bytes / layout.bytes / LANES * LANES;
            let mut structures = structures(self.pool, count, Particle::numbered)?;
            let mut arrays = Particles::try_from_slice_in(&structures, self.pool)?;
            let Ok(mut row) = self.row::<Infallible>(format!("move, {name}"), count, |side| {
                match side {
                    Side::First => move_structures(black_box(&mut structures)),
                    Side::Second => move_arrays(black_box(arrays.slices_mut())),
                }
                Ok(())
            });
            let positions = structures.iter().map(|particle| particle.position);
            if !positions.eq(arrays.position().iter().copied()) {
                return Err(
                    format!("{name}: the two layouts moved the particles to different positions").into(),
                );
            }
            row.push(format!("{:.2}x", moved.ratio()));
            table.row(row);
            let mut sums = [0.0; 2];
            let Ok(mut row) = self.row::<Infallible>(format!("sum mass, {name}"), count, |side| {
                match side {
                    Side::First => sums[0] = sum_structures(black_box(&structures)),
                    Side::Second => sums[1] = sum_arrays(black_box(arrays.mass())),
                }
                Ok(())
            });
            if sums[0] != sums[1] {
                return Err(format!("{name}: the sums of the masses differ: {sums:?}").into());
            }
            row.push(format!("{:.2}x", summed.ratio()));
            table.row(row);
            let fields = |names: &[&str]| -> usize {
                let found = names.iter().filter_map(|name| layout.field(name));
                found.map(|field| field.bytes).sum::<usize>() * count
            };
            notes.push(format!(
                "{name}: {count} structures take {}; the arrays for moving take {}, the array of masses {}",
                self.held(bytes),
                self.held(fields(&["position", "velocity"])),
                self.held(fields(&["mass"])),
            ));
        }
        print!("{table}");
        for (which, lines) in [("to move", moved), ("to sum", summed)] {
            say(&format!(
                "Cache lines read or written back {which} one particle: {:.3} as a structure, {:.3} as arrays, ratio {:.2}x.",
                lines.structures,
                lines.arrays,
                lines.ratio()
            ));
        }
        say(
            "For data that is already in L1, no cache lines are loaded, and the ratio is that of the instructions: adjacent \
             elements of an array fill a vector register, and fields of a structure do not.",
        );
        notes.iter().for_each(|note| println!("{}", indented(note)));
        println!();
        Ok(())
    }

    /// Measures the particles of GUDA's document with its loops.
    fn guda(&self) -> Result<(), Box<dyn Error>> {
        let layout = Body::LAYOUT;
        let mut head = STRUCTURES;
        head[0] = "GUDA's particles";
        let mut table = Table::new(&head);
        let read = ["x", "y", "z", "vx", "vy", "vz"];
        let lines = Lines::of(&layout, &read, &read[..3], self.caches.line);
        let mut sizes = self.sizes();
        if !self.settings.quick {
            sizes.push(("GUDA's million", 1_000_000 * layout.bytes));
        }
        let mut notes = Vec::new();
        for (name, bytes) in sizes {
            let count = bytes / layout.bytes;
            let mut structures = structures(self.pool, count, Body::numbered)?;
            let mut arrays = Bodies::try_from_slice_in(&structures, self.pool)?;
            let mut row = self.row(format!("update, {name}"), count, |side| match side {
                Side::First => {
                    update_bodies(black_box(&mut structures));
                    Ok(())
                }
                Side::Second => update_arrays(black_box(arrays.slices_mut())),
            })?;
            if arrays.to_vec() != *structures {
                return Err(
                    format!("{name}: the two layouts moved GUDA's particles to different positions").into(),
                );
            }
            row.push(format!("{:.2}x", lines.ratio()));
            table.row(row);
            notes.push(format!("{name}: {count} structures take {}", self.held(bytes)));
        }
        print!("{table}");
        say(&format!(
            "An update reads 24 and writes 12 of the 32 bytes of a structure, but whole cache lines are transferred: {:.3} for \
             a structure, {:.3} for arrays. Three calls of `axpy` update the arrays. GUDA's document states no figure; its \
             program prints one.",
            lines.structures, lines.arrays
        ));
        notes.iter().for_each(|note| println!("{}", indented(note)));
        println!();
        Ok(())
    }

    fn matrix(&self) -> Result<(), Box<dyn Error>> {
        let mut table = Table::new(&["", "columns, ns each", "rows, ns each", "ratio", "quartiles"]);
        let mut notes = Vec::new();
        let cell = size_of::<f32>();
        let cells_of_line = self.caches.line / cell;
        for (name, bytes) in self.sizes() {
            // A row has an odd number of lines, so that the lines of a column are spread over the whole cache.
            let side = (((bytes / cell).isqrt() / LANES) | 1) * LANES;
            let matrix = Matrix {
                cells: self.pool.alloc_from_fn(side * side, |at| (at % 5) as f32)?,
                side,
            };
            let mut sums = [0.0; 2];
            let Ok(row) = self.row::<Infallible>(format!("sum, {name}"), side * side, |side| {
                match side {
                    Side::First => sums[0] = black_box(&matrix).sum_by_columns(),
                    Side::Second => sums[1] = black_box(&matrix).sum_by_rows(),
                }
                Ok(())
            });
            // Sums in another order differ by rounding.
            if (sums[0] - sums[1]).abs() > sums[1].abs() / 100.0 {
                return Err(format!("{name}: the sums by columns and by rows differ: {sums:?}").into());
            }
            table.row(row);
            // A column accesses one line of each row. If these stay in the cache until the next column, each line is loaded once,
            // as with rows.
            let (all, column) = (side * side * cell, side * self.caches.line);
            let times = self
                .caches
                .levels
                .map(|level| match (all <= level, column <= level) {
                    (true, _) => "none".to_owned(),
                    (false, true) => "1x".to_owned(),
                    (false, false) => format!("{cells_of_line}x"),
                });
            notes.push(format!(
                "{name}: {side} x {side} cells, {}; a column touches {side} cache lines ({}) on {} pages; lines loaded by \
                 columns over lines loaded by rows: L1 {}, L2 {}, L3 {}",
                display_size(all as u64),
                display_size(column as u64),
                all.div_ceil(4096).min(side),
                times[0],
                times[1],
                times[2]
            ));
        }
        print!("{table}");
        say(&format!(
            "Each cell of a column is on another cache line, so {} bytes are loaded for {cell}. Lines that stay in a cache are \
             used again for the next {} columns.",
            self.caches.line,
            cells_of_line - 1
        ));
        notes.iter().for_each(|note| println!("{}", indented(note)));
        say(
            "If no lines are loaded, the ratio is that of the instructions again. The additional cost of pages is not counted.",
        );
        Ok(())
    }
}

/// The sides of a row: structures or columns, and arrays or rows.
#[derive(Clone, Copy)]
enum Side {
    First,
    Second,
}

/// The columns of the tables of structures.
const STRUCTURES: [&str; 6] = [
    "",
    "structures, ns",
    "arrays, ns",
    "ratio",
    "quartiles",
    "by lines",
];

/// Prints a sentence below a table.
fn say(text: &str) {
    println!("{}", wrap(text));
}

/// Runs the measurement and prints the tables. `arguments` are those of the program with this name.
///
/// # Errors
/// Returns an error if the arguments are invalid, memory or files are not available, or the sides disagree.
pub fn run(arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let settings: Settings = crate::parse("layout", arguments);
    let caches = Caches::read();
    let [first, second, last] = caches.levels.map(|bytes| display_size(bytes as u64));
    println!(
        "L1 {first}, L2 {second}, L3 {last}, cache lines of {} bytes\nMedians and quartiles of {} interleaved rounds\n",
        caches.line, settings.rounds
    );
    // The measurement covers only this thread's time.
    set_threads(1);
    all(&settings, caches)
}

fn all(settings: &Settings, caches: Caches) -> Result<(), Box<dyn Error>> {
    let pool = &Pool::host()?;
    let bench = Bench {
        settings,
        caches,
        pool,
    };
    bench.particles()?;
    bench.guda()?;
    bench.matrix()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_lines_are_counted_for_elements_at_every_offset_in_a_line() {
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
    fn a_written_field_counts_as_an_additional_line() {
        let lines = Lines::of(&Particle::LAYOUT, &["position", "velocity"], &["position"], 64);
        assert_eq!((lines.structures, lines.arrays), (2.0, 36.0 / 64.0));
        let sum = Lines::of(&Particle::LAYOUT, &["mass"], &[], 64);
        assert_eq!(sum.ratio(), 16.0);
    }

    #[test]
    fn both_layouts_give_the_same_results() -> Result<(), Box<dyn Error>> {
        let settings = Settings {
            rounds: 1,
            quick: true,
        };
        all(&settings, Caches::read())
    }

    #[test]
    fn gudas_particles_move_equally_in_both_layouts() -> Result<(), Box<dyn Error>> {
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
    fn sums_by_rows_and_by_columns_are_equal() -> Result<(), Box<dyn Error>> {
        let cells = Pool::host()?.alloc_from_fn(48 * 48, |at| (at % 9) as f32)?;
        let expected: f32 = cells.iter().sum();
        let matrix = Matrix { cells, side: 48 };
        assert_eq!([matrix.sum_by_rows(), matrix.sum_by_columns()], [expected; 2]);
        Ok(())
    }
}
