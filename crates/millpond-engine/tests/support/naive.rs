//! Naive models, written from the published rules. They use vectors and linear scans, and share no code with the
//! policies.

pub(crate) mod device;
pub(crate) mod rmm_pool;
pub(crate) mod torch_expandable;
pub(crate) mod torch_native;

use super::program::Op;

/// A model of a policy that predicts addresses.
pub(crate) trait Naive {
    /// Returns the address for a request, or `None` if it is refused.
    fn allocate(&mut self, bytes: u64, stream: u32, group: u32) -> Option<u64>;
    /// Frees the block at an address.
    fn free(&mut self, address: u64);
    /// Returns unused memory to the device.
    fn release(&mut self);
}

/// Runs a program on a model. Events complete at once, but they are only checked when memory is requested.
pub(crate) fn run(model: &mut dyn Naive, program: &[Op]) -> Vec<Option<u64>> {
    let mut live: Vec<u64> = Vec::new();
    let mut waiting: Vec<u64> = Vec::new();
    let mut answers = Vec::new();
    for op in program {
        let mut answer = None;
        match op {
            Op::Free { index, uses } if !live.is_empty() => {
                let address = live.remove(index % live.len());
                if uses.is_empty() {
                    model.free(address);
                } else {
                    waiting.push(address);
                }
            }
            Op::Free { .. } | Op::Step => {}
            Op::Alloc { .. } | Op::Complete | Op::Release | Op::Compact | Op::Tick(_) => {
                for address in waiting.drain(..) {
                    model.free(address);
                }
            }
        }
        match op {
            Op::Alloc { bytes, stream, group } => {
                answer = model.allocate(*bytes, *stream, *group);
                live.extend(answer);
            }
            Op::Release | Op::Compact => model.release(),
            _ => {}
        }
        answers.push(answer);
    }
    answers
}
