//! Runs a recorded program call by call.

use super::{Outcome, ResidentMemory};
use crate::host::allocator::{Allocator, Block, Shape, Touch};
use crate::host::figures::Figures;
use crate::host::gauge::Timed;
use crate::measure::Clock;
use crate::{Op, Program};

/// The alignment that tensor libraries request.
const ALIGN: usize = 64;

/// A block and the number of its allocation.
struct MarkedBlock<'a, A: Allocator> {
    block: Block<'a, A>,
    number: u64,
}

impl<A: Allocator> MarkedBlock<'_, A> {
    /// Returns the bytes for both ends, which differ from block to block and from each other.
    fn marks(&self) -> [(usize, u8, &'static str); 2] {
        let mixed = self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let last = self.block.size() - 1;
        // The last byte comes first. In a block of one byte, the first mark overwrites it.
        [(last, mixed[6], "last"), (0, mixed[7], "first")]
    }

    fn mark(&mut self) {
        for (at, byte, _) in self.marks() {
            self.block.put(at, byte);
        }
    }

    /// Returns an error if a marked byte was overwritten, for example by a block that overlaps.
    fn check(&self) -> Result<(), String> {
        let (number, size) = (self.number, self.block.size());
        for (at, wrote, which) in self.marks().into_iter().skip(usize::from(size == 1)) {
            // SAFETY: `mark` wrote this byte after the allocation.
            let read = unsafe { self.block.get(at) };
            if read != wrote {
                return Err(format!(
                    "block {number} of {size} bytes did not keep its contents: its {which} byte was written as {wrote} and read as {read}"
                ));
            }
        }
        Ok(())
    }
}

/// Runs the program. Blocks that are left at the end are freed within the measured time.
pub(crate) fn run<A: Allocator>(from: &A, program: &Program, touch: Touch, check: bool) -> Outcome<Figures> {
    let mut held: Vec<Option<MarkedBlock<'_, A>>> = Vec::new();
    held.resize_with(program.slots, || None);
    let mut number = 0;
    let resident_memory = ResidentMemory::start();
    let timed = Timed::start(Clock::Thread);
    for op in &program.ops {
        match *op {
            Op::Alloc { slot, bytes, .. } => {
                number += 1;
                let size = usize::try_from(bytes)?;
                let mut block = Block::new(from, Shape::new(size, ALIGN))
                    .map_err(|error| format!("block {number}: {error}"))?;
                block.touch(touch);
                let mut one = MarkedBlock { block, number };
                if check {
                    one.mark();
                }
                held[slot as usize] = Some(one);
            }
            Op::Free { slot } => {
                let one = held[slot as usize].take();
                if let Some(one) = one.as_ref().filter(|_| check) {
                    one.check()?;
                }
            }
        }
    }
    if check {
        held.iter().flatten().try_for_each(MarkedBlock::check)?;
    }
    held.iter_mut().for_each(|one| *one = None);
    let times = vec![timed.stop("pair", program.allocations, 0)];
    Ok(Figures {
        times,
        memory: Some(resident_memory.end(from, program.peak, 0)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::control::Control;
    use std::cell::Cell;
    use std::ptr::NonNull;

    /// Returns a program of these slots and sizes. A size of 0 is a free.
    fn program(ops: &[(u32, u64)]) -> Program {
        let op = |&(slot, bytes): &(u32, u64)| match bytes {
            0 => Op::Free { slot },
            bytes => Op::Alloc {
                slot,
                stream: 0,
                bytes,
            },
        };
        Program {
            ops: ops.iter().map(op).collect(),
            slots: 3,
            allocations: 3,
            peak: 300,
            ..Program::default()
        }
    }

    /// Returns the same bytes for every allocation.
    struct Shared {
        all: Control,
        first: Cell<*mut u8>,
    }

    // SAFETY: it breaks the promise that blocks do not overlap, which is the purpose of the test. The bytes are written and read
    // one at a time in one thread, and stay allocated as long as this lives.
    unsafe impl Allocator for Shared {
        fn alloc(&self, shape: Shape) -> *mut u8 {
            if self.first.get().is_null() {
                self.first.set(self.all.alloc(shape));
            }
            self.first.get()
        }
        fn alloc_zeroed(&self, shape: Shape) -> *mut u8 {
            self.alloc(shape)
        }
        unsafe fn free(&self, _: NonNull<u8>, _: Shape) {}
    }

    fn shared() -> Shared {
        Shared {
            all: Control::new(),
            first: Cell::new(std::ptr::null_mut()),
        }
    }

    #[test]
    fn overlapping_blocks_are_errors() {
        for touch in [Touch::None, Touch::First, Touch::Page, Touch::Full] {
            let program = program(&[(0, 100), (1, 100), (0, 0), (1, 0)]);
            let error = run(&shared(), &program, touch, true).unwrap_err().to_string();
            assert!(
                error.starts_with("block 1 of 100 bytes did not keep its contents"),
                "{error}"
            );
        }
        // The program never frees this block, so the error is found at its end.
        let error = run(&shared(), &program(&[(2, 80), (0, 80)]), Touch::None, true).unwrap_err();
        assert!(error.to_string().starts_with("block 1 of 80 bytes"), "{error}");
        assert!(run(&shared(), &program(&[(2, 80), (0, 80)]), Touch::None, false).is_ok());
    }

    #[test]
    fn a_correct_allocator_passes() {
        let program = program(&[(0, 100), (1, 1), (0, 0), (2, 9000), (0, 2), (1, 0)]);
        for touch in [Touch::None, Touch::First, Touch::Page, Touch::Full] {
            for check in [false, true] {
                let figures = run(&Control::new(), &program, touch, check).unwrap();
                assert_eq!(figures.times[0].operations, 3);
                assert_eq!(figures.memory.map(|m| m.live), Some(300));
            }
        }
    }
}
