//! A recorded program in the form for an allocator of host memory: blocks that are allocated and freed.

use millpond_replay::{OpKind, Program};
use std::io::Read;

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Allocates a block into a place.
    Alloc { place: u32, bytes: u64 },
    /// Frees the block in a place.
    Free { place: u32 },
}

/// A program with divided sizes. Invariant: a place is filled only while it is empty and emptied only while it is full, every
/// place is below `places`, and `bytes` is never 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tape {
    pub(crate) steps: Vec<Step>,
    /// The number of places, which is the most blocks at once.
    pub(crate) places: u32,
    pub(crate) allocations: u64,
    /// The most bytes held at once.
    pub(crate) peak: u64,
    /// Blocks that no call frees.
    pub(crate) left: u64,
    /// Frees of blocks that the program does not have. They are ignored.
    pub(crate) unknown_frees: u64,
}

impl Tape {
    /// Returns the program with each size divided and rounded up.
    ///
    /// A host has no streams. A block is free when the program frees it, even if a stream still used it then.
    pub(crate) fn new(program: &Program, divisor: u64) -> Self {
        const EMPTY: u32 = u32::MAX;
        let mut tape = Self {
            steps: Vec::with_capacity(program.ops.len()),
            places: 0,
            allocations: 0,
            peak: 0,
            left: 0,
            unknown_frees: 0,
        };
        let mut place_of = vec![EMPTY; program.allocations as usize];
        let mut bytes_of = Vec::new();
        let mut vacant = Vec::new();
        // The second half of a free in two halves finds no block, but it is not an unknown free.
        let mut given_back = vec![false; program.allocations as usize];
        let mut live = 0u64;
        for op in &program.ops {
            let at = op.allocation as usize;
            match op.kind {
                OpKind::Alloc => {
                    let bytes = op.bytes.div_ceil(divisor.max(1)).max(1);
                    let place = vacant.pop().unwrap_or_else(|| {
                        bytes_of.push(0);
                        tape.places += 1;
                        tape.places - 1
                    });
                    place_of[at] = place;
                    bytes_of[place as usize] = bytes;
                    live = live.saturating_add(bytes);
                    tape.peak = tape.peak.max(live);
                    tape.allocations += 1;
                    tape.steps.push(Step::Alloc { place, bytes });
                }
                OpKind::Free | OpKind::FreeRequested | OpKind::FreeCompleted => {
                    let place = place_of
                        .get_mut(at)
                        .map_or(EMPTY, |p| std::mem::replace(p, EMPTY));
                    if place != EMPTY {
                        live = live.saturating_sub(bytes_of[place as usize]);
                        vacant.push(place);
                        given_back[at] = true;
                        tape.steps.push(Step::Free { place });
                    } else if !given_back.get(at).is_some_and(|back| *back) {
                        tape.unknown_frees += 1;
                    }
                }
                OpKind::SegmentFree => {}
            }
        }
        tape.left = place_of.iter().filter(|place| **place != EMPTY).count() as u64;
        tape
    }

    /// Returns the number of pages that are written if one byte of each page is. A block of any size has at least one page.
    pub(crate) fn pages(&self) -> u64 {
        let pages = |step: &Step| match step {
            Step::Alloc { bytes, .. } => bytes.div_ceil(4096),
            Step::Free { .. } => 0,
        };
        self.steps.iter().map(pages).fold(0, u64::saturating_add)
    }

    /// Encodes the program for a child.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32 + 12 * self.steps.len());
        bytes.extend((self.steps.len() as u64).to_le_bytes());
        for number in [u64::from(self.places), self.allocations, self.peak] {
            bytes.extend(number.to_le_bytes());
        }
        for step in &self.steps {
            // No block has a size of 0, so 0 stands for a free.
            let (place, size) = match *step {
                Step::Alloc { place, bytes } => (place, bytes),
                Step::Free { place } => (place, 0),
            };
            bytes.extend(place.to_le_bytes());
            bytes.extend(size.to_le_bytes());
        }
        bytes
    }

    /// Decodes the program that a parent wrote. Returns `None` if the input is invalid.
    ///
    /// Nothing is freed in between. When glibc gets back its first large block, it adjusts how much its heap keeps, and the
    /// measured heap may be glibc's.
    pub(crate) fn decode(from: &mut impl Read) -> Option<Self> {
        let mut head = [0; 32];
        from.read_exact(&mut head).ok()?;
        let number = |at: usize| Some(u64::from_le_bytes(head.get(8 * at..8 * at + 8)?.try_into().ok()?));
        let mut tape = Self {
            steps: Vec::new(),
            places: u32::try_from(number(1)?).ok()?,
            allocations: number(2)?,
            peak: number(3)?,
            left: 0,
            unknown_frees: 0,
        };
        let count = usize::try_from(number(0)?).ok()?;
        tape.steps.try_reserve_exact(count).ok()?;
        for _ in 0..count {
            let (mut place, mut bytes) = ([0; 4], [0; 8]);
            from.read_exact(&mut place).ok()?;
            from.read_exact(&mut bytes).ok()?;
            let place = u32::from_le_bytes(place);
            (place < tape.places).then_some(())?;
            tape.steps.push(match u64::from_le_bytes(bytes) {
                0 => Step::Free { place },
                bytes => Step::Alloc { place, bytes },
            });
        }
        (from.read(&mut [0]).ok()? == 0).then_some(tape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_replay::Selection;
    use millpond_trace::{ReadOptions, read_bytes};

    pub(crate) fn program(csv: &str) -> Program {
        let text = format!("time_us,action,id,bytes,stream,tag\n{csv}");
        let recording = read_bytes(text.as_bytes(), "made", &ReadOptions::default()).unwrap();
        Program::new(&recording.traces[0], Selection::default()).unwrap()
    }

    #[test]
    fn places_are_used_again_and_what_stays_is_counted() {
        let tape = Tape::new(
            &program("0,alloc,1,100,0,\n1,alloc,2,50,1,\n2,free,1,100,0,\n3,alloc,3,7,0,\n"),
            1,
        );
        let alloc = |place, bytes| Step::Alloc { place, bytes };
        let steps = [alloc(0, 100), alloc(1, 50), Step::Free { place: 0 }, alloc(0, 7)];
        assert_eq!(tape.steps, steps);
        assert_eq!(
            (tape.places, tape.allocations, tape.peak, tape.left),
            (2, 3, 150, 2)
        );
    }

    #[test]
    fn sizes_are_divided_upwards_and_never_to_nothing() {
        let tape = Tape::new(
            &program("0,alloc,1,100,0,\n1,alloc,2,1,0,\n2,free,1,100,0,\n"),
            64,
        );
        assert_eq!(tape.steps[0], Step::Alloc { place: 0, bytes: 2 });
        assert_eq!(tape.steps[1], Step::Alloc { place: 1, bytes: 1 });
        assert_eq!((tape.peak, tape.pages()), (3, 2));
    }

    #[test]
    fn a_block_is_free_when_it_is_given_back_and_only_once() {
        let op = |kind, allocation| millpond_replay::Op {
            bytes: 64,
            address: 0,
            allocation,
            event: allocation,
            stream: 0,
            pool: 0,
            kind,
        };
        let mut program = program("0,alloc,1,64,0,\n1,alloc,2,64,0,\n");
        program.ops = vec![
            op(OpKind::Alloc, 0),
            op(OpKind::FreeRequested, 0),
            op(OpKind::Alloc, 1),
            op(OpKind::FreeCompleted, 0),
            op(OpKind::SegmentFree, u32::MAX),
        ];
        let tape = Tape::new(&program, 1);
        assert_eq!((tape.steps.len(), tape.peak, tape.left), (3, 64, 1));
        assert_eq!(tape.unknown_frees, 0);
        program.ops[0] = op(OpKind::Free, 0);
        assert_eq!(Tape::new(&program, 1).unknown_frees, 3);
    }

    #[test]
    fn a_child_reads_what_its_parent_wrote_and_nothing_else() {
        let mut tape = Tape::new(
            &program("0,alloc,1,100,0,\n1,alloc,2,50,1,\n2,free,1,100,0,\n"),
            1,
        );
        let decode = |bytes: &[u8]| Tape::decode(&mut &*bytes);
        let bytes = tape.encode();
        // The child does not need this field.
        tape.left = 0;
        assert_eq!(decode(&bytes), Some(tape));
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None, "{cut}");
        }
        assert_eq!(decode(&[bytes.as_slice(), &[0]].concat()), None);
        let mut beyond = bytes;
        beyond[44] = 2;
        assert_eq!(decode(&beyond), None);
    }
}
