//! Measures the cost of the order of bytes on a device: the same update of bodies as an array of structures and as a structure
//! of arrays.
//!
//! A device reads and writes sectors of 32 bytes. Neighbouring threads that access neighbouring numbers use whole sectors.
//! Threads that each access a few numbers of a structure leave the rest of the sectors unused. Both kernels compute the same
//! from the same numbers, which is checked.

use super::{Error, heading};
use crate::Table;
use crate::console::wrap;
use crate::layout::lines_of;
use crate::measure::in_turn;
use millpond::cuda::{CudaDevice, CudaKernel, CudaModule, CudaStream, CudaTimer, DeviceBuffer, DevicePool};

const PTX: &str = include_str!("kernels/motion.ptx");

/// The number of bodies on a card, which exceed its cache, and on the emulated driver, whose times have no meaning.
const BODIES: usize = 8 << 20;
const FEW: usize = 1 << 16;
/// The numbers of a body: position and velocity alone, with two more as padding, and as a particle of a simulation with more
/// state.
const NUMBERS: [usize; 3] = [6, 8, 18];
/// The numbers that the update needs: it reads six and writes three.
const READ: usize = 6;
const WRITTEN: usize = 3;
/// The smallest unit that a device reads or writes, in bytes.
const SECTOR: usize = 32;
const DT: f32 = 0.25;

/// The number of threads in a block.
const THREADS: u32 = 256;

/// Measures both layouts in `rounds` rounds, and returns the text to print.
///
/// # Errors
/// Returns an error if there is no driver or device, if the driver refuses a call, or if the two layouts give different
/// numbers.
pub fn kernels(number: u32, rounds: usize) -> Result<String, Error> {
    let device = CudaDevice::get(number)?;
    let bodies = if device.is_emulated() { FEW } else { BODIES };
    let bench = Bench::new(&device, bodies)?;
    let head = heading(
        &device,
        &format!("{bodies} bodies, medians of {rounds} interleaved rounds"),
    )?;
    let mut table = Table::new(&[
        "bytes of a body",
        "structures GB/s",
        "arrays GB/s",
        "ratio",
        "by sectors",
    ]);
    for numbers in NUMBERS {
        let [structures, arrays] = bench.both(numbers, rounds.max(1))?;
        let useful = (bodies * (READ + WRITTEN) * size_of::<f32>()) as f64;
        let rate = |nanoseconds: f64| format!("{:.1}", useful / nanoseconds.max(1.0));
        table.row([
            (numbers * size_of::<f32>()).to_string(),
            rate(structures),
            rate(arrays),
            format!("{:.2}", structures / arrays.max(1.0)),
            format!("{:.2}", sectors(numbers) / arrays_bytes()),
        ]);
    }
    let note = wrap(
        "GB/s: bytes that the update needs, 24 read and 12 written for each body; ratio: time of the structures over that of the \
         arrays; by sectors: the ratio that follows from the sectors of 32 bytes that each layout accesses",
    );
    Ok(format!("{head}\n{table}\n{note}\n"))
}

/// Returns the bytes of the sectors that a body's update accesses in structures of this many numbers.
fn sectors(numbers: usize) -> f64 {
    let bytes = |numbers: usize| numbers * size_of::<f32>();
    let count = |needed: usize| lines_of(&[(0, bytes(needed))], bytes(numbers), SECTOR);
    (count(READ) + count(WRITTEN)) * SECTOR as f64
}

/// Returns the same figure for arrays, which use whole sectors.
fn arrays_bytes() -> f64 {
    ((READ + WRITTEN) * size_of::<f32>()) as f64
}

/// The kernels and their resources.
struct Bench {
    structures: CudaKernel,
    arrays: CudaKernel,
    pool: DevicePool,
    stream: CudaStream,
    bodies: usize,
}

impl Bench {
    fn new(device: &CudaDevice, bodies: usize) -> Result<Self, Error> {
        let module = CudaModule::load(device, PTX)?;
        Ok(Self {
            structures: module.kernel("millpond_move_structures")?,
            arrays: module.kernel("millpond_move_arrays")?,
            pool: DevicePool::new(device)?,
            stream: CudaStream::new(device)?,
            bodies,
        })
    }

    /// Returns the median nanoseconds of both layouts, for bodies of this many numbers.
    fn both(&self, numbers: usize, rounds: usize) -> Result<[f64; 2], Error> {
        let field = |field: usize| (0..self.bodies).map(move |body| number(body, field));
        let structures: Vec<f32> = (0..self.bodies * numbers)
            .map(|at| number(at / numbers, at % numbers))
            .collect();
        let mut structures = self.pool.alloc_from(&structures, &self.stream)?;
        let mut arrays = Vec::new();
        for at in 0..READ {
            arrays.push(
                self.pool
                    .alloc_from(&field(at).collect::<Vec<_>>(), &self.stream)?,
            );
        }
        let times: [_; 2] = in_turn(rounds, |side| {
            let timer = CudaTimer::start(&self.stream)?;
            match side {
                0 => self.move_structures(&mut structures, numbers)?,
                _ => self.move_arrays(&mut arrays)?,
            }
            Ok::<f64, Error>(timer.stop()?.as_nanos() as f64)
        })?;
        self.compare(&structures, numbers, &arrays)?;
        Ok(times.map(|times| times.median()))
    }

    fn grid(&self) -> u32 {
        u32::try_from(self.bodies.div_ceil(THREADS as usize)).unwrap_or(u32::MAX)
    }

    fn move_structures(&self, bodies: &mut DeviceBuffer<f32>, numbers: usize) -> Result<(), Error> {
        let launch = self
            .structures
            .launch(&self.stream)
            .grid(self.grid())
            .block(THREADS);
        let launch = launch
            .arg_mut(bodies)
            .arg(numbers as u64)
            .arg(DT)
            .arg(self.bodies as u64);
        // SAFETY: the arguments are the kernel's parameters. The buffer has this many numbers for each body, at least six.
        Ok(unsafe { launch.launch() }?)
    }

    fn move_arrays(&self, arrays: &mut [DeviceBuffer<f32>]) -> Result<(), Error> {
        let mut launch = self.arrays.launch(&self.stream).grid(self.grid()).block(THREADS);
        let (positions, velocities) = arrays.split_at_mut(WRITTEN);
        for position in positions {
            launch = launch.arg_mut(position);
        }
        for velocity in &*velocities {
            launch = launch.arg(velocity);
        }
        let launch = launch.arg(DT).arg(self.bodies as u64);
        // SAFETY: the arguments are the kernel's parameters. Each buffer has one number for each body.
        Ok(unsafe { launch.launch() }?)
    }

    /// Checks that both layouts have moved the same bodies equally often.
    fn compare(
        &self,
        structures: &DeviceBuffer<f32>,
        numbers: usize,
        arrays: &[DeviceBuffer<f32>],
    ) -> Result<(), Error> {
        let structures = structures.to_vec()?;
        for (field, array) in arrays.iter().enumerate() {
            let same = array.to_vec()?.into_iter().zip(structures.chunks_exact(numbers));
            if let Some(body) = same.into_iter().position(|(number, body)| body[field] != number) {
                return Err(Error::Untrue(format!(
                    "field {field} of body {body} differs between the array and the structure"
                )));
            }
        }
        Ok(())
    }
}

/// Returns a field of a body. It is small enough that no round loses precision.
fn number(body: usize, field: usize) -> f32 {
    ((body * 7 + field * 13) % 256) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_counted_for_bodies_of_every_size() {
        assert_eq!(arrays_bytes(), 36.0);
        // One body in each sector, which is read and written completely.
        assert_eq!(sectors(8), 64.0);
        // Without gaps, every sector contains numbers that are written.
        assert_eq!(sectors(6), 48.0);
        // For four bodies, six sectors are read and five are written.
        assert_eq!(sectors(18), 88.0);
    }
}
