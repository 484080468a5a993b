//! Reads pickles as plain data.
//!
//! A pickle is a program for a small stack machine, and CPython's machine calls any function that the program names.
//! This machine supports data only. It refuses opcodes that could find or call code. It builds a flat [`Arena`] of
//! four-byte values, so nothing recurses: neither building, nor walking, nor dropping a value that is two million
//! levels deep. A value that contains itself is a number that occurs twice.

mod arena;
mod containers;
mod flat;
mod load;
mod machine;
pub(crate) mod opcode;
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

/// The number under which a sieve keeps the relevant contents of a dict. The arena then contains only the number.
#[derive(Clone, Copy)]
pub(crate) enum Taken {
    /// The number of this dict only.
    Own(u32),
    /// The number of all dicts with the same contents. Later changes to one of them are ignored.
    Constant(u32),
}

impl Taken {
    fn number(self) -> u32 {
        match self {
            Self::Own(number) | Self::Constant(number) => number,
        }
    }
}

/// Takes the relevant values out of dicts and lists while they are read, so that the arena need not keep them.
///
/// Most of a snapshot is a million small dicts and lists with a few relevant numbers each.
pub(crate) trait Sieve {
    /// Takes the first pairs of a dict, with keys and values alternating. `None` leaves them to the arena.
    fn take(&mut self, arena: &Arena, pairs: &[Value]) -> Option<Taken>;

    /// Takes further pairs of a dict that was taken.
    fn more(&mut self, arena: &Arena, number: u32, pairs: &[Value]);

    /// Returns the number of dicts taken so far.
    fn taken(&self) -> usize;

    /// Moves the relevant items among a list's new items to the front. Returns their number.
    fn items(&mut self, arena: &Arena, items: &mut [Value]) -> usize;
}
