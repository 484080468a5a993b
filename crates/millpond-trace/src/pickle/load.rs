//! Reads a pickle by running the machine on the buffered part of a file.
//!
//! An opcode with an incomplete argument changes nothing and reports how many bytes it needs. It runs again when they
//! are buffered.

use super::Sieve;
use super::arena::Arena;
use super::machine::Machine;
use super::stop::{Stop, Within};
use super::value::Value;
use crate::{ReadError, source::Source};

/// Number of containers for each line that a compressed file may have. Recorded snapshots need a tenth of this, and a
/// small one without a history needs three quarters.
const CONTAINERS_PER_LINE: usize = 4;

/// Reads the value of a pickle and the arena that contains it. The strings of the arena begin with `words`.
pub(crate) fn load(
    source: &mut Source<'_>,
    words: &[&str],
    sieve: &mut impl Sieve,
) -> Result<(Arena, Value), ReadError> {
    let mut machine = Machine::new(sieve, words, source.expected());
    loop {
        let window = source.buffered();
        let length = window.len();
        machine.before = source.offset();
        let mut at = 0;
        let stop = loop {
            match machine.step(window, at) {
                Ok(next) => at = next,
                Err(stop) => break *stop,
            }
        };
        source.consume(at);
        source.check_lines(machine.sieve.taken() as u64)?;
        source.check_lines((machine.arena.containers() / CONTAINERS_PER_LINE) as u64)?;
        let offset = source.offset();
        match stop {
            Stop::Done(value) => return Ok((machine.arena, value)),
            Stop::Short { wanted, within } => {
                let had = length - at;
                source.fill(wanted)?;
                if source.buffered().len() == had {
                    let what = match within {
                        Within::Opcode => "the file ends before STOP".to_owned(),
                        Within::Text(bytes) => format!("the file ends within a string of {bytes} bytes"),
                        Within::Line => "the file ends within a line of text".to_owned(),
                    };
                    return Err(ReadError::Pickle { offset, what });
                }
            }
            Stop::Skip { head, length } => {
                source.consume(head);
                skip(source, offset, length)?;
                // The opcode has already reserved space for it.
                machine.stack.push(Value::OPAQUE);
            }
            Stop::Fault(what) => return Err(ReadError::Pickle { offset, what }),
            Stop::Call(opcode) => return Err(ReadError::PickleCall { opcode, offset }),
        }
    }
}

/// Skips a value of any length that is not needed.
fn skip(source: &mut Source<'_>, opcode_at: u64, mut length: u64) -> Result<(), ReadError> {
    while length > 0 {
        source.fill(1)?;
        let step = length.min(source.buffered().len() as u64);
        if step == 0 {
            return Err(ReadError::Pickle {
                offset: opcode_at,
                what: "the file ends within bytes".to_owned(),
            });
        }
        source.consume(step as usize);
        length -= step;
    }
    Ok(())
}
