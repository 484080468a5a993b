//! Compares an array of structures with a structure of arrays: the cost of padding, the memory that a loop reads, and
//! the same steps on one thread and on several. At the end the program proves that all results are equal, and that the
//! memory was returned.
//!
//! ```text
//! cargo run --release -p millpond --features derive --example particles
//! ```

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    match linux::run() {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(error) => {
            eprintln!("particles: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use millpond::engine::display_size;
    use millpond::{Pool, Soa};
    use std::error::Error;
    use std::thread;

    const PARTICLES: u16 = 50_000;
    const STEPS: u32 = 20;
    const DT: f32 = 0.016;

    #[derive(Clone, Copy, Debug, PartialEq, Soa)]
    #[soa(name = Particles)]
    #[repr(C)]
    struct Particle {
        #[soa(slice = positions)]
        position: [f32; 3],
        /// 1 if the particle moves.
        #[soa(slice = moving)]
        moves: u8,
        #[soa(slice = velocities)]
        velocity: [f32; 3],
        #[soa(slice = masses)]
        mass: f64,
        #[soa(slice = names)]
        name: [u8; 16],
    }

    fn particle(number: u16) -> Particle {
        let x = f32::from(number);
        let mut name = [b'.'; 16];
        name[..2].copy_from_slice(&number.to_le_bytes());
        Particle {
            position: [x, 2.0 * x, 0.0],
            moves: u8::from(!number.is_multiple_of(3)),
            velocity: [1.0, -x / 100.0, 0.5],
            mass: 1.0 + f64::from(number % 7),
            name,
        }
    }

    fn advance(position: &mut [f32; 3], velocity: &[f32; 3]) {
        for (x, v) in position.iter_mut().zip(velocity) {
            *x += v * DT;
        }
    }

    /// Advances an array of structures. Every byte of it passes through the cache.
    fn step_structures(particles: &mut [Particle]) {
        for particle in particles {
            advance(&mut particle.position, &particle.velocity);
        }
    }

    /// Advances a structure of arrays. Only positions and velocities are read.
    fn step_arrays(particles: ParticleSlicesMut<'_>) {
        for (position, velocity) in particles.position.iter_mut().zip(particles.velocity) {
            advance(position, velocity);
        }
    }

    fn check(what: &str, holds: bool) -> bool {
        println!("{} {what}", if holds { "yes " } else { "NO  " });
        holds
    }

    pub(crate) fn run() -> Result<bool, Box<dyn Error>> {
        let layout = Particle::layout_report();
        println!("{layout}");

        let pool = Pool::host()?;
        let mut structures: Vec<Particle> = (0..PARTICLES).map(particle).collect();
        let mut arrays = Particles::in_pool(&pool)?;
        arrays.try_extend((0..PARTICLES).map(particle))?;
        let mut spread = Particles::try_from_slice_in(&structures, &pool)?;
        let taken = pool.stats().allocations;

        for _ in 0..STEPS {
            step_structures(&mut structures);
            step_arrays(arrays.slices_mut());
        }
        thread::scope(|threads| {
            for mut part in spread.chunks_mut(usize::from(PARTICLES).div_ceil(4)) {
                threads.spawn(move || (0..STEPS).for_each(|_| step_arrays(part.reborrow())));
            }
        });
        let used = ["position", "velocity"].map(|name| layout.field(name).map_or(0, |field| field.bytes));
        println!(
            "{STEPS} steps of {PARTICLES} particles: each reads {} bytes of a particle, of {} in an array of structures \
             (the bench `layout` measures what that costs)",
            used.iter().sum::<usize>(),
            layout.bytes
        );

        // This reads one field of all particles, and removes those at rest.
        let mass: f64 = arrays.masses().iter().sum();
        let expected: f64 = structures.iter().map(|particle| particle.mass).sum();
        let mut moving = arrays.try_clone()?;
        let mut at = 0;
        while let Some(moves) = moving.moving().get(at) {
            if *moves == 0 {
                moving.swap_remove(at);
            } else {
                at += 1;
            }
        }
        let rest = structures.iter().filter(|particle| particle.moves == 0).count();
        let held = pool.stats().requested.current;
        println!("three of them hold {}", display_size(held));

        let asked = moving.len();
        let refused = moving.try_reserve(usize::MAX / 2).is_err();
        let proofs = [
            check("both ways have the same result", arrays.to_vec() == structures),
            check("four threads have the same result", spread.to_vec() == structures),
            check("the sum of one field agrees", mass == expected),
            check(
                "the particles at rest are gone",
                moving.len() + rest == usize::from(PARTICLES),
            ),
            check(
                "no other particle is gone",
                moving.iter().all(|particle| *particle.moves == 1),
            ),
            check(
                "a failed allocation changed nothing",
                refused && moving.len() == asked,
            ),
            check(
                "a step allocates no memory",
                pool.stats().allocations == taken + layout.fields.len() as u64,
            ),
        ];
        drop((arrays, spread, moving));
        let empty = check("all memory was freed", pool.stats().requested.current == 0);
        Ok(proofs.into_iter().all(|holds| holds) && empty)
    }
}
