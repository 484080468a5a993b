//! Lists of references, which are the stacks of events.

use super::Sieve;
use super::machine::Machine;
use super::opcode::{APPENDS, BINGET, LONG_BINGET};
use super::value::Value;

/// Where the run of `BINGET` and `LONG_BINGET` at `at` ends; none if that is not in the window.
///
/// Where the next one is hangs on the byte before, so several of a kind are stepped over at once.
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

/// The bytes of a word in which four opcodes stand one behind the other, and what they are.
const FOUR_LONG: (u128, u128) = every(5, LONG_BINGET);
const FOUR_SHORT: (u128, u128) = every(2, BINGET);

const fn every(length: u32, opcode: u8) -> (u128, u128) {
    let ones = 1 | 1 << (8 * length) | 1 << (16 * length) | 1 << (24 * length);
    (0xff * ones, opcode as u128 * ones)
}

/// The bit by which the two opcodes differ.
const WIDE: u8 = BINGET ^ LONG_BINGET;

/// 2 bytes or 5.
#[inline]
fn length_of_get(opcode: u8) -> usize {
    let long = usize::from(opcode & WIDE);
    2 + long + long / 2
}

impl<S: Sieve> Machine<'_, S> {
    /// Runs all of `run`, which is `BINGET` and `LONG_BINGET` only; false if that cannot be.
    ///
    /// Which of the two comes next is a coin toss, so both are decoded from one word without a branch.
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

    /// Fills `list`, if empty, with the run of references behind the mark at `mark_at`, if that is what comes.
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

    /// Like [`Self::run`] for a run that is not the guessed one.
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
            // The machine meets it again and says so.
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
