//! Pickles as plain data.
//!
//! A pickle is a program for a small stack machine, and CPython's machine calls any function the program
//! names. This one knows only data: opcodes that could find or call code are refused by name. It builds a
//! flat [`Arena`] of four-byte values, so nothing recurses: neither building, nor walking, nor dropping a
//! value two million deep, and a value that contains itself is just a number that occurs twice.

mod arena;
mod machine;
mod opcode;

pub(crate) use arena::{Arena, Value};
pub(crate) use machine::load;
