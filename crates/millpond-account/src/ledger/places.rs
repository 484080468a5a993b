//! Groups stacks by the place in the program.
//!
//! The library has several paths to a block, a fast one and slower ones, and the compiler inlines varying parts of them
//! into the caller. Allocations by one line of the program can therefore have stacks with different addresses. The
//! program's own frames, by function and line, are equal, so they identify the place. They are resolved here when a
//! report is requested, and never during an allocation. A frame without a name and line is identified by its address.
//!
//! A stack is limited to a number of frames, so a longer path in the library leaves fewer frames for the program. A
//! truncated stack belongs to the place of the stack that continues it, if all stacks that continue it have the same
//! place.

use super::stack::{Frame, Stack, may_resolve, resolve, user_part};
use super::stacks::FRAMES;
use std::collections::{HashMap, HashSet};

/// The map from stacks to places.
pub(crate) struct Places(HashMap<Stack, Stack>);

/// The identity of a frame.
#[derive(PartialEq, Eq, Hash)]
enum Step {
    Line(String, String, u32),
    Address(usize),
}

impl Step {
    fn of(frame: &Frame) -> Self {
        match (&frame.function, &frame.file, frame.line) {
            (Some(function), Some(file), Some(line)) => Self::Line(function.clone(), file.clone(), line),
            _ => Self::Address(frame.address),
        }
    }
}

/// The steps of a stack in the program, the innermost first, each as a number.
struct Way<'a> {
    steps: Vec<u32>,
    stack: &'a Stack,
}

impl Way<'_> {
    fn is_cut(&self) -> bool {
        self.stack.addresses().len() >= FRAMES
    }
}

/// The names and numbers of resolved addresses. Each address is resolved once.
struct Lookup<'a> {
    resolve: &'a dyn Fn(usize) -> Vec<Frame>,
    frames: HashMap<usize, Vec<(Frame, u32)>>,
    steps: HashMap<Step, u32>,
}

impl Lookup<'_> {
    fn steps_of(&mut self, stack: &Stack) -> Vec<u32> {
        for address in stack.addresses() {
            if !self.frames.contains_key(address) {
                let frames = (self.resolve)(*address);
                let numbered = frames.into_iter().map(|frame| self.numbered(frame)).collect();
                self.frames.insert(*address, numbered);
            }
        }
        let found = stack.addresses().iter().filter_map(|at| self.frames.get(at));
        let (frames, steps): (Vec<&Frame>, Vec<u32>) =
            found.flatten().map(|(frame, step)| (frame, *step)).unzip();
        steps.get(user_part(&frames)).unwrap_or_default().to_vec()
    }

    fn numbered(&mut self, frame: Frame) -> (Frame, u32) {
        let next = self.steps.len() as u32;
        let step = *self.steps.entry(Step::of(&frame)).or_insert(next);
        (frame, step)
    }
}

impl Places {
    /// Finds the places of the given stacks.
    pub(crate) fn of<'a>(stacks: impl IntoIterator<Item = &'a Stack>) -> Self {
        if !may_resolve() {
            return Self(HashMap::new());
        }
        Self::by(stacks, &resolve)
    }

    pub(super) fn by<'a>(
        stacks: impl IntoIterator<Item = &'a Stack>,
        resolve: &dyn Fn(usize) -> Vec<Frame>,
    ) -> Self {
        let mut lookup = Lookup {
            resolve,
            frames: HashMap::new(),
            steps: HashMap::new(),
        };
        let mut seen = HashSet::new();
        let distinct = stacks.into_iter().filter(|stack| seen.insert(*stack));
        let mut ways: Vec<Way<'_>> = distinct
            .map(|stack| Way {
                steps: lookup.steps_of(stack),
                stack,
            })
            .collect();
        // Stacks that continue another one follow directly after it. Of equal steps, truncated stacks come first.
        ways.sort_by(|a, b| a.steps.cmp(&b.steps).then(b.is_cut().cmp(&a.is_cut())));
        let places = places(&ways).into_iter();
        let to_place =
            |(way, place): (&Way<'_>, usize)| Some((way.stack.clone(), ways.get(place)?.stack.clone()));
        Self(ways.iter().zip(places).filter_map(to_place).collect())
    }

    /// Returns the stack that represents the place of the given one.
    pub(crate) fn place_of(&self, stack: &Stack) -> Stack {
        self.0.get(stack).unwrap_or(stack).clone()
    }
}

/// Returns for each of these sorted ways the index of the one that represents its place.
fn places(ways: &[Way<'_>]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..ways.len()).collect();
    for (at, way) in ways.iter().enumerate().rev() {
        let after = ways.get(at + 1..).unwrap_or_default();
        let same = after.first().is_some_and(|next| next.steps == way.steps);
        let goes_on = match (same, way.is_cut()) {
            (true, _) => 1,
            (false, true) => after.partition_point(|next| next.steps.starts_with(&way.steps)),
            (false, false) => 0,
        };
        let mut found = places.iter().skip(at + 1).take(goes_on).copied();
        if let Some(one) = found.next()
            && found.all(|other| other == one)
        {
            places[at] = one;
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: usize = 1000;
    const WITHOUT_LINE: usize = 2000;
    const UNKNOWN: usize = 3000;

    /// Addresses from 1000 on belong to the library. The others belong to the program, with two addresses for each
    /// line.
    fn frame(address: usize) -> Vec<Frame> {
        let (function, line) = match address {
            UNKNOWN.. => (None, None),
            WITHOUT_LINE.. => (Some("app::stripped".to_owned()), None),
            LIBRARY.. => (Some(format!("millpond::way_{address}")), Some(1)),
            _ => (Some("app::load".to_owned()), Some(address as u32 / 2)),
        };
        vec![Frame {
            address,
            file: line.map(|_| "model.rs".to_owned()),
            function,
            line,
        }]
    }

    /// Numbers the places in the order of their first occurrence.
    fn told(stacks: &[&[usize]]) -> Vec<usize> {
        let stacks: Vec<Stack> = stacks.iter().map(|addresses| Stack::new(addresses)).collect();
        let places = Places::by(&stacks, &frame);
        let mut seen = Vec::new();
        let number = |stack| {
            let place = places.place_of(stack);
            let known = seen.iter().position(|other| *other == place);
            known.unwrap_or_else(|| {
                seen.push(place);
                seen.len() - 1
            })
        };
        stacks.iter().map(number).collect()
    }

    /// Makes a truncated stack: the given number of library frames, and as many program frames as fit.
    fn cut(library: usize, program: &[usize]) -> Vec<usize> {
        let ours = LIBRARY..LIBRARY + library;
        let mut all: Vec<usize> = ours.chain(program.iter().copied()).collect();
        assert!(all.len() >= FRAMES, "nothing to cut off");
        all.truncate(FRAMES);
        all
    }

    #[test]
    fn stacks_that_differ_only_in_library_frames_are_one_place() {
        assert_eq!(told(&[&[1001, 1002, 2, 8], &[1003, 2, 8], &[2, 8]]), [0, 0, 0]);
        assert_eq!(told(&[&[1001, 2, 8], &[1001, 4, 8], &[1001, 2, 6]]), [0, 1, 2]);
        // A callback of the program that the library calls. The library's outer frames are not at the inner end.
        assert_eq!(told(&[&[1001, 2, 1005, 8], &[1001, 2, 1006, 8]]), [0, 1]);
    }

    #[test]
    fn one_line_with_two_addresses_is_one_place() {
        assert_eq!(told(&[&[1001, 2, 8], &[1002, 3, 9]]), [0, 0]);
    }

    #[test]
    fn frames_without_names_or_lines_are_compared_by_address() {
        assert_eq!(told(&[&[3001, 3008], &[3002, 3008], &[3001, 3008]]), [0, 1, 0]);
        assert_eq!(
            told(&[&[1001, 2002, 8], &[1002, 2002, 8], &[1001, 2003, 8]]),
            [0, 0, 1]
        );
        let own = Stack::new(&[7]);
        assert_eq!(Places::by([], &frame).place_of(&own), own);
    }

    #[test]
    fn a_truncated_stack_belongs_to_the_place_that_continues_it() {
        let program: Vec<usize> = (1..=FRAMES).map(|n| 2 * n).collect();
        let (short, long) = (cut(3, &program), cut(9, &program));
        assert_eq!(told(&[&short, &long, &cut(20, &program)]), [0, 0, 0]);
        // A stack that ends there is another place, and a truncated one may belong to either.
        let ends = &program[..12];
        assert_eq!(told(&[ends, &short]), [0, 1]);
        assert_eq!(told(&[ends, &cut(20, &program)]), [0, 0]);
        let mut other = program.clone();
        other[25] = 999;
        assert_eq!(
            told(&[&cut(3, &other), &short, &long, &cut(8, &program)]),
            [0, 1, 2, 3]
        );
        assert_eq!(told(&[&cut(3, &other), &short, &cut(5, &program)]), [0, 1, 1]);
    }

    #[test]
    fn the_stack_with_the_most_program_frames_represents_its_place() {
        let program: Vec<usize> = (1..=FRAMES).map(|n| 2 * n).collect();
        let (short, long) = (Stack::new(&cut(3, &program)), Stack::new(&cut(9, &program)));
        let places = Places::by([&long, &short], &frame);
        assert_eq!(places.place_of(&long), short);
    }
}
