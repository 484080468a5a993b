//! Opcodes and their arguments in the window, which is what is buffered of a file.

use super::opcode::argument_length;
use super::stop::{Step, Within, fault, short};

/// Longer strings are no names.
pub(super) const LONGEST_TEXT: u64 = 64 << 20;

/// An opcode and the longest argument of fixed length; anything where the argument is shorter.
pub(super) type Head = [u8; 9];

/// The argument of an opcode.
#[inline(always)]
pub(super) fn argument<const N: usize>(head: &Head) -> [u8; N] {
    std::array::from_fn(|at| head[at + 1])
}

/// The number of which `word` begins with the lowest `length` bytes, 1 to 8 of them.
#[inline(always)]
pub(super) fn signed(word: [u8; 8], length: u32) -> i64 {
    let unused = 64 - 8 * length;
    i64::from_le_bytes(word) << unused >> unused
}

/// The head of an opcode that is less than a [`Head`] from the end of the window.
#[cold]
pub(super) fn last_head(window: &[u8], at: usize) -> Step<Head> {
    let rest = window.get(at..).unwrap_or_default();
    let wanted = 1 + rest.first().map_or(0, |&opcode| argument_length(opcode));
    if rest.len() < wanted {
        return short(wanted, Within::Opcode);
    }
    let mut head = [0; 9];
    head[..rest.len()].copy_from_slice(rest);
    Ok(head)
}

/// The `length` bytes that follow the first `head` ones of the opcode at `at`.
#[inline]
pub(super) fn bytes(window: &[u8], at: usize, head: usize, length: u64) -> Step<&[u8]> {
    if length > LONGEST_TEXT {
        return fault(format!("a string claims {length} bytes"));
    }
    let length = length as usize;
    match window.get(at + head..).and_then(|rest| rest.get(..length)) {
        Some(bytes) => Ok(bytes),
        None => short(head + length, Within::Text(length)),
    }
}
