//! Pickles as plain data.
//!
//! A pickle is a program for a small stack machine, and CPython's machine calls any function the program
//! names. This one knows only data: opcodes that could find or call code are refused by name. It builds a
//! flat [`Arena`] of four-byte values, so nothing recurses: neither building, nor walking, nor dropping a
//! value two million deep, and a value that contains itself is just a number that occurs twice.

mod arena;
mod containers;
mod flat;
mod load;
mod machine;
mod opcode;
mod rare;
mod references;
mod runs;
mod stop;
mod text;
mod value;
mod window;

pub(crate) use arena::Arena;
pub(crate) use load::load;
pub(crate) use value::Value;

/// The number under which a sieve keeps what matters of a dict; the arena then has only the number.
#[derive(Clone, Copy)]
pub(crate) enum Taken {
    /// This dict's own.
    Own(u32),
    /// That of all dicts which say the same; what is set in one of them later does not matter.
    Constant(u32),
}

impl Taken {
    fn number(self) -> u32 {
        match self {
            Self::Own(number) | Self::Constant(number) => number,
        }
    }
}

/// What a reader takes out of dicts and lists as they fill, so that the arena need not keep it.
///
/// Most of a snapshot is a million small dicts and lists of which a few numbers matter.
pub(crate) trait Sieve {
    /// The first pairs of a dict, keys and values in turn. None leaves them to the arena.
    fn take(&mut self, arena: &Arena, pairs: &[Value]) -> Option<Taken>;

    /// Further pairs of a dict that was taken.
    fn more(&mut self, arena: &Arena, number: u32, pairs: &[Value]);

    /// Dicts taken so far.
    fn taken(&self) -> usize;

    /// Moves those of a list's new items that matter to the front; how many they are.
    fn items(&mut self, arena: &Arena, items: &mut [Value]) -> usize;
}
