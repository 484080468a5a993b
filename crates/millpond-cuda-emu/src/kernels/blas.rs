//! Matrix products as cuBLAS computes them: the kernels of the tensors, with a workspace and with rounded factors.

use super::matmul::register_type;
use super::number::Factor;
use super::{Cost, Kernel, Kernels, Launch, Params};
use crate::access::Access;
use crate::error::{Answer, Code};
use crate::memory::os::Reach;
use std::sync::Arc;

/// An `f32` whose factors are rounded to 11 bits before a multiplication.
#[derive(Clone, Copy)]
struct Tf32(f32);

impl Tf32 {
    fn rounded(self) -> f32 {
        // Adds half of the last bit that is kept, then clears the bits behind it.
        f32::from_bits(self.0.to_bits().wrapping_add(0x1000) & !0x1fff)
    }
}

impl Factor for Tf32 {
    const NAME: &'static str = "tf32";
    type Sum = f32;

    fn get(from: &Reach, at: u64) -> Self {
        Self(f32::get(from, at))
    }
    fn put(self, to: &Reach, at: u64) {
        self.0.put(to, at);
    }
    fn add_product(sum: f32, left: Self, right: Self) -> f32 {
        left.rounded().mul_add(right.rounded(), sum)
    }
    fn of_sum(sum: f32) -> Self {
        Self(sum)
    }
}

pub(super) fn register(kernels: &mut Kernels) {
    register_type::<Tf32>(kernels);
}

/// The byte with which a workspace is overwritten.
const RUINED: u8 = 0xA5;

impl Kernels {
    /// Returns a launch of a kernel of the tensors that first overwrites its workspace.
    pub(crate) fn blas(&self, name: &str, params: Params, workspace: Option<(u64, u64)>) -> Answer<Launch> {
        let kernel = Arc::clone(self.by_name.get(name).ok_or(Code::NOT_FOUND)?);
        let kernel = match workspace {
            Some(workspace) => Arc::new(working_in(workspace, kernel)),
            None => kernel,
        };
        Ok(Launch {
            kernel,
            grid: [1; 3],
            block: [1; 3],
            params,
        })
    }
}

fn working_in((at, len): (u64, u64), kernel: Arc<Kernel>) -> Kernel {
    let (runs, touches) = (Arc::clone(&kernel), Arc::clone(&kernel));
    let accesses = move |params: &Params| {
        let mut all = touches.accesses.as_ref().map_or_else(Vec::new, |of| of(params));
        all.push(Access { at, len, write: true });
        all
    };
    let cost = move |params: &Params| match &kernel.cost {
        Cost::Bytes(bytes) => bytes(params),
        Cost::Fixed(_) => 0,
    };
    let sizes = runs.sizes.clone();
    Kernel {
        accesses: Some(Box::new(accesses)),
        cost: Cost::Bytes(Box::new(cost)),
        ..Kernel::new(
            &sizes,
            0,
            Box::new(move |call| {
                call.memory.write(at, &vec![RUINED; len as usize])?;
                (runs.run)(call)
            }),
        )
    }
}
