//! Sums, vector products and counts of zeros of `millpond`'s tensors (`sum.cu`).

use super::number::{Wide, size};
use super::walk::{self, View, Walk};
use super::{Call, Kernels, Params};
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
    to_size: u64,
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
            to_size: size(params.u32(4))?,
            of_type,
            what,
            share: params.u64(7),
        })
    }

    fn accesses(&self) -> Vec<Access> {
        let blocks = self.walk.len.div_ceil(self.share.max(1)).max(1);
        let to = Access {
            at: self.to,
            len: blocks.saturating_mul(self.to_size),
            write: true,
        };
        let mut all = vec![to, self.walk.access(1, self.left, 0)];
        all.extend(self.right.map(|right| self.walk.access(2, right, 0)));
        all
    }

    fn bytes(&self) -> u64 {
        let right = self.right.map_or(0, |right| self.walk.bytes(2, right.size));
        self.walk.bytes(1, self.left.size) + right
    }

    fn run<W: Wide>(&self, call: &Call<'_>) -> Answer {
        let blocks = u64::from(call.launch.grid[0]);
        let written = blocks.saturating_mul(self.to_size);
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

/// A launch of `millpond_sum_dim`: each sum has `many` summands, `apart` elements from each other.
struct SumDim {
    walk: Walk,
    to: View,
    from: View,
    to_type: u32,
    from_type: u32,
    many: u64,
    apart: u64,
    /// The elements behind the first summand.
    more: u64,
}

impl SumDim {
    fn read(params: &Params) -> Answer<Self> {
        let (to_type, from_type) = (params.u32(3), params.u32(4));
        let view = |index: usize, code: u32, write: bool| -> Answer<View> {
            Ok(View {
                at: params.u64(index),
                size: size(code)?,
                write,
            })
        };
        let (many, apart) = (params.u64(5), params.u64(6));
        let more = many.saturating_sub(1).checked_mul(apart);
        Ok(Self {
            walk: Walk::read(params, 0)?,
            to: view(1, to_type, true)?,
            from: view(2, from_type, false)?,
            to_type,
            from_type,
            many,
            apart,
            more: more.filter(|more| *more < 1 << 44).ok_or(Code::ILLEGAL_ADDRESS)?,
        })
    }

    fn accesses(&self) -> Vec<Access> {
        let mut all = vec![self.walk.access(0, self.to, 0)];
        all.extend((self.many > 0).then(|| self.walk.access(1, self.from, self.more)));
        all
    }

    fn bytes(&self) -> u64 {
        let read = self.walk.bytes(1, self.from.size).saturating_mul(self.many);
        self.walk.bytes(0, self.to.size) + read
    }

    fn run<W: Wide>(&self, call: &Call<'_>) -> Answer {
        let out = self.walk.reach(call, 0, self.to, 0)?;
        if self.many == 0 {
            self.walk
                .each(|[into, ..]| W::default().store(&out, into, self.to_type));
            return Ok(());
        }
        let all = self.walk.reach(call, 1, self.from, self.more)?;
        self.walk.each(|[into, place, _]| {
            let elements = (0..self.many).map(|at| W::load(&all, place + at * self.apart, self.from_type));
            elements
                .fold(W::default(), W::plus)
                .store(&out, into, self.to_type);
        });
        Ok(())
    }
}

fn register_type<W: Wide>(kernels: &mut Kernels) {
    kernels.add(
        &format!("millpond_sum_{}", W::NAME),
        &[walk::SIZE, 8, 8, 8, 4, 4, 4, 8],
        Sum::read,
        Sum::accesses,
        Sum::bytes,
        Sum::run::<W>,
    );
    kernels.add(
        &format!("millpond_sum_dim_{}", W::NAME),
        &[walk::SIZE, 8, 8, 4, 4, 8, 8],
        SumDim::read,
        SumDim::accesses,
        SumDim::bytes,
        SumDim::run::<W>,
    );
}

pub(super) fn register(kernels: &mut Kernels) {
    register_type::<f64>(kernels);
    register_type::<i64>(kernels);
    register_type::<u64>(kernels);
}
