//! Reads opcodes and their arguments from the window, which is the buffered part of a file.

use super::opcode::argument_length;
use super::stop::{Step, Within, fault, short};

/// Maximum bytes of a string. Longer strings are not names.
pub(super) const LONGEST_TEXT: u64 = 64 << 20;

/// An opcode and its argument of fixed length. The bytes after a shorter argument are arbitrary.
pub(super) type Head = [u8; 9];

/// Returns the argument of an opcode.
#[inline(always)]
pub(super) fn argument<const N: usize>(head: &Head) -> [u8; N] {
    std::array::from_fn(|at| head[at + 1])
}

/// Returns the signed number in the lowest `length` bytes of `word`, from 1 to 8.
#[inline(always)]
pub(super) fn signed(word: [u8; 8], length: u32) -> i64 {
    let unused = 64 - 8 * length;
    i64::from_le_bytes(word) << unused >> unused
}

/// Returns the head of an opcode that is less than a [`Head`] from the end of the window.
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

/// Returns the `length` bytes after the first `head` bytes of the opcode at `at`.
#[inline]
pub(super) fn bytes(window: &[u8], at: usize, head: usize, length: u64) -> Step<&[u8]> {
    if length > LONGEST_TEXT {
        return fault(format!("a string claims to have {length} bytes"));
    }
    let length = length as usize;
    match window.get(at + head..).and_then(|rest| rest.get(..length)) {
        Some(bytes) => Ok(bytes),
        None => short(head + length, Within::Text(length)),
    }
}
