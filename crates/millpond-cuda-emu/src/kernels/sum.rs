//! Sums, vector products and counts of zeros of `millpond`'s tensors (`sum.cu`).

use super::number::{Wide, size};
use super::walk::{self, View, Walk};
use super::{Call, Cost, Kernel, Kernels, Params};
use crate::access::Access;
use crate::error::{Answer, Code};

/// The summand of an element: the element itself, its product with another one, or whether it is 0.
const PRODUCT: u32 = 1;
const IS_ZERO: u32 = 2;

/// A launch of `millpond_sum`: one sum for each block, over `share` elements.
struct Sum {
    walk: Walk,
    to: u64,
    left: View,
    /// The other factor, for products.
    right: Option<View>,
    to_type: u32,
    of_type: u32,
    what: u32,
    share: u64,
}

impl Sum {
    fn read(params: &Params) -> Answer<Self> {
        let (of_type, what) = (params.u32(5), params.u32(6));
        let view = |index| -> Answer<View> {
            Ok(View {
                at: params.u64(index),
                size: size(of_type)?,
                write: false,
            })
        };
        Code::ILLEGAL_ADDRESS.when(what > IS_ZERO)?;
        Ok(Self {
            walk: Walk::read(params, 0)?,
            to: params.u64(1),
            left: view(2)?,
            right: (what == PRODUCT).then(|| view(3)).transpose()?,
            to_type: params.u32(4),
            of_type,
            what,
            share: params.u64(7),
        })
    }

    fn accesses(&self, blocks: u64) -> Answer<Vec<Access>> {
        let mut all = vec![Access {
            at: self.to,
            len: blocks.saturating_mul(size(self.to_type)?),
            write: true,
        }];
        all.push(self.walk.access(1, self.left, 0));
        all.extend(self.right.map(|right| self.walk.access(2, right, 0)));
        Ok(all)
    }

    fn run<W: Wide>(&self, call: &Call<'_>) -> Answer {
        let blocks = u64::from(call.launch.grid[0]);
        let written = blocks.saturating_mul(size(self.to_type)?);
        let to = call.memory.reach(self.to, written, true)?;
        let left = self.walk.reach(call, 1, self.left, 0)?;
        let right = self.right.map(|right| self.walk.reach(call, 2, right, 0));
        let right = right.transpose()?;
        let mut sums = vec![W::default(); blocks as usize];
        let mut number = 0;
        self.walk.each(|[_, a, b]| {
            let element = W::load(&left, a, self.of_type);
            let summand = match &right {
                Some(right) => element.times(W::load(right, b, self.of_type)),
                None if self.what == IS_ZERO => W::of_bool(element == W::default()),
                None => element,
            };
            // Elements beyond the last block are not added, as on a card.
            if let Some(sum) = sums.get_mut((number / self.share.max(1)) as usize) {
                *sum = sum.plus(summand);
            }
            number += 1;
        });
        for (block, sum) in sums.into_iter().enumerate() {
            sum.store(&to, block as u64, self.to_type);
        }
        Ok(())
    }
}

fn register_sum<W: Wide>(kernels: &mut Kernels) {
    let sizes = [walk::SIZE, 8, 8, 8, 4, 4, 4, 8];
    let blocks = |sum: &Sum| sum.walk.len.div_ceil(sum.share.max(1)).max(1);
    let accesses = move |params: &Params| {
        let accesses = Sum::read(params).and_then(|sum| sum.accesses(blocks(&sum)));
        accesses.unwrap_or_default()
    };
    let cost = |params: &Params| {
        Sum::read(params).map_or(0, |sum| {
            let right = sum.right.map_or(0, |right| sum.walk.bytes(2, right.size));
            sum.walk.bytes(1, sum.left.size) + right
        })
    };
    let run = |call: &Call<'_>| Sum::read(&call.launch.params)?.run::<W>(call);
    let kernel = Kernel {
        accesses: Some(Box::new(accesses)),
        cost: Cost::Bytes(Box::new(cost)),
        ..Kernel::new(&sizes, 0, Box::new(run))
    };
    kernels.register(&format!("millpond_sum_{}", W::NAME), kernel);
}

/// Returns, for a launch of `millpond_sum_dim`, the number of summands, their distance, and the elements behind the first summand.
fn along(params: &Params) -> Answer<(u64, u64, u64)> {
    let (many, apart) = (params.u64(5), params.u64(6));
    let more = many.saturating_sub(1).checked_mul(apart);
    let more = more.filter(|more| *more < 1 << 44).ok_or(Code::ILLEGAL_ADDRESS)?;
    Ok((many, apart, more))
}

fn register_sum_dim<W: Wide>(kernels: &mut Kernels) {
    let read = |params: &Params| -> Answer<(Walk, [View; 2])> {
        let view = |index: usize, code: u32, write: bool| -> Answer<View> {
            Ok(View {
                at: params.u64(index),
                size: size(code)?,
                write,
            })
        };
        let views = [view(1, params.u32(3), true)?, view(2, params.u32(4), false)?];
        Ok((Walk::read(params, 0)?, views))
    };
    let accesses = move |params: &Params| -> Vec<Access> {
        let all = read(params).and_then(|(walk, [to, from])| {
            let (many, _, more) = along(params)?;
            let mut all = vec![walk.access(0, to, 0)];
            all.extend((many > 0).then(|| walk.access(1, from, more)));
            Ok(all)
        });
        all.unwrap_or_default()
    };
    let cost = move |params: &Params| {
        read(params).map_or(0, |(walk, [to, from])| {
            walk.bytes(0, to.size) + walk.bytes(1, from.size).saturating_mul(params.u64(5))
        })
    };
    let run = move |call: &Call<'_>| {
        let params = &call.launch.params;
        let (walk, [to, from]) = read(params)?;
        let (many, apart, more) = along(params)?;
        let (to_type, from_type) = (params.u32(3), params.u32(4));
        let out = walk.reach(call, 0, to, 0)?;
        if many == 0 {
            walk.each(|[into, ..]| W::default().store(&out, into, to_type));
            return Ok(());
        }
        let all = walk.reach(call, 1, from, more)?;
        walk.each(|[into, place, _]| {
            let elements = (0..many).map(|at| W::load(&all, place + at * apart, from_type));
            elements.fold(W::default(), W::plus).store(&out, into, to_type);
        });
        Ok(())
    };
    let kernel = Kernel {
        accesses: Some(Box::new(accesses)),
        cost: Cost::Bytes(Box::new(cost)),
        ..Kernel::new(&[walk::SIZE, 8, 8, 4, 4, 8, 8], 0, Box::new(run))
    };
    kernels.register(&format!("millpond_sum_dim_{}", W::NAME), kernel);
}

pub(super) fn register(kernels: &mut Kernels) {
    register_sum::<f64>(kernels);
    register_sum::<i64>(kernels);
    register_sum::<u64>(kernels);
    register_sum_dim::<f64>(kernels);
    register_sum_dim::<i64>(kernels);
    register_sum_dim::<u64>(kernels);
}
