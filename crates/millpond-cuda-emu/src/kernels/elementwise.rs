//! Copies, fills, arithmetic and casts of `millpond`'s tensors (`elementwise.cu`).

use super::number::{Element, Factor, Wide, each_type, size};
use super::walk::{self, View, Walk};
use super::{Call, Kernels, Params};
use crate::error::{Answer, Code};

/// Registers a kernel that walks through views. `views` returns the views of a launch from its parameters.
pub(super) fn register_walk(
    kernels: &mut Kernels,
    name: &str,
    sizes: &[usize],
    views: impl Fn(&Params) -> Answer<Vec<View>> + Copy + Send + Sync + 'static,
    run: impl Fn(&Call<'_>, &Walk, &[View]) -> Answer + Send + Sync + 'static,
) {
    // A view that is absent has no address.
    let there = |(_, view): &(usize, &View)| view.at != 0;
    kernels.add(
        name,
        sizes,
        move |params| Ok((Walk::read(params, 0)?, views(params)?)),
        move |(walk, views)| {
            let views = views.iter().enumerate().filter(there);
            views.map(|(at, view)| walk.access(at, *view, 0)).collect()
        },
        move |(walk, views)| {
            let views = views.iter().enumerate().filter(there);
            views.map(|(at, view)| walk.bytes(at, view.size)).sum()
        },
        move |(walk, views), call| run(call, walk, views),
    );
}

/// Returns views whose elements have one size. Their addresses are the parameters from the second on, and the first view is
/// written.
pub(super) fn of_size<const N: usize>(params: &Params, size: u64) -> Vec<View> {
    (0..N)
        .map(|view| View {
            at: params.u64(view + 1),
            size,
            write: view == 0,
        })
        .collect()
}

fn copy<const N: usize>(call: &Call<'_>, walk: &Walk, views: &[View]) -> Answer {
    let to = walk.reach(call, 0, views[0], 0)?;
    let size = N as u64;
    if views[1].at == 0 {
        let value: [u8; N] = call.launch.params.bytes(3);
        walk.each(|[into, ..]| to.put(into * size, &value));
    } else {
        let from = walk.reach(call, 1, views[1], 0)?;
        walk.each(|[into, place, _]| to.put(into * size, &from.get::<N>(place * size)));
    }
    Ok(())
}

fn binary<T: Element>(call: &Call<'_>, walk: &Walk, views: &[View]) -> Answer {
    let params = &call.launch.params;
    let number = |index: usize| T::of_bytes(&params.0[index]);
    let (value, factor) = (number(4), number(5));
    let apply = match params.u32(6) {
        0 => T::plus,
        1 => T::minus,
        2 => T::times,
        3 => T::over,
        4 => |left, right| T::minus(right, left),
        5 => |left, right| T::over(right, left),
        6 => T::plus,
        _ => return Err(Code::ILLEGAL_ADDRESS),
    };
    let scaled = params.u32(6) == 6;
    let to = walk.reach(call, 0, views[0], 0)?;
    let left = walk.reach(call, 1, views[1], 0)?;
    let right = (views[2].at != 0).then(|| walk.reach(call, 2, views[2], 0));
    let right = right.transpose()?;
    walk.each(|[into, a, b]| {
        let other = right.as_ref().map_or(value, |right| T::get(right, b));
        let other = if scaled { factor.times(other) } else { other };
        apply(T::get(&left, a), other).put(&to, into);
    });
    Ok(())
}

fn cast<W: Wide>(call: &Call<'_>, walk: &Walk, views: &[View], types: [u32; 2]) -> Answer {
    let to = walk.reach(call, 0, views[0], 0)?;
    let from = walk.reach(call, 1, views[1], 0)?;
    walk.each(|[into, place, _]| W::load(&from, place, types[1]).store(&to, into, types[0]));
    Ok(())
}

/// Returns two views whose element types are given by parameters 3 and 4.
fn typed(params: &Params) -> Answer<Vec<View>> {
    let mut views = of_size::<2>(params, 0);
    views[0].size = size(params.u32(3))?;
    views[1].size = size(params.u32(4))?;
    Ok(views)
}

pub(super) fn register(kernels: &mut Kernels) {
    macro_rules! copies {
        ($($size:literal)*) => {
            $(register_walk(
                kernels,
                concat!("millpond_copy_", $size),
                &[walk::SIZE, 8, 8, $size],
                |params| Ok(of_size::<2>(params, $size)),
                copy::<$size>,
            );)*
        };
    }
    copies!(1 2 4 8 16);
    each_type!(T => register_walk(
        kernels,
        &format!("millpond_binary_{}", T::NAME),
        &[walk::SIZE, 8, 8, 8, T::SIZE, T::SIZE, 4],
        |params| Ok(of_size::<3>(params, T::SIZE as u64)),
        binary::<T>,
    ));
    register_walk(
        kernels,
        "millpond_cast",
        &[walk::SIZE, 8, 8, 4, 4],
        typed,
        |call, walk, views| {
            let types = [3, 4].map(|index| call.launch.params.u32(index));
            match types[1] {
                0..=3 => cast::<f64>(call, walk, views, types),
                4..=7 => cast::<i64>(call, walk, views, types),
                _ => cast::<u64>(call, walk, views, types),
            }
        },
    );
}
