//! A recorded program in the form that a child process reads.

use crate::{Op, Program};
use std::io::Read;

impl Program {
    /// Returns the number of pages of all blocks together. Each block has at least one page.
    pub(crate) fn pages(&self) -> u64 {
        let pages = |op: &Op| match op {
            Op::Alloc { bytes, .. } => bytes.div_ceil(4096),
            Op::Free { .. } => 0,
        };
        self.ops.iter().map(pages).fold(0, u64::saturating_add)
    }

    /// Encodes the program for a child.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32 + 12 * self.ops.len());
        for number in [
            self.ops.len() as u64,
            self.slots as u64,
            self.allocations,
            self.peak,
        ] {
            bytes.extend(number.to_le_bytes());
        }
        for op in &self.ops {
            // No block has a size of 0, so 0 stands for a free.
            let (slot, size) = match *op {
                Op::Alloc { slot, bytes, .. } => (slot, bytes),
                Op::Free { slot } => (slot, 0),
            };
            bytes.extend(slot.to_le_bytes());
            bytes.extend(size.to_le_bytes());
        }
        bytes
    }

    /// Decodes the program that a parent wrote. Returns `None` if the input is invalid.
    ///
    /// This function frees no memory. When glibc frees its first large block, it adjusts how much memory its heap keeps, and the
    /// measured heap may be glibc's.
    pub(crate) fn decode(from: &mut impl Read) -> Option<Self> {
        let mut head = [0; 32];
        from.read_exact(&mut head).ok()?;
        let number = |at: usize| Some(u64::from_le_bytes(head.get(8 * at..8 * at + 8)?.try_into().ok()?));
        let mut program = Self {
            slots: usize::try_from(number(1)?).ok()?,
            allocations: number(2)?,
            peak: number(3)?,
            ..Self::default()
        };
        let count = usize::try_from(number(0)?).ok()?;
        program.ops.try_reserve_exact(count).ok()?;
        for _ in 0..count {
            let (mut slot, mut bytes) = ([0; 4], [0; 8]);
            from.read_exact(&mut slot).ok()?;
            from.read_exact(&mut bytes).ok()?;
            let slot = u32::from_le_bytes(slot);
            ((slot as usize) < program.slots).then_some(())?;
            program.ops.push(match u64::from_le_bytes(bytes) {
                0 => Op::Free { slot },
                bytes => Op::Alloc {
                    slot,
                    stream: 0,
                    bytes,
                },
            });
        }
        (from.read(&mut [0]).ok()? == 0).then_some(program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_replay::{OpKind, Program as Calls, Selection};
    use millpond_trace::{ReadOptions, read_bytes};

    fn alloc(slot: u32, bytes: u64) -> Op {
        let stream = 0;
        Op::Alloc { slot, stream, bytes }
    }

    fn calls(csv: &str) -> Calls {
        let text = format!("time_us,action,id,bytes,stream,tag\n{csv}");
        let recording = read_bytes(text.as_bytes(), "made", &ReadOptions::default()).unwrap();
        Calls::new(&recording.traces[0], Selection::default()).unwrap()
    }

    #[test]
    fn slots_are_reused_and_blocks_that_are_left_are_counted() {
        let program = Program::on_host(
            &calls("0,alloc,1,100,0,\n1,alloc,2,50,1,\n2,free,1,100,0,\n3,alloc,3,7,0,\n"),
            1,
        );
        let steps = [alloc(0, 100), alloc(1, 50), Op::Free { slot: 0 }, alloc(0, 7)];
        assert_eq!(program.ops, steps);
        assert_eq!(
            (program.slots, program.allocations, program.peak, program.left),
            (2, 3, 150, 2)
        );
    }

    #[test]
    fn divided_sizes_are_rounded_up() {
        let program = Program::on_host(&calls("0,alloc,1,100,0,\n1,alloc,2,1,0,\n2,free,1,100,0,\n"), 64);
        assert_eq!(program.ops[0], alloc(0, 2));
        assert_eq!(program.ops[1], alloc(1, 1));
        assert_eq!((program.peak, program.pages()), (3, 2));
    }

    #[test]
    fn a_block_is_freed_once_when_the_free_is_requested() {
        let op = |kind, allocation| millpond_replay::Op {
            bytes: 64,
            address: 0,
            allocation,
            event: allocation,
            stream: 0,
            pool: 0,
            kind,
        };
        let mut calls = calls("0,alloc,1,64,0,\n1,alloc,2,64,0,\n");
        calls.ops = vec![
            op(OpKind::Alloc, 0),
            op(OpKind::FreeRequested, 0),
            op(OpKind::Alloc, 1),
            op(OpKind::FreeCompleted, 0),
            op(OpKind::SegmentFree, u32::MAX),
        ];
        let program = Program::on_host(&calls, 1);
        assert_eq!((program.ops.len(), program.peak, program.left), (3, 64, 1));
        assert_eq!(program.unknown_frees, 0);
        calls.ops[0] = op(OpKind::Free, 0);
        assert_eq!(Program::on_host(&calls, 1).unknown_frees, 3);
    }

    #[test]
    fn a_program_is_decoded_only_if_it_is_complete_and_valid() {
        let mut program = Program::on_host(&calls("0,alloc,1,100,0,\n1,alloc,2,50,1,\n2,free,1,100,0,\n"), 1);
        let decode = |bytes: &[u8]| Program::decode(&mut &*bytes);
        let bytes = program.encode();
        // The child does not need this field.
        program.left = 0;
        assert_eq!(decode(&bytes), Some(program));
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None, "{cut}");
        }
        assert_eq!(decode(&[bytes.as_slice(), &[0]].concat()), None);
        let mut beyond = bytes;
        beyond[44] = 2;
        assert_eq!(decode(&beyond), None);
    }
}
