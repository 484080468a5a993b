//! Moves bodies that are stored in two layouts (`motion.cu` of `millpond-bench`).

use super::{Call, Kernels, Params, STEP, check_extent, floats};
use crate::access::Access;
use crate::error::{Answer, Code};

/// The most numbers in a structure.
const LARGEST: u64 = 1 << 10;

fn structures(params: &Params, call: &Call<'_>) -> Answer {
    let (at, stride, dt, n) = (params.u64(0), params.u64(1), params.f32(2), params.u64(3));
    check_extent(n)?;
    Code::ILLEGAL_ADDRESS.when(!(6..=LARGEST).contains(&stride))?;
    let many = (STEP / stride).max(1);
    for from in (0..n).step_by(many as usize) {
        let len = many.min(n - from) * stride;
        let place = at + from * stride * 4;
        let mut numbers = call.floats(place, len)?;
        for body in numbers.chunks_exact_mut(stride as usize) {
            for field in 0..3 {
                body[field] += body[field + 3] * dt;
            }
        }
        call.put(place, &numbers)?;
    }
    Ok(())
}

fn arrays(params: &Params, call: &Call<'_>) -> Answer {
    let (dt, n) = (params.f32(6), params.u64(7));
    for field in 0..3 {
        let (place, velocity) = (params.u64(field), params.u64(field + 3));
        call.each(place, &[place, velocity], n, |of| of[0] + of[1] * dt)?;
    }
    Ok(())
}

fn of_structures(params: &Params) -> Vec<Access> {
    let numbers = params.u64(1).saturating_mul(params.u64(3));
    vec![floats(params.u64(0), numbers, true)]
}

fn of_arrays(params: &Params) -> Vec<Access> {
    let array = |field: usize| floats(params.u64(field), params.u64(7), field < 3);
    (0..6).map(array).collect()
}

/// Returns the sum of the lengths of all accesses.
fn bytes(accesses: &[Access]) -> u64 {
    let lengths = accesses.iter().map(|access| access.len);
    lengths.fold(0, u64::saturating_add)
}

pub(super) fn register(kernels: &mut Kernels) {
    let mut add = |name: &str,
                   sizes: &[usize],
                   accesses: fn(&Params) -> Vec<Access>,
                   run: fn(&Params, &Call<'_>) -> Answer| {
        let read = |params: &Params| Ok(params.clone());
        kernels.add(
            name,
            sizes,
            read,
            accesses,
            move |params| bytes(&accesses(params)),
            run,
        );
    };
    add(
        "millpond_move_structures",
        &[8, 8, 4, 8],
        of_structures,
        structures,
    );
    add(
        "millpond_move_arrays",
        &[8, 8, 8, 8, 8, 8, 4, 8],
        of_arrays,
        arrays,
    );
}
