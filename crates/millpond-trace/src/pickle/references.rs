//! Reads lists of references, which are the stacks of events.

use super::Sieve;
use super::machine::Machine;
use super::opcode::{APPENDS, BINGET, LONG_BINGET};
use super::value::Value;

/// Returns the end of the run of `BINGET` and `LONG_BINGET` at `at`, or `None` if the end is not in the window.
///
/// The position of an opcode depends on the byte before it, so several opcodes of the same kind are skipped at once.
fn end_of_gets(window: &[u8], mut at: usize) -> Option<usize> {
    loop {
        if let Some(&word) = window.get(at..).and_then(|rest| rest.first_chunk()) {
            let word = u128::from_le_bytes(word);
            if word & FOUR_LONG.0 == FOUR_LONG.1 {
                at += 20;
                continue;
            }
            if word & FOUR_SHORT.0 == FOUR_SHORT.1 {
                at += 8;
                continue;
            }
        }
        let opcode = *window.get(at)?;
        if opcode & !WIDE != BINGET & !WIDE {
            return Some(at);
        }
        at += length_of_get(opcode);
    }
}

/// A mask for the opcode bytes of four consecutive opcodes in a word, and their value.
const FOUR_LONG: (u128, u128) = every(5, LONG_BINGET);
const FOUR_SHORT: (u128, u128) = every(2, BINGET);

const fn every(length: u32, opcode: u8) -> (u128, u128) {
    let ones = 1 | 1 << (8 * length) | 1 << (16 * length) | 1 << (24 * length);
    (0xff * ones, opcode as u128 * ones)
}

/// The bit in which the two opcodes differ.
const WIDE: u8 = BINGET ^ LONG_BINGET;

/// Returns the length of an opcode with its argument: 2 or 5 bytes.
#[inline]
fn length_of_get(opcode: u8) -> usize {
    let long = usize::from(opcode & WIDE);
    2 + long + long / 2
}

impl<S: Sieve> Machine<'_, S> {
    /// Runs all of `run`, which contains only `BINGET` and `LONG_BINGET`. Returns `false` if a reference is invalid.
    ///
    /// The next opcode is unpredictable, so both are decoded from one word without a branch.
    fn gets(&mut self, run: &[u8]) -> bool {
        let mut at = 0;
        while let Some(&opcode) = run.get(at) {
            let index = match run[at + 1..].first_chunk() {
                Some(&word) => u32::from_le_bytes(word) & if opcode == BINGET { 0xff } else { u32::MAX },
                None => u32::from(run[at + 1]),
            };
            if self.get(index as usize).is_err() {
                return false;
            }
            at += length_of_get(opcode);
        }
        true
    }

    /// Fills `list` with the run of references after the mark at `mark_at`. Returns the position of the next opcode, or
    /// `None` if the list is not empty or no run follows.
    #[inline]
    pub(super) fn run(&mut self, window: &[u8], mark_at: usize, list: Value) -> Option<usize> {
        let at = mark_at + 1;
        if !matches!(window.get(at), Some(&(BINGET | LONG_BINGET))) || !self.arena.is_empty_list(list) {
            return None;
        }
        if let Some((items, length)) = self.runs.guess(&window[at..]) {
            self.arena.share(list, items);
            return Some(at + length);
        }
        self.unguessed_run(window, at, list)
    }

    /// Like [`Self::run`], for a run that does not match the guess.
    fn unguessed_run(&mut self, window: &[u8], from: usize, list: Value) -> Option<usize> {
        let end = end_of_gets(window, from)?;
        if window.get(end) != Some(&APPENDS) {
            return None;
        }
        let run = &window[from..=end];
        let hash = match self.runs.find(run) {
            Ok(items) => {
                self.arena.share(list, items);
                return Some(end + 1);
            }
            Err(hash) => hash,
        };
        let height = self.stack.len();
        if !self.gets(&window[from..end]) {
            // The machine runs into the same error again and reports it.
            self.stack.truncate(height);
            return None;
        }
        let kept = self.sieve.items(&self.arena, &mut self.stack[height..]);
        let items = self.arena.fill(list, &self.stack[height..][..kept]);
        self.stack.truncate(height);
        if let Some(items) = items.ok()? {
            self.runs.add(hash, run, items);
        }
        Some(end + 1)
    }
}
